// Packs the elements that a mask keeps, in row-major order. One kernel counts the kept elements of
// each tile, one block turns the counts into the start of each tile, and a third kernel packs the
// tiles.
//
// A mask may be of any type; kernels only know the size of its elements. An element is kept if its
// bits, without the sign bit of a float, are not 0.

enum : u32 {
  THREADS = 256,
  WARPS = THREADS / 32,
  TILE_LEN = 8 * THREADS
};

// Number of true votes of the threads before this thread, and of all threads of the block.
struct Votes {
  u32 before;
  u32 all;
};

// `counts` is a word of shared memory for each warp.
__device__ inline Votes vote(bool is_true, u32* counts) {
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  u32 votes = __ballot_sync(ALL_LANES, is_true);
  // All threads have read the previous counts.
  __syncthreads();
  if (lane == 0) counts[warp] = (u32)__popc(votes);
  __syncthreads();
  Votes found = {(u32)__popc(votes & ((1u << lane) - 1)), 0};
  for (u32 other = 0; other < WARPS; other++) {
    if (other < warp) found.before += counts[other];
    found.all += counts[other];
  }
  return found;
}

template <typename M>
struct Mask {
  const M* mask;
  u64 bits;

  __device__ bool keeps(i64 place) const { return ((u64)mask[place] & bits) != 0; }
};

// counts[tile] = number of kept elements of the tile. The mask is the first tensor of the walk.
template <typename M, u32 TENSORS>
__device__ inline void count_tiles(u64* counts, const Mask<M>& mask, const Walk<TENSORS>& walk) {
  __shared__ u32 sums[32];
  u32 count = 0;
  u64 start = blockIdx.x * (u64)TILE_LEN;
  for (u32 at = threadIdx.x; at < TILE_LEN; at += THREADS) {
    u64 i = start + at;
    if (i < walk.len && mask.keeps(places(walk, i).at[0])) count++;
  }
  count = join_block<Sum>(count, sums);
  if (threadIdx.x == 0) counts[blockIdx.x] = count;
}

// Calls put(number, rank, place, is_kept) for all elements of a tile. `rank` is the number of kept
// elements before this element; `place` is in the last tensor of the walk.
template <typename M, u32 TENSORS, typename Put>
__device__ inline void each_kept(const u64* firsts, const Mask<M>& mask,
                                 const Walk<TENSORS>& walk, const Put& put) {
  __shared__ u32 counts[WARPS];
  u64 start = blockIdx.x * (u64)TILE_LEN, first = firsts[blockIdx.x];
  for (u32 at = 0; at < TILE_LEN && start + at < walk.len; at += THREADS) {
    u64 i = start + at + threadIdx.x;
    bool is_inside = i < walk.len, is_kept = false;
    Places<TENSORS> of = {};
    if (is_inside) {
      of = places(walk, i);
      is_kept = mask.keeps(of.at[0]);
    }
    Votes votes = vote(is_kept, counts);
    if (is_inside) put(i, first + votes.before, of.at[TENSORS - 1], is_kept);
    first += votes.all;
  }
}

// Replaces the count of each tile by the sum of the counts before it; *count is the total. One
// block.
extern "C" __global__ void __launch_bounds__(512)
    add_up_tiles(u64* counts, u64* count, u64 tiles) {
  __shared__ u64 totals[32];
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  u64 carried = 0;
  for (u64 begin = 0; begin < tiles; begin += blockDim.x) {
    u64 tile = begin + threadIdx.x;
    u64 own = tile < tiles ? counts[tile] : 0, sum = own;
    for (u32 distance = 1; distance < 32; distance *= 2) {
      u64 before = __shfl_sync(ALL_LANES, sum, lane >= distance ? lane - distance : lane);
      if (lane >= distance) sum += before;
    }
    if (lane == 31) totals[warp] = sum;
    __syncthreads();
    u64 before = carried;
    for (u32 other = 0; other < warps; other++) {
      if (other < warp) before += totals[other];
      carried += totals[other];
    }
    if (tile < tiles) counts[tile] = before + sum - own;
    // The next round overwrites the totals.
    __syncthreads();
  }
  if (threadIdx.x == 0) *count = carried;
}

// y[rank] = x where the mask keeps.
template <typename T>
struct Select {
  T* y;
  const T* x;

  __device__ void operator()(u64, u64 rank, i64 place, bool is_kept) const {
    if (is_kept) y[rank] = x[place];
  }
};

// y[rank, ..] = the index of a kept element in `shape`, while y has room.
struct Shape {
  u64 rank;
  u64 sizes[RANK_MAX];
};

struct Indices {
  i64* y;
  u64 rows;
  const Shape& shape;

  __device__ void operator()(u64 number, u64 rank, i64, bool is_kept) const {
    if (!is_kept || rank >= rows) return;
    i64* index = y + rank * shape.rank;
#pragma unroll
    for (u32 step = 0; step < RANK_MAX; step++) {
      u32 axis = RANK_MAX - 1 - step;
      if (axis >= shape.rank) continue;
      index[axis] = (i64)(number % shape.sizes[axis]);
      number /= shape.sizes[axis];
    }
  }
};

// y = the element of the source at the rank where the mask keeps, and x elsewhere.
template <typename T>
struct Exchange {
  T* y;
  const T* x;
  const T* source;
  u64 source_len;

  __device__ void operator()(u64 number, u64 rank, i64 place, bool is_kept) const {
    y[number] = is_kept && rank < source_len ? source[rank] : x[place];
  }
};

// Fills the elements of y after the first `width` · *count with `value`.
extern "C" __global__ void fill_rest(i64* y, const u64* count, u64 width, i64 value, u64 len) {
  for (u64 i = *count * width + thread_index(); i < len; i += thread_count()) y[i] = value;
}

// Reports a source with fewer elements than are kept, unless there is a complaint already.
extern "C" __global__ void check_count(Complaint* complaint, const u64* count, u64 len, u64 op) {
  if (thread_index() != 0 || *count <= len || complaint->position != 0) return;
  *complaint = {(i64)*count, (i64)*count - 1, (i64)len, op};
}

#define STAMP(T, SIZE)                                                                            \
  extern "C" __global__ void __launch_bounds__(256)                                               \
      count_tiles_##SIZE(u64* counts, const T* mask, u64 bits, Walk<1> walk) {                    \
    count_tiles(counts, Mask<T>{mask, bits}, walk);                                               \
  }                                                                                               \
  extern "C" __global__ void __launch_bounds__(256) select_##SIZE(                                \
      T* y, const u64* firsts, const u8* mask, const T* x, Walk<2> walk) {                        \
    each_kept(firsts, Mask<u8>{mask, ~0ull}, walk, Select<T>{y, x});                              \
  }                                                                                               \
  extern "C" __global__ void __launch_bounds__(256) indices_##SIZE(                               \
      i64* y, const u64* firsts, const T* mask, u64 bits, u64 rows, Shape shape, Walk<1> walk) {  \
    each_kept(firsts, Mask<T>{mask, bits}, walk, Indices{y, rows, shape});                        \
  }                                                                                               \
  extern "C" __global__ void __launch_bounds__(256) exchange_##SIZE(                              \
      T* y, const u64* firsts, const u8* mask, const T* x, const T* source, u64 source_len,       \
      Walk<2> walk) {                                                                             \
    each_kept(firsts, Mask<u8>{mask, ~0ull}, walk, Exchange<T>{y, x, source, source_len});        \
  }
STAMP(u8, 1)
STAMP(u16, 2)
STAMP(u32, 4)
STAMP(u64, 8)
