// What stands before each file of kernels. CUDA C without headers: NVRTC alone compiles it, and so
// does a C++ compiler behind `xtask/pretend-gpu/cuda.h`.
//
// A file with kernels for every float type is compiled once for each of f32, f64, f16 and bf16, with
// STORED defined as that: see `Stored` below. One that also has the line `// Integers, too.` is so
// for i64, i32, u8 and bool; one with the line `// For tensor cores.` is so for f32, f16 and bf16.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;
typedef float f32;
typedef double f64;

struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};

// An element as it is computed with: f64 as it is, other floats in f32, integers and truth values in
// i64.
__device__ inline float widened(float x) { return x; }
__device__ inline double widened(double x) { return x; }
__device__ inline i64 widened(i64 x) { return x; }
__device__ inline i64 widened(i32 x) { return x; }
__device__ inline i64 widened(u8 x) { return x; }
__device__ inline i64 widened(bool x) { return x; }
__device__ inline float widened(bf16 x) { return __uint_as_float((u32)x.bits << 16); }

// Rounds to nearest, ties to even; NaN stays one.
__device__ inline void set(float& y, float x) { y = x; }
__device__ inline void set(double& y, double x) { y = x; }
__device__ inline void set(i64& y, i64 x) { y = x; }
__device__ inline void set(i32& y, i64 x) { y = (i32)x; }
__device__ inline void set(u8& y, i64 x) { y = (u8)x; }
__device__ inline void set(bool& y, i64 x) { y = x != 0; }
__device__ inline void set(bf16& y, float x) {
  u32 bits = __float_as_uint(x);
  u32 rounded = bits + 0x7fff + (bits >> 16 & 1);
  y.bits = (u16)(x != x ? 0x7fc0 : rounded >> 16);
}

#ifdef __CUDACC__
__device__ inline float widened(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
__device__ inline void set(f16& y, float x) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
}
#define INFINITY_F __int_as_float(0x7f800000)
#else
__device__ inline float widened(f16 x) { return (float)__builtin_bit_cast(_Float16, x.bits); }
__device__ inline void set(f16& y, float x) { y.bits = __builtin_bit_cast(u16, (_Float16)x); }
#define INFINITY_F __builtin_inff()
#endif

// x · y + sum. Kernels are compiled such that no other product and sum become one operation, which
// rounds once: formulas have the processor's bits. Where many are summed up it is the faster one.
#ifdef __CUDACC__
__device__ inline float multiply_add(float x, float y, float sum) { return __fmaf_rn(x, y, sum); }
__device__ inline double multiply_add(double x, double y, double sum) {
  return __fma_rn(x, y, sum);
}
#else
template <typename T>
__device__ inline T multiply_add(T x, T y, T sum) {
  return x * y + sum;
}
#endif

// A number without what is behind its point: the nearest integer where there is none so large, 0 of
// NaN.
__device__ inline i64 truncated(double x) {
  const double END = 9223372036854775808.0;
  if (x != x) return 0;
  if (x >= END) return (i64)(~0ull >> 1);
  return x < -END ? (i64)(1ull << 63) : (i64)x;
}
__device__ inline i32 truncated_to_32(double x) {
  i64 whole = truncated(x), most = 0x7fffffff;
  return (i32)(whole > most ? most : whole < -most - 1 ? -most - 1 : whole);
}

#ifdef STORED
// What memory holds, and what is computed with; a kernel's name ends with the former's.
typedef STORED Stored;
typedef decltype(widened(Stored())) Computed;
#define WITH_TYPE(name, type) name##_##type
#define NAME_OF(name, type) WITH_TYPE(name, type)
#define KERNEL(name) NAME_OF(name, STORED)
// 1 for a type that is computed in f32.
#define HALF_f16 1
#define HALF_bf16 1
#define IS_HALF NAME_OF(HALF, STORED)
// 1 for a type that is computed in i64.
#define INTEGER_i64 1
#define INTEGER_i32 1
#define INTEGER_u8 1
#define INTEGER_bool 1
#define IS_INTEGER NAME_OF(INTEGER, STORED)
#endif

enum : u32 { ALL_LANES = 0xffffffffu };

// The number of this thread and of all threads, in grids of one row.
__device__ inline u64 thread_index() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline u64 thread_count() { return (u64)gridDim.x * blockDim.x; }

// The greater of both; NaN if one is.
template <typename T>
__device__ inline T greater(T x, T y) {
  return y > x || y != y ? y : x;
}

struct Sum {
  static __device__ float start() { return 0.0f; }
  template <typename T>
  static __device__ T join(T x, T y) { return x + y; }
};
struct Max {
  static __device__ float start() { return -INFINITY_F; }
  template <typename T>
  static __device__ T join(T x, T y) { return greater(x, y); }
};

// Joins a value of each thread of a block, in a fixed order; all threads get the result. `scratch`
// is 32 values of shared memory. Blocks have whole warps.
template <typename Join, typename T>
__device__ inline T join_block(T value, T* scratch, const Join& join = Join()) {
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (u32 bit = 16; bit > 0; bit /= 2) {
    value = join.join(value, __shfl_xor_sync(ALL_LANES, value, bit));
  }
  // Whoever still reads what the last call left has to be done with it.
  __syncthreads();
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  value = scratch[0];
  for (u32 other = 1; other < blockDim.x / 32; other++) value = join.join(value, scratch[other]);
  return value;
}

struct Least {
  static __device__ u64 join(u64 x, u64 y) { return y < x ? y : x; }
};

// What is wrong with a value that the host asked for; it reads this when it reads a value next.
struct Complaint {
  i64 position;  // of the first such value, from 1; 0 as long as nothing is wrong
  i64 value;
  i64 len;  // values have to be in 0..len
  u64 op;   // the operation, as the host counts them
};

// A size to divide by without a division, which takes a device some 20 instructions: the quotient of
// n < 2^31 is (n * magic / 2^32 + n) / 2^shift (Granlund and Montgomery, "Division by invariant
// integers using multiplication", PLDI 1994; the host finds magic and shift).
struct Divisor {
  u32 size;
  u32 magic;
  u64 shift;

  __device__ u32 quotient(u32 n) const { return (__umulhi(n, magic) + n) >> (u32)shift; }
};

// Sizes of a walk over elements, the last one the fastest, and how far each tensor goes for a step
// along each. A tensor that repeats its elements goes 0.
enum : u32 { RANK_MAX = 8 };

template <u32 TENSORS>
struct Walk {
  u64 len;
  u64 rank;
  u64 sizes[RANK_MAX];
  // Of sizes below 2^31: the magic of a `Divisor`, and its shift in the upper half.
  u64 divisors[RANK_MAX];
  i64 strides[TENSORS][RANK_MAX];
};

// Whether the walk goes from element to element of all tensors, as they lie in memory.
template <u32 TENSORS>
__device__ inline bool is_row(const Walk<TENSORS>& walk) {
  bool is_row = walk.rank == 1;
  for (u32 tensor = 0; tensor < TENSORS; tensor++) is_row &= walk.strides[tensor][0] == 1;
  return is_row;
}

// Elements that lie side by side, loaded and stored at once where memory is aligned to their size.
template <typename E, u32 LEN>
struct alignas(sizeof(E) * LEN) Pack {
  E at[LEN];
};

// As many of the largest of these elements as one access takes, which is 16 bytes.
template <typename X, typename Y = X>
__device__ constexpr u32 pack_len() {
  return 16 / (sizeof(X) > sizeof(Y) ? sizeof(X) : sizeof(Y));
}

// What is absent is aligned.
template <u32 LEN, typename E>
__device__ inline bool is_aligned(const E* x) {
  return (u64)x % sizeof(Pack<E, LEN>) == 0;
}

template <u32 LEN, typename E>
__device__ inline Pack<E, LEN> load_pack(const E* x, u64 pack) {
  return ((const Pack<E, LEN>*)x)[pack];
}

template <u32 LEN, typename E>
__device__ inline void store_pack(E* x, u64 pack, const Pack<E, LEN>& elements) {
  ((Pack<E, LEN>*)x)[pack] = elements;
}

#if defined(STORED) && !IS_INTEGER
// Lines of elements, each taken by a group of threads: `lanes` neighbours of a warp, a power of
// two, or a whole block of several warps. Of a line a thread has packs `lane`, `lane + lanes`, ..
struct LineGroup {
  u32 lanes;

  __device__ u32 lane() const { return threadIdx.x % lanes; }

  // The groups of a block take lines that follow each other, and every n-th of such. All threads of
  // a block go through as many: one that has no line left takes one of no elements.
  __device__ u32 in_block() const { return threadIdx.x / lanes; }
  __device__ u64 first_of_block() const { return (u64)blockIdx.x * (blockDim.x / lanes); }
  __device__ u64 step() const { return (u64)gridDim.x * (blockDim.x / lanes); }

  // Joins a value of each thread of the group, in a fixed order; all of them get the result.
  template <typename Join, typename T>
  __device__ T join(T value, T* scratch) const {
    if (lanes > 32) return join_block<Join>(value, scratch);
    for (u32 bit = lanes / 2; bit > 0; bit /= 2) {
      value = Join::join(value, __shfl_xor_sync(ALL_LANES, value, bit));
    }
    return value;
  }
};

enum : u32 { LINE_PACK = pack_len<Stored>(), HELD_PACKS = sizeof(Stored) == 2 ? 4 : 8 };

// Lines of several tensors that are read side by side. A thread holds packs of them in registers:
// lines of up to HELD_PACKS packs a thread are read once, however often they are gone through;
// longer ones once for each time.
template <u32 SOURCES>
struct HeldLines {
  const Stored* from[SOURCES];
  u64 len;
  u64 step;  // from element to element
  LineGroup group;
  // Whether they, and where results go, are whole packs that memory is aligned to.
  bool is_packed;
  u64 held_at;
  Pack<Stored, LINE_PACK> held[SOURCES][HELD_PACKS];

  __device__ HeldLines(u64 len, u64 step, LineGroup group, bool is_packed)
      : len(len), step(step), group(group), is_packed(is_packed), held_at(~0ull) {}

  // The element that a pack of this thread begins with.
  __device__ u64 start_of(u64 first, u32 p) const {
    return (first + p * group.lanes + group.lane()) * LINE_PACK;
  }

  // Elements of the pack that begins with one.
  __device__ u32 count_from(u64 start) const {
    return len - start < LINE_PACK ? (u32)(len - start) : (u32)LINE_PACK;
  }

  // All loads of a piece are under way before the first is waited for.
  __device__ void load(u64 first) {
    if (is_packed) {
#pragma unroll
      for (u32 p = 0; p < HELD_PACKS; p++) {
        u64 start = start_of(first, p);
#pragma unroll
        for (u32 source = 0; source < SOURCES; source++) {
          if (start >= len) continue;
          held[source][p] = load_pack<LINE_PACK>(from[source], start / LINE_PACK);
        }
      }
      return;
    }
#pragma unroll
    for (u32 p = 0; p < HELD_PACKS; p++) {
      u64 start = start_of(first, p);
      u32 count = start < len ? count_from(start) : 0;
#pragma unroll
      for (u32 k = 0; k < LINE_PACK; k++) {
#pragma unroll
        for (u32 source = 0; source < SOURCES; source++) {
          if (k < count) held[source][p].at[k] = from[source][(start + k) * step];
        }
      }
    }
  }

  // Calls with the first element's number and the elements of each source, for the packs of this
  // thread in order. What is beyond the end of a line is `beyond`.
  template <typename Work>
  __device__ void for_each_pack(Computed beyond, const Work& work) {
    for (u64 first = 0; first * LINE_PACK < len; first += HELD_PACKS * group.lanes) {
      if (held_at != first) load(first);
      held_at = first;
#pragma unroll
      for (u32 p = 0; p < HELD_PACKS; p++) {
        u64 start = start_of(first, p);
        if (start >= len) break;
        u32 count = is_packed ? (u32)LINE_PACK : count_from(start);
        Computed x[SOURCES][LINE_PACK];
#pragma unroll
        for (u32 k = 0; k < LINE_PACK; k++) {
#pragma unroll
          for (u32 source = 0; source < SOURCES; source++) {
            x[source][k] = k < count ? widened(held[source][p].at[k]) : beyond;
          }
        }
        work(start, x);
      }
    }
  }

  // Stores the elements from `start` on of a line that lies as these do.
  __device__ void put(Stored* to, u64 start, const Computed (&y)[LINE_PACK]) const {
    Pack<Stored, LINE_PACK> pack;
#pragma unroll
    for (u32 k = 0; k < LINE_PACK; k++) set(pack.at[k], y[k]);
    if (is_packed) return store_pack<LINE_PACK>(to, start / LINE_PACK, pack);
    u32 count = count_from(start);
#pragma unroll
    for (u32 k = 0; k < LINE_PACK; k++) {
      if (k < count) to[(start + k) * step] = pack.at[k];
    }
  }
};

// The largest of a line, and Σ exp(x - max), by one reading.
struct Powers {
  Computed max;
  Computed sum;
};

__device__ inline Powers powers_of(HeldLines<1>& line, Computed* scratch) {
  const Computed LEAST = (Computed)-INFINITY_F, ZERO = (Computed)0;
  Powers of = {LEAST, ZERO};
  line.for_each_pack(LEAST, [&](u64, const Computed (&x)[1][LINE_PACK]) {
    Computed max = of.max, sum = ZERO;
#pragma unroll
    for (u32 k = 0; k < LINE_PACK; k++) max = greater(max, x[0][k]);
    // Of nothing but -inf the powers are 0.
    Computed shift = max == LEAST ? ZERO : max;
#pragma unroll
    for (u32 k = 0; k < LINE_PACK; k++) sum += exp(x[0][k] - shift);
    of = {max, of.max == max ? of.sum + sum : of.sum * exp(of.max - shift) + sum};
  });
  Computed max = line.group.template join<Max>(of.max, scratch);
  Computed sum = of.max == max ? of.sum : of.sum * exp(of.max - max);
  return {max, line.group.template join<Sum>(sum, scratch)};
}
#endif

// Where each tensor is at an element of the walk.
template <u32 TENSORS>
struct Places {
  i64 at[TENSORS];
};

template <u32 TENSORS>
__device__ inline Places<TENSORS> places(const Walk<TENSORS>& walk, u64 index) {
  Places<TENSORS> places = {};
  bool is_short = walk.len >> 31 == 0;
#pragma unroll
  for (u32 step = 0; step < RANK_MAX; step++) {
    u32 axis = RANK_MAX - 1 - step;
    if (axis >= walk.rank) continue;
    u64 size = walk.sizes[axis], divisor = walk.divisors[axis];
    u64 rest = is_short ? Divisor{(u32)size, (u32)divisor, divisor >> 32}.quotient((u32)index)
                        : index / size;
    i64 position = (i64)(index - rest * size);
    for (u32 tensor = 0; tensor < TENSORS; tensor++) {
      places.at[tensor] += position * walk.strides[tensor][axis];
    }
    index = rest;
  }
  return places;
}

// Philox4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3"
// (SC 2011). Four words for each place of a key's stream.
struct Stream {
  u64 seed;
  u64 stream;  // a mix of the step and of the operation
};

struct Words {
  u32 at[4];
};

__device__ inline Words block_of(const Stream& stream, u64 place) {
  Words c = {{(u32)place, (u32)(place >> 32), (u32)stream.stream, (u32)(stream.stream >> 32)}};
  u32 key[2] = {(u32)stream.seed, (u32)(stream.seed >> 32)};
  for (u32 round = 0; round < 10; round++) {
    u64 wide0 = (u64)0xd2511f53u * c.at[0], wide1 = (u64)0xcd9e8d57u * c.at[2];
    c = {{(u32)(wide1 >> 32) ^ c.at[1] ^ key[0], (u32)wide1,
          (u32)(wide0 >> 32) ^ c.at[3] ^ key[1], (u32)wide0}};
    key[0] += 0x9e3779b9u;
    key[1] += 0xbb67ae85u;
  }
  return c;
}

// Tensor cores: a warp adds a[16, 16] · b[16, 8] of a half type to c[16, 8] in f32. Lane 4 g + t has
//   of a: row g, columns 2 t and 2 t + 1; row g + 8, the same; and both rows 8 columns further on
//   of b: rows 2 t and 2 t + 1 of column g; and the rows 8 further on
//   of c: row g, columns 2 t and 2 t + 1; row g + 8, the same
// with the first of two elements in the lower half of a word (PTX ISA, "Matrix fragments for
// mma.m16n8k16 with floating point type"). Of f32, of which it takes the upper 19 bits (tf32), it is
// a[16, 8] · b[8, 8], and a lane has
//   of a: row g, column t; row g + 8, the same; and both rows 4 columns further on
//   of b: row t of column g; and the row 4 further on
// ("Matrix fragments for mma.m16n8k8").
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
#define MULTIPLY_TILES(type)                                                                     \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, "           \
      "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                            \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                           \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))

__device__ inline void multiply_tiles(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], f16) {
  MULTIPLY_TILES("f16");
}
__device__ inline void multiply_tiles(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], bf16) {
  MULTIPLY_TILES("bf16");
}
__device__ inline void multiply_tiles(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], f32) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
template <typename E>
__device__ inline float half_of(u32 pair, u32 which) {
  E element;
  element.bits = (u16)(pair >> 16 * which);
  return widened(element);
}

// Without tensor cores for the type, and where it is tested: by shared memory, in blocks of up to 256
// threads.
template <typename E>
__device__ inline void multiply_tiles(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], E) {
  __shared__ u32 of_lanes[8][32][6];
  u32(*lanes)[6] = of_lanes[threadIdx.x / 32];
  u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  for (u32 i = 0; i < 4; i++) lanes[lane][i] = a[i];
  for (u32 i = 0; i < 2; i++) lanes[lane][4 + i] = b[i];
  __syncwarp();
  for (u32 k = 0; k < 16; k++) {
    u32 side = k / 8, other = k % 8 / 2, which = k % 2;
    float upper = half_of<E>(lanes[4 * g + other][2 * side], which);
    float lower = half_of<E>(lanes[4 * g + other][2 * side + 1], which);
    float left = half_of<E>(lanes[8 * t + other][4 + side], which);
    float right = half_of<E>(lanes[8 * t + 4 + other][4 + side], which);
    c[0] += upper * left, c[1] += upper * right;
    c[2] += lower * left, c[3] += lower * right;
  }
  __syncwarp();
}

__device__ inline void multiply_tiles(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], f32) {
  __shared__ u32 of_lanes[8][32][6];
  u32(*lanes)[6] = of_lanes[threadIdx.x / 32];
  u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  for (u32 i = 0; i < 4; i++) lanes[lane][i] = a[i] & 0xffffe000;
  for (u32 i = 0; i < 2; i++) lanes[lane][4 + i] = b[i] & 0xffffe000;
  __syncwarp();
  for (u32 k = 0; k < 8; k++) {
    u32 side = k / 4, other = k % 4;
    float upper = __uint_as_float(lanes[4 * g + other][2 * side]);
    float lower = __uint_as_float(lanes[4 * g + other][2 * side + 1]);
    float left = __uint_as_float(lanes[8 * t + other][4 + side]);
    float right = __uint_as_float(lanes[8 * t + 4 + other][4 + side]);
    c[0] += upper * left, c[1] += upper * right;
    c[2] += lower * left, c[3] += lower * right;
  }
  __syncwarp();
}

#if defined(__CUDACC__) && __CUDA_ARCH__ >= 750
// Those of compute capability 7.5 take half of the columns of a at a time.
__device__ inline void multiply_tiles(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2], f16) {
#pragma unroll
  for (u32 side = 0; side < 2; side++) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[2 * side]), "r"(a[2 * side + 1]), "r"(b[side]));
  }
}
#endif
#endif

// Four matrices of 8 by 8 elements of a half type from shared memory. Lane 8 m + r says where row r
// of matrix m is, aligned to 16 bytes. Lane 4 g + t gets of each matrix columns 2 t and 2 t + 1 of
// row g; of the turned ones rows 2 t and 2 t + 1 of column g.
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 750
#define LOAD_MATRICES(how)                                                                       \
  asm volatile(                                                                                  \
      "{ .reg .u64 place; cvta.to.shared.u64 place, %4; "                                        \
      "ldmatrix.sync.aligned.m8n8.x4" how ".shared.b16 {%0, %1, %2, %3}, [place]; }"             \
      : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])                                       \
      : "l"(row)                                                                                 \
      : "memory")

__device__ inline void load_matrices(u32 (&to)[4], const u16* row) { LOAD_MATRICES(""); }
__device__ inline void load_turned_matrices(u32 (&to)[4], const u16* row) {
  LOAD_MATRICES(".trans");
}
#else
// Where row r of matrix m is, of this lane's warp.
struct MatrixRows {
  const u16* at[4][8];
};

__device__ inline MatrixRows rows_of_lanes(const u16* row) {
  __shared__ MatrixRows of_warps[8];
  MatrixRows& of_warp = of_warps[threadIdx.x / 32];
  of_warp.at[threadIdx.x % 32 / 8][threadIdx.x % 8] = row;
  __syncwarp();
  MatrixRows rows = of_warp;
  __syncwarp();
  return rows;
}

__device__ inline void load_matrices(u32 (&to)[4], const u16* row) {
  MatrixRows rows = rows_of_lanes(row);
  u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  for (u32 m = 0; m < 4; m++) to[m] = rows.at[m][g][2 * t] | (u32)rows.at[m][g][2 * t + 1] << 16;
}
__device__ inline void load_turned_matrices(u32 (&to)[4], const u16* row) {
  MatrixRows rows = rows_of_lanes(row);
  u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  for (u32 m = 0; m < 4; m++) to[m] = rows.at[m][2 * t][g] | (u32)rows.at[m][2 * t + 1][g] << 16;
}
#endif

// One tile of a product: C[M, N] = A[M, K] · B[K, N], 64 by 64 elements by a block of 256 threads.
// `Product` says what A and B hold, of which rows and columns (0 outside), and takes what comes out.
// With `Product::HAS_ROW_SUMS` the block of the first columns also takes the sums of the rows of A.
enum : u32 { TILE = 64, DEPTH = 16, TILE_THREADS = 256 };

__device__ inline void load_four(float (&to)[4], const float* from) {
  float4 four = *(const float4*)from;
  to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}
__device__ inline void load_four(double (&to)[4], const double* from) {
#pragma unroll
  for (u32 i = 0; i < 4; i++) to[i] = from[i];
}

// The elements of rows of A, or columns of B, in a step of K that a thread loads: neighbours load
// what lies side by side in memory.
template <bool IS_DEEP>
struct TilePart {
  enum : u32 { LEN = DEPTH * TILE / TILE_THREADS };

  // Row or column, and place in the step, of element `i`.
  static __device__ u32 line(u32 i) {
    u32 index = i * TILE_THREADS + threadIdx.x;
    return IS_DEEP ? index / DEPTH : index % TILE;
  }
  static __device__ u32 place(u32 i) {
    u32 index = i * TILE_THREADS + threadIdx.x;
    return IS_DEEP ? index % DEPTH : index / TILE;
  }
};

// The next step's elements of A and B, and where they go.
template <typename Product>
struct TileStep {
  typedef typename Product::Factor Factor;
  typedef TilePart<Product::A_IS_DEEP> OfA;
  typedef TilePart<Product::B_IS_DEEP> OfB;
  Factor a[OfA::LEN];
  Factor b[OfB::LEN];

  __device__ void load(const Product& product, u32 first_row, u32 first_column, u32 first_k,
                       u32 end) {
#pragma unroll
    for (u32 i = 0; i < OfA::LEN; i++) {
      u32 k = first_k + OfA::place(i);
      a[i] = k < end ? product.a(first_row + OfA::line(i), k) : Factor();
    }
#pragma unroll
    for (u32 i = 0; i < OfB::LEN; i++) {
      u32 k = first_k + OfB::place(i);
      b[i] = k < end ? product.b(k, first_column + OfB::line(i)) : Factor();
    }
  }

  // `at(line, place)` is where an element is in a tile.
  template <typename At>
  __device__ void store(Factor* a_tile, Factor* b_tile, const At& at) const {
#pragma unroll
    for (u32 i = 0; i < OfA::LEN; i++) a_tile[at(OfA::line(i), OfA::place(i))] = a[i];
#pragma unroll
    for (u32 i = 0; i < OfB::LEN; i++) b_tile[at(OfB::line(i), OfB::place(i))] = b[i];
  }
};

// Sums in the order of K, 4 by 4 of them by each thread.
template <typename Product>
__device__ inline void scalar_tile_product(const Product& product, u32 first_row, u32 first_column,
                                           u32 start, u32 end) {
  typedef typename Product::Factor Number;
  // Rows of a tile begin at different banks, and at multiples of four elements.
  enum : u32 { ROW = TILE + 4 };
  __shared__ __align__(16) Number a_tile[DEPTH * ROW];
  __shared__ __align__(16) Number b_tile[DEPTH * ROW];
  u32 row = threadIdx.x / 16 * 4, column = threadIdx.x % 16 * 4;
  Number sums[4][4] = {}, row_sums[4] = {};
  for (u32 first_k = start; first_k < end; first_k += DEPTH) {
    TileStep<Product> step;
    step.load(product, first_row, first_column, first_k, end);
    step.store(a_tile, b_tile, [](u32 line, u32 place) { return place * ROW + line; });
    __syncthreads();
#pragma unroll
    for (u32 k = 0; k < DEPTH; k++) {
      Number as[4], bs[4];
      load_four(as, &a_tile[k * ROW + row]);
      load_four(bs, &b_tile[k * ROW + column]);
#pragma unroll
      for (u32 i = 0; i < 4; i++) {
        if constexpr (Product::HAS_ROW_SUMS) row_sums[i] += as[i];
#pragma unroll
        for (u32 j = 0; j < 4; j++) sums[i][j] = multiply_add(as[i], bs[j], sums[i][j]);
      }
    }
    // The next tile is written over this one.
    __syncthreads();
  }
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      product.put(first_row + row + i, first_column + column + j, sums[i][j]);
    }
    if constexpr (Product::HAS_ROW_SUMS) {
      if (first_column + column == 0) product.put_row_sum(first_row + row + i, row_sums[i]);
    }
  }
}

// Half types by tensor cores: a warp has 16 rows and 32 columns of the tile. The next elements
// are loaded while these are multiplied.
template <typename Product>
__device__ inline void half_tile_product(const Product& product, u32 first_row, u32 first_column,
                                         u32 start, u32 end) {
  typedef typename Product::Factor Factor;
  // Eight rows of a matrix of 8 by 8 lie in different banks.
  enum : u32 { ROW = DEPTH + 8 };
  // By rows of A and by columns of B: along K elements lie side by side.
  __shared__ __align__(16) Factor a_tile[TILE * ROW];
  __shared__ __align__(16) Factor b_tile[TILE * ROW];
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  u32 row = warp / 2 * 16, column = warp % 2 * 32;
  const Factor* a_line = &a_tile[(row + lane % 16) * ROW + lane / 16 * 8];
  const Factor* b_line = &b_tile[(column + lane / 16 * 8 + lane % 8) * ROW + lane / 8 % 2 * 8];
  float sums[4][4] = {}, row_sum = 0;
  TileStep<Product> step;
  step.load(product, first_row, first_column, start, end);
  for (u32 first_k = start; first_k < end; first_k += DEPTH) {
    step.store(a_tile, b_tile, [](u32 line, u32 place) { return line * ROW + place; });
    __syncthreads();
    step.load(product, first_row, first_column, first_k + DEPTH, end);
    if constexpr (Product::HAS_ROW_SUMS) {
      if (first_column == 0 && threadIdx.x < TILE) {
        for (u32 k = 0; k < DEPTH; k++) row_sum += widened(a_tile[threadIdx.x * ROW + k]);
      }
    }
    u32 a[4];
    load_matrices(a, (const u16*)a_line);
#pragma unroll
    for (u32 j = 0; j < 4; j += 2) {
      u32 b[4];
      load_matrices(b, (const u16*)(b_line + j * 8 * ROW));
      multiply_tiles(sums[j], a, {b[0], b[1]}, Factor());
      multiply_tiles(sums[j + 1], a, {b[2], b[3]}, Factor());
    }
    // The next tile is written over this one.
    __syncthreads();
  }
  u32 first = first_row + row + lane / 4;
#pragma unroll
  for (u32 j = 0; j < 4; j++) {
    u32 at = first_column + column + j * 8 + lane % 4 * 2;
#pragma unroll
    for (u32 e = 0; e < 4; e++) product.put(first + e / 2 * 8, at + e % 2, sums[j][e]);
  }
  if constexpr (Product::HAS_ROW_SUMS) {
    if (first_column == 0 && threadIdx.x < TILE) {
      product.put_row_sum(first_row + threadIdx.x, row_sum);
    }
  }
}

// The part of K from `start` to `end`.
template <typename Product>
__device__ inline void tile_product(const Product& product, u32 first_row, u32 first_column,
                                    u32 start, u32 end) {
  if constexpr (sizeof(typename Product::Factor) == 2) {
    half_tile_product(product, first_row, first_column, start, end);
  } else {
    scalar_tile_product(product, first_row, first_column, start, end);
  }
}
