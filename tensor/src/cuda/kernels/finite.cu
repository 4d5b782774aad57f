// Passes over one gradient. A thread takes every n-th element; blocks have whole warps.

__device__ inline bool is_finite(float x) { return x - x == 0.0f; }

// x *= scale, in place; `found` becomes 1 where a result is not finite, and is left alone else.
extern "C" __global__ void scale_and_check_f32(float* x, u32* found, u64 len, float scale) {
  bool all = true;
  for (u64 i = thread_index(); i < len; i += thread_count()) {
    float y = scale * x[i];
    x[i] = y;
    all = all && is_finite(y);
  }
  if (!all) atomicOr(found, 1u);
}

struct SumOfDoubles {
  static __device__ double join(double x, double y) { return x + y; }
};

// partials[block] = Σ x² over the block's elements, overwritten. The grid fixes the order.
extern "C" __global__ void __launch_bounds__(1024)
    squares_f32(double* partials, const float* x, u64 len) {
  __shared__ double scratch[32];
  double sum = 0.0;
  for (u64 i = thread_index(); i < len; i += thread_count()) sum += (double)x[i] * x[i];
  sum = join_block<SumOfDoubles>(sum, scratch);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// norm = √Σ partials and factor = min(1, limit / (norm + 1e-6)), as `clip_grad_norm_` of PyTorch.
// One block.
extern "C" __global__ void __launch_bounds__(1024)
    clip_factor(float* norm, float* factor, const double* partials, u64 len, float limit) {
  __shared__ double scratch[32];
  double sum = 0.0;
  for (u64 i = threadIdx.x; i < len; i += blockDim.x) sum += partials[i];
  sum = join_block<SumOfDoubles>(sum, scratch);
  if (threadIdx.x != 0) return;
  float root = (float)sqrt(sum);
  float quotient = limit / (root + 1e-6f);
  *norm = root;
  *factor = quotient < 1.0f || quotient != quotient ? quotient : 1.0f;
}
