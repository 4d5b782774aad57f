// Batch normalisation of x[samples, channels, inner], as on the processor: sums over each channel in
// parts of the batch, which a second kernel merges in order, and then one pass over all elements by
// four coefficients for each channel.

struct Channels {
  u64 samples;
  u64 channels;
  u64 inner;
  u64 part_len;  // elements of a channel in a part; the last one has fewer
  u64 parts;
};

// Where the element `place` of a channel is, of samples · inner.
__device__ inline u64 element_of(const Channels& of, u64 channel, u64 place) {
  u64 sample = of.inner == 1 ? place : place / of.inner;
  return (sample * of.channels + channel) * of.inner + (place - sample * of.inner);
}

__device__ inline u64 end_of(const Channels& of, u64 part) {
  u64 end = (part + 1) * of.part_len, len = of.samples * of.inner;
  return end < len ? end : len;
}

// partials[part][channel][the mean, and the squared distances from it]. A block of whole warps takes
// a part of a channel, and every n-th, and reads it twice: the second time from the caches.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(batch_moments)(double* partials, const Stored* x, Channels of) {
  __shared__ double scratch[32];
  for (u64 at = blockIdx.x; at < of.parts * of.channels; at += gridDim.x) {
    u64 part = at / of.channels, channel = at % of.channels;
    u64 start = part * of.part_len, end = end_of(of, part);
    double sum = 0.0, squares = 0.0;
    for (u64 i = start + threadIdx.x; i < end; i += blockDim.x) {
      sum += (double)widened(x[element_of(of, channel, i)]);
    }
    double mean = join_block<Sum>(sum, scratch) / (double)(end - start);
    for (u64 i = start + threadIdx.x; i < end; i += blockDim.x) {
      double distance = (double)widened(x[element_of(of, channel, i)]) - mean;
      squares += distance * distance;
    }
    squares = join_block<Sum>(squares, scratch);
    if (threadIdx.x != 0) continue;
    partials[2 * at] = mean;
    partials[2 * at + 1] = squares;
  }
}

// Mean and biased variance of each channel from those of its parts: Chan, Golub and LeVeque,
// "Updating formulae and a pairwise algorithm for computing sample variances" (1982).
extern "C" __global__ void KERNEL(merge_moments)(Computed* means, Computed* variances,
                                                 const double* partials, Channels of) {
  for (u64 channel = thread_index(); channel < of.channels; channel += thread_count()) {
    double count = 0.0, mean = 0.0, squares = 0.0;
    for (u64 part = 0; part < of.parts; part++) {
      double added = (double)(end_of(of, part) - part * of.part_len);
      const double* from = partials + 2 * (part * of.channels + channel);
      double distance = from[0] - mean, all = count + added;
      mean += distance * (added / all);
      squares += from[1] + distance * distance * (count * added / all);
      count = all;
    }
    // The moments of nothing are NaN.
    means[channel] = (Computed)(count == 0.0 ? 0.0 / count : mean);
    variances[channel] = (Computed)(squares / count);
  }
}

// The rows of coefficients: y = scale · (x - mean) + shift, or scale · dy + slope · (x - mean) +
// shift.
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

// partials[part][channel][Σ dy, Σ dy · (x - mean)], in the same way.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(batch_gradient_sums)(double* partials, const Stored* dy, const Stored* x,
                                const Computed* means, Channels of) {
  __shared__ double scratch[32];
  for (u64 at = blockIdx.x; at < of.parts * of.channels; at += gridDim.x) {
    u64 part = at / of.channels, channel = at % of.channels;
    u64 end = end_of(of, part);
    double sum = 0.0, product = 0.0;
    for (u64 i = part * of.part_len + threadIdx.x; i < end; i += blockDim.x) {
      u64 element = element_of(of, channel, i);
      double grad = (double)widened(dy[element]);
      sum += grad;
      product += grad * (double)(widened(x[element]) - means[channel]);
    }
    sum = join_block<Sum>(sum, scratch);
    product = join_block<Sum>(product, scratch);
    if (threadIdx.x != 0) continue;
    partials[2 * at] = sum;
    partials[2 * at + 1] = product;
  }
}

// The gradients of weight and bias, and the coefficients of dx; gradients flow through statistics
// of the batch.
extern "C" __global__ void KERNEL(batch_norm_gradients)(
    Computed* coefficients, Stored* dweight, Stored* dbias, const double* partials,
    const Computed* means, const Computed* variances, const Stored* weight, double eps,
    u32 of_batch, Channels of) {
  u64 channels = of.channels;
  for (u64 channel = thread_index(); channel < channels; channel += thread_count()) {
    double sum = 0.0, product = 0.0;
    for (u64 part = 0; part < of.parts; part++) {
      const double* from = partials + 2 * (part * channels + channel);
      sum += from[0];
      product += from[1];
    }
    double rstd = 1.0 / sqrt((double)variances[channel] + eps);
    double scale = weight != nullptr ? rstd * (double)widened(weight[channel]) : rstd;
    // Of no elements the gradients are 0, whatever their statistics are.
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

// y of x, or dx of x and dy where that is given.
extern "C" __global__ void KERNEL(batch_norm_apply)(Stored* y, const Stored* x, const Stored* dy,
                                                    const Computed* coefficients, Channels of) {
  u64 len = of.samples * of.channels * of.inner, channels = of.channels;
  for (u64 i = thread_index(); i < len; i += thread_count()) {
    u64 channel = i / of.inner % channels;
    Computed distance = widened(x[i]) - coefficients[MEAN * channels + channel];
    Computed scale = coefficients[SCALE * channels + channel];
    Computed shift = coefficients[SHIFT * channels + channel];
    if (dy != nullptr) {
      Computed slope = coefficients[SLOPE * channels + channel];
      set(y[i], scale * widened(dy[i]) + (slope * distance + shift));
    } else {
      set(y[i], scale * distance + shift);
    }
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
