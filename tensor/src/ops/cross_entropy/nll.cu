// The negative log-likelihood of labels[outer, inner] under log-probabilities x[outer, C, inner]: Σ
// -w[label] · x[label] and the count Σ w[label] over all positions whose label is not the ignored
// one; and the gradient of x. Elements are of any float type.

struct Targets {
  i64 class_count;
  i64 ignore_index;
  u64 positions;  // outer · inner
  u64 inner;
};

// True for a class that is not the ignored label. The ignored label may be a class, too.
__device__ inline bool counts(i64 label, const Targets& targets) {
  return label != targets.ignore_index && label >= 0 && label < targets.class_count;
}

// The walk is over the positions, to the element of class 0 in x. Class c is c · step further on.
// If a label is neither a class nor the ignored label, the sum is NaN, and the label is reported
// unless there is a complaint already. One block.
extern "C" __global__ void __launch_bounds__(512)
    KERNEL(nll)(Computed* sum, Computed* count, Complaint* complaint, const Stored* x,
                const i64* labels, const Stored* class_weights, i64 step, Targets targets, u64 op,
                Walk<1> walk) {
  __shared__ double scratch[32];
  __shared__ u64 firsts[32];
  double loss_sum = 0.0, weight_sum = 0.0;
  u64 first = targets.positions;
#pragma unroll 4
  for (u64 position = threadIdx.x; position < targets.positions; position += blockDim.x) {
    i64 label = labels[position];
    if (counts(label, targets)) {
      double w = class_weights != nullptr ? (double)widened(class_weights[label]) : 1.0;
      loss_sum -= w * (double)widened(x[places(walk, position).at[0] + label * step]);
      weight_sum += w;
    } else if (label != targets.ignore_index && position < first) {
      first = position;
    }
  }
  loss_sum = join_block<Sum>(loss_sum, scratch);
  weight_sum = join_block<Sum>(weight_sum, scratch);
  first = join_block<Least>(first, firsts);
  if (threadIdx.x != 0) return;
  bool is_bad = first < targets.positions;
  *sum = is_bad ? (Computed)__uint_as_float(0x7fc00000) : (Computed)loss_sum;
  *count = (Computed)weight_sum;
  if (!is_bad || complaint->position != 0) return;
  *complaint = {(i64)first + 1, labels[first], targets.class_count, op};
}

// dx[c] = -dy · w[c] where c is the label, 0 elsewhere; NaN if the label is neither a class nor the
// ignored label. dy is one number. Each thread takes elements in a grid-stride loop.
extern "C" __global__ void KERNEL(nll_backward)(Stored* dx, const Computed* dy, const i64* labels,
                                                const Stored* class_weights, Targets targets) {
  const Computed ZERO = (Computed)0.0f, NONE = (Computed)__uint_as_float(0x7fc00000);
  u64 classes = (u64)targets.class_count, len = targets.positions * classes;
  // A 64-bit division costs several times as much as a 32-bit division.
  bool is_short = len >> 32 == 0;
  for (u64 i = thread_index(); i < len; i += thread_count()) {
    u64 row = is_short ? (u64)((u32)i / (u32)targets.inner) : i / targets.inner;
    u64 outer = is_short ? (u64)((u32)row / (u32)classes) : row / classes;
    i64 c = (i64)(row - outer * classes);
    i64 label = labels[outer * targets.inner + (i - row * targets.inner)];
    Computed y = ZERO;
    if (!counts(label, targets)) {
      y = label == targets.ignore_index ? ZERO : NONE;
    } else if (label == c) {
      Computed w = class_weights != nullptr ? widened(class_weights[c]) : (Computed)1.0f;
      y = ZERO - *dy * w;
    }
    set(dx[i], y);
  }
}
