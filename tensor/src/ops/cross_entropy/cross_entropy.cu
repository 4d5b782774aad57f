// Softmax cross-entropy of x[outer, C, inner] with labels[outer, inner], as on the processor:
// lse = max + ln Σ_c exp(x[c] - max); the loss of a position is a · (lse - x[label]) +
// b · Σ_c w[c] · (lse - x[c]) with a = (1 - ε) · w[label], b = ε / C, and 0 where the label is to be
// ignored. A block of whole warps takes a position, and every n-th. Logits of images (inner > 1) are
// read across the rows of memory.

struct Targets {
  i64 class_count;
  i64 ignore_index;
  u64 positions;  // outer · inner
  u64 inner;
};

// A class, and not the one to ignore, which may be a class, too.
__device__ inline bool counts(i64 label, const Targets& targets) {
  return label != targets.ignore_index && label >= 0 && label < targets.class_count;
}

// Where x has class 0 of a position. Class c is c · inner further on.
__device__ inline u64 first_class(u64 position, const Targets& targets) {
  u64 outer = position / targets.inner, place = position % targets.inner;
  return outer * (u64)targets.class_count * targets.inner + place;
}

// Σ w, by all threads of a block.
__device__ inline Computed sum_of_weights(const Stored* class_weights, u64 len,
                                          Computed* scratch) {
  if (class_weights == nullptr) return (Computed)len;
  Computed sum = 0;
  for (u64 c = threadIdx.x; c < len; c += blockDim.x) sum += widened(class_weights[c]);
  return join_block<Sum>(sum, scratch);
}

__device__ inline Computed not_a_number() { return (Computed)__uint_as_float(0x7fc00000); }


// loss[position] and weight[position] (of its label; 1 without weights): to be added up.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(cross_entropy)(Computed* lse, Computed* loss, Computed* weight, const Stored* x,
                          const i64* labels, const Stored* class_weights, double smoothed,
                          Targets targets) {
  __shared__ Computed scratch[32];
  Computed smoothing = (Computed)smoothed;
  u64 len = (u64)targets.class_count;
  Computed weight_sum = 0;
  if (smoothing != 0) weight_sum = sum_of_weights(class_weights, len, scratch);
  for (u64 position = blockIdx.x; position < targets.positions; position += gridDim.x) {
    const Stored* row = x + first_class(position, targets);
    Computed max = Max::start();
    for (u64 c = threadIdx.x; c < len; c += blockDim.x) {
      max = greater(max, widened(row[c * targets.inner]));
    }
    max = join_block<Max>(max, scratch);
    Computed sum = 0;
    for (u64 c = threadIdx.x; c < len; c += blockDim.x) {
      sum += exp(widened(row[c * targets.inner]) - max);
    }
    Computed log_sum = log(join_block<Sum>(sum, scratch));
    // All -inf, or an inf or NaN among them: the shift would turn each into NaN.
    Computed log_sum_exp = max - max == 0 ? max + log_sum : max;
    i64 label = labels[position];
    bool is_counted = counts(label, targets);
    Computed weighted = 0;
    if (smoothing != 0 && is_counted) {
      for (u64 c = threadIdx.x; c < len; c += blockDim.x) {
        Computed w = class_weights != nullptr ? widened(class_weights[c]) : (Computed)1;
        // Without weight, -inf adds nothing.
        if (w != 0) weighted += w * (widened(row[c * targets.inner]) - max);
      }
      weighted = join_block<Sum>(weighted, scratch);
    }
    if (threadIdx.x != 0) continue;
    lse[position] = log_sum_exp;
    Computed w = is_counted;
    if (is_counted && class_weights != nullptr) w = widened(class_weights[label]);
    Computed total = 0;
    if (is_counted) {
      Computed logit = widened(row[(u64)label * targets.inner]);
      total = (1 - smoothing) * w * (log_sum_exp - logit);
      if (smoothing != 0) total += smoothing / (Computed)len * (weight_sum * log_sum - weighted);
    }
    weight[position] = w;
    loss[position] = total;
  }
}

// sum = Σ loss and count = Σ weight over all positions; the sum is NaN if the label of a position is
// neither a class nor the one to ignore, which it then tells, unless there is a complaint already.
// One block.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(cross_entropy_sum)(Computed* sum, Computed* count, Complaint* complaint,
                              const Computed* loss, const Computed* weight, const i64* labels,
                              Targets targets, u64 op) {
  __shared__ double scratch[32];
  __shared__ u64 firsts[32];
  double loss_sum = 0.0, weight_sum = 0.0;
  u64 first = targets.positions;
  for (u64 position = threadIdx.x; position < targets.positions; position += blockDim.x) {
    loss_sum += loss[position];
    weight_sum += weight[position];
    i64 label = labels[position];
    bool is_bad = !counts(label, targets) && label != targets.ignore_index;
    if (is_bad && position < first) first = position;
  }
  loss_sum = join_block<Sum>(loss_sum, scratch);
  weight_sum = join_block<Sum>(weight_sum, scratch);
  first = join_block<Least>(first, firsts);
  if (threadIdx.x != 0) return;
  bool is_bad = first < targets.positions;
  *sum = is_bad ? not_a_number() : (Computed)loss_sum;
  *count = (Computed)weight_sum;
  if (!is_bad || complaint->position != 0) return;
  *complaint = {(i64)first + 1, labels[first], targets.class_count, op};
}

// dx[c] = dy · (p[c] · (a + b · W) - a · [c = label] - b · w[c]) with p = exp(x - lse) and W = Σ w;
// overwritten, in place of x if need be. dy is one number. 0 where the label is to be ignored, NaN
// where it is no class.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(cross_entropy_backward)(Stored* dx, const Stored* x, const Computed* lse,
                                   const i64* labels, const Stored* class_weights,
                                   const Computed* dy, double smoothed, Targets targets) {
  __shared__ Computed scratch[32];
  Computed smoothing = (Computed)smoothed;
  u64 len = (u64)targets.class_count;
  Computed weight_sum = 0;
  if (smoothing != 0) weight_sum = sum_of_weights(class_weights, len, scratch);
  for (u64 position = blockIdx.x; position < targets.positions; position += gridDim.x) {
    u64 start = first_class(position, targets);
    i64 label = labels[position];
    bool is_counted = counts(label, targets);
    Computed w = 1;
    if (is_counted && class_weights != nullptr) w = widened(class_weights[label]);
    Computed rest = label == targets.ignore_index ? 0 : not_a_number();
    Computed a = (1 - smoothing) * w, b = smoothing / (Computed)len;
    for (u64 c = threadIdx.x; c < len; c += blockDim.x) {
      u64 at = start + c * targets.inner;
      Computed p = exp(widened(x[at]) - lse[position]);
      Computed of_class = class_weights != nullptr ? widened(class_weights[c]) : (Computed)1;
      Computed is_label = (i64)c == label ? a : 0;
      Computed grad = p * (a + b * weight_sum) - is_label;
      if (smoothing != 0) grad -= b * of_class;
      set(dx[at], is_counted ? *dy * grad : rest);
    }
  }
}
