// Normalisation of rows of `channels / groups` channels of `inner` elements each, as on the
// processor: y = x̂ · w + b with x̂ = (x - mean) · rstd. Sums are added up in f64, in an order that
// the sizes alone decide. A row is read several times, from the caches but for the first time.

struct Norm {
  u64 rows;      // samples · groups
  u64 groups;
  u64 channels;
  u64 inner;

  __device__ u64 channels_of_row() const { return channels / groups; }
  __device__ u64 row_len() const { return channels / groups * inner; }
};

// The channel of the element `place` of a row of the group `group`.
__device__ inline u64 channel_of(const Norm& norm, u64 group, u64 place) {
  u64 channel = norm.inner == 1 ? place : place / norm.inner;
  return group * norm.channels_of_row() + channel;
}

// A block of whole warps takes a row, and every n-th. Rows have no mean where `means` is absent.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(normalize)(Stored* y, Computed* rstds, Computed* means, const Stored* x,
                      const Stored* weight, const Stored* bias, double eps, Norm norm) {
  __shared__ double scratch[32];
  u64 len = norm.row_len();
  for (u64 row = blockIdx.x; row < norm.rows; row += gridDim.x) {
    const Stored* from = x + row * len;
    double mean = 0.0, squares = 0.0;
    if (means != nullptr) {
      for (u64 i = threadIdx.x; i < len; i += blockDim.x) mean += (double)widened(from[i]);
      mean = join_block<Sum>(mean, scratch) / (double)len;
    }
    for (u64 i = threadIdx.x; i < len; i += blockDim.x) {
      double distance = (double)widened(from[i]) - mean;
      squares += distance * distance;
    }
    squares = join_block<Sum>(squares, scratch);
    Computed center = (Computed)mean;
    Computed rstd = (Computed)(1.0 / sqrt(squares / (double)len + eps));
    if (threadIdx.x == 0) {
      rstds[row] = rstd;
      if (means != nullptr) means[row] = center;
    }
    for (u64 i = threadIdx.x; i < len; i += blockDim.x) {
      Computed value = (widened(from[i]) - center) * rstd;
      u64 channel = channel_of(norm, row % norm.groups, i);
      if (weight != nullptr) value *= widened(weight[channel]);
      if (bias != nullptr) value += widened(bias[channel]);
      set(y[row * len + i], value);
    }
  }
}

// dx = rstd · (dy·w - mean(dy·w) - x̂ · mean(dy·w·x̂)), without the first mean where rows have none.
// A block of whole warps takes a row, and every n-th.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(normalize_backward)(Stored* dx, const Stored* dy, const Stored* x,
                               const Computed* rstds, const Computed* means,
                               const Stored* weight, Norm norm) {
  __shared__ double scratch[32];
  u64 len = norm.row_len();
  for (u64 row = blockIdx.x; row < norm.rows; row += gridDim.x) {
    Computed rstd = rstds[row], mean = means != nullptr ? means[row] : (Computed)0;
    double sum = 0.0, product = 0.0;
    for (u64 i = threadIdx.x; i < len; i += blockDim.x) {
      Computed grad = widened(dy[row * len + i]);
      if (weight != nullptr) grad *= widened(weight[channel_of(norm, row % norm.groups, i)]);
      sum += (double)grad;
      product += (double)grad * (double)((widened(x[row * len + i]) - mean) * rstd);
    }
    sum = means != nullptr ? join_block<Sum>(sum, scratch) : 0.0;
    product = join_block<Sum>(product, scratch);
    Computed sum_mean = (Computed)(sum / (double)len);
    Computed product_mean = (Computed)(product / (double)len);
    for (u64 i = threadIdx.x; i < len; i += blockDim.x) {
      Computed grad = widened(dy[row * len + i]);
      if (weight != nullptr) grad *= widened(weight[channel_of(norm, row % norm.groups, i)]);
      Computed normal = (widened(x[row * len + i]) - mean) * rstd;
      set(dx[row * len + i], rstd * (grad - sum_mean - normal * product_mean));
    }
  }
}

// The samples that each partial sum is of: `len` of them, the last one of fewer.
struct Partials {
  u64 count;
  u64 len;
};

// Σ dy·x̂ and Σ dy of a channel over samples `first..end` and the places `place`, `place + step`, ..
struct ParameterSums {
  double products;
  double plain;
};

__device__ inline ParameterSums parameter_sums(const Stored* dy, const Stored* x,
                                               const Computed* rstds, const Computed* means,
                                               u64 channel, u64 first, u64 end, u64 place,
                                               u64 step, const Norm& norm) {
  ParameterSums sums = {};
  u64 group = channel / norm.channels_of_row();
  for (u64 sample = first; sample < end; sample++) {
    u64 row = sample * norm.groups + group;
    Computed rstd = rstds[row], mean = means != nullptr ? means[row] : (Computed)0;
    u64 start = (sample * norm.channels + channel) * norm.inner;
    for (u64 i = place; i < norm.inner; i += step) {
      Computed grad = widened(dy[start + i]);
      sums.products += (double)grad * (double)((widened(x[start + i]) - mean) * rstd);
      sums.plain += (double)grad;
    }
  }
  return sums;
}

__device__ inline u64 end_of(const Partials& parts, u64 part, u64 samples) {
  u64 end = (part + 1) * parts.len;
  return end < samples ? end : samples;
}

// partials[part][Σ dy·x̂, Σ dy][channel] where a sample has one element of each channel: a thread
// takes a part of a channel, and every n-th; neighbours read elements that lie side by side.
extern "C" __global__ void KERNEL(norm_partials_of_elements)(
    Computed* partials, const Stored* dy, const Stored* x, const Computed* rstds,
    const Computed* means, Partials parts, Norm norm) {
  for (u64 at = thread_index(); at < parts.count * norm.channels; at += thread_count()) {
    u64 part = at / norm.channels, channel = at % norm.channels;
    u64 end = end_of(parts, part, norm.rows / norm.groups);
    ParameterSums sums =
        parameter_sums(dy, x, rstds, means, channel, part * parts.len, end, 0, 1, norm);
    Computed* to = partials + 2 * part * norm.channels + channel;
    to[0] = (Computed)sums.products;
    to[norm.channels] = (Computed)sums.plain;
  }
}

// The same where a sample has many: a block of whole warps takes a part of a channel, and every
// n-th.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(norm_partials_of_planes)(Computed* partials, const Stored* dy, const Stored* x,
                                    const Computed* rstds, const Computed* means,
                                    Partials parts, Norm norm) {
  __shared__ double scratch[32];
  for (u64 at = blockIdx.x; at < parts.count * norm.channels; at += gridDim.x) {
    u64 part = at / norm.channels, channel = at % norm.channels;
    u64 end = end_of(parts, part, norm.rows / norm.groups);
    ParameterSums sums = parameter_sums(dy, x, rstds, means, channel, part * parts.len, end,
                                        threadIdx.x, blockDim.x, norm);
    double products = join_block<Sum>(sums.products, scratch);
    double plain = join_block<Sum>(sums.plain, scratch);
    if (threadIdx.x != 0) continue;
    Computed* to = partials + 2 * part * norm.channels + channel;
    to[0] = (Computed)products;
    to[norm.channels] = (Computed)plain;
  }
}

// The gradients of weight and bias from their partial sums, in order; overwritten.
extern "C" __global__ void KERNEL(norm_parameters)(Stored* dweight, Stored* dbias,
                                                   const Computed* partials, u64 count,
                                                   u64 channels) {
  for (u64 channel = thread_index(); channel < channels; channel += thread_count()) {
    double products = 0.0, plain = 0.0;
    for (u64 part = 0; part < count; part++) {
      const Computed* from = partials + 2 * part * channels + channel;
      products += (double)from[0];
      plain += (double)from[channels];
    }
    set(dweight[channel], (Computed)products);
    set(dbias[channel], (Computed)plain);
  }
}
