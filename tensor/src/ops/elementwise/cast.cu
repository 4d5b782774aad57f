// y = x in another float type, rounded to nearest, ties to even; overwritten. A thread takes every
// n-th element of the walk; grids of one row.

template <typename Y, typename X>
__device__ inline void cast(Y* y, const X* x, const Walk<2>& walk) {
  for (u64 i = thread_index(); i < walk.len; i += thread_count()) {
    Places<2> at = places(walk, i);
    set(y[at.at[0]], widened(x[at.at[1]]));
  }
}

#define STAMP(X, x_name, Y, y_name)                                                       \
  extern "C" __global__ void cast_##x_name##_##y_name(Y* y, const X* x, Walk<2> walk) { \
    cast(y, x, walk);                                                                    \
  }

STAMP(float, f32, f16, f16)
STAMP(float, f32, bf16, bf16)
STAMP(f16, f16, float, f32)
STAMP(f16, f16, bf16, bf16)
STAMP(bf16, bf16, float, f32)
STAMP(bf16, bf16, f16, f16)

extern "C" __global__ void cast_f32_f64(double* y, const float* x, Walk<2> walk) {
  for (u64 i = thread_index(); i < walk.len; i += thread_count()) {
    Places<2> at = places(walk, i);
    y[at.at[0]] = (double)x[at.at[1]];
  }
}

extern "C" __global__ void cast_f64_f32(float* y, const double* x, Walk<2> walk) {
  for (u64 i = thread_index(); i < walk.len; i += thread_count()) {
    Places<2> at = places(walk, i);
    y[at.at[0]] = (float)x[at.at[1]];
  }
}
