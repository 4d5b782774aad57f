// The sums over alignments of `cpu.rs`, all in f64, for elements of any float type. A block of
// whole warps takes a sample at a time, in a grid-stride loop; its threads take the states of a
// step. State s of a target is a blank if s is even, and label s / 2 if s is odd.

struct Sizes {
  u64 steps;
  u64 samples;
  u64 classes;
  u64 labels;  // in a row of targets
  u64 blank;
};

// The strides of x[step, sample, class].
struct Strides {
  i64 step;
  i64 sample;
  i64 of_class;
};

struct Operands {
  const Stored* x;
  const i64* targets;
  const i64* steps;
  const i64* lens;
};

__device__ inline double never() { return -(double)INFINITY_F; }
__device__ inline double not_a_number() { return (double)__uint_as_float(0x7fc00000); }

// ln(exp(a) + exp(b) + exp(c))
__device__ inline double log_sum(double a, double b, double c) {
  double max = a > b ? a : b;
  max = max > c ? max : c;
  if (max == never()) return never();
  return max + log(exp(a - max) + exp(b - max) + exp(c - max));
}

struct Sample {
  const Operands& from;
  const Sizes& sizes;
  const Strides& strides;
  u64 number;
  u64 steps;
  u64 states;

  __device__ u64 class_of(u64 state) const {
    if (state % 2 == 0) return sizes.blank;
    return (u64)from.targets[number * sizes.labels + state / 2];
  }

  __device__ double log_probability(u64 step, u64 of_class) const {
    return (double)widened(from.x[(i64)step * strides.step + (i64)number * strides.sample +
                                  (i64)of_class * strides.of_class]);
  }

  // True if an alignment may advance from `state - 2` to `state`.
  __device__ bool skips(u64 state) const {
    return state >= 2 && class_of(state) != class_of(state - 2);
  }

  // Computes all states of all steps. Steps use the `row_count` rows of `alphas` in rotation. All
  // threads get the logarithm of the target's probability.
  __device__ double log_likelihood(double* alphas, u64 row, u64 row_count) const {
    if (steps == 0) return states == 1 ? 0.0 : never();
    for (u64 step = 0; step < steps; step++) {
      double* now = alphas + step % row_count * row;
      const double* before = alphas + (step + row_count - 1) % row_count * row;
      for (u64 state = threadIdx.x; state < states; state += blockDim.x) {
        double sum = state < 2 ? 0.0 : never();
        if (step > 0) {
          sum = log_sum(before[state], state >= 1 ? before[state - 1] : never(),
                        skips(state) ? before[state - 2] : never());
        }
        now[state] = sum + log_probability(step, class_of(state));
      }
      __syncthreads();
    }
    const double* last = alphas + (steps - 1) % row_count * row;
    return log_sum(last[states - 1], states > 1 ? last[states - 2] : never(), never());
  }
};

// The fault of a sample: 0 for none, 1 for the length of x, 2 for the length of the target, and 3 +
// i for label i.
__device__ inline u64 fault_of(const Operands& from, const Sizes& sizes, u64 sample) {
  if ((u64)from.steps[sample] > sizes.steps) return 1;
  u64 len = (u64)from.lens[sample];
  if (len > sizes.labels) return 2;
  for (u64 at = 0; at < len; at++) {
    if ((u64)from.targets[sample * sizes.labels + at] >= sizes.classes) return 3 + at;
  }
  return 0;
}

// Reports the first sample with a wrong length or label, unless there is a complaint already. One
// block.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(ctc_check)(Complaint* complaint, const i64* targets, const i64* steps, const i64* lens,
                      u64 label_op, u64 length_op, Sizes sizes) {
  __shared__ u64 firsts[32];
  Operands from = {nullptr, targets, steps, lens};
  u64 first = sizes.samples;
  for (u64 sample = threadIdx.x; sample < sizes.samples; sample += blockDim.x) {
    if (fault_of(from, sizes, sample) != 0 && sample < first) first = sample;
  }
  first = join_block<Least>(first, firsts);
  if (threadIdx.x != 0 || first == sizes.samples || complaint->position != 0) return;
  u64 fault = fault_of(from, sizes, first);
  i64 position = (i64)first + 1;
  if (fault == 1) {
    *complaint = {position, steps[first], (i64)sizes.steps + 1, length_op};
  } else if (fault == 2) {
    *complaint = {position, lens[first], (i64)sizes.labels + 1, length_op};
  } else {
    u64 at = first * sizes.labels + (fault - 3);
    *complaint = {(i64)at + 1, targets[at], (i64)sizes.classes, label_op};
  }
}

// The loss of each sample; NaN if its lengths or labels are wrong. Scratch is two rows of states
// for each sample.
extern "C" __global__ void KERNEL(ctc)(Computed* loss, double* scratch, const Stored* x,
                                       const i64* targets, const i64* steps, const i64* lens,
                                       Sizes sizes, Strides strides) {
  Operands from = {x, targets, steps, lens};
  u64 row = 2 * sizes.labels + 1;
  for (u64 number = blockIdx.x; number < sizes.samples; number += gridDim.x) {
    double found = not_a_number();
    if (fault_of(from, sizes, number) == 0) {
      u64 states = 2 * (u64)lens[number] + 1;
      Sample sample = {from, sizes, strides, number, (u64)steps[number], states};
      found = -sample.log_likelihood(scratch + number * 2 * row, row, 2);
    }
    if (threadIdx.x == 0) loss[number] = (Computed)found;
  }
}

// dx[sample, step, class] = -dy · Σ α · β / p over the states of the class, where p is the target's
// probability; overwritten. Scratch for each sample is a row of states for each step, and two more.
extern "C" __global__ void KERNEL(ctc_backward)(Stored* dx, double* scratch, const Stored* x,
                                                const i64* targets, const i64* steps,
                                                const i64* lens, const Computed* dy, Sizes sizes,
                                                Strides strides) {
  Operands from = {x, targets, steps, lens};
  u64 row = 2 * sizes.labels + 1, dx_len = sizes.steps * sizes.classes;
  for (u64 number = blockIdx.x; number < sizes.samples; number += gridDim.x) {
    Stored* of_dx = dx + number * dx_len;
    double* alphas = scratch + number * (sizes.steps + 2) * row;
    double* betas = alphas + sizes.steps * row;
    bool is_bad = fault_of(from, sizes, number) != 0;
    double scale = (double)dy[number], likelihood = never();
    u64 count = is_bad ? sizes.steps : (u64)steps[number];
    u64 states = is_bad ? 1 : 2 * (u64)lens[number] + 1;
    Sample sample = {from, sizes, strides, number, count, states};
    if (!is_bad && scale != 0.0) {
      likelihood = sample.log_likelihood(alphas, row, sizes.steps > 0 ? sizes.steps : 1);
    }
    bool is_none = scale != 0.0 && likelihood == never();
    for (u64 i = threadIdx.x; i < dx_len; i += blockDim.x) {
      bool is_nan = is_none && i < count * sizes.classes;
      set(of_dx[i], (Computed)(is_nan ? not_a_number() : 0.0));
    }
    __syncthreads();
    if (scale == 0.0 || is_none) continue;
    for (u64 left = count; left > 0; left--) {
      u64 step = left - 1;
      double* beta = betas + step % 2 * row;
      const double* next = betas + (step + 1) % 2 * row;
      for (u64 state = threadIdx.x; state < states; state += blockDim.x) {
        double sum = state + 2 >= states ? 0.0 : never();
        if (left < count) {
          double after[3];
#pragma unroll
          for (u32 forth = 0; forth < 3; forth++) {
            u64 to = state + forth;
            bool goes = to < states && (forth < 2 || sample.skips(to));
            after[forth] =
                goes ? next[to] + sample.log_probability(left, sample.class_of(to)) : never();
          }
          sum = log_sum(after[0], after[1], after[2]);
        }
        beta[state] = sum;
      }
      __syncthreads();
      // The thread of a class's first state adds up all states of the class, in order.
      for (u64 state = threadIdx.x; state < states; state += blockDim.x) {
        u64 of_class = sample.class_of(state);
        bool is_first = true;
        for (u64 other = 0; other < state && is_first; other++) {
          is_first = sample.class_of(other) != of_class;
        }
        if (!is_first) continue;
        Stored sum;
        set(sum, (Computed)0.0f);
        for (u64 other = state; other < states; other++) {
          if (sample.class_of(other) != of_class) continue;
          double share = exp(alphas[step * row + other] + beta[other] - likelihood);
          set(sum, (Computed)((double)widened(sum) - scale * share));
        }
        of_dx[step * sizes.classes + of_class] = sum;
      }
    }
    // The next sample of this block has scratch of its own.
  }
}
