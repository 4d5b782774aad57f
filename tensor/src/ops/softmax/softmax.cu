// Softmax and its logarithm along the middle of x[outer, len, inner], and their gradients, as on
// the processor. In place if the source is null. A group of `lanes` threads takes a line. For lines
// across the rows of memory (inner > 1) a single thread takes a line, and neighbouring threads read
// neighbouring elements.

struct Blocks {
  u64 outer;
  u64 len;
  u64 inner;

  __device__ u64 lines() const { return outer * inner; }

  __device__ u64 start_of(u64 line) const {
    if (inner == 1) return line * len;
    u64 block = line / inner;
    return block * len * inner + (line - block * inner);
  }

  // True if lines are whole packs, given aligned memory.
  __device__ bool are_packs() const { return inner == 1 && len % LINE_PACK == 0; }
};

extern "C" __global__ void __launch_bounds__(256)
    KERNEL(softmax)(Stored* to, const Stored* x, u32 is_log, Blocks of, u32 lanes) {
  __shared__ Computed scratch[32];
  const Stored* from = x != nullptr ? x : to;
  LineGroup group = {lanes};
  bool is_packed = of.are_packs() && is_aligned<LINE_PACK>(from) && is_aligned<LINE_PACK>(to);
  for (u64 first = group.first_of_block(); first < of.lines(); first += group.step()) {
    u64 at = first + group.in_block();
    HeldLines<1> line(at < of.lines() ? of.len : 0, of.inner, group, is_packed);
    u64 start_of_line = of.start_of(at);
    line.from[0] = from + start_of_line;
    Powers powers = powers_of(line, scratch);
    // The sum is at least 1, so its inverse is as accurate as the quotient but for half a unit.
    Computed max = powers.max;
    Computed of_sum = is_log != 0 ? log(powers.sum) : (Computed)1 / powers.sum;
    line.for_each_pack((Computed)0, [&](u64 start, const Computed (&x)[1][LINE_PACK]) {
      Computed y[LINE_PACK];
#pragma unroll
      for (u32 k = 0; k < LINE_PACK; k++) {
        Computed below = x[0][k] - max;
        y[k] = is_log != 0 ? below - of_sum : exp(below) * of_sum;
      }
      line.put(to + start_of_line, start, y);
    });
  }
}

extern "C" __global__ void __launch_bounds__(256)
    KERNEL(softmax_backward)(Stored* to, const Stored* dy, const Stored* y, u32 is_log, Blocks of,
                             u32 lanes) {
  __shared__ Computed scratch[32];
  const Stored* from = dy != nullptr ? dy : to;
  LineGroup group = {lanes};
  bool is_packed = of.are_packs() && is_aligned<LINE_PACK>(from) && is_aligned<LINE_PACK>(y) &&
                   is_aligned<LINE_PACK>(to);
  for (u64 first = group.first_of_block(); first < of.lines(); first += group.step()) {
    u64 at = first + group.in_block();
    HeldLines<2> line(at < of.lines() ? of.len : 0, of.inner, group, is_packed);
    u64 start_of_line = of.start_of(at);
    line.from[0] = from + start_of_line;
    line.from[1] = y + start_of_line;
    // The second pass over dy without the sum: `rest` of `backward` on the processor.
    Computed sum = (Computed)0, rest = (Computed)0;
#pragma unroll 1
    for (u32 time = 0; time < (is_log != 0 ? 1 : 2); time++) {
      Computed part = (Computed)0;
      line.for_each_pack((Computed)0, [&](u64, const Computed (&x)[2][LINE_PACK]) {
#pragma unroll
        for (u32 k = 0; k < LINE_PACK; k++) {
          part += is_log != 0 ? x[0][k] : (x[0][k] - sum) * x[1][k];
        }
      });
      part = group.join<Sum>(part, scratch);
      (time == 0 ? sum : rest) = part;
    }
    line.for_each_pack((Computed)0, [&](u64 start, const Computed (&x)[2][LINE_PACK]) {
      Computed dx[LINE_PACK];
#pragma unroll
      for (u32 k = 0; k < LINE_PACK; k++) {
        Computed dy = x[0][k], y = x[1][k];
        dx[k] = is_log != 0 ? dy - exp(y) * sum : y * (dy - sum - rest);
      }
      line.put(to + start_of_line, start, dx);
    });
  }
}
