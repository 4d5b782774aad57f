// Gathers elements of any type, known by size: y[i] = x[place of i + step · index of i].

// Reports the first index that is not in 0..len, unless there is a complaint already. One block.
extern "C" __global__ void __launch_bounds__(256)
    check_indices(Complaint* complaint, const i64* index, u64 len, u64 op, Walk<1> walk) {
  __shared__ u64 firsts[32];
  u64 first = walk.len;
#pragma unroll 4
  for (u64 i = threadIdx.x; i < walk.len; i += blockDim.x) {
    // A negative index wraps to a large number.
    bool is_bad = (u64)index[places(walk, i).at[0]] >= len;
    if (is_bad && i < first) first = i;
  }
  first = join_block<Least>(first, firsts);
  if (threadIdx.x != 0 || first == walk.len || complaint->position != 0) return;
  *complaint = {(i64)first + 1, index[places(walk, first).at[0]], (i64)len, op};
}

// The walk is over y, to indices and elements of x. y is 0 where the index is out of range.
template <typename T>
__device__ inline void gather(T* y, const T* x, const i64* index, i64 step, u64 len,
                              const Walk<2>& walk) {
  for (u64 i = thread_index(); i < walk.len; i += thread_count()) {
    Places<2> at = places(walk, i);
    i64 place = index[at.at[0]];
    y[i] = (u64)place < len ? x[at.at[1] + place * step] : (T)0;
  }
}

#define STAMP(T, SIZE)                                                                            \
  extern "C" __global__ void gather_##SIZE(T* y, const T* x, const i64* index, i64 step, u64 len, \
                                           Walk<2> walk) {                                        \
    gather(y, x, index, step, len, walk);                                                         \
  }
STAMP(u8, 1)
STAMP(u16, 2)
STAMP(u32, 4)
STAMP(u64, 8)
