// Passes over one gradient. A thread takes every n-th element, or pack of elements; blocks have whole
// warps.

__device__ inline bool is_finite(Computed x) { return x - x == (Computed)0; }

// Whether what is stored is finite.
__device__ inline bool scale_and_check(Stored& place, double scale) {
  if (scale != 1.0) set(place, (Computed)scale * widened(place));
  return is_finite(widened(place));
}

// x *= scale, in place, or as it is where the scale is 1; `found` becomes 1.0 where what is stored
// is not finite, and is left alone else.
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

// partials[block] = Σ x² over the block's elements, overwritten. The grid fixes the order.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(squares)(double* partials, const Stored* x, u64 len) {
  __shared__ double scratch[32];
  constexpr u32 LEN = pack_len<Stored>();
  double sum = 0.0;
  u64 packs = is_aligned<LEN>(x) ? len / LEN : 0;
#pragma unroll 4
  for (u64 i = thread_index(); i < packs; i += thread_count()) {
    Pack<Stored, LEN> pack = load_pack<LEN>(x, i);
#pragma unroll
    for (u32 k = 0; k < LEN; k++) {
      double value = (double)widened(pack.at[k]);
      sum = multiply_add(value, value, sum);
    }
  }
  for (u64 i = LEN * packs + thread_index(); i < len; i += thread_count()) {
    double value = (double)widened(x[i]);
    sum = multiply_add(value, value, sum);
  }
  sum = join_block<Sum>(sum, scratch);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// sum += Σ partials. One block.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(add_partials)(double* sum, const double* partials, u64 len) {
  __shared__ double scratch[32];
  double all = 0.0;
  for (u64 i = threadIdx.x; i < len; i += blockDim.x) all += partials[i];
  all = join_block<Sum>(all, scratch);
  if (threadIdx.x == 0) *sum += all;
}
