// Sums and maxima of x[outer, len, inner] over the middle: y[outer, inner], overwritten. Without
// elements a sum is 0 and a maximum -inf; a maximum with NaN is NaN. The order is fixed by the
// shape: the same bits in each run.

// inner = 1: a block of whole warps takes a row, and every n-th row.
template <typename Join>
__device__ inline void rows(float* y, const float* x, u64 outer, u64 len) {
  __shared__ float scratch[32];
  for (u64 row = blockIdx.x; row < outer; row += gridDim.x) {
    float value = Join::start();
    for (u64 i = threadIdx.x; i < len; i += blockDim.x) value = Join::join(value, x[row * len + i]);
    value = join_block<Join>(value, scratch);
    if (threadIdx.x == 0) y[row] = value;
  }
}

// A thread takes an element of y: neighbours read side by side.
template <typename Join>
__device__ inline void columns(float* y, const float* x, u64 outer, u64 len, u64 inner) {
  for (u64 i = thread_index(); i < outer * inner; i += thread_count()) {
    const float* from = x + i / inner * len * inner + i % inner;
    float value = Join::start();
    for (u64 k = 0; k < len; k++) value = Join::join(value, from[k * inner]);
    y[i] = value;
  }
}

#define STAMP(Join, name)                                                                     \
  extern "C" __global__ void __launch_bounds__(1024)                                          \
      name##_rows_f32(float* y, const float* x, u64 outer, u64 len) {                         \
    rows<Join>(y, x, outer, len);                                                             \
  }                                                                                           \
  extern "C" __global__ void name##_columns_f32(float* y, const float* x, u64 outer, u64 len, \
                                                u64 inner) {                                  \
    columns<Join>(y, x, outer, len, inner);                                                   \
  }

STAMP(Sum, sum)
STAMP(Max, max)
