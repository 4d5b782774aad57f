// Losses of pairs of elements x and t, summed or one by one, and their gradients with respect to x.
// Elements are of any float type. Formulas, and their values at the ends of their domains, are
// those of the processor, `cpu.rs`. Results are overwritten. The walks are over all operands;
// strides of 0 repeat elements. A weight that is absent is 1.

enum Loss : u32 {
  SQUARED_ERROR, ABSOLUTE_ERROR, SMOOTH_L1, HUBER, BINARY_CROSS_ENTROPY,
  BINARY_CROSS_ENTROPY_OF_LOGITS, KL_DIVERGENCE, KL_DIVERGENCE_OF_LOG
};

typedef Computed T;

enum : u64 {
  // Elements that a block sums. The number is the processor's, for the same partial sums.
  PART_LEN = 1 << 14
};

__device__ inline T number(double x) { return (T)x; }
__device__ inline T magnitude(T x) { return x < number(0.0) ? -x : x; }

// The sign of x: 0 for 0, NaN for NaN.
__device__ inline T sign(T x) {
  T y = x > number(0.0) ? number(1.0) : x;
  return x < number(0.0) ? number(-1.0) : y;
}

// `parameter` is beta or delta.
__device__ inline T value(u32 loss, T x, T t, T w, T parameter) {
  const T ZERO = number(0.0), ONE = number(1.0), HALF = number(0.5);
  switch (loss) {
    case SQUARED_ERROR: return (x - t) * (x - t);
    case ABSOLUTE_ERROR: return magnitude(x - t);
    case SMOOTH_L1: {
      T d = magnitude(x - t);
      return d < parameter ? HALF * d * d / parameter : d - HALF * parameter;
    }
    case HUBER: {
      T d = magnitude(x - t);
      return d <= parameter ? HALF * d * d : parameter * (d - HALF * parameter);
    }
    case BINARY_CROSS_ENTROPY: {
      T least = number(-100.0);
      return (t - ONE) * greater(log1p(-x), least) - t * greater(log(x), least);
    }
    case BINARY_CROSS_ENTROPY_OF_LOGITS: {
      T softplus = log1p(exp(-magnitude(x))) + greater(-x, ZERO);
      return (ONE - t) * x + ((w - ONE) * t + ONE) * softplus;
    }
    case KL_DIVERGENCE: {
      T entropy = t == ZERO ? ZERO : t * log(t);
      return entropy - t * x;
    }
    case KL_DIVERGENCE_OF_LOG: return exp(t) * (t - x);
  }
  return ZERO;
}

// The derivative by x, times dy.
__device__ inline T gradient(u32 loss, T dy, T x, T t, T w, T parameter) {
  const T ONE = number(1.0);
  T d = x - t;
  switch (loss) {
    case SQUARED_ERROR: return (dy + dy) * d;
    case ABSOLUTE_ERROR: return dy * sign(d);
    case SMOOTH_L1: return dy * (magnitude(d) < parameter ? d / parameter : sign(d));
    case HUBER: return dy * (magnitude(d) <= parameter ? d : parameter * sign(d));
    case BINARY_CROSS_ENTROPY: return dy * d / greater((ONE - x) * x, number(1e-12));
    case BINARY_CROSS_ENTROPY_OF_LOGITS: {
      T rest = ONE / (ONE + exp(x));
      return dy * ((ONE - t) - ((w - ONE) * t + ONE) * rest);
    }
    case KL_DIVERGENCE: return -(dy * t);
    case KL_DIVERGENCE_OF_LOG: return -(dy * exp(t));
  }
  return d;
}

// The merged dimensions are usually one, which needs no division.
template <u32 TENSORS>
__device__ inline Places<TENSORS> along(const Walk<TENSORS>& walk, u64 index) {
  if (walk.rank > 1) return places(walk, index);
  Places<TENSORS> at = {};
  for (u32 tensor = 0; tensor < TENSORS; tensor++) {
    at.at[tensor] = (i64)index * walk.strides[tensor][0];
  }
  return at;
}

__device__ inline T weight(const Stored* w, i64 place) {
  return w != nullptr ? widened(w[place]) : number(1.0);
}

// partials[block] = Σ loss of the block's part of the elements. The walk is over x, t and w.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(pair_loss_part)(double* partials, const Stored* x, const Stored* t, const Stored* w,
                           u32 loss, double parameter, Walk<3> walk) {
  __shared__ double scratch[32];
  u64 start = blockIdx.x * PART_LEN;
  u64 end = start + PART_LEN < walk.len ? start + PART_LEN : walk.len;
  double sum = 0.0;
#pragma unroll 4
  for (u64 i = start + threadIdx.x; i < end; i += blockDim.x) {
    Places<3> at = along(walk, i);
    sum += (double)value(loss, widened(x[at.at[0]]), widened(t[at.at[1]]), weight(w, at.at[2]),
                         (T)parameter);
  }
  sum = join_block<Sum>(sum, scratch);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// sum = Σ partials. One block.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(pair_loss_sum)(Computed* sum, const double* partials, u64 count) {
  __shared__ double scratch[32];
  double all = 0.0;
  for (u64 i = threadIdx.x; i < count; i += blockDim.x) all += partials[i];
  all = join_block<Sum>(all, scratch);
  if (threadIdx.x == 0) *sum = (T)all;
}

// The walk is over y, x, t and w.
extern "C" __global__ void KERNEL(pair_loss_terms)(Stored* y, const Stored* x, const Stored* t,
                                                   const Stored* w, u32 loss, double parameter,
                                                   Walk<4> walk) {
  for (u64 i = thread_index(); i < walk.len; i += thread_count()) {
    Places<4> at = along(walk, i);
    set(y[at.at[0]], value(loss, widened(x[at.at[1]]), widened(t[at.at[2]]),
                           weight(w, at.at[3]), (T)parameter));
  }
}

// dy is one number. The walk is over dx, x, t and w.
extern "C" __global__ void KERNEL(pair_loss_gradient)(Stored* dx, const Computed* dy,
                                                      const Stored* x, const Stored* t,
                                                      const Stored* w, u32 loss, double parameter,
                                                      Walk<4> walk) {
  T seed = *dy;
  for (u64 i = thread_index(); i < walk.len; i += thread_count()) {
    Places<4> at = along(walk, i);
    set(dx[at.at[0]], gradient(loss, seed, widened(x[at.at[1]]), widened(t[at.at[2]]),
                               weight(w, at.at[3]), (T)parameter));
  }
}
