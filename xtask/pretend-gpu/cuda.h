// CUDA C for the processor: what a kernel sees of its device. Kernels are compiled with this before
// them; `executor.cc` runs a fiber for each thread. What is here is what our kernels use.
#pragma once

#include <math.h>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "executor.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __constant__ static const
// One block runs at a time.
#define __shared__ static

// What calls into the executor is not looked at by the checks of memory.
#define PRETEND_UNSEEN __attribute__((no_sanitize("thread", "undefined"), noinline))

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

namespace pretend {

// Where the running thread is.
struct Here {
  uint3 thread;
  uint3 block;
  dim3 block_size;
  dim3 grid_size;
};
extern Here here;

void barrier(int line);
bool any(bool is_true, int line);
void warp_barrier(unsigned mask, int line);
// What the lane `source` of the warp gave to the same call.
uint64_t exchange(unsigned mask, uint64_t value, unsigned source, int line);
unsigned ballot(unsigned mask, bool is_true, int line);
unsigned lane();
void atomic(const void* address, size_t size_bytes);
void* dynamic_shared();

template <typename T>
PRETEND_UNSEEN T shuffle(unsigned mask, T value, unsigned source, int line) {
  static_assert(sizeof(T) <= 8, "one register or two");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = exchange(mask, bits, source, line);
  memcpy(&value, &bits, sizeof(T));
  return value;
}

template <typename T, typename F>
PRETEND_UNSEEN T update(T* address, F change) {
  atomic(address, sizeof(T));
  T before = *address;
  *address = change(before);
  return before;
}

// The arguments of a kernel, taken from where they lie.
template <auto F>
struct Registered;

template <typename... A, void (*F)(A...)>
struct Registered<F> {
  static constexpr size_t COUNT = sizeof...(A);
  struct Layout {
    size_t offsets[COUNT + 1] = {};
    size_t sizes[COUNT + 1] = {sizeof(A)..., 0};
    constexpr Layout() {
      const size_t aligns[] = {alignof(A)..., 1};
      size_t end = 0;
      for (size_t i = 0; i < COUNT; i++) {
        offsets[i] = (end + aligns[i] - 1) / aligns[i] * aligns[i];
        end = offsets[i] + sizes[i];
      }
    }
  };
  static constexpr Layout LAYOUT{};

  template <size_t... I>
  PRETEND_UNSEEN static void spread(const unsigned char* arguments, std::index_sequence<I...>) {
    F(*reinterpret_cast<const std::remove_reference_t<A>*>(arguments + LAYOUT.offsets[I])...);
  }
  static void call(const unsigned char* arguments) {
    spread(arguments, std::index_sequence_for<A...>());
  }
  static Kernel describe(const char* name) {
    return Kernel{name, COUNT, LAYOUT.offsets, LAYOUT.sizes, &call};
  }
};

struct Registration {
  explicit Registration(const Kernel& kernel);
};

}  // namespace pretend

#define PRETEND_KERNEL(name) \
  static pretend::Registration registered_##name(pretend::Registered<&name>::describe(#name));

#define threadIdx (pretend::here.thread)
#define blockIdx (pretend::here.block)
#define blockDim (pretend::here.block_size)
#define gridDim (pretend::here.grid_size)
#define warpSize 32

#define __syncthreads() pretend::barrier(__LINE__)
#define __syncthreads_or(is_true) pretend::any(is_true, __LINE__)
#define __syncwarp() pretend::warp_barrier(~0u, __LINE__)
#define __ballot_sync(mask, is_true) pretend::ballot(mask, is_true, __LINE__)
#define __shfl_sync(mask, value, source) \
  pretend::shuffle(mask, value, (source) & 31, __LINE__)
#define __shfl_xor_sync(mask, value, bits) \
  pretend::shuffle(mask, value, pretend::lane() ^ (bits), __LINE__)
#define __shfl_down_sync(mask, value, delta) \
  pretend::shuffle(mask, value, \
                   pretend::lane() + (delta) < 32 ? pretend::lane() + (delta) : pretend::lane(), \
                   __LINE__)
#define DYNAMIC_SHARED(type, name) \
  type* name = static_cast<type*>(pretend::dynamic_shared())

template <typename T>
T atomicAdd(T* address, T value) {
  return pretend::update(address, [=](T before) { return T(before + value); });
}
template <typename T>
T atomicMax(T* address, T value) {
  return pretend::update(address, [=](T before) { return before > value ? before : value; });
}
template <typename T>
T atomicOr(T* address, T value) {
  return pretend::update(address, [=](T before) { return T(before | value); });
}
template <typename T>
T atomicCAS(T* address, T expected, T value) {
  return pretend::update(address, [=](T before) { return before == expected ? value : before; });
}

inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>(static_cast<unsigned long long>(x) * y >> 32);
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __uint_as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline float __int_as_float(int bits) { return __builtin_bit_cast(float, bits); }
inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
template <typename T>
T __ldg(const T* address) {
  return *address;
}
inline int min(int x, int y) { return x < y ? x : y; }
inline unsigned min(unsigned x, unsigned y) { return x < y ? x : y; }
inline int max(int x, int y) { return x > y ? x : y; }
inline unsigned max(unsigned x, unsigned y) { return x > y ? x : y; }
