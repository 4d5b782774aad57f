// Softmax cross-entropy of x[positions, C] with labels[positions], as on the processor:
// lse = max + ln Σ_c exp(x[c] - max); the loss of a position is a · (lse - x[label]) +
// b · Σ_c w[c] · (lse - x[c]) with a = (1 - ε) · w[label], b = ε / C, and 0 where the label is to be
// ignored. A block of whole warps takes a position, and every n-th.

struct Targets {
  i64 class_count;
  i64 ignore_index;
  u64 positions;
};

// 0 ≤ label < C: counts. Else it does not, and where it is not the one to ignore, `bad` gets the
// greatest number of such a position, from 1.
__device__ inline bool counts(i64 label, u64 position, const Targets& targets, u32* bad) {
  if (label >= 0 && label < targets.class_count) return true;
  if (label != targets.ignore_index && bad != nullptr && threadIdx.x == 0) {
    atomicMax(bad, (u32)position + 1);
  }
  return false;
}

// loss[position] and weight[position] (of its label; 1 without weights): to be added up.
extern "C" __global__ void __launch_bounds__(256)
    cross_entropy_f32(float* lse, float* loss, float* weight, u32* bad, const float* x,
                      const i64* labels, const float* class_weights, float smoothing,
                      Targets targets) {
  __shared__ float scratch[32];
  u64 len = (u64)targets.class_count;
  for (u64 position = blockIdx.x; position < targets.positions; position += gridDim.x) {
    const float* row = x + position * len;
    float max = Max::start();
    for (u64 c = threadIdx.x; c < len; c += blockDim.x) max = greater(max, row[c]);
    max = join_block<Max>(max, scratch);
    // Rows of -inf alone, and of +inf, are NaN as on the processor.
    float sum = 0.0f;
    for (u64 c = threadIdx.x; c < len; c += blockDim.x) sum += expf(row[c] - max);
    float log_sum = max + logf(join_block<Sum>(sum, scratch));
    i64 label = labels[position];
    bool is_counted = counts(label, position, targets, bad);
    float smooth = 0.0f;
    if (smoothing != 0.0f && is_counted) {
      for (u64 c = threadIdx.x; c < len; c += blockDim.x) {
        float w = class_weights != nullptr ? class_weights[c] : 1.0f;
        smooth += w * (log_sum - row[c]);
      }
      smooth = join_block<Sum>(smooth, scratch);
    }
    if (threadIdx.x != 0) continue;
    lse[position] = log_sum;
    float w = !is_counted ? 0.0f : class_weights != nullptr ? class_weights[label] : 1.0f;
    weight[position] = w;
    loss[position] = !is_counted ? 0.0f
                                 : (1.0f - smoothing) * w * (log_sum - row[label]) +
                                       smoothing / (float)len * smooth;
  }
}

// dx[c] = dy · (p[c] · (a + b · W) - a · [c = label] - b · w[c]) with p = exp(x - lse) and W = Σ w;
// overwritten, in place of x if need be. dy is one number.
extern "C" __global__ void __launch_bounds__(256)
    cross_entropy_backward_f32(float* dx, const float* x, const float* lse, const i64* labels,
                               const float* class_weights, const float* dy, float smoothing,
                               Targets targets) {
  __shared__ float scratch[32];
  u64 len = (u64)targets.class_count;
  float weight_sum = (float)len;
  if (smoothing != 0.0f && class_weights != nullptr) {
    float sum = 0.0f;
    for (u64 c = threadIdx.x; c < len; c += blockDim.x) sum += class_weights[c];
    weight_sum = join_block<Sum>(sum, scratch);
  }
  for (u64 position = blockIdx.x; position < targets.positions; position += gridDim.x) {
    i64 label = labels[position];
    bool is_counted = counts(label, position, targets, nullptr);
    float w = is_counted && class_weights != nullptr ? class_weights[label] : 1.0f;
    float scale = is_counted ? *dy : 0.0f;
    float a = (1.0f - smoothing) * w, b = smoothing / (float)len;
    for (u64 c = threadIdx.x; c < len; c += blockDim.x) {
      float p = expf(x[position * len + c] - lse[position]);
      float of_class = class_weights != nullptr ? class_weights[c] : 1.0f;
      float is_label = (i64)c == label ? a : 0.0f;
      float grad = p * (a + b * weight_sum) - is_label - b * of_class;
      dx[position * len + c] = is_counted ? scale * grad : 0.0f;
    }
  }
}
