// The unique rows of x[N, R]. Rows are compared in place, in the order of the positions if given.
// Elements may be of any type. NaN equals nothing; in the order it comes after every number.

enum : u32 {
  THREADS = 256,
  WARPS = THREADS / 32,
  TILE_LEN = 4 * THREADS
};

template <typename X>
struct Rows {
  const X* x;
  u64 len;

  // True if row a belongs after another row b: by the first elements that differ, or by position if
  // none differ.
  __device__ bool is_after(u64 a, u64 b) const {
    for (u64 i = 0; i < len; i++) {
      auto first = widened(x[a * len + i]), second = widened(x[b * len + i]);
      bool first_is_nan = first != first, second_is_nan = second != second;
      if (first_is_nan != second_is_nan) return first_is_nan;
      if (!first_is_nan && first != second) return first > second;
    }
    return a > b;
  }

  __device__ bool differ(u64 a, u64 b) const {
    for (u64 i = 0; i < len; i++) {
      if (widened(x[a * len + i]) != widened(x[b * len + i])) return true;
    }
    return false;
  }
};

extern "C" __global__ void count_up(i64* positions, u64 len) {
  for (u64 i = thread_index(); i < len; i += thread_count()) positions[i] = (i64)i;
}

// One step of the bitonic network of `sort.cu`, for the positions of rows.
template <typename X>
__device__ inline void sort_step(i64* positions, const Rows<X>& rows, u64 count, u64 pairs,
                                 u32 step_log, u32 is_mirrored) {
  u64 step = 1ull << step_log;
  for (u64 i = thread_index(); i < pairs; i += thread_count()) {
    u64 place = i & (step - 1), first = (i - place) * 2;
    u64 a = first + place, b = is_mirrored != 0 ? first + 2 * step - 1 - place : a + step;
    if (b >= count) continue;
    i64 x = positions[a], y = positions[b];
    if (!rows.is_after((u64)x, (u64)y)) continue;
    positions[a] = y;
    positions[b] = x;
  }
}

template <typename X>
struct Order {
  Rows<X> rows;
  const i64* positions;
  u64 count;

  __device__ u64 at(u64 i) const { return positions != nullptr ? (u64)positions[i] : i; }

  // True if the i-th row in order differs from the previous row.
  __device__ bool is_new(u64 i) const { return i == 0 || rows.differ(at(i - 1), at(i)); }
};

// counts[tile] = number of new rows of a tile.
template <typename X>
__device__ inline void count_new(u64* counts, const Order<X>& order) {
  __shared__ u32 sums[32];
  u32 count = 0;
  for (u32 at = threadIdx.x; at < TILE_LEN; at += THREADS) {
    u64 i = blockIdx.x * (u64)TILE_LEN + at;
    if (i < order.count && order.is_new(i)) count++;
  }
  count = join_block<Sum>(count, sums);
  if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

// values[number] = each new row; inverse[position] = the number of its row; counts[number] = number
// of equal rows, from 0: the index of the next new row minus the index of this new row. `firsts` is
// the number of new rows before each tile.
template <typename X>
__device__ inline void put_new(X* values, i64* inverse, u64* counts, const u64* firsts,
                               const Order<X>& order) {
  __shared__ u32 warp_counts[WARPS];
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  u64 start = blockIdx.x * (u64)TILE_LEN, first = firsts[blockIdx.x], len = order.rows.len;
  for (u32 from = 0; from < TILE_LEN && start + from < order.count; from += THREADS) {
    u64 i = start + from + threadIdx.x;
    bool is_inside = i < order.count, is_new = is_inside && order.is_new(i);
    u32 votes = __ballot_sync(ALL_LANES, is_new);
    // All threads have read the previous counts.
    __syncthreads();
    if (lane == 0) warp_counts[warp] = (u32)__popc(votes);
    __syncthreads();
    u64 number = first + (u64)__popc(votes & ((1u << lane) - 1));
    for (u32 other = 0; other < WARPS; other++) {
      if (other < warp) number += warp_counts[other];
      first += warp_counts[other];
    }
    // The number of the last new row so far.
    if (!is_new) number -= 1;
    if (!is_inside) continue;
    u64 at = order.at(i);
    inverse[at] = (i64)number;
    if (is_new) {
      for (u64 place = 0; place < len; place++) {
        values[number * len + place] = order.rows.x[at * len + place];
      }
      // Integer sums wrap and do not depend on the order.
      atomicAdd(&counts[number], (u64)0 - i);
      if (number > 0) atomicAdd(&counts[number - 1], i);
    }
    if (i + 1 == order.count) atomicAdd(&counts[number], order.count);
  }
}

#define STAMP(X)                                                                                  \
  extern "C" __global__ void sort_step_##X(i64* positions, const X* x, u64 row_len, u64 count,    \
                                           u64 pairs, u32 step_log, u32 is_mirrored) {            \
    sort_step(positions, Rows<X>{x, row_len}, count, pairs, step_log, is_mirrored);               \
  }                                                                                               \
  extern "C" __global__ void __launch_bounds__(256)                                               \
      count_new_##X(u64* counts, const X* x, const i64* positions, u64 row_len, u64 count) {      \
    count_new(counts, Order<X>{{x, row_len}, positions, count});                                  \
  }                                                                                               \
  extern "C" __global__ void __launch_bounds__(256)                                               \
      put_new_##X(X* values, i64* inverse, u64* counts, const u64* firsts, const X* x,            \
                  const i64* positions, u64 row_len, u64 count) {                                 \
    put_new(values, inverse, counts, firsts, Order<X>{{x, row_len}, positions, count});           \
  }
STAMP(f32)
STAMP(f64)
STAMP(f16)
STAMP(bf16)
STAMP(i64)
STAMP(i32)
STAMP(u8)
STAMP(bool)
