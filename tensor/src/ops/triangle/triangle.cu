// The triangles of the matrices of the last two dimensions, for elements of any type; kernels only
// know their size. y = x for kept elements, 0 elsewhere. Each thread takes elements of the walk
// over y and x in a grid-stride loop, in row-major order. Without x, y is changed in place: only
// zeros are written.

struct Triangle {
  u64 rows;
  u64 columns;
  // In row r, the upper side begins at column r + first.
  i64 first;
  u64 keeps_upper;
};

template <typename T>
__device__ inline void triangle(T* y, const T* x, const Triangle& of, const Walk<2>& walk) {
  // A 64-bit division costs several times as much as a 32-bit division.
  bool is_short = walk.len >> 32 == 0;
  for (u64 i = thread_index(); i < walk.len; i += thread_count()) {
    u64 line = is_short ? (u64)((u32)i / (u32)of.columns) : i / of.columns;
    u64 matrix = is_short ? (u64)((u32)line / (u32)of.rows) : line / of.rows;
    i64 column = (i64)(i - line * of.columns), row = (i64)(line - matrix * of.rows);
    bool stays = (column >= row + of.first) == (of.keeps_upper != 0);
    if (x == nullptr && stays) continue;
    Places<2> at = places(walk, i);
    y[at.at[0]] = stays ? x[at.at[1]] : (T)0;
  }
}

#define STAMP(T, SIZE)                                                                        \
  extern "C" __global__ void triangle_##SIZE(T* y, const T* x, Triangle of, Walk<2> walk) {   \
    triangle(y, x, of, walk);                                                                 \
  }
STAMP(u8, 1)
STAMP(u16, 2)
STAMP(u32, 4)
STAMP(u64, 8)
