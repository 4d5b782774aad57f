// Normalisation of rows of `channels / groups` channels of `inner` elements each, as on the
// processor: y = x̂ · w + b with x̂ = (x - mean) · rstd. Sums are in f64, in an order that depends
// on the sizes alone. A group of `lanes` threads takes a row.

struct Norm {
  u64 rows;      // samples · groups
  u64 groups;
  u64 channels;
  u64 inner;

  __device__ u64 channels_of_row() const { return channels / groups; }
  __device__ u64 row_len() const { return channels / groups * inner; }
  __device__ u64 first_channel(u64 row) const {
    return groups == 1 ? 0 : row % groups * channels_of_row();
  }
};

// The weights or biases of the elements of rows.
struct Parameters {
  const Stored* values;  // null if all are `otherwise`
  Computed otherwise;
  bool is_packed;  // true if the parameters of a row are whole, aligned packs

  __device__ Parameters(const Stored* values, Computed otherwise, const Norm& norm)
      : values(values),
        otherwise(otherwise),
        is_packed(norm.inner == 1 && norm.channels_of_row() % LINE_PACK == 0 &&
                  is_aligned<LINE_PACK>(values)) {}

  // The parameters of `count` elements from `start` on, in a row whose first channel is `first`.
  __device__ void get(Computed (&of)[LINE_PACK], const Norm& norm, u64 first, u64 start,
                      u32 count) const {
    if (values == nullptr) {
#pragma unroll
      for (u32 k = 0; k < LINE_PACK; k++) of[k] = otherwise;
      return;
    }
    if (is_packed) {
      Pack<Stored, LINE_PACK> pack = load_pack<LINE_PACK>(values, (first + start) / LINE_PACK);
#pragma unroll
      for (u32 k = 0; k < LINE_PACK; k++) of[k] = widened(pack.at[k]);
      return;
    }
    u64 channel = norm.inner == 1 ? start : start / norm.inner;
    u64 place = norm.inner == 1 ? 0 : start - channel * norm.inner;
#pragma unroll
    for (u32 k = 0; k < LINE_PACK; k++) {
      of[k] = k < count ? widened(values[first + channel]) : otherwise;
      if (++place < norm.inner) continue;
      place = 0;
      channel++;
    }
  }
};

// If `means` is null, rows have no mean.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(normalize)(Stored* y, Computed* rstds, Computed* means, const Stored* x,
                      const Stored* weight, const Stored* bias, double eps, Norm norm, u32 lanes) {
  __shared__ double scratch[32];
  LineGroup group = {lanes};
  u64 len = norm.row_len();
  bool is_packed = len % LINE_PACK == 0 && is_aligned<LINE_PACK>(x) && is_aligned<LINE_PACK>(y);
  Parameters weights(weight, (Computed)1, norm), biases(bias, (Computed)0, norm);
  for (u64 first = group.first_of_block(); first < norm.rows; first += group.step()) {
    u64 row = first + group.in_block();
    bool is_there = row < norm.rows;
    HeldLines<1> line(is_there ? len : 0, 1, group, is_packed);
    line.from[0] = x + row * len;
    u64 channel = norm.first_channel(row);
    double mean = 0.0, squares = 0.0;
    if (means != nullptr) {
      line.for_each_pack(0, [&](u64, const Computed (&x)[1][LINE_PACK]) {
#pragma unroll
        for (u32 k = 0; k < LINE_PACK; k++) mean += (double)x[0][k];
      });
      mean = group.join<Sum>(mean, scratch) / (double)len;
    }
    line.for_each_pack(0, [&](u64 start, const Computed (&x)[1][LINE_PACK]) {
      u32 count = line.count_from(start);
#pragma unroll
      for (u32 k = 0; k < LINE_PACK; k++) {
        double distance = (double)x[0][k] - mean;
        if (k < count) squares = multiply_add(distance, distance, squares);
      }
    });
    squares = group.join<Sum>(squares, scratch);
    Computed center = (Computed)mean;
    Computed rstd = (Computed)(1.0 / sqrt(squares / (double)len + eps));
    if (is_there && group.lane() == 0) {
      rstds[row] = rstd;
      if (means != nullptr) means[row] = center;
    }
    line.for_each_pack(0, [&](u64 start, const Computed (&x)[1][LINE_PACK]) {
      Computed w[LINE_PACK], b[LINE_PACK], values[LINE_PACK];
      weights.get(w, norm, channel, start, line.count_from(start));
      biases.get(b, norm, channel, start, line.count_from(start));
#pragma unroll
      for (u32 k = 0; k < LINE_PACK; k++) {
        values[k] = (x[0][k] - center) * rstd;
        if (weight != nullptr) values[k] *= w[k];
        if (bias != nullptr) values[k] += b[k];
      }
      line.put(y + row * len, start, values);
    });
  }
}

// dx = rstd · (dy·w - mean(dy·w) - x̂ · mean(dy·w·x̂)), without the first mean if rows have no
// mean. A thread holds packs of two tensors, so the launch bounds grant it many registers.
extern "C" __global__ void __launch_bounds__(256, 1)
    KERNEL(normalize_backward)(Stored* dx, const Stored* dy, const Stored* x,
                               const Computed* rstds, const Computed* means,
                               const Stored* weight, Norm norm, u32 lanes) {
  __shared__ double scratch[32];
  LineGroup group = {lanes};
  u64 len = norm.row_len();
  bool is_packed = len % LINE_PACK == 0 && is_aligned<LINE_PACK>(x) &&
                   is_aligned<LINE_PACK>(dy) && is_aligned<LINE_PACK>(dx);
  Parameters weights(weight, (Computed)1, norm);
  for (u64 first = group.first_of_block(); first < norm.rows; first += group.step()) {
    u64 row = first + group.in_block();
    bool is_there = row < norm.rows;
    HeldLines<2> line(is_there ? len : 0, 1, group, is_packed);
    line.from[0] = dy + row * len;
    line.from[1] = x + row * len;
    u64 channel = norm.first_channel(row);
    Computed rstd = is_there ? rstds[row] : 0;
    Computed mean = is_there && means != nullptr ? means[row] : 0;
    // dy · w and x̂ of a pack; 0 after the end of the row.
    auto gradients = [&](u64 start, const Computed (&of)[2][LINE_PACK],
                         Computed (&grads)[LINE_PACK], Computed (&normals)[LINE_PACK]) {
      u32 count = line.count_from(start);
      Computed w[LINE_PACK];
      weights.get(w, norm, channel, start, count);
#pragma unroll
      for (u32 k = 0; k < LINE_PACK; k++) {
        grads[k] = of[0][k] * w[k];
        normals[k] = (of[1][k] - mean) * rstd;
      }
    };
    double sum = 0.0, product = 0.0;
    line.for_each_pack(0, [&](u64 start, const Computed (&of)[2][LINE_PACK]) {
      Computed grads[LINE_PACK], normals[LINE_PACK];
      gradients(start, of, grads, normals);
#pragma unroll
      for (u32 k = 0; k < LINE_PACK; k++) {
        sum += (double)grads[k];
        product = multiply_add((double)grads[k], (double)normals[k], product);
      }
    });
    sum = means != nullptr ? group.join<Sum>(sum, scratch) : 0.0;
    product = group.join<Sum>(product, scratch);
    Computed sum_mean = (Computed)(sum / (double)len);
    Computed product_mean = (Computed)(product / (double)len);
    line.for_each_pack(0, [&](u64 start, const Computed (&of)[2][LINE_PACK]) {
      Computed grads[LINE_PACK], normals[LINE_PACK], values[LINE_PACK];
      gradients(start, of, grads, normals);
#pragma unroll
      for (u32 k = 0; k < LINE_PACK; k++) {
        values[k] = rstd * (grads[k] - sum_mean - normals[k] * product_mean);
      }
      line.put(dx + row * len, start, values);
    });
  }
}

// The cut of the samples into partial sums: `len` samples each, fewer in the last one.
struct Partials {
  u64 count;
  u64 len;
};

// Σ dy·x̂ and Σ dy of a channel.
struct ParameterSums {
  double products;
  double plain;

  __device__ void add(Stored dy, Stored x, Computed mean, Computed rstd) {
    double grad = (double)widened(dy);
    products = multiply_add(grad, (double)((widened(x) - mean) * rstd), products);
    plain += grad;
  }
};

__device__ inline u64 end_of(const Partials& parts, u64 part, u64 samples) {
  u64 end = (part + 1) * parts.len;
  return end < samples ? end : samples;
}

// Channels of a thread, and of a block. A warp takes every eighth sample of the block's channels.
enum : u32 { THREAD_CHANNELS = 4, BLOCK_CHANNELS = 32 * THREAD_CHANNELS, SAMPLE_WARPS = 8 };

// partials[part][Σ dy·x̂, Σ dy][channel], for samples with one element of each channel. A block
// takes a part of some channels at a time, in a grid-stride loop.
extern "C" __global__ void __launch_bounds__(256) KERNEL(norm_partials_of_elements)(
    Computed* partials, const Stored* dy, const Stored* x, const Computed* rstds,
    const Computed* means, Partials parts, Norm norm) {
  __shared__ double scratch[SAMPLE_WARPS][2][BLOCK_CHANNELS];
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  u64 channels = norm.channels, blocks = (channels + BLOCK_CHANNELS - 1) / BLOCK_CHANNELS;
  bool is_packed = norm.groups == 1 && channels % THREAD_CHANNELS == 0 &&
                   is_aligned<THREAD_CHANNELS>(dy) && is_aligned<THREAD_CHANNELS>(x);
  for (u64 at = blockIdx.x; at < parts.count * blocks; at += gridDim.x) {
    u64 part = at / blocks, first_of_block = (at - part * blocks) * BLOCK_CHANNELS;
    u64 first = first_of_block + lane * THREAD_CHANNELS;
    // Without elements, the range of samples is empty.
    u64 end = norm.inner == 0 ? 0 : end_of(parts, part, norm.rows / norm.groups);
    ParameterSums sums[THREAD_CHANNELS] = {};
    if (is_packed && first < channels) {
#pragma unroll 4
      for (u64 sample = part * parts.len + warp; sample < end; sample += SAMPLE_WARPS) {
        u64 pack = (sample * channels + first) / THREAD_CHANNELS;
        Pack<Stored, THREAD_CHANNELS> dys = load_pack<THREAD_CHANNELS>(dy, pack);
        Pack<Stored, THREAD_CHANNELS> xs = load_pack<THREAD_CHANNELS>(x, pack);
        Computed rstd = rstds[sample], mean = means != nullptr ? means[sample] : (Computed)0;
#pragma unroll
        for (u32 k = 0; k < THREAD_CHANNELS; k++) sums[k].add(dys.at[k], xs.at[k], mean, rstd);
      }
    } else {
#pragma unroll
      for (u32 k = 0; k < THREAD_CHANNELS; k++) {
        u64 channel = first + k, group = channel / norm.channels_of_row();
        if (channel >= channels) break;
        for (u64 sample = part * parts.len + warp; sample < end; sample += SAMPLE_WARPS) {
          u64 element = sample * channels + channel, row = sample * norm.groups + group;
          Computed mean = means != nullptr ? means[row] : (Computed)0;
          sums[k].add(dy[element], x[element], mean, rstds[row]);
        }
      }
    }
#pragma unroll
    for (u32 k = 0; k < THREAD_CHANNELS; k++) {
      scratch[warp][0][k * 32 + lane] = sums[k].products;
      scratch[warp][1][k * 32 + lane] = sums[k].plain;
    }
    __syncthreads();
    // A thread for each of the two sums of a channel.
    u32 which = threadIdx.x / BLOCK_CHANNELS, place = threadIdx.x % BLOCK_CHANNELS;
    double sum = 0.0;
#pragma unroll
    for (u32 other = 0; other < SAMPLE_WARPS; other++) sum += scratch[other][which][place];
    u64 channel = first_of_block + place % 32 * THREAD_CHANNELS + place / 32;
    if (channel < channels) partials[(2 * part + which) * channels + channel] = (Computed)sum;
    // The next part overwrites the scratch memory.
    __syncthreads();
  }
}

// partials[part][Σ dy·x̂, Σ dy][channel], for samples with many elements of each channel. A block
// of whole warps takes a part of a channel at a time, in a grid-stride loop.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(norm_partials_of_planes)(Computed* partials, const Stored* dy, const Stored* x,
                                    const Computed* rstds, const Computed* means,
                                    Partials parts, Norm norm) {
  __shared__ double scratch[32];
  for (u64 at = blockIdx.x; at < parts.count * norm.channels; at += gridDim.x) {
    u64 part = at / norm.channels, channel = at % norm.channels;
    u64 end = end_of(parts, part, norm.rows / norm.groups);
    ParameterSums sums = {};
    u64 group = channel / norm.channels_of_row();
    for (u64 sample = part * parts.len; sample < end; sample++) {
      u64 row = sample * norm.groups + group;
      Computed rstd = rstds[row], mean = means != nullptr ? means[row] : (Computed)0;
      u64 start = (sample * norm.channels + channel) * norm.inner;
#pragma unroll 4
      for (u64 i = threadIdx.x; i < norm.inner; i += blockDim.x) {
        sums.add(dy[start + i], x[start + i], mean, rstd);
      }
    }
    double products = join_block<Sum>(sums.products, scratch);
    double plain = join_block<Sum>(sums.plain, scratch);
    if (threadIdx.x != 0) continue;
    Computed* to = partials + 2 * part * norm.channels + channel;
    to[0] = (Computed)products;
    to[norm.channels] = (Computed)plain;
  }
}

// The gradients of weight and bias from their partial sums, added in order; overwritten.
extern "C" __global__ void KERNEL(norm_parameters)(Stored* dweight, Stored* dbias,
                                                   const Computed* partials, u64 count,
                                                   u64 channels) {
  for (u64 channel = thread_index(); channel < channels; channel += thread_count()) {
    double products = 0.0, plain = 0.0;
    // Channels may be fewer than a device's threads, so each thread has many loads under way.
#pragma unroll 16
    for (u64 part = 0; part < count; part++) {
      const Computed* from = partials + 2 * part * channels + channel;
      products += (double)from[0];
      plain += (double)from[channels];
    }
    set(dweight[channel], (Computed)products);
    set(dbias[channel], (Computed)plain);
  }
}
