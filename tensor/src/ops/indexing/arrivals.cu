// Elements that indices send to places, in the order of the indices. Each element replaces the old
// one or is reduced with it. An index out of range sends nothing.
//
// By lines: a thread takes all elements of one line of the source along the dimension of the
// indices. Different lines never share a place. Sorted: pairs of a place and an element's number
// are sorted, so that elements for one place are neighbours, and a thread takes all of them. Sums
// of integers do not depend on the order: each thread takes elements in a grid-stride loop.

const u64 NOWHERE = ~0ull;

__device__ inline i64 sum(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
__device__ inline i64 product(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
__device__ inline float sum(float a, float b) { return a + b; }
__device__ inline float product(float a, float b) { return a * b; }
__device__ inline double sum(double a, double b) { return a + b; }
__device__ inline double product(double a, double b) { return a * b; }

enum Reduction : u32 { SUM, PROD, AMAX, AMIN };

struct Reducing {
  u32 reduction;
  // 1 if the old element does not count. `start`, as bits of its type, then replaces the old
  // element.
  u32 has_start;
  u64 start;
};

template <typename C>
__device__ inline C reduced(u32 reduction, C a, C b) {
  switch (reduction) {
    case SUM: return sum(a, b);
    case PROD: return product(a, b);
    case AMAX: return a > b || a != a ? a : b;
    case AMIN: return a < b || a != a ? a : b;
  }
  return a;
}

// The element of this type with these bits.
__device__ inline f32 of_bits(u64 bits, f32) { return __uint_as_float((u32)bits); }
__device__ inline f64 of_bits(u64 bits, f64) {
#ifdef __CUDACC__
  return __longlong_as_double((i64)bits);
#else
  return __builtin_bit_cast(double, bits);
#endif
}
__device__ inline f16 of_bits(u64 bits, f16) { return {(u16)bits}; }
__device__ inline bf16 of_bits(u64 bits, bf16) { return {(u16)bits}; }
__device__ inline i64 of_bits(u64 bits, i64) { return (i64)bits; }
__device__ inline i32 of_bits(u64 bits, i32) { return (i32)bits; }
__device__ inline u8 of_bits(u64 bits, u8) { return (u8)bits; }
__device__ inline bool of_bits(u64 bits, bool) { return bits != 0; }

// Strides along the dimension of the indices, for each tensor.
struct Steps {
  u64 count;  // indices in a line
  i64 index;
  i64 source;
  i64 to;
  u64 to_len;
};

// The walk is over the lines, to indices, source and destination. Without a source, `bits` are the
// element that arrives everywhere.
template <typename T>
__device__ inline void replace_lines(T* to, const T* source, u64 bits, const i64* index,
                                     const Steps& steps, const Walk<3>& walk) {
  for (u64 line = thread_index(); line < walk.len; line += thread_count()) {
    Places<3> at = places(walk, line);
    for (u64 t = 0; t < steps.count; t++) {
      i64 place = index[at.at[0] + (i64)t * steps.index];
      if ((u64)place >= steps.to_len) continue;
      T value = source != nullptr ? source[at.at[1] + (i64)t * steps.source] : (T)bits;
      to[at.at[2] + place * steps.to] = value;
    }
  }
}

template <typename S, typename D>
__device__ inline void reduce_lines(D* to, const S* source, const i64* index,
                                    const Reducing& reducing, const Steps& steps,
                                    const Walk<3>& walk) {
  for (u64 line = thread_index(); line < walk.len; line += thread_count()) {
    Places<3> at = places(walk, line);
    for (u64 t = 0; reducing.has_start != 0 && t < steps.count; t++) {
      i64 place = index[at.at[0] + (i64)t * steps.index];
      if ((u64)place < steps.to_len) {
        to[at.at[2] + place * steps.to] = of_bits(reducing.start, D());
      }
    }
    for (u64 t = 0; t < steps.count; t++) {
      i64 place = index[at.at[0] + (i64)t * steps.index];
      if ((u64)place >= steps.to_len) continue;
      D& y = to[at.at[2] + place * steps.to];
      auto x = (decltype(widened(D())))widened(source[at.at[1] + (i64)t * steps.source]);
      set(y, reduced(reducing.reduction, widened(y), x));
    }
  }
}

// The walk is over all elements of the source, to indices, source and the start of the
// destination's line.
template <typename Word, typename T>
__device__ inline void add_elements(T* to, const T* source, const i64* index, const Steps& steps,
                                    const Walk<3>& walk) {
  for (u64 i = thread_index(); i < walk.len; i += thread_count()) {
    Places<3> at = places(walk, i);
    i64 place = index[at.at[0]];
    if ((u64)place >= steps.to_len) continue;
    atomicAdd((Word*)&to[at.at[2] + place * steps.to], (Word)source[at.at[1]]);
  }
}

extern "C" __global__ void add_elements_i64(i64* to, const i64* source, const i64* index,
                                            Steps steps, Walk<3> walk) {
  add_elements<u64>(to, source, index, steps, walk);
}
extern "C" __global__ void add_elements_i32(i32* to, const i32* source, const i64* index,
                                            Steps steps, Walk<3> walk) {
  add_elements<u32>(to, source, index, steps, walk);
}

// pairs[i] = (the place for element i of the source, i). The walk is over all elements, to indices
// and the start of the destination's line.
extern "C" __global__ void name_elements(u64* pairs, const i64* index, Steps steps,
                                         Walk<2> walk) {
  for (u64 i = thread_index(); i < walk.len; i += thread_count()) {
    Places<2> at = places(walk, i);
    i64 place = index[at.at[0]];
    bool is_inside = (u64)place < steps.to_len;
    pairs[2 * i] = is_inside ? (u64)(at.at[1] + place * steps.to) : NOWHERE;
    pairs[2 * i + 1] = i;
  }
}

// words[i · step] += the offset that index i names; the first index overwrites instead. With pairs
// (step 2), i is stored beside the place. The walks are over the indices, and over the dimensions
// that the index counts through.
extern "C" __global__ void name_places(u64* words, const i64* index, u64 step, u32 is_first,
                                       Walk<1> indices, Walk<1> dimensions) {
  for (u64 i = thread_index(); i < indices.len; i += thread_count()) {
    i64 number = index[places(indices, i).at[0]];
    u64 before = is_first != 0 ? 0 : words[i * step], place = NOWHERE;
    if ((u64)number < dimensions.len && before != NOWHERE) {
      place = before + (u64)places(dimensions, (u64)number).at[0];
    }
    words[i * step] = place;
    if (step == 2) words[2 * i + 1] = i;
  }
}

// y[i, r] = x at the place of i, moved to element r of the row; 0 if i has no place.
template <typename T>
__device__ inline void take_rows(T* y, const T* x, const u64* words, u64 len, const Walk<1>& row) {
  bool is_short = len >> 32 == 0;
  for (u64 i = thread_index(); i < len; i += thread_count()) {
    u64 number = is_short ? (u64)((u32)i / (u32)row.len) : i / row.len;
    u64 place = words[number];
    y[i] = place == NOWHERE ? (T)0 : x[(i64)place + places(row, i - number * row.len).at[0]];
  }
}

// Calls take(first, end, r) for each run of pairs with equal place, and for each element r of a
// row.
template <typename Take>
__device__ inline void each_run(const u64* pairs, u64 count, u64 row_len, const Take& take) {
  bool is_short = (count * row_len) >> 32 == 0;
  for (u64 i = thread_index(); i < count * row_len; i += thread_count()) {
    u64 first = is_short ? (u64)((u32)i / (u32)row_len) : i / row_len, end = first + 1;
    u64 place = pairs[2 * first];
    if (place == NOWHERE || (first > 0 && pairs[2 * first - 2] == place)) continue;
    while (end < count && pairs[2 * end] == place) end++;
    take(first, end, i - first * row_len);
  }
}

// The walks are over the rows that arrive, to the source, and over the elements of a row, to the
// destination and the source.
template <typename T>
struct Replace {
  T* to;
  const T* source;
  const u64* pairs;
  const Walk<1>& sources;
  const Walk<2>& row;

  __device__ void operator()(u64, u64 end, u64 r) const {
    Places<2> of_row = places(row, r);
    i64 from = places(sources, pairs[2 * end - 1]).at[0];
    to[(i64)pairs[2 * end - 2] + of_row.at[0]] = source[from + of_row.at[1]];
  }
};

template <typename S, typename D>
struct Reduce {
  D* to;
  const S* source;
  const u64* pairs;
  const Reducing& reducing;
  const Walk<1>& sources;
  const Walk<2>& row;

  __device__ void operator()(u64 first, u64 end, u64 r) const {
    Places<2> of_row = places(row, r);
    D& place = to[(i64)pairs[2 * first] + of_row.at[0]];
    D y = reducing.has_start != 0 ? of_bits(reducing.start, D()) : place;
    for (u64 at = first; at < end; at++) {
      i64 from = places(sources, pairs[2 * at + 1]).at[0];
      auto x = (decltype(widened(D())))widened(source[from + of_row.at[1]]);
      set(y, reduced(reducing.reduction, widened(y), x));
    }
    place = y;
  }
};

#define STAMP(T, SIZE)                                                                            \
  extern "C" __global__ void replace_lines_##SIZE(T* to, const T* source, u64 bits,               \
                                                  const i64* index, Steps steps, Walk<3> walk) {  \
    replace_lines(to, source, bits, index, steps, walk);                                          \
  }                                                                                               \
  extern "C" __global__ void replace_sorted_##SIZE(T* to, const T* source, const u64* pairs,      \
                                                   u64 count, Walk<1> sources, Walk<2> row) {     \
    each_run(pairs, count, row.len, Replace<T>{to, source, pairs, sources, row});                 \
  }                                                                                               \
  extern "C" __global__ void take_rows_##SIZE(T* y, const T* x, const u64* words, u64 len,        \
                                              Walk<1> row) {                                      \
    take_rows(y, x, words, len, row);                                                             \
  }
STAMP(u8, 1)
STAMP(u16, 2)
STAMP(u32, 4)
STAMP(u64, 8)

#define STAMP_REDUCE(name, S, D)                                                                  \
  extern "C" __global__ void reduce_lines_##name(D* to, const S* source, const i64* index,        \
                                                 Reducing reducing, Steps steps, Walk<3> walk) {  \
    reduce_lines(to, source, index, reducing, steps, walk);                                       \
  }                                                                                               \
  extern "C" __global__ void reduce_sorted_##name(D* to, const S* source, const u64* pairs,       \
                                                  u64 count, Reducing reducing, Walk<1> sources,  \
                                                  Walk<2> row) {                                  \
    each_run(pairs, count, row.len, Reduce<S, D>{to, source, pairs, reducing, sources, row});     \
  }
STAMP_REDUCE(f32, f32, f32)
STAMP_REDUCE(f64, f64, f64)
STAMP_REDUCE(f16, f16, f16)
STAMP_REDUCE(bf16, bf16, bf16)
STAMP_REDUCE(f16_wide, f16, f32)
STAMP_REDUCE(bf16_wide, bf16, f32)
STAMP_REDUCE(i64, i64, i64)
STAMP_REDUCE(i32, i32, i32)
STAMP_REDUCE(u8, u8, u8)
STAMP_REDUCE(bool, bool, bool)
