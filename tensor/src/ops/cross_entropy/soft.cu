// Cross-entropy of x[outer, C, inner] with class probabilities t. The loss of a position is Σ_c
// t'[c] · (lse - x[c]) with t'[c] = w[c] · (keep · t[c] + spread). Also the gradient of x. Elements
// are of any float type. In rows (inner = 1) a block of whole warps takes a position at a time, in
// columns (inner > 1) a thread does, so that neighbouring threads read neighbouring elements. Both
// run in grid-stride loops.

struct Classes {
  u64 len;
  u64 positions;  // outer · inner
  u64 inner;
};

struct Shares {
  double keep;
  double spread;
};

// The policy in which all threads of a block take a position.
struct ByBlock {
  static __device__ u64 first() { return blockIdx.x; }
  static __device__ u64 step() { return gridDim.x; }
  static __device__ u64 lane() { return threadIdx.x; }
  static __device__ u64 lanes() { return blockDim.x; }
  template <typename Join>
  static __device__ Computed join(Computed value, Computed* scratch) {
    return join_block<Join>(value, scratch);
  }
};

// The policy in which one thread takes a position.
struct ByThread {
  static __device__ u64 first() { return thread_index(); }
  static __device__ u64 step() { return thread_count(); }
  static __device__ u64 lane() { return 0; }
  static __device__ u64 lanes() { return 1; }
  template <typename Join>
  static __device__ Computed join(Computed value, Computed*) {
    return value;
  }
};

// The place of class 0 of a position. The place of class c is c · inner further on.
__device__ inline u64 first_class(u64 position, const Classes& classes) {
  u64 outer = position / classes.inner, place = position % classes.inner;
  return outer * classes.len * classes.inner + place;
}

// The share t' of class c.
__device__ inline Computed share(const Stored* target, u64 at, const Stored* class_weights, u64 c,
                                 const Shares& shares) {
  Computed w = class_weights != nullptr ? widened(class_weights[c]) : (Computed)1.0f;
  return w * ((Computed)shares.keep * widened(target[at]) + (Computed)shares.spread);
}

// Writes lse of every position; partials[block] = Σ loss of the block's positions.
template <typename By>
__device__ inline void forward(double* partials, Computed* lse, const Stored* x,
                               const Stored* target, const Stored* class_weights,
                               const Shares& shares, const Classes& classes) {
  __shared__ Computed scratch[32];
  __shared__ double sums[32];
  const Computed ZERO = (Computed)0.0f;
  double loss = 0.0;
  for (u64 position = By::first(); position < classes.positions; position += By::step()) {
    u64 start = first_class(position, classes);
    Computed max = (Computed)Max::start();
    for (u64 c = By::lane(); c < classes.len; c += By::lanes()) {
      max = greater(max, widened(x[start + c * classes.inner]));
    }
    max = By::template join<Max>(max, scratch);
    Computed powers = ZERO, total = ZERO, product = ZERO;
    for (u64 c = By::lane(); c < classes.len; c += By::lanes()) {
      u64 at = start + c * classes.inner;
      Computed below = widened(x[at]) - max, t = share(target, at, class_weights, c, shares);
      powers += exp(below);
      total += t;
      // With a share of 0, -inf adds nothing.
      if (t != ZERO) product += t * below;
    }
    powers = By::template join<Sum>(powers, scratch);
    total = By::template join<Sum>(total, scratch);
    product = By::template join<Sum>(product, scratch);
    if (By::lane() != 0) continue;
    Computed log_sum = log(powers);
    // The logits are all -inf, or contain inf or NaN. The shift would make each of these NaN.
    lse[position] = max - max == ZERO ? max + log_sum : max;
    loss += (double)total * (double)log_sum - (double)product;
  }
  loss = join_block<Sum>(loss, sums);
  if (threadIdx.x == 0) partials[blockIdx.x] = loss;
}

// dx[c] = dy · (exp(x[c] - lse) · Σ t' - t'[c]); overwritten, and x and dx may share memory.
template <typename By>
__device__ inline void backward(Stored* dx, const Stored* x, const Computed* lse,
                                const Stored* target, const Computed* dy,
                                const Stored* class_weights, const Shares& shares,
                                const Classes& classes) {
  __shared__ Computed scratch[32];
  Computed dloss = *dy;
  for (u64 position = By::first(); position < classes.positions; position += By::step()) {
    u64 start = first_class(position, classes);
    Computed total = (Computed)0.0f;
    for (u64 c = By::lane(); c < classes.len; c += By::lanes()) {
      total += share(target, start + c * classes.inner, class_weights, c, shares);
    }
    total = By::template join<Sum>(total, scratch);
    for (u64 c = By::lane(); c < classes.len; c += By::lanes()) {
      u64 at = start + c * classes.inner;
      Computed p = exp(widened(x[at]) - lse[position]);
      set(dx[at], dloss * (p * total - share(target, at, class_weights, c, shares)));
    }
  }
}

extern "C" __global__ void __launch_bounds__(256)
    KERNEL(soft_rows)(double* partials, Computed* lse, const Stored* x, const Stored* target,
                      const Stored* class_weights, Shares shares, Classes classes) {
  forward<ByBlock>(partials, lse, x, target, class_weights, shares, classes);
}

extern "C" __global__ void __launch_bounds__(256)
    KERNEL(soft_columns)(double* partials, Computed* lse, const Stored* x, const Stored* target,
                         const Stored* class_weights, Shares shares, Classes classes) {
  forward<ByThread>(partials, lse, x, target, class_weights, shares, classes);
}

extern "C" __global__ void __launch_bounds__(256)
    KERNEL(soft_backward_rows)(Stored* dx, const Stored* x, const Computed* lse,
                               const Stored* target, const Computed* dy,
                               const Stored* class_weights, Shares shares, Classes classes) {
  backward<ByBlock>(dx, x, lse, target, dy, class_weights, shares, classes);
}

extern "C" __global__ void __launch_bounds__(256)
    KERNEL(soft_backward_columns)(Stored* dx, const Stored* x, const Computed* lse,
                                  const Stored* target, const Computed* dy,
                                  const Stored* class_weights, Shares shares, Classes classes) {
  backward<ByThread>(dx, x, lse, target, dy, class_weights, shares, classes);
}

// sum = Σ partials; count is the number of positions. One block.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(soft_sum)(Computed* sum, Computed* count, const double* partials, u64 len,
                     u64 positions) {
  __shared__ double scratch[32];
  double all = 0.0;
  for (u64 i = threadIdx.x; i < len; i += blockDim.x) all += partials[i];
  all = join_block<Sum>(all, scratch);
  if (threadIdx.x != 0) return;
  *sum = (Computed)all;
  *count = (Computed)(double)positions;
}
