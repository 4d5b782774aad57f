// Adds rows at the places of their indices, in the order of the indices: the same bits in each run,
// without atomic sums and without scratch memory.

enum : u32 {
  THREADS = 256,
  WARPS = THREADS / 32,
  // Rows of the sums in a part, which one block computes.
  BLOCK_ROWS = 32
};

// sums[r] += Σ source[i] over the i with index[i · step] = r, for rows of `columns` elements. A
// block takes a part of the sums at a time, in a grid-stride loop: it reads all indices and picks
// the indices of its part. An index out of range belongs to no part.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(index_add_rows)(Computed* sums, const Stored* source, const i64* index, i64 step,
                           u64 count, u64 rows, u64 columns) {
  __shared__ u64 found[THREADS];
  __shared__ u32 found_rows[THREADS];
  __shared__ u32 counts[WARPS];
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  u64 parts = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
  for (u64 part = blockIdx.x; part < parts; part += gridDim.x) {
    u64 first = part * BLOCK_ROWS;
    u64 end = first + BLOCK_ROWS < rows ? first + BLOCK_ROWS : rows;
    for (u64 start = 0; start < count; start += THREADS) {
      u64 i = start + threadIdx.x;
      u64 row = i < count ? (u64)index[(i64)i * step] : rows;
      bool is_own = row >= first && row < end;
      u32 votes = __ballot_sync(ALL_LANES, is_own);
      // The rows found before have been added.
      __syncthreads();
      if (lane == 0) counts[warp] = (u32)__popc(votes);
      __syncthreads();
      u32 place = (u32)__popc(votes & ((1u << lane) - 1)), total = 0;
      for (u32 other = 0; other < WARPS; other++) {
        if (other < warp) place += counts[other];
        total += counts[other];
      }
      if (is_own) {
        found[place] = i;
        found_rows[place] = (u32)(row - first);
      }
      __syncthreads();
      for (u32 at = 0; at < total; at++) {
        Computed* to = sums + (first + found_rows[at]) * columns;
        const Stored* from = source + found[at] * columns;
        for (u64 column = threadIdx.x; column < columns; column += THREADS) {
          to[column] += widened(from[column]);
        }
      }
    }
  }
}
