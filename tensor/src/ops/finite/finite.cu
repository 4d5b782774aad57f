// Passes over one gradient, or over several contiguous gradients of one type. Each thread takes
// elements, or packs of elements, in a grid-stride loop. Blocks have whole warps.

__device__ inline bool is_finite(Computed x) { return x - x == (Computed)0; }

// Scales an element. True if the stored value is finite.
__device__ inline bool scale_and_check(Stored& place, double scale) {
  if (scale != 1.0) set(place, (Computed)scale * widened(place));
  return is_finite(widened(place));
}

// x *= scale, in place; a scale of 1 leaves x unchanged. `found` becomes 1.0 if a stored value is
// not finite, and stays unchanged otherwise.
extern "C" __global__ void KERNEL(scale_and_check)(u32* found, Stored* x, double scale,
                                                   Walk<1> walk) {
  constexpr u32 LEN = pack_len<Stored>();
  bool all = true;
  u64 packs = is_row(walk) && is_aligned<LEN>(x) ? walk.len / LEN : 0;
  for (u64 i = thread_index(); i < packs; i += thread_count()) {
    Pack<Stored, LEN> pack = load_pack<LEN>(x, i);
#pragma unroll
    for (u32 k = 0; k < LEN; k++) all &= scale_and_check(pack.at[k], scale);
    if (scale != 1.0) store_pack<LEN>(x, i, pack);
  }
  for (u64 i = LEN * packs + thread_index(); i < walk.len; i += thread_count()) {
    all &= scale_and_check(x[places(walk, i).at[0]], scale);
  }
  if (!all) atomicOr(found, __float_as_uint(1.0f));
}

// Σ x² over the elements of one of `blocks` blocks. The number of blocks fixes the order.
__device__ inline double squares(const Stored* x, u64 len, u64 block, u64 blocks,
                                 double* scratch) {
  constexpr u32 LEN = pack_len<Stored>();
  double sum = 0.0;
  u64 packs = is_aligned<LEN>(x) ? len / LEN : 0;
  u64 first = block * blockDim.x + threadIdx.x, step = blocks * blockDim.x;
#pragma unroll 4
  for (u64 i = first; i < packs; i += step) {
    Pack<Stored, LEN> pack = load_pack<LEN>(x, i);
#pragma unroll
    for (u32 k = 0; k < LEN; k++) {
      double value = (double)widened(pack.at[k]);
      sum = multiply_add(value, value, sum);
    }
  }
  for (u64 i = LEN * packs + first; i < len; i += step) {
    double value = (double)widened(x[i]);
    sum = multiply_add(value, value, sum);
  }
  return join_block<Sum>(sum, scratch);
}

// Σ partials, by one block.
__device__ inline double sum_of(const double* partials, u64 len, double* scratch) {
  double all = 0.0;
  for (u64 i = threadIdx.x; i < len; i += blockDim.x) all += partials[i];
  return join_block<Sum>(all, scratch);
}

// partials[block] = Σ x² over the block's elements, overwritten.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(squares)(double* partials, const Stored* x, u64 len) {
  __shared__ double scratch[32];
  double sum = squares(x, len, blockIdx.x, gridDim.x, scratch);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// sum += Σ partials. One block.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(add_partials)(double* sum, const double* partials, u64 len) {
  __shared__ double scratch[32];
  double all = sum_of(partials, len, scratch);
  if (threadIdx.x == 0) *sum += all;
}

enum : u32 { TENSORS_MAX = 240, PARTIALS_MAX = 1024 };

// The tensors of one launch, and their lengths.
struct Tensors {
  Stored* at[TENSORS_MAX];
};
struct Lens {
  u64 at[TENSORS_MAX];
};

// `scale_and_check` for all tensors.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(scale_and_check_all)(u32* found, Tensors tensors, Lens lens, u64 count, double scale) {
  constexpr u32 LEN = pack_len<Stored>(), TILE_LEN = 1024 * LEN;
  bool all = true;
  u64 tile = blockIdx.x, first = 0;
  for (u64 tensor = 0; tensor < count; tensor++) {
    u64 len = lens.at[tensor], end = first + (len + TILE_LEN - 1) / TILE_LEN;
    if (tile >= end) {
      first = end;
      continue;
    }
    Stored* x = tensors.at[tensor];
    // Tensors that begin at aligned memory are taken in packs, others element by element.
    u64 packs = is_aligned<LEN>(x) ? len / LEN : 0;
    for (; tile < end; tile += gridDim.x) {
      u64 from = (tile - first) * (TILE_LEN / LEN), to = from + TILE_LEN / LEN;
      for (u64 i = from + threadIdx.x; i < to && i < packs; i += blockDim.x) {
        Pack<Stored, LEN> pack = load_pack<LEN>(x, i);
#pragma unroll
        for (u32 k = 0; k < LEN; k++) all &= scale_and_check(pack.at[k], scale);
        if (scale != 1.0) store_pack<LEN>(x, i, pack);
      }
      u64 rest = from * LEN > packs * LEN ? from * LEN : packs * LEN;
      for (u64 i = rest + threadIdx.x; i < to * LEN && i < len; i += blockDim.x) {
        all &= scale_and_check(x[i], scale);
      }
    }
    first = end;
  }
  if (!all) atomicOr(found, __float_as_uint(1.0f));
}

// Number of blocks that sum the squares of a tensor, as if it were alone.
__device__ inline u64 blocks_of(u64 len) {
  u64 blocks = (len + 255) / 256;
  return blocks < PARTIALS_MAX ? blocks : (u64)PARTIALS_MAX;
}

// `squares` for all tensors. The partial sums of neighbouring tensors are contiguous.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(squares_all)(double* partials, Tensors tensors, Lens lens, u64 count) {
  __shared__ double scratch[32];
  u64 at = blockIdx.x, first = 0;
  for (u64 tensor = 0; tensor < count; tensor++) {
    u64 len = lens.at[tensor], blocks = blocks_of(len);
    for (; at < first + blocks; at += gridDim.x) {
      double sum = squares(tensors.at[tensor], len, at - first, blocks, scratch);
      if (threadIdx.x == 0) partials[at] = sum;
    }
    first += blocks;
  }
}

// partials[at + tensor] = Σ of the tensor's partial sums, which come before `at`. A block for each
// tensor.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(sum_partials)(double* partials, u64 at, Lens lens) {
  __shared__ double scratch[32];
  u64 first = 0;
  for (u64 tensor = 0; tensor < blockIdx.x; tensor++) first += blocks_of(lens.at[tensor]);
  double all = sum_of(partials + first, blocks_of(lens.at[blockIdx.x]), scratch);
  if (threadIdx.x == 0) partials[at + blockIdx.x] = all;
}

// sum += each of the sums from `at` on, in order. One thread.
extern "C" __global__ void KERNEL(add_in_order)(double* sum, const double* sums, u64 at,
                                                u64 count) {
  double all = *sum;
  for (u64 i = 0; i < count; i++) all += sums[at + i];
  *sum = all;
}
