// Softmax cross-entropy of x[outer, C, inner] with labels[outer, inner], as on the processor: lse =
// max + ln Σ_c exp(x[c] - max). The loss of a position is a · (lse - x[label]) + b · Σ_c w[c] ·
// (lse - x[c]) with a = (1 - ε) · w[label], b = ε / C; it is 0 for the ignored label. A group of
// `lanes` threads takes a position. For images (inner > 1) a single thread takes a position, and
// neighbouring threads read neighbouring elements.

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

// The place in x of class 0 of a position. The place of class c is c · inner further on.
__device__ inline u64 first_class(u64 position, const Targets& targets) {
  u64 len = (u64)targets.class_count, inner = targets.inner;
  if (inner == 1) return position * len;
  u64 outer = position / inner;
  return outer * len * inner + (position - outer * inner);
}

// True if positions are whole packs, given that x and dx are aligned.
__device__ inline bool are_packs(const Targets& targets) {
  return targets.inner == 1 && targets.class_count % LINE_PACK == 0;
}

// Σ w, computed by all threads of a block.
__device__ inline Computed sum_of_weights(const Stored* class_weights, u64 len,
                                          Computed* scratch) {
  if (class_weights == nullptr) return (Computed)len;
  Computed sum = 0;
  for (u64 c = threadIdx.x; c < len; c += blockDim.x) sum += widened(class_weights[c]);
  return join_block<Sum>(sum, scratch);
}

__device__ inline Computed not_a_number() { return (Computed)__uint_as_float(0x7fc00000); }

// Writes lse[position], loss[block] and weight[block]. The latter two are sums over the block's
// positions: of the loss, and of the weight of the label, which is 1 without weights. The loss is
// NaN if the label is neither a class nor the ignored label. The launch bounds let a thread hold a
// line in registers.
extern "C" __global__ void __launch_bounds__(256, 1)
    KERNEL(cross_entropy)(Computed* lse, Computed* loss, Computed* weight, const Stored* x,
                          const i64* labels, const Stored* class_weights, double smoothed,
                          Targets targets, u32 lanes) {
  __shared__ Computed scratch[32];
  __shared__ double sums[32];
  LineGroup group = {lanes};
  Computed smoothing = (Computed)smoothed;
  u64 len = (u64)targets.class_count;
  Computed weight_sum = 0;
  if (smoothing != 0) weight_sum = sum_of_weights(class_weights, len, scratch);
  bool is_packed = are_packs(targets) && is_aligned<LINE_PACK>(x);
  double loss_sum = 0.0, label_weights = 0.0;
  for (u64 first = group.first_of_block(); first < targets.positions; first += group.step()) {
    u64 position = first + group.in_block();
    bool is_there = position < targets.positions;
    HeldLines<1> line(is_there ? len : 0, targets.inner, group, is_packed);
    line.from[0] = x + first_class(position, targets);
    i64 label = is_there ? labels[position] : targets.ignore_index;
    bool is_counted = counts(label, targets);
    Powers powers = powers_of(line, scratch);
    Computed max = powers.max, log_sum = log(powers.sum);
    // The logits are all -inf, or contain inf or NaN. The shift would make each of these NaN.
    Computed log_sum_exp = max - max == 0 ? max + log_sum : max;
    Computed weighted = 0;
    if (smoothing != 0) {
      line.for_each_pack(0, [&](u64 start, const Computed (&x)[1][LINE_PACK]) {
        for (u32 k = 0; k < LINE_PACK; k++) {
          u64 c = start + k;
          Computed w = c >= len ? 0 : class_weights != nullptr ? widened(class_weights[c]) : 1;
          // With a weight of 0, -inf adds nothing.
          if (w != 0) weighted += w * (x[0][k] - max);
        }
      });
      weighted = group.join<Sum>(weighted, scratch);
    }
    if (!is_there || group.lane() != 0) continue;
    lse[position] = log_sum_exp;
    Computed total = label == targets.ignore_index ? 0 : not_a_number();
    if (is_counted) {
      Computed w = class_weights != nullptr ? widened(class_weights[label]) : (Computed)1;
      Computed logit = widened(line.from[0][(u64)label * targets.inner]);
      total = (1 - smoothing) * w * (log_sum_exp - logit);
      if (smoothing != 0) total += smoothing / (Computed)len * (weight_sum * log_sum - weighted);
      label_weights += (double)w;
    }
    loss_sum += (double)total;
  }
  loss_sum = join_block<Sum>(loss_sum, sums);
  label_weights = join_block<Sum>(label_weights, sums);
  if (threadIdx.x != 0) return;
  loss[blockIdx.x] = (Computed)loss_sum;
  weight[blockIdx.x] = (Computed)label_weights;
}

// sum = Σ loss and count = Σ weight over the sums of the blocks. The sum is NaN if a label is
// neither a class nor the ignored label. In that case the labels are searched for the first such
// label, which is reported unless there is a complaint already. One block.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(cross_entropy_sum)(Computed* sum, Computed* count, Complaint* complaint,
                              const Computed* loss, const Computed* weight, u64 parts,
                              const i64* labels, Targets targets, u64 op) {
  __shared__ double scratch[32];
  __shared__ u64 firsts[32];
  double loss_sum = 0.0, weight_sum = 0.0;
#pragma unroll 4
  for (u64 part = threadIdx.x; part < parts; part += blockDim.x) {
    loss_sum += (double)loss[part];
    weight_sum += (double)weight[part];
  }
  loss_sum = join_block<Sum>(loss_sum, scratch);
  weight_sum = join_block<Sum>(weight_sum, scratch);
  if (threadIdx.x == 0) {
    *sum = (Computed)loss_sum;
    *count = (Computed)weight_sum;
  }
  if (loss_sum == loss_sum) return;
  u64 first = targets.positions;
#pragma unroll 8
  for (u64 position = threadIdx.x; position < targets.positions; position += blockDim.x) {
    i64 label = labels[position];
    bool is_bad = !counts(label, targets) && label != targets.ignore_index;
    if (is_bad && position < first) first = position;
  }
  first = join_block<Least>(first, firsts);
  if (threadIdx.x != 0 || first == targets.positions || complaint->position != 0) return;
  *complaint = {(i64)first + 1, labels[first], targets.class_count, op};
}

// dx[c] = dy · (p[c] · (a + b · W) - a · [c = label] - b · w[c]) with p = exp(x - lse) and W = Σ w;
// overwritten, and x and dx may share memory. dy is one number. dx is 0 for the ignored label and
// NaN for a label that is no class.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(cross_entropy_backward)(Stored* dx, const Stored* x, const Computed* lse,
                                   const i64* labels, const Stored* class_weights,
                                   const Computed* dy, double smoothed, Targets targets,
                                   u32 lanes) {
  __shared__ Computed scratch[32];
  LineGroup group = {lanes};
  Computed smoothing = (Computed)smoothed, dloss = *dy;
  u64 len = (u64)targets.class_count;
  Computed weight_sum = 0;
  if (smoothing != 0) weight_sum = sum_of_weights(class_weights, len, scratch);
  bool is_packed =
      are_packs(targets) && is_aligned<LINE_PACK>(x) && is_aligned<LINE_PACK>(dx);
  for (u64 first = group.first_of_block(); first < targets.positions; first += group.step()) {
    u64 position = first + group.in_block();
    // Threads join no values, so a group without a position need not wait for the others.
    if (position >= targets.positions) continue;
    u64 start_of_line = first_class(position, targets);
    i64 label = labels[position];
    bool is_counted = counts(label, targets);
    Computed w = 1;
    if (is_counted && class_weights != nullptr) w = widened(class_weights[label]);
    Computed rest = label == targets.ignore_index ? 0 : not_a_number();
    Computed a = (1 - smoothing) * w, b = smoothing / (Computed)len;
    Computed all = a + b * weight_sum, shift = lse[position];
    HeldLines<1> line(len, targets.inner, group, is_packed);
    line.from[0] = x + start_of_line;
    line.for_each_pack(0, [&](u64 start, const Computed (&x)[1][LINE_PACK]) {
      u64 distance = (u64)label - start;
      u32 label_at = distance < LINE_PACK ? (u32)distance : (u32)LINE_PACK;
      Computed grads[LINE_PACK];
#pragma unroll
      for (u32 k = 0; k < LINE_PACK; k++) {
        u64 c = start + k;
        Computed grad = exp(x[0][k] - shift) * all - (k == label_at ? a : 0);
        if (smoothing != 0 && c < len) {
          grad -= b * (class_weights != nullptr ? widened(class_weights[c]) : (Computed)1);
        }
        grads[k] = is_counted ? dloss * grad : rest;
      }
      line.put(dx + start_of_line, start, grads);
    });
  }
}
