// Softmax and its logarithm along the middle of x[outer, len, inner], and their gradients, as on
// the processor. In place where the source is absent.

struct Blocks {
  u64 outer;
  u64 len;
  u64 inner;
};

// A line of elements that lie `step` apart.
struct Line {
  const Stored* from;  // x, or dy
  const Stored* y;     // for the gradient
  Stored* to;
  u64 len;
  u64 step;
};

__device__ inline Computed at(const Stored* x, const Line& line, u64 i) {
  return widened(x[i * line.step]);
}

// What the places `start`, `start + every`, .. of a line count.
__device__ inline Computed max_of(const Line& line, u64 start, u64 every) {
  Computed max = (Computed)-INFINITY_F;
  for (u64 i = start; i < line.len; i += every) max = greater(max, at(line.from, line, i));
  return max;
}
__device__ inline Computed exp_sum_of(const Line& line, Computed max, u64 start, u64 every) {
  Computed sum = (Computed)0;
  for (u64 i = start; i < line.len; i += every) sum += exp(at(line.from, line, i) - max);
  return sum;
}
__device__ inline Computed dot_of(const Line& line, u32 is_log, u64 start, u64 every) {
  Computed sum = (Computed)0;
  for (u64 i = start; i < line.len; i += every) {
    Computed dy = at(line.from, line, i);
    sum += is_log != 0 ? dy : dy * at(line.y, line, i);
  }
  return sum;
}

__device__ inline void write(const Line& line, u32 is_log, Computed max, Computed sum, u64 start,
                             u64 every) {
  Computed log_sum = is_log != 0 ? log(sum) : (Computed)0;
  for (u64 i = start; i < line.len; i += every) {
    Computed x = at(line.from, line, i) - max;
    set(line.to[i * line.step], is_log != 0 ? x - log_sum : exp(x) / sum);
  }
}
__device__ inline void write_gradient(const Line& line, u32 is_log, Computed sum, u64 start,
                                      u64 every) {
  for (u64 i = start; i < line.len; i += every) {
    Computed dy = at(line.from, line, i), y = at(line.y, line, i);
    set(line.to[i * line.step], is_log != 0 ? dy - exp(y) * sum : y * (dy - sum));
  }
}

__device__ inline Line line_of(Stored* to, const Stored* from, const Stored* y, const Blocks& of,
                               u64 line) {
  u64 start = line / of.inner * of.len * of.inner + line % of.inner;
  const Stored* source = from != nullptr ? from : to;
  return {source + start, y != nullptr ? y + start : nullptr, to + start, of.len, of.inner};
}

// Lines that lie side by side (inner = 1): a block of whole warps takes a line, and every n-th.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(softmax_rows)(Stored* to, const Stored* x, u32 is_log, Blocks of) {
  __shared__ Computed scratch[32];
  for (u64 at = blockIdx.x; at < of.outer; at += gridDim.x) {
    Line line = line_of(to, x, nullptr, of, at);
    Computed max = join_block<Max>(max_of(line, threadIdx.x, blockDim.x), scratch);
    Computed sum = join_block<Sum>(exp_sum_of(line, max, threadIdx.x, blockDim.x), scratch);
    write(line, is_log, max, sum, threadIdx.x, blockDim.x);
  }
}

extern "C" __global__ void __launch_bounds__(256)
    KERNEL(softmax_backward_rows)(Stored* to, const Stored* dy, const Stored* y, u32 is_log,
                                  Blocks of) {
  __shared__ Computed scratch[32];
  for (u64 at = blockIdx.x; at < of.outer; at += gridDim.x) {
    Line line = line_of(to, dy, y, of, at);
    Computed sum = join_block<Sum>(dot_of(line, is_log, threadIdx.x, blockDim.x), scratch);
    write_gradient(line, is_log, sum, threadIdx.x, blockDim.x);
  }
}

// Lines across the rows of memory: a thread takes a line, and every n-th; neighbours read what lies
// side by side.
extern "C" __global__ void KERNEL(softmax_columns)(Stored* to, const Stored* x, u32 is_log,
                                                   Blocks of) {
  for (u64 at = thread_index(); at < of.outer * of.inner; at += thread_count()) {
    Line line = line_of(to, x, nullptr, of, at);
    Computed max = max_of(line, 0, 1);
    write(line, is_log, max, exp_sum_of(line, max, 0, 1), 0, 1);
  }
}

extern "C" __global__ void KERNEL(softmax_backward_columns)(Stored* to, const Stored* dy,
                                                            const Stored* y, u32 is_log,
                                                            Blocks of) {
  for (u64 at = thread_index(); at < of.outer * of.inner; at += thread_count()) {
    Line line = line_of(to, dy, y, of, at);
    write_gradient(line, is_log, dot_of(line, is_log, 0, 1), 0, 1);
  }
}
