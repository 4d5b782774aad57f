// y[i, j, ..] = x[f(i), g(j), ..], or the fill if a mapped position is outside x, for elements of
// any type; kernels only know their size. y is contiguous; each thread takes elements of y in a
// grid-stride loop.

enum Kind : u64 { CYCLE, FLIP, INTERLEAVE, PAD_CONSTANT, PAD_REFLECT, PAD_REPLICATE };

// One dimension of y, and its source in x.
struct Dimension {
  u64 len;     // positions in x
  i64 stride;  // elements of x between neighbours
  u64 out_len;
  u64 kind;
  u64 number;  // the start of a cycle, the repetitions of a position, or the padding in front
};

struct Dimensions {
  u64 len;  // elements of y
  u64 rank;
  Dimension all[RANK_MAX];
};

// The position in x; negative if outside x.
__device__ inline i64 source_of(const Dimension& of, u64 at) {
  i64 n = (i64)of.len, place = (i64)at - (i64)of.number;
  switch (of.kind) {
    case CYCLE: return (i64)((at + of.number) % of.len);
    case FLIP: return n - 1 - (i64)at;
    case INTERLEAVE: return (i64)(at / of.number);
    case PAD_CONSTANT: return place < n ? place : -1;
    case PAD_REFLECT: return place < 0 ? -place : place < n ? place : 2 * (n - 1) - place;
    case PAD_REPLICATE: return place < 0 ? 0 : place < n ? place : n - 1;
  }
  return -1;
}

template <typename T>
__device__ inline void rearrange(T* y, const T* x, u64 fill, const Dimensions& of) {
  for (u64 i = thread_index(); i < of.len; i += thread_count()) {
    u64 index = i;
    i64 place = 0;
    bool is_inside = true;
#pragma unroll
    for (u32 step = 0; step < RANK_MAX; step++) {
      u32 axis = RANK_MAX - 1 - step;
      if (axis >= of.rank) continue;
      const Dimension& dimension = of.all[axis];
      i64 source = source_of(dimension, index % dimension.out_len);
      index /= dimension.out_len;
      is_inside = is_inside && source >= 0;
      place += source * dimension.stride;
    }
    y[i] = is_inside ? x[place] : (T)fill;
  }
}

#define STAMP(T, SIZE)                                                               \
  extern "C" __global__ void rearrange_##SIZE(T* y, const T* x, u64 fill, Dimensions of) { \
    rearrange(y, x, fill, of);                                                       \
  }
STAMP(u8, 1)
STAMP(u16, 2)
STAMP(u32, 4)
STAMP(u64, 8)
