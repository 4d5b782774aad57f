// Rows of zeros with a one at the index of each row, for elements of any type; the kernel only
// knows their size. The walk is over the indices. Each thread takes elements of y in a grid-stride
// loop. A row whose index is no class stays zero.

template <typename T>
__device__ inline void one_hot(T* y, const i64* index, u64 one, u64 classes, const Walk<1>& walk) {
  u64 len = walk.len * classes;
  // A 64-bit division costs several times as much as a 32-bit division.
  bool is_short = len >> 32 == 0;
  for (u64 i = thread_index(); i < len; i += thread_count()) {
    u64 row = is_short ? (u64)((u32)i / (u32)classes) : i / classes;
    bool is_one = index[places(walk, row).at[0]] == (i64)(i - row * classes);
    y[i] = is_one ? (T)one : (T)0;
  }
}

#define STAMP(T, SIZE)                                                                     \
  extern "C" __global__ void one_hot_##SIZE(T* y, const i64* index, u64 one, u64 classes,  \
                                            Walk<1> walk) {                                \
    one_hot(y, index, one, classes, walk);                                                 \
  }
STAMP(u8, 1)
STAMP(u16, 2)
STAMP(u32, 4)
STAMP(u64, 8)
