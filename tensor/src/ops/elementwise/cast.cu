// y = x in another type, overwritten. Floats round to nearest, ties to even. A float becomes an
// integer by truncation; a float out of range becomes the nearest integer, and NaN becomes 0. An
// integer wraps into a narrower type. Everything but 0 becomes true, NaN too. Each thread takes
// elements of the walk, or packs of elements, in a grid-stride loop; grids of one row.

__device__ inline void put(f32& y, double x) { y = (float)x; }
__device__ inline void put(f32& y, float x) { y = x; }
__device__ inline void put(f32& y, i64 x) { y = (float)x; }
__device__ inline void put(f64& y, double x) { y = x; }
__device__ inline void put(f64& y, float x) { y = (double)x; }
__device__ inline void put(f64& y, i64 x) { y = (double)x; }
template <typename X>
__device__ inline void put(f16& y, X x) { set(y, (float)x); }
template <typename X>
__device__ inline void put(bf16& y, X x) { set(y, (float)x); }
__device__ inline void put(i64& y, double x) { y = truncated(x); }
__device__ inline void put(i64& y, float x) { y = truncated((double)x); }
__device__ inline void put(i64& y, i64 x) { y = x; }
__device__ inline void put(i32& y, double x) { y = truncated_to_32(x); }
__device__ inline void put(i32& y, float x) { put(y, (double)x); }
__device__ inline void put(i32& y, i64 x) { y = (i32)x; }
__device__ inline void put(u8& y, double x) { y = (u8)truncated(x); }
__device__ inline void put(u8& y, float x) { y = (u8)truncated((double)x); }
__device__ inline void put(u8& y, i64 x) { y = (u8)x; }
template <typename X>
__device__ inline void put(bool& y, X x) { y = x != 0; }

template <typename Y, typename X>
__device__ inline void cast(Y* y, const X* x, const Walk<2>& walk) {
  constexpr u32 LEN = pack_len<X, Y>();
  u64 packs = is_row(walk) && is_aligned<LEN>(x) && is_aligned<LEN>(y) ? walk.len / LEN : 0;
  for (u64 i = thread_index(); i < packs; i += thread_count()) {
    Pack<X, LEN> from = load_pack<LEN>(x, i);
    Pack<Y, LEN> to;
#pragma unroll
    for (u32 k = 0; k < LEN; k++) put(to.at[k], widened(from.at[k]));
    store_pack<LEN>(y, i, to);
  }
  for (u64 i = LEN * packs + thread_index(); i < walk.len; i += thread_count()) {
    Places<2> at = places(walk, i);
    put(y[at.at[0]], widened(x[at.at[1]]));
  }
}

#define STAMP(X, x_name, Y, y_name)                                                       \
  extern "C" __global__ void cast_##x_name##_##y_name(Y* y, const X* x, Walk<2> walk) { \
    cast(y, x, walk);                                                                    \
  }

#define STAMP_FROM(X, x_name)       \
  STAMP(X, x_name, f64, f64)        \
  STAMP(X, x_name, f32, f32)        \
  STAMP(X, x_name, f16, f16)        \
  STAMP(X, x_name, bf16, bf16)      \
  STAMP(X, x_name, i64, i64)        \
  STAMP(X, x_name, i32, i32)        \
  STAMP(X, x_name, u8, u8)          \
  STAMP(X, x_name, bool, bool)

STAMP_FROM(f64, f64)
STAMP_FROM(f32, f32)
STAMP_FROM(f16, f16)
STAMP_FROM(bf16, bf16)
STAMP_FROM(i64, i64)
STAMP_FROM(i32, i32)
STAMP_FROM(u8, u8)
STAMP_FROM(bool, bool)
