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
__device__ inline float sum_of_weights(const float* class_weights, u64 len, float* scratch) {
  if (class_weights == nullptr) return (float)len;
  float sum = 0.0f;
  for (u64 c = threadIdx.x; c < len; c += blockDim.x) sum += class_weights[c];
  return join_block<Sum>(sum, scratch);
}

// loss[position] and weight[position] (of its label; 1 without weights): to be added up.
extern "C" __global__ void __launch_bounds__(256)
    cross_entropy_f32(float* lse, float* loss, float* weight, const float* x, const i64* labels,
                      const float* class_weights, float smoothing, Targets targets) {
  __shared__ float scratch[32];
  u64 len = (u64)targets.class_count;
  float weight_sum = 0.0f;
  if (smoothing != 0.0f) weight_sum = sum_of_weights(class_weights, len, scratch);
  for (u64 position = blockIdx.x; position < targets.positions; position += gridDim.x) {
    const float* row = x + first_class(position, targets);
    float max = Max::start();
    for (u64 c = threadIdx.x; c < len; c += blockDim.x) {
      max = greater(max, row[c * targets.inner]);
    }
    max = join_block<Max>(max, scratch);
    float sum = 0.0f;
    for (u64 c = threadIdx.x; c < len; c += blockDim.x) {
      sum += expf(row[c * targets.inner] - max);
    }
    float log_sum = logf(join_block<Sum>(sum, scratch));
    // All -inf, or an inf or NaN among them: the shift would turn each into NaN.
    float log_sum_exp = max - max == 0.0f ? max + log_sum : max;
    i64 label = labels[position];
    bool is_counted = counts(label, targets);
    float weighted = 0.0f;
    if (smoothing != 0.0f && is_counted) {
      for (u64 c = threadIdx.x; c < len; c += blockDim.x) {
        float w = class_weights != nullptr ? class_weights[c] : 1.0f;
        // Without weight, -inf adds nothing.
        if (w != 0.0f) weighted += w * (row[c * targets.inner] - max);
      }
      weighted = join_block<Sum>(weighted, scratch);
    }
    if (threadIdx.x != 0) continue;
    lse[position] = log_sum_exp;
    float w = !is_counted ? 0.0f : class_weights != nullptr ? class_weights[label] : 1.0f;
    float total = 0.0f;
    if (is_counted) {
      float logit = row[(u64)label * targets.inner];
      total = (1.0f - smoothing) * w * (log_sum_exp - logit);
      if (smoothing != 0.0f) total += smoothing / (float)len * (weight_sum * log_sum - weighted);
    }
    weight[position] = w;
    loss[position] = total;
  }
}

// sum = Σ loss and count = Σ weight over all positions; the sum is NaN if the label of a position is
// neither a class nor the one to ignore, which it then tells, unless there is a complaint already.
// One block.
extern "C" __global__ void __launch_bounds__(256)
    cross_entropy_sum_f32(float* sum, float* count, Complaint* complaint, const float* loss,
                          const float* weight, const i64* labels, Targets targets, u64 op) {
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
  *sum = is_bad ? __uint_as_float(0x7fc00000) : (float)loss_sum;
  *count = (float)weight_sum;
  if (!is_bad || complaint->position != 0) return;
  *complaint = {(i64)first + 1, labels[first], targets.class_count, op};
}

// dx[c] = dy · (p[c] · (a + b · W) - a · [c = label] - b · w[c]) with p = exp(x - lse) and W = Σ w;
// overwritten, in place of x if need be. dy is one number. 0 where the label is to be ignored, NaN
// where it is no class.
extern "C" __global__ void __launch_bounds__(256)
    cross_entropy_backward_f32(float* dx, const float* x, const float* lse, const i64* labels,
                               const float* class_weights, const float* dy, float smoothing,
                               Targets targets) {
  __shared__ float scratch[32];
  u64 len = (u64)targets.class_count;
  float weight_sum = 0.0f;
  if (smoothing != 0.0f) weight_sum = sum_of_weights(class_weights, len, scratch);
  for (u64 position = blockIdx.x; position < targets.positions; position += gridDim.x) {
    u64 start = first_class(position, targets);
    i64 label = labels[position];
    bool is_counted = counts(label, targets);
    float w = is_counted && class_weights != nullptr ? class_weights[label] : 1.0f;
    float rest = label == targets.ignore_index ? 0.0f : __uint_as_float(0x7fc00000);
    float a = (1.0f - smoothing) * w, b = smoothing / (float)len;
    for (u64 c = threadIdx.x; c < len; c += blockDim.x) {
      u64 at = start + c * targets.inner;
      float p = expf(x[at] - lse[position]);
      float of_class = class_weights != nullptr ? class_weights[c] : 1.0f;
      float is_label = (i64)c == label ? a : 0.0f;
      float grad = p * (a + b * weight_sum) - is_label;
      if (smoothing != 0.0f) grad -= b * of_class;
      dx[at] = is_counted ? *dy * grad : rest;
    }
  }
}
