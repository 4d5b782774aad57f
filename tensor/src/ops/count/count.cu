// Counts the numbers that fall into bins of equal width, for elements of any float type. The walk
// is over x. Many threads add up whole numbers at one place, so their order does not change the
// sum.

enum : u32 {
  // Bins that a block counts in shared memory.
  OWN_BINS = 2048
};

// Makes keys that sort like the numbers. The bits of positive numbers sort like the numbers, the
// bits of negative ones in reverse.
__device__ inline u64 key_of(double x) {
#ifdef __CUDACC__
  u64 bits = (u64)__double_as_longlong(x);
#else
  u64 bits = __builtin_bit_cast(u64, x);
#endif
  return bits >> 63 != 0 ? ~bits : bits | 1ull << 63;
}

__device__ inline double number_of(u64 key) {
  u64 bits = key >> 63 != 0 ? key ^ 1ull << 63 : ~key;
#ifdef __CUDACC__
  return __longlong_as_double((i64)bits);
#else
  return __builtin_bit_cast(double, bits);
#endif
}

// ends[0] is the complement of the key of the smallest number, ends[1] the key of the largest
// number. Both are 0 before the first number. NaN is not counted.
extern "C" __global__ void KERNEL(find_ends)(u64* ends, const Stored* x, Walk<1> walk) {
  u64 low = 0, high = 0;
  for (u64 i = thread_index(); i < walk.len; i += thread_count()) {
    double number = (double)widened(x[places(walk, i).at[0]]);
    if (number != number) continue;
    u64 key = key_of(number);
    if (~key > low) low = ~key;
    if (key > high) high = key;
  }
  if (low != 0) atomicMax(&ends[0], low);
  if (high != 0) atomicMax(&ends[1], high);
}

// counts[bin] += number of elements in each of `bins` bins from low to high, both included. If low
// equals high, the bins go from the smallest to the largest number, which are in `ends`.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(count_bins)(u64* counts, const u64* ends, const Stored* x, double low, double high,
                       u64 bins, Walk<1> walk) {
  __shared__ u32 own[OWN_BINS];
  bool is_own = bins <= OWN_BINS;
  if (low == high && walk.len > 0) {
    low = ends[0] != 0 ? number_of(~ends[0]) : (double)INFINITY_F;
    high = ends[1] != 0 ? number_of(ends[1]) : -(double)INFINITY_F;
  }
  if (low == high) {
    low -= 1.0;
    high += 1.0;
  }
  if (is_own) {
    for (u64 bin = threadIdx.x; bin < bins; bin += blockDim.x) own[bin] = 0;
  }
  __syncthreads();
  for (u64 i = thread_index(); i < walk.len; i += thread_count()) {
    double number = (double)widened(x[places(walk, i).at[0]]);
    if (!(number >= low && number <= high)) continue;
    double place = (number - low) * (double)bins / (high - low);
    // The upper end belongs to the last bin. A place of NaN, which infinite ends give, becomes the
    // first bin.
    u64 bin = !(place > 0.0) ? 0 : place >= (double)bins ? bins - 1 : (u64)place;
    if (is_own) {
      atomicAdd(&own[bin], 1u);
    } else {
      atomicAdd(&counts[bin], (u64)1);
    }
  }
  if (!is_own) return;
  __syncthreads();
  for (u64 bin = threadIdx.x; bin < bins; bin += blockDim.x) {
    if (own[bin] != 0) atomicAdd(&counts[bin], (u64)own[bin]);
  }
}

// y = counts, rounded.
extern "C" __global__ void KERNEL(round_counts)(Stored* y, const u64* counts, u64 bins) {
  for (u64 i = thread_index(); i < bins; i += thread_count()) set(y[i], (Computed)counts[i]);
}
