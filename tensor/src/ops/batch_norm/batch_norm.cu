// Batch normalisation of x[samples, channels, inner], as on the processor. One kernel sums each
// channel in parts of the batch, a second merges the parts in order, and a third passes over all
// elements with four coefficients for each channel.

struct Channels {
  u64 samples;
  u64 channels;
  u64 inner;
  u64 part_len;  // elements of a channel in a part; the last part has fewer
  u64 parts;
};

enum : u32 { LEN = pack_len<Stored>() };

// True if the elements of a channel of a sample are whole packs, given aligned memory.
__device__ inline bool are_packs(const Channels& of) {
  return of.inner % LEN == 0 && of.part_len % LEN == 0;
}

__device__ inline u64 end_of(const Channels& of, u64 part) {
  u64 end = (part + 1) * of.part_len, len = of.samples * of.inner;
  return end < len ? end : len;
}

// The places of a thread in a part of a channel: runs of `run` elements, in a loop over the threads
// of a block. `advance` needs no division.
struct RunWalk {
  u64 place;    // among the samples · inner elements of the channel
  u64 element;  // the place in memory
  u64 within;   // the place in the sample
  u64 step, element_step, within_step, inner, next_sample;

  __device__ RunWalk(const Channels& of, u64 channel, u64 part, u32 run)
      : place(part * of.part_len + threadIdx.x * run), step(blockDim.x * run), inner(of.inner) {
    u64 sample = place / inner, samples = step / inner;
    within = place - sample * inner;
    element = (sample * of.channels + channel) * inner + within;
    within_step = step - samples * inner;
    element_step = samples * of.channels * inner + within_step;
    next_sample = (of.channels - 1) * inner;
  }

  __device__ void advance() {
    place += step;
    element += element_step;
    within += within_step;
    if (within < inner) return;
    within -= inner;
    element += next_sample;
  }
};

// partials[part][channel] = [mean, sum of squared distances from the mean]. A block of whole warps
// takes a part of a channel at a time, in a grid-stride loop. It sums distances from one element of
// the part. The error is small: at most the number of elements times the precision of f64.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(batch_moments)(double* partials, const Stored* x, Channels of) {
  __shared__ double scratch[32];
  bool is_packed = are_packs(of) && is_aligned<LEN>(x);
  for (u64 at = blockIdx.x; at < of.parts * of.channels; at += gridDim.x) {
    u64 part = at / of.channels, channel = at % of.channels;
    u64 start = part * of.part_len, end = end_of(of, part), first = start / of.inner;
    double near = (double)widened(x[(first * of.channels + channel) * of.inner + start % of.inner]);
    if (!(near - near == 0.0)) near = 0.0;
    double sum = 0.0, squares = 0.0;
    auto add = [&](Stored element) {
      double distance = (double)widened(element) - near;
      sum += distance;
      squares = multiply_add(distance, distance, squares);
    };
    if (is_packed) {
      RunWalk walk(of, channel, part, LEN);
#pragma unroll 4
      for (; walk.place < end; walk.advance()) {
        Pack<Stored, LEN> pack = load_pack<LEN>(x, walk.element / LEN);
#pragma unroll
        for (u32 k = 0; k < LEN; k++) add(pack.at[k]);
      }
    } else {
      RunWalk walk(of, channel, part, 1);
      for (; walk.place < end; walk.advance()) add(x[walk.element]);
    }
    sum = join_block<Sum>(sum, scratch);
    squares = join_block<Sum>(squares, scratch);
    if (threadIdx.x != 0) continue;
    double mean = sum / (double)(end - start);
    squares -= mean * sum;
    partials[2 * at] = near + mean;
    // Rounding must not make the sum negative. NaN stays NaN.
    partials[2 * at + 1] = squares < 0.0 ? 0.0 : squares;
  }
}

// Mean and biased variance of each channel from the moments of its parts: Chan, Golub and LeVeque,
// "Updating formulae and a pairwise algorithm for computing sample variances" (1982).
extern "C" __global__ void KERNEL(merge_moments)(Computed* means, Computed* variances,
                                                 const double* partials, Channels of) {
  for (u64 channel = thread_index(); channel < of.channels; channel += thread_count()) {
    double count = 0.0, mean = 0.0, squares = 0.0;
#pragma unroll 4
    for (u64 part = 0; part < of.parts; part++) {
      double added = (double)(end_of(of, part) - part * of.part_len);
      const double* from = partials + 2 * (part * of.channels + channel);
      double distance = from[0] - mean, all = count + added;
      mean += distance * (added / all);
      squares += from[1] + distance * distance * (count * added / all);
      count = all;
    }
    // A channel without elements has moments of NaN.
    means[channel] = (Computed)(count == 0.0 ? 0.0 / count : mean);
    variances[channel] = (Computed)(squares / count);
  }
}

// The rows of coefficients. Forward: y = scale · (x - mean) + shift. Backward: dx = scale · dy +
// slope · (x - mean) + shift.
enum Row : u32 { MEAN, SCALE, SLOPE, SHIFT };

extern "C" __global__ void KERNEL(batch_norm_coefficients)(
    Computed* coefficients, const Computed* means, const Computed* variances,
    const Stored* weight, const Stored* bias, double eps, u64 channels) {
  for (u64 channel = thread_index(); channel < channels; channel += thread_count()) {
    double scale = 1.0 / sqrt((double)variances[channel] + eps);
    if (weight != nullptr) scale *= (double)widened(weight[channel]);
    coefficients[MEAN * channels + channel] = means[channel];
    coefficients[SCALE * channels + channel] = (Computed)scale;
    coefficients[SLOPE * channels + channel] = (Computed)0;
    coefficients[SHIFT * channels + channel] =
        bias != nullptr ? widened(bias[channel]) : (Computed)0;
  }
}

// partials[part][channel] = [Σ dy, Σ dy · (x - mean)]; the grid is that of `batch_moments`. A
// thread loads packs of two tensors at once, so the launch bounds grant it many registers.
extern "C" __global__ void __launch_bounds__(256, 1)
    KERNEL(batch_gradient_sums)(double* partials, const Stored* dy, const Stored* x,
                                const Computed* means, Channels of) {
  __shared__ double scratch[32];
  bool is_packed = are_packs(of) && is_aligned<LEN>(x) && is_aligned<LEN>(dy);
  for (u64 at = blockIdx.x; at < of.parts * of.channels; at += gridDim.x) {
    u64 part = at / of.channels, channel = at % of.channels, end = end_of(of, part);
    Computed mean = means[channel];
    double sum = 0.0, product = 0.0;
    auto add = [&](Stored dy, Stored x) {
      double grad = (double)widened(dy);
      sum += grad;
      product = multiply_add(grad, (double)(widened(x) - mean), product);
    };
    if (is_packed) {
      RunWalk walk(of, channel, part, LEN);
#pragma unroll 4
      for (; walk.place < end; walk.advance()) {
        Pack<Stored, LEN> dys = load_pack<LEN>(dy, walk.element / LEN);
        Pack<Stored, LEN> xs = load_pack<LEN>(x, walk.element / LEN);
#pragma unroll
        for (u32 k = 0; k < LEN; k++) add(dys.at[k], xs.at[k]);
      }
    } else {
      RunWalk walk(of, channel, part, 1);
      for (; walk.place < end; walk.advance()) add(dy[walk.element], x[walk.element]);
    }
    sum = join_block<Sum>(sum, scratch);
    product = join_block<Sum>(product, scratch);
    if (threadIdx.x != 0) continue;
    partials[2 * at] = sum;
    partials[2 * at + 1] = product;
  }
}

// The gradients of weight and bias, and the coefficients of dx. With `of_batch`, gradients flow
// through the statistics.
extern "C" __global__ void KERNEL(batch_norm_gradients)(
    Computed* coefficients, Stored* dweight, Stored* dbias, const double* partials,
    const Computed* means, const Computed* variances, const Stored* weight, double eps,
    u32 of_batch, Channels of) {
  u64 channels = of.channels;
  for (u64 channel = thread_index(); channel < channels; channel += thread_count()) {
    double sum = 0.0, product = 0.0;
#pragma unroll 16
    for (u64 part = 0; part < of.parts; part++) {
      const double* from = partials + 2 * (part * channels + channel);
      sum += from[0];
      product += from[1];
    }
    double rstd = 1.0 / sqrt((double)variances[channel] + eps);
    double scale = weight != nullptr ? rstd * (double)widened(weight[channel]) : rstd;
    // Without elements the gradients are 0, even if the statistics are NaN.
    product = of.parts == 0 ? 0.0 : product * rstd;
    set(dweight[channel], (Computed)product);
    set(dbias[channel], (Computed)sum);
    double count = of_batch != 0 ? (double)(of.samples * of.inner) : INFINITY_F;
    coefficients[MEAN * channels + channel] = means[channel];
    coefficients[SCALE * channels + channel] = (Computed)scale;
    coefficients[SLOPE * channels + channel] = (Computed)(-scale * rstd * product / count);
    coefficients[SHIFT * channels + channel] = (Computed)(-scale * sum / count);
  }
}

// The coefficients of the channel of an element.
struct Line {
  Computed mean, scale, slope, shift;

  __device__ Line(const Computed* coefficients, const Channels& of, u64 element) {
    // A 64-bit division costs several times as much as a 32-bit division.
    bool is_short = (element | of.inner | of.channels) >> 32 == 0;
    u64 row = is_short ? (u64)((u32)element / (u32)of.inner) : element / of.inner;
    u64 channel = is_short ? (u64)((u32)row % (u32)of.channels) : row % of.channels;
    const Computed* from = coefficients + channel;
    mean = from[MEAN * of.channels], scale = from[SCALE * of.channels];
    slope = from[SLOPE * of.channels], shift = from[SHIFT * of.channels];
  }

  __device__ Computed y(Stored x) const { return scale * (widened(x) - mean) + shift; }
  __device__ Computed dx(Stored x, Stored dy) const {
    return scale * widened(dy) + (slope * (widened(x) - mean) + shift);
  }
};

// Computes y from x, or dx from x and dy if dy is given.
extern "C" __global__ void KERNEL(batch_norm_apply)(Stored* y, const Stored* x, const Stored* dy,
                                                    const Computed* coefficients, Channels of) {
  u64 len = of.samples * of.channels * of.inner;
  // Packs lie within one channel.
  bool is_packed = of.inner % LEN == 0 && is_aligned<LEN>(x) && is_aligned<LEN>(dy) &&
                   is_aligned<LEN>(y);
  u64 packs = is_packed ? len / LEN : 0;
  for (u64 i = thread_index(); i < packs; i += thread_count()) {
    Pack<Stored, LEN> xs = load_pack<LEN>(x, i), dys, to;
    if (dy != nullptr) dys = load_pack<LEN>(dy, i);
    Line line(coefficients, of, i * LEN);
#pragma unroll
    for (u32 k = 0; k < LEN; k++) {
      set(to.at[k], dy != nullptr ? line.dx(xs.at[k], dys.at[k]) : line.y(xs.at[k]));
    }
    store_pack<LEN>(y, i, to);
  }
  if (is_packed) return;
  for (u64 i = thread_index(); i < len; i += thread_count()) {
    Line line(coefficients, of, i);
    set(y[i], dy != nullptr ? line.dx(x[i], dy[i]) : line.y(x[i]));
  }
}

// running = (1 - momentum) · running + momentum · factor · batch.
extern "C" __global__ void KERNEL(update_running)(Stored* running, const Stored* batch,
                                                  double momentum, double factor, u64 channels) {
  for (u64 channel = thread_index(); channel < channels; channel += thread_count()) {
    double before = (double)widened(running[channel]), now = (double)widened(batch[channel]);
    set(running[channel], (Computed)((1.0 - momentum) * before + momentum * now * factor));
  }
}
