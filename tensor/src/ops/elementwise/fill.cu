// y = value, overwritten, for elements of any type; kernels only know the size of elements. Each
// thread takes elements of the walk, or packs of elements, in a grid-stride loop; grids of one row.

template <typename T>
__device__ inline void fill(T* y, u64 bits, const Walk<1>& walk) {
  constexpr u32 LEN = pack_len<T>();
  u64 packs = is_row(walk) && is_aligned<LEN>(y) ? walk.len / LEN : 0;
  Pack<T, LEN> pack;
#pragma unroll
  for (u32 k = 0; k < LEN; k++) pack.at[k] = (T)bits;
  for (u64 i = thread_index(); i < packs; i += thread_count()) store_pack<LEN>(y, i, pack);
  for (u64 i = LEN * packs + thread_index(); i < walk.len; i += thread_count()) {
    y[places(walk, i).at[0]] = (T)bits;
  }
}

// y = x, for tensors that do not overlap.
template <typename T>
__device__ inline void copy(T* y, const T* x, const Walk<2>& walk) {
  constexpr u32 LEN = pack_len<T>();
  u64 packs = is_row(walk) && is_aligned<LEN>(x) && is_aligned<LEN>(y) ? walk.len / LEN : 0;
  for (u64 i = thread_index(); i < packs; i += thread_count()) {
    store_pack<LEN>(y, i, load_pack<LEN>(x, i));
  }
  for (u64 i = LEN * packs + thread_index(); i < walk.len; i += thread_count()) {
    Places<2> at = places(walk, i);
    y[at.at[0]] = x[at.at[1]];
  }
}

#define STAMP(T, name)                                                                   \
  extern "C" __global__ void fill_##name(T* y, u64 bits, Walk<1> walk) { fill(y, bits, walk); } \
  extern "C" __global__ void copy_##name(T* y, const T* x, Walk<2> walk) { copy(y, x, walk); }

STAMP(u8, 1)
STAMP(u16, 2)
STAMP(u32, 4)
STAMP(u64, 8)
