// Attention in blocks, as on the processor: y = softmax(scale · q kᵀ + mask) v for each head,
// without storing the weights of all pairs. Dao, "FlashAttention-2: faster attention with better
// parallelism and work partitioning" (2023), without its atomic sums: backward computes dq in a
// pass of its own. Each result is then written by one block and has the same bits in each run.
//
// A block of 8 warps has 32 rows, 4 for each warp. Rows are queries, or keys in the pass for dk and
// dv. The block reads the other side in tiles of 32 lines, one line for each lane. Half types of up
// to 128 columns have kernels for tensor cores, at the end of this file.

enum : u32 {
  WARP_ROWS = 4,
  ROWS = 32,
  LANES = 32,
  THREADS = 256,
  // Columns that are in shared memory at once.
  CHUNK = sizeof(Computed) == 8 ? 32 : 64,
  // Rows of a tile begin at different banks.
  TILE_LINE = CHUNK + 1,
  // Columns of a result that one block sums. Other blocks sum further columns.
  COLUMNS = sizeof(Computed) == 8 ? 64 : 128,
  CHUNKS = COLUMNS / CHUNK,
  LANE_COLUMNS = COLUMNS / LANES,
  CHUNK_LANE_COLUMNS = CHUNK / LANES
};

enum Causal : u64 { ALL, UPPER_LEFT, LOWER_RIGHT };

struct Problem {
  u64 batch;
  u64 heads;
  u64 groups;  // heads of k and v
  u64 queries;
  u64 keys;
  u64 dim;
  u64 v_dim;
  u64 causal;
  u64 first_sample;
  i64 q[4];
  i64 k[4];
  i64 v[4];
  i64 mask[4];
  i64 y[4];
  i64 dy[4];
};

// The mask of the scores.
struct Mask {
  const u8* keep;     // pairs that count; null without a mask of booleans
  const Stored* add;  // numbers that are added to the scores; null without such a mask
};

struct Dropout {
  double probability;  // 0 for none
  double factor;       // of the weights that are kept
  Stream stream;
};

// The matrix of one head.
struct Side {
  const Stored* data;
  i64 row_stride;
  i64 column_stride;
  u64 rows;
  u64 columns;

  __device__ Computed at(u64 row, u64 column) const {
    if (row >= rows || column >= columns) return (Computed)0;
    return widened(data[(i64)row * row_stride + (i64)column * column_stride]);
  }
};

__device__ inline Side side(const Stored* data, const i64* strides, u64 b, u64 h, u64 rows,
                            u64 columns) {
  return {data + (i64)b * strides[0] + (i64)h * strides[1], strides[2], strides[3], rows, columns};
}

// Number of keys that a query sees because of its place. The visible keys are the first ones.
__device__ inline u64 visible(const Problem& of, u64 query) {
  if (of.causal == ALL) return of.keys;
  u64 end = query + 1;
  if (of.causal == LOWER_RIGHT) {
    end += of.keys;
    end = end > of.queries ? end - of.queries : 0;
  }
  return end < of.keys ? end : of.keys;
}

// True if the pair exists and causality lets the query see the key.
__device__ inline bool counts(const Problem& of, u64 query, u64 key) {
  return query < of.queries && key < visible(of, query);
}

// The first query that causality lets see a key.
__device__ inline u64 first_query(const Problem& of, u64 key) {
  if (of.causal == ALL) return 0;
  if (of.causal == UPPER_LEFT) return key;
  u64 place = key + of.queries;
  return place > of.keys ? place - of.keys : 0;
}

struct Shared {
  Computed own[CHUNK * ROWS];         // columns of the block's rows
  Computed tile[LANES * TILE_LINE];   // lines of the other side
  Computed weights[LANES * ROWS];     // a weight for each line and row
};

// sums[r] = Σ_c own[row r of this warp, c] · other[line of this lane, c].
__device__ inline void products(Computed* sums, const Side& own, u64 own_first, const Side& other,
                                u64 other_first, Shared& shared) {
  u32 lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
  for (u32 r = 0; r < WARP_ROWS; r++) sums[r] = (Computed)0;
  for (u64 first = 0; first < own.columns; first += CHUNK) {
    // The tiles of the previous chunk are overwritten below.
    __syncthreads();
    for (u32 i = threadIdx.x; i < ROWS * CHUNK; i += THREADS) {
      u32 row = i / CHUNK, column = i % CHUNK;
      shared.own[column * ROWS + row] = own.at(own_first + row, first + column);
      shared.tile[row * TILE_LINE + column] = other.at(other_first + row, first + column);
    }
    __syncthreads();
#pragma unroll 8
    for (u32 column = 0; column < CHUNK; column++) {
      Computed value = shared.tile[lane * TILE_LINE + column];
      const Computed* rows = shared.own + column * ROWS + warp * WARP_ROWS;
#pragma unroll
      for (u32 r = 0; r < WARP_ROWS; r++) sums[r] = multiply_add(rows[r], value, sums[r]);
    }
  }
}

// sums[r][..] += Σ_l weights[r of line l] · other[l, columns from `first` on]: a lane sums every
// 32nd column. Each lane supplies the weights of its line.
__device__ inline void accumulate(Computed (*sums)[LANE_COLUMNS], const Computed* weights,
                                  const Side& other, u64 other_first, u64 first, Shared& shared) {
  u32 lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
  __syncthreads();
#pragma unroll
  for (u32 r = 0; r < WARP_ROWS; r++) {
    shared.weights[lane * ROWS + warp * WARP_ROWS + r] = weights[r];
  }
#pragma unroll
  for (u32 chunk = 0; chunk < CHUNKS; chunk++) {
    u64 column = first + chunk * CHUNK;
    if (column >= other.columns) break;
    __syncthreads();
    for (u32 i = threadIdx.x; i < LANES * CHUNK; i += THREADS) {
      shared.tile[i / CHUNK * TILE_LINE + i % CHUNK] =
          other.at(other_first + i / CHUNK, column + i % CHUNK);
    }
    __syncthreads();
#pragma unroll 4
    for (u32 line = 0; line < LANES; line++) {
      const Computed* of_line = shared.weights + line * ROWS + warp * WARP_ROWS;
#pragma unroll
      for (u32 t = 0; t < CHUNK_LANE_COLUMNS; t++) {
        Computed value = shared.tile[line * TILE_LINE + t * LANES + lane];
#pragma unroll
        for (u32 r = 0; r < WARP_ROWS; r++) {
          Computed& sum = sums[r][chunk * CHUNK_LANE_COLUMNS + t];
          sum = multiply_add(of_line[r], value, sum);
        }
      }
    }
  }
}

// Writes sums · factor[r] to the rows of this warp, which are contiguous.
__device__ inline void store(Stored* to, Computed (*sums)[LANE_COLUMNS], const Computed* factors,
                             u64 first_row, u64 rows, u64 first, u64 columns) {
  u32 lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
#pragma unroll
  for (u32 r = 0; r < WARP_ROWS; r++) {
    u64 row = first_row + warp * WARP_ROWS + r;
#pragma unroll
    for (u32 t = 0; t < LANE_COLUMNS; t++) {
      u64 column = first + t * LANES + lane;
      if (row < rows && column < columns) set(to[row * columns + column], sums[r][t] * factors[r]);
    }
  }
}

// The place in the mask of a query and key 0.
__device__ inline i64 mask_row(const Problem& of, u64 b, u64 h, u64 query) {
  return (i64)b * of.mask[0] + (i64)h * of.mask[1] + (i64)query * of.mask[2];
}

// The score with the mask applied; -∞ where the mask excludes the pair.
__device__ inline Computed masked(Computed score, const Mask& mask, i64 place) {
  if (mask.keep != nullptr && mask.keep[place] == 0) return (Computed)-INFINITY_F;
  return mask.add != nullptr ? score + widened(mask.add[place]) : score;
}

// The score of a pair from the product of its query and its key; -∞ for a pair that does not count.
__device__ inline Computed score(Computed product, Computed scale, const Mask& mask,
                                 const Problem& of, u64 b, u64 h, u64 query, u64 key) {
  if (!counts(of, query, key)) return (Computed)-INFINITY_F;
  i64 place = mask_row(of, b, h, query) + (i64)key * of.mask[3];
  return masked(scale * product, mask, place);
}

// The random words that decide a pair. Pairs with equal `key / 4` share the words.
__device__ inline Words decision(const Dropout& dropout, const Problem& of, u64 b, u64 h,
                                 u64 query, u64 key) {
  u64 row = ((of.first_sample + b) * of.heads + h) * of.queries + query;
  return block_of(dropout.stream, row * ((of.keys + 3) / 4) + key / 4);
}

// The factor that dropout applies to a weight: 0, or the scale of kept weights.
__device__ inline Computed kept(const Dropout& dropout, const Words& words, u64 key) {
  // An array with a dynamic index would lie in memory instead of registers.
  u32 first = key % 2 == 0 ? words.at[0] : words.at[1];
  u32 second = key % 2 == 0 ? words.at[2] : words.at[3];
  u32 word = key % 4 < 2 ? first : second;
  bool is_dropped = (double)word < dropout.probability * 4294967296.0;
  return is_dropped ? (Computed)0 : (Computed)dropout.factor;
}

__device__ inline Computed kept(const Dropout& dropout, const Problem& of, u64 b, u64 h, u64 query,
                                u64 key) {
  if (dropout.probability == 0.0) return (Computed)1;
  return kept(dropout, decision(dropout, of, b, h, query, key), key);
}

// Joins one value of each lane in a fixed order. All lanes get the result.
template <typename Join>
__device__ inline Computed join_warp(Computed value) {
  for (u32 bit = LANES / 2; bit > 0; bit /= 2) {
    value = Join::join(value, __shfl_xor_sync(ALL_LANES, value, bit));
  }
  return value;
}

__device__ inline u64 tiles(u64 len, u64 of) { return (len + of - 1) / of; }
__device__ inline u64 at_least_one(u64 count) { return count == 0 ? 1 : count; }
__device__ inline u64 smaller(u64 x, u64 y) { return y < x ? y : x; }

// Computes y and lse. A block takes 32 queries of a head and up to COLUMNS columns of y, in a
// grid-stride loop.
extern "C" __global__ void __launch_bounds__(256, 1)
    KERNEL(attention)(Stored* y, Computed* lse, const Stored* q, const Stored* k, const Stored* v,
                      const u8* keep, const Stored* add, double scale, Dropout dropout,
                      Problem of) {
  __shared__ Shared shared;
  Mask mask = {keep, add};
  u32 lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
  const Computed NONE = (Computed)-INFINITY_F;
  u64 query_tiles = tiles(of.queries, ROWS), parts = at_least_one(tiles(of.v_dim, COLUMNS));
  for (u64 task = blockIdx.x; task < of.batch * of.heads * query_tiles * parts;
       task += gridDim.x) {
    u64 head = task / parts / query_tiles, b = head / of.heads, h = head % of.heads;
    u64 first = task / parts % query_tiles * ROWS, first_column = task % parts * COLUMNS;
    u64 g = h / (of.heads / of.groups);
    Side q_side = side(q, of.q, b, h, of.queries, of.dim);
    Side k_side = side(k, of.k, b, g, of.keys, of.dim);
    Side v_side = side(v, of.v, b, g, of.keys, of.v_dim);
    Computed sums[WARP_ROWS][LANE_COLUMNS] = {};
    Computed most[WARP_ROWS], totals[WARP_ROWS];
    for (u32 r = 0; r < WARP_ROWS; r++) {
      most[r] = NONE;
      totals[r] = (Computed)0;
    }
    u64 end = visible(of, smaller(first + ROWS, of.queries) - 1);
    for (u64 key = 0; key < end; key += LANES) {
      Computed weights[WARP_ROWS];
      products(weights, q_side, first, k_side, key, shared);
#pragma unroll
      for (u32 r = 0; r < WARP_ROWS; r++) {
        u64 query = first + warp * WARP_ROWS + r;
        Computed value =
            score(weights[r], (Computed)scale, mask, of, b, h, query, key + lane);
        Computed greatest = greater(most[r], join_warp<Max>(value));
        // If no pair has counted so far, nothing is rescaled.
        Computed shift = greatest == NONE ? (Computed)0 : greatest;
        Computed before = exp(most[r] - shift), weight = exp(value - shift);
        totals[r] = totals[r] * before + join_warp<Sum>(weight);
        most[r] = greatest;
#pragma unroll
        for (u32 t = 0; t < LANE_COLUMNS; t++) sums[r][t] *= before;
        weights[r] = weight == (Computed)0
                         ? weight
                         : weight * kept(dropout, of, b, h, query, key + lane);
      }
      accumulate(sums, weights, v_side, key, first_column, shared);
    }
    Computed factors[WARP_ROWS];
#pragma unroll
    for (u32 r = 0; r < WARP_ROWS; r++) {
      u64 query = first + warp * WARP_ROWS + r;
      factors[r] = totals[r] == (Computed)0 ? (Computed)0 : (Computed)1 / totals[r];
      if (lane == 0 && first_column == 0 && query < of.queries) {
        lse[head * of.queries + query] =
            most[r] == NONE ? NONE : most[r] + log(totals[r]);
      }
    }
    store(y + head * of.queries * of.v_dim, sums, factors, first, of.queries, first_column,
          of.v_dim);
  }
}

// delta = Σ dy·y of each query. A warp takes one query at a time, in a grid-stride loop.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(attention_delta)(Computed* delta, const Stored* y, const Stored* dy, Problem of) {
  u32 lane = threadIdx.x % LANES;
  u64 warps = gridDim.x * (u64)(THREADS / LANES);
  u64 warp = blockIdx.x * (u64)(THREADS / LANES) + threadIdx.x / LANES;
  for (; warp < of.batch * of.heads * of.queries; warp += warps) {
    u64 head = warp / of.queries, query = warp % of.queries;
    Side y_side = side(y, of.y, head / of.heads, head % of.heads, of.queries, of.v_dim);
    Side dy_side = side(dy, of.dy, head / of.heads, head % of.heads, of.queries, of.v_dim);
    Computed sum = (Computed)0;
    for (u64 column = lane; column < of.v_dim; column += LANES) {
      sum = multiply_add(y_side.at(query, column), dy_side.at(query, column), sum);
    }
    sum = join_warp<Sum>(sum);
    if (lane == 0) delta[warp] = sum;
  }
}

// The weight of a pair after dropout, and the gradient of its score. They follow from the products
// of query and key and of dy and v.
struct Pair {
  Computed left;
  Computed gradient;
};

__device__ inline Pair pair(Computed product, Computed dy_product, Computed lse, Computed delta,
                            Computed scale, const Mask& mask, const Dropout& dropout,
                            const Problem& of, u64 b, u64 h, u64 query, u64 key) {
  Computed value = score(product, scale, mask, of, b, h, query, key);
  if (value == (Computed)-INFINITY_F) return {};
  Computed weight = exp(value - lse);
  Computed keeps = kept(dropout, of, b, h, query, key);
  return {weight * keeps, weight * (keeps * dy_product - delta)};
}

// dq = scale · ds k. A block takes 32 queries of a head and up to COLUMNS columns of dq, in a
// grid-stride loop.
extern "C" __global__ void __launch_bounds__(256, 1)
    KERNEL(attention_dq)(Stored* dq, const Stored* q, const Stored* k, const Stored* v,
                         const Stored* dy, const Computed* lse, const Computed* delta,
                         const u8* keep, const Stored* add, double scale, Dropout dropout,
                         Problem of) {
  __shared__ Shared shared;
  Mask mask = {keep, add};
  u32 lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
  u64 query_tiles = tiles(of.queries, ROWS), parts = tiles(of.dim, COLUMNS);
  for (u64 task = blockIdx.x; task < of.batch * of.heads * query_tiles * parts;
       task += gridDim.x) {
    u64 head = task / parts / query_tiles, b = head / of.heads, h = head % of.heads;
    u64 first = task / parts % query_tiles * ROWS, first_column = task % parts * COLUMNS;
    u64 g = h / (of.heads / of.groups);
    Side q_side = side(q, of.q, b, h, of.queries, of.dim);
    Side k_side = side(k, of.k, b, g, of.keys, of.dim);
    Side v_side = side(v, of.v, b, g, of.keys, of.v_dim);
    Side dy_side = side(dy, of.dy, b, h, of.queries, of.v_dim);
    Computed sums[WARP_ROWS][LANE_COLUMNS] = {};
    Computed lses[WARP_ROWS], deltas[WARP_ROWS], factors[WARP_ROWS];
#pragma unroll
    for (u32 r = 0; r < WARP_ROWS; r++) {
      u64 query = first + warp * WARP_ROWS + r;
      bool is_there = query < of.queries;
      lses[r] = is_there ? lse[head * of.queries + query] : (Computed)0;
      deltas[r] = is_there ? delta[head * of.queries + query] : (Computed)0;
      factors[r] = (Computed)scale;
    }
    u64 end = visible(of, smaller(first + ROWS, of.queries) - 1);
    for (u64 key = 0; key < end; key += LANES) {
      Computed scores[WARP_ROWS], gradients[WARP_ROWS];
      products(scores, q_side, first, k_side, key, shared);
      products(gradients, dy_side, first, v_side, key, shared);
#pragma unroll
      for (u32 r = 0; r < WARP_ROWS; r++) {
        u64 query = first + warp * WARP_ROWS + r;
        gradients[r] = pair(scores[r], gradients[r], lses[r], deltas[r], (Computed)scale, mask,
                            dropout, of, b, h, query, key + lane)
                           .gradient;
      }
      accumulate(sums, gradients, k_side, key, first_column, shared);
    }
    store(dq + head * of.queries * of.dim, sums, factors, first, of.queries, first_column, of.dim);
  }
}

// dk = scale · dsᵀ q and dv = pᵀ dy, summed over the heads of q that share a head of k and v. A
// block takes 32 keys of a head and up to COLUMNS columns of both results, in a grid-stride loop.
extern "C" __global__ void __launch_bounds__(256, 1)
    KERNEL(attention_dk_dv)(Stored* dk, Stored* dv, const Stored* q, const Stored* k,
                            const Stored* v, const Stored* dy, const Computed* lse,
                            const Computed* delta, const u8* keep, const Stored* add,
                            double scale, Dropout dropout, Problem of) {
  __shared__ Shared shared;
  Mask mask = {keep, add};
  u32 lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
  u64 columns = of.dim > of.v_dim ? of.dim : of.v_dim;
  u64 key_tiles = tiles(of.keys, ROWS), parts = tiles(columns, COLUMNS);
  for (u64 task = blockIdx.x; task < of.batch * of.groups * key_tiles * parts;
       task += gridDim.x) {
    u64 group = task / parts / key_tiles, b = group / of.groups, g = group % of.groups;
    u64 first = task / parts % key_tiles * ROWS, first_column = task % parts * COLUMNS;
    Side k_side = side(k, of.k, b, g, of.keys, of.dim);
    Side v_side = side(v, of.v, b, g, of.keys, of.v_dim);
    Computed k_sums[WARP_ROWS][LANE_COLUMNS] = {}, v_sums[WARP_ROWS][LANE_COLUMNS] = {};
    u64 sharing = of.heads / of.groups;
    for (u64 h = g * sharing; h < (g + 1) * sharing; h++) {
      Side q_side = side(q, of.q, b, h, of.queries, of.dim);
      Side dy_side = side(dy, of.dy, b, h, of.queries, of.v_dim);
      const Computed* lses = lse + (b * of.heads + h) * of.queries;
      const Computed* deltas = delta + (b * of.heads + h) * of.queries;
      for (u64 start = first_query(of, first) / LANES * LANES; start < of.queries;
           start += LANES) {
        Computed weights[WARP_ROWS], gradients[WARP_ROWS];
        products(weights, k_side, first, q_side, start, shared);
        products(gradients, v_side, first, dy_side, start, shared);
        u64 query = start + lane;
        Computed of_lse = query < of.queries ? lses[query] : (Computed)0;
        Computed of_delta = query < of.queries ? deltas[query] : (Computed)0;
#pragma unroll
        for (u32 r = 0; r < WARP_ROWS; r++) {
          u64 key = first + warp * WARP_ROWS + r;
          Pair found = pair(weights[r], gradients[r], of_lse, of_delta, (Computed)scale, mask,
                            dropout, of, b, h, query, key);
          weights[r] = found.left;
          gradients[r] = found.gradient;
        }
        accumulate(v_sums, weights, dy_side, start, first_column, shared);
        accumulate(k_sums, gradients, q_side, start, first_column, shared);
      }
    }
    Computed scales[WARP_ROWS], ones[WARP_ROWS];
    for (u32 r = 0; r < WARP_ROWS; r++) {
      scales[r] = (Computed)scale;
      ones[r] = (Computed)1;
    }
    store(dk + group * of.keys * of.dim, k_sums, scales, first, of.keys, first_column, of.dim);
    store(dv + group * of.keys * of.v_dim, v_sums, ones, first, of.keys, first_column, of.v_dim);
  }
}

#if IS_HALF
// The same passes on tensor cores, for up to WIDTH columns; missing columns are 0. A block of 4
// warps has 64 rows, 16 for each warp, and reads the other side in tiles of 64 lines. The weights
// and the gradients of the scores are rounded to the half type before they are multiplied.
//
// In a result of 16 rows and 8 columns, lane 4 g + t holds rows g and g + 8, columns 2 t and 2 t +
// 1: the layout of `multiply_tiles`. A left factor of 16 columns has the same layout.
//
// Three blocks of the kernels for 64 columns run on a multiprocessor at once: one computes while
// another loads. Backward has registers for 16 lines of a tile at a time.

enum : u32 { LINES = 64, WARP_LINES = 16, LINE_THREADS = 128 };

#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
__device__ inline u32 rounded_pair(float x, float y, f16) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
  return pair;
}
__device__ inline u32 rounded_pair(float x, float y, bf16) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
  return pair;
}
#else
__device__ inline u32 rounded_pair(float x, float y, Stored) {
  Stored first, second;
  set(first, x);
  set(second, y);
  return first.bits | (u32)second.bits << 16;
}
#endif

// Lines of a side in shared memory.
template <u32 WIDTH>
struct alignas(16) Lines {
  enum : u32 {
    PACK = 8,
    PACKS = WIDTH / PACK,
    // Eight lines that are read at once begin at different banks.
    LINE = WIDTH + PACK,
    PARTS = LINES * PACKS / LINE_THREADS,
    PART_LINES = LINE_THREADS / PACKS
  };
  u16 at[LINES * LINE];

  // Loads the lines from `first` on.
  __device__ void load(const Side& from, u64 first) {
    bool has_packs = from.column_stride == 1 && from.row_stride % PACK == 0 &&
                     from.columns % PACK == 0 && is_aligned<PACK>(from.data);
    if (has_packs) {
      u32 line = threadIdx.x / PACKS, column = threadIdx.x % PACKS * PACK;
      const Stored* place = from.data + (i64)(first + line) * from.row_stride + column;
      // All loads are under way before the first result is needed.
      Pack<u16, PACK> packs[PARTS] = {};
#pragma unroll
      for (u32 part = 0; part < PARTS; part++) {
        bool is_there = first + line + part * PART_LINES < from.rows && column < from.columns;
        if (is_there) packs[part] = load_pack<PACK>((const u16*)place, 0);
        place += PART_LINES * from.row_stride;
      }
#pragma unroll
      for (u32 part = 0; part < PARTS; part++) {
        store_pack(at + (line + part * PART_LINES) * LINE + column, 0, packs[part]);
      }
    } else {
#pragma unroll 1
      for (u32 i = threadIdx.x; i < LINES * WIDTH; i += LINE_THREADS) {
        u64 row = first + i / WIDTH;
        u32 column = i % WIDTH;
        bool is_there = row < from.rows && column < from.columns;
        i64 place = (i64)row * from.row_stride + (i64)column * from.column_stride;
        at[i / WIDTH * LINE + column] = is_there ? from.data[place].bits : 0;
      }
    }
  }

  __device__ const u16* place(u32 line, u32 column) const { return at + line * LINE + column; }
};

// Loads rows of a block as a left factor; each warp has its rows in registers. The rows go through
// `scratch`, which may be overwritten after the next barrier.
template <u32 WIDTH>
__device__ inline void load_own(u32 (&own)[WIDTH / 16][4], Lines<WIDTH>& scratch, const Side& from,
                                u64 first) {
  u32 lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
  __syncthreads();
  scratch.load(from, first);
  __syncthreads();
#pragma unroll
  for (u32 step = 0; step < WIDTH / 16; step++) {
    u32 line = warp * WARP_LINES + lane % 16, column = step * 16 + lane / 16 * 8;
    load_matrices(own[step], scratch.place(line, column));
  }
}

__device__ inline void multiply_twice(float (&left_sums)[4], float (&right_sums)[4],
                                      const u32 (&rows)[4], const u32 (&columns)[4]) {
  u32 left[2] = {columns[0], columns[1]}, right[2] = {columns[2], columns[3]};
  multiply_tiles(left_sums, rows, left, Stored());
  multiply_tiles(right_sums, rows, right, Stored());
}

// sums[., l] += Σ_c rows[., c] · lines[l, c] for 16 lines from `first` on.
template <u32 WIDTH>
__device__ inline void multiply_by_lines(float (&sums)[2][4], const u32 (&rows)[WIDTH / 16][4],
                                         const Lines<WIDTH>& lines, u32 first) {
  u32 lane = threadIdx.x % LANES;
#pragma unroll
  for (u32 step = 0; step < WIDTH / 16; step++) {
    u32 columns[4];
    load_matrices(columns, lines.place(first + lane % 8 + lane / 16 * 8,
                                       step * 16 + lane / 8 % 2 * 8));
    multiply_twice(sums[0], sums[1], rows[step], columns);
  }
}

// sums[., c] += Σ_l weights[., l] · lines[l, c] over 16 lines from `first` on, for the columns from
// `first_column` on.
template <u32 COLUMNS, u32 WIDTH>
__device__ inline void multiply_lines(float (&sums)[COLUMNS / 8][4], const float (&weights)[2][4],
                                      const Lines<WIDTH>& lines, u32 first, u32 first_column) {
  u32 lane = threadIdx.x % LANES;
  u32 rows[4];
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
    const float* pair = weights[i / 2] + i % 2 * 2;
    rows[i] = rounded_pair(pair[0], pair[1], Stored());
  }
#pragma unroll
  for (u32 step = 0; step < COLUMNS / 16; step++) {
    u32 columns[4];
    load_turned_matrices(columns, lines.place(first + lane % 16,
                                              first_column + step * 16 + lane / 16 * 8));
    multiply_twice(sums[2 * step], sums[2 * step + 1], rows, columns);
  }
}

// Writes sums · factors[r]; `row` is the first of this lane's two rows.
template <u32 COLUMNS>
__device__ inline void store_lines(Stored* to, const float (&sums)[COLUMNS / 8][4],
                                   const float (&factors)[2], u64 row, u64 rows, u64 first_column,
                                   u64 columns) {
#pragma unroll
  for (u32 i = 0; i < COLUMNS / 4; i++) {
    u32 r = i % 2;
    u64 column = first_column + i / 2 * 8 + threadIdx.x % 4 * 2;
    if (row + 8 * r >= rows || column >= columns) continue;
    Pack<Stored, 2> pair;
    set(pair.at[0], sums[i / 2][2 * r] * factors[r]);
    set(pair.at[1], sums[i / 2][2 * r + 1] * factors[r]);
    Stored* place = to + (row + 8 * r) * columns + column;
    if (columns % 2 == 0) {
      store_pack(place, 0, pair);
    } else {
      place[0] = pair.at[0];
      if (column + 1 < columns) place[1] = pair.at[1];
    }
  }
}

// The inputs of all passes.
struct Inputs {
  const Stored* q;
  const Stored* k;
  const Stored* v;
  Mask mask;
  float scale;
  Dropout dropout;

  __device__ bool has_mask() const { return mask.keep != nullptr || mask.add != nullptr; }
};

// The further inputs of the backward passes.
struct Gradients {
  const Stored* dy;
  const float* lse;
  const float* delta;
};

// A head and a tile of its rows. The next tile begins after all heads have had this tile.
struct Turn {
  u64 b;
  u64 h;
  u64 tile;
};

__device__ inline Turn turn_of(u64 task, u64 batch, u64 heads) {
  return {task / heads % batch, task % heads, task / heads / batch};
}

// The end of the keys that causality lets a query see. The host ensures that 32 bits hold it.
__device__ inline u32 end_of(const Problem& of, u32 query) {
  return query < of.queries ? (u32)visible(of, query) : 0;
}

// Turns products into scores, for 16 queries and 16 keys in each of COUNT steps. This lane has
// queries `query` and `query + 8`; its first key is `key`. `is_seen`: causality hides none of these
// keys.
template <u32 COUNT>
__device__ inline void weigh(float (&scores)[COUNT][2][4], const Inputs& in, const Problem& of,
                             u64 b, u64 h, u32 query, u32 key, const u32 (&ends)[2],
                             bool is_seen) {
#pragma unroll
  for (u32 i = 0; i < COUNT * 8; i++) scores[i / 8][i / 4 % 2][i % 4] *= in.scale;
  if (!is_seen) {
#pragma unroll
    for (u32 i = 0; i < COUNT * 8; i++) {
      if (key + i / 4 * 8 + i % 2 >= ends[i / 2 % 2]) {
        scores[i / 8][i / 4 % 2][i % 4] = -INFINITY_F;
      }
    }
  }
  if (in.has_mask()) {
#pragma unroll
    for (u32 i = 0; i < COUNT * 8; i++) {
      u32 of_query = query + i / 2 % 2 * 8, of_key = key + i / 4 * 8 + i % 2;
      if (of_key >= ends[i / 2 % 2]) continue;
      i64 place = mask_row(of, b, h, of_query) + (i64)of_key * of.mask[3];
      float& value = scores[i / 8][i / 4 % 2][i % 4];
      value = masked(value, in.mask, place);
    }
  }
}

// Applies dropout to the values of these pairs, if there is dropout.
template <u32 COUNT>
__device__ inline void drop(float (&values)[COUNT][2][4], const Inputs& in, const Problem& of,
                            u64 b, u64 h, u32 query, u32 key) {
  if (in.dropout.probability == 0.0) return;
#pragma unroll
  for (u32 i = 0; i < COUNT * 4; i++) {
    u32 of_key = key + i / 2 * 8;
    Words words = decision(in.dropout, of, b, h, query + i % 2 * 8, of_key);
    float* pair = values[i / 4][i / 2 % 2] + i % 2 * 2;
    pair[0] *= kept(in.dropout, words, of_key);
    pair[1] *= kept(in.dropout, words, of_key + 1);
  }
}

// The weight of a pair from its score.
__device__ inline float weight_of(float score, float lse) {
  return score == -INFINITY_F ? 0.0f : __expf(score - lse);
}

// Computes y and lse. A block takes 64 queries of a head at a time, in a grid-stride loop.
template <u32 WIDTH>
__device__ inline void attend(Stored* y, float* lse, const Inputs& in, const Problem& of) {
  __shared__ Lines<WIDTH> k_lines, v_lines;
  const float NONE = -INFINITY_F;
  u32 lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
  u64 query_tiles = tiles(of.queries, LINES);
  for (u64 task = blockIdx.x; task < of.batch * of.heads * query_tiles; task += gridDim.x) {
    // The last queries see the most keys, so their tiles come first.
    Turn turn = turn_of(task, of.batch, of.heads);
    u64 b = turn.b, h = turn.h, g = h / (of.heads / of.groups), head = b * of.heads + h;
    u32 first = (u32)(query_tiles - 1 - turn.tile) * LINES;
    Side k_side = side(in.k, of.k, b, g, of.keys, of.dim);
    Side v_side = side(in.v, of.v, b, g, of.keys, of.v_dim);
    u32 own[WIDTH / 16][4];
    load_own(own, k_lines, side(in.q, of.q, b, h, of.queries, of.dim), first);
    u32 query = first + warp * WARP_LINES + lane / 4;
    u32 ends[2] = {end_of(of, query), end_of(of, query + 8)};
    float sums[WIDTH / 8][4] = {}, most[2] = {NONE, NONE}, totals[2] = {};
    u32 end = end_of(of, (u32)smaller(first + LINES, of.queries) - 1);
    u32 seen_by_all = end_of(of, first);
    for (u32 key = 0; key < end; key += LINES) {
      __syncthreads();
      k_lines.load(k_side, key);
      v_lines.load(v_side, key);
      __syncthreads();
      float scores[LINES / 16][2][4] = {};
#pragma unroll
      for (u32 block = 0; block < LINES / 16; block++) {
        multiply_by_lines(scores[block], own, k_lines, block * 16);
      }
      u32 own_key = key + lane % 4 * 2;
      weigh(scores, in, of, b, h, query, own_key, ends, key + LINES <= seen_by_all);
#pragma unroll
      for (u32 r = 0; r < 2; r++) {
        float greatest = most[r];
#pragma unroll
        for (u32 i = 0; i < LINES / 4; i++) {
          greatest = fmaxf(greatest, scores[i / 4][i / 2 % 2][2 * r + i % 2]);
        }
        // Four lanes hold one row.
        greatest = fmaxf(greatest, __shfl_xor_sync(ALL_LANES, greatest, 1));
        greatest = fmaxf(greatest, __shfl_xor_sync(ALL_LANES, greatest, 2));
        // If no pair has counted so far, nothing is rescaled.
        float shift = greatest == NONE ? 0.0f : greatest;
        float before = __expf(most[r] - shift);
        most[r] = greatest;
        totals[r] *= before;
#pragma unroll
        for (u32 i = 0; i < WIDTH / 4; i++) sums[i / 2][2 * r + i % 2] *= before;
#pragma unroll
        for (u32 i = 0; i < LINES / 4; i++) {
          float& weight = scores[i / 4][i / 2 % 2][2 * r + i % 2];
          weight = __expf(weight - shift);
          totals[r] += weight;
        }
      }
      drop(scores, in, of, b, h, query, own_key);
#pragma unroll
      for (u32 block = 0; block < LINES / 16; block++) {
        multiply_lines<WIDTH>(sums, scores[block], v_lines, block * 16, 0);
      }
    }
    float factors[2];
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
      float total = totals[r];
      total += __shfl_xor_sync(ALL_LANES, total, 1);
      total += __shfl_xor_sync(ALL_LANES, total, 2);
      factors[r] = total == 0.0f ? 0.0f : 1.0f / total;
      if (lane % 4 == 0 && query + 8 * r < of.queries) {
        lse[head * of.queries + query + 8 * r] = total == 0.0f ? NONE : most[r] + log(total);
      }
    }
    store_lines<WIDTH>(y + head * of.queries * of.v_dim, sums, factors, query, of.queries, 0,
                       of.v_dim);
  }
}

// dq = scale · ds k. A block takes 64 queries of a head at a time, in a grid-stride loop.
template <u32 WIDTH>
__device__ inline void find_dq(Stored* dq, const Inputs& in, const Gradients& gradients,
                               const Problem& of) {
  __shared__ Lines<WIDTH> k_lines, v_lines;
  u32 lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
  u64 query_tiles = tiles(of.queries, LINES);
  for (u64 task = blockIdx.x; task < of.batch * of.heads * query_tiles; task += gridDim.x) {
    Turn turn = turn_of(task, of.batch, of.heads);
    u64 b = turn.b, h = turn.h, g = h / (of.heads / of.groups), head = b * of.heads + h;
    u32 first = (u32)(query_tiles - 1 - turn.tile) * LINES;
    Side k_side = side(in.k, of.k, b, g, of.keys, of.dim);
    Side v_side = side(in.v, of.v, b, g, of.keys, of.v_dim);
    u32 own_q[WIDTH / 16][4], own_dy[WIDTH / 16][4];
    load_own(own_q, k_lines, side(in.q, of.q, b, h, of.queries, of.dim), first);
    load_own(own_dy, v_lines, side(gradients.dy, of.dy, b, h, of.queries, of.v_dim), first);
    u32 query = first + warp * WARP_LINES + lane / 4;
    u32 ends[2] = {end_of(of, query), end_of(of, query + 8)};
    float sums[WIDTH / 8][4] = {}, lses[2], deltas[2];
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
      bool is_there = query + 8 * r < of.queries;
      u64 place = head * of.queries + query + 8 * r;
      lses[r] = is_there ? gradients.lse[place] : 0.0f;
      deltas[r] = is_there ? gradients.delta[place] : 0.0f;
    }
    u32 end = end_of(of, (u32)smaller(first + LINES, of.queries) - 1);
    u32 seen_by_all = end_of(of, first);
    for (u32 key = 0; key < end; key += LINES) {
      __syncthreads();
      k_lines.load(k_side, key);
      v_lines.load(v_side, key);
      __syncthreads();
      bool is_seen = key + LINES <= seen_by_all;
#pragma unroll 1
      for (u32 block = 0; block < LINES / 16; block++) {
        float scores[1][2][4] = {}, products[1][2][4] = {};
        multiply_by_lines(scores[0], own_q, k_lines, block * 16);
        multiply_by_lines(products[0], own_dy, v_lines, block * 16);
        u32 own_key = key + block * 16 + lane % 4 * 2;
        weigh(scores, in, of, b, h, query, own_key, ends, is_seen);
        drop(products, in, of, b, h, query, own_key);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
          u32 r = i / 2 % 2;
          float& value = scores[0][i / 4][i % 4];
          float weight = weight_of(value, lses[r]);
          value = weight == 0.0f ? 0.0f : weight * (products[0][i / 4][i % 4] - deltas[r]);
        }
        multiply_lines<WIDTH>(sums, scores[0], k_lines, block * 16, 0);
      }
    }
    float factors[2] = {in.scale, in.scale};
    store_lines<WIDTH>(dq + head * of.queries * of.dim, sums, factors, query, of.queries, 0,
                       of.dim);
  }
}

// dk = scale · dsᵀ q and dv = pᵀ dy, summed over the heads of q that share a head of k and v. A
// block takes 64 keys of a head and up to COLUMNS columns of both results, in a grid-stride loop.
template <u32 WIDTH, u32 COLUMNS>
__device__ inline void find_dk_dv(Stored* dk, Stored* dv, const Inputs& in,
                                  const Gradients& gradients, const Problem& of) {
  __shared__ Lines<WIDTH> q_lines, dy_lines;
  __shared__ float lses[LINES], deltas[LINES];
  __shared__ u32 ends[LINES];
  u32 lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
  u64 sharing = of.heads / of.groups;
  u64 parts = tiles(of.dim > of.v_dim ? of.dim : of.v_dim, COLUMNS);
  u64 task_count = of.batch * of.groups * tiles(of.keys, LINES) * parts;
  for (u64 task = blockIdx.x; task < task_count; task += gridDim.x) {
    // The most queries see the first keys, so their tiles come first.
    Turn turn = turn_of(task / parts, of.batch, of.groups);
    u64 b = turn.b, g = turn.h, group = b * of.groups + g;
    u32 first = (u32)turn.tile * LINES;
    u32 first_column = (u32)(task % parts) * COLUMNS;
    u32 own_k[WIDTH / 16][4], own_v[WIDTH / 16][4];
    load_own(own_k, q_lines, side(in.k, of.k, b, g, of.keys, of.dim), first);
    load_own(own_v, dy_lines, side(in.v, of.v, b, g, of.keys, of.v_dim), first);
    float k_sums[COLUMNS / 8][4] = {}, v_sums[COLUMNS / 8][4] = {};
    u32 key = first + warp * WARP_LINES + lane / 4;
    for (u64 h = g * sharing; h < (g + 1) * sharing; h++) {
      Side q_side = side(in.q, of.q, b, h, of.queries, of.dim);
      Side dy_side = side(gradients.dy, of.dy, b, h, of.queries, of.v_dim);
      u64 first_place = (b * of.heads + h) * of.queries;
      for (u32 start = (u32)first_query(of, first) / LINES * LINES; start < of.queries;
           start += LINES) {
        __syncthreads();
        q_lines.load(q_side, start);
        dy_lines.load(dy_side, start);
        if (threadIdx.x < LINES) {
          u32 query = start + threadIdx.x;
          bool is_there = query < of.queries;
          ends[threadIdx.x] = end_of(of, query);
          lses[threadIdx.x] = is_there ? gradients.lse[first_place + query] : 0.0f;
          deltas[threadIdx.x] = is_there ? gradients.delta[first_place + query] : 0.0f;
        }
        __syncthreads();
#pragma unroll 1
        for (u32 block = 0; block < LINES / 16; block++) {
          float weights[2][4] = {}, products[2][4] = {}, keeps[2][4];
          multiply_by_lines(weights, own_k, q_lines, block * 16);
          multiply_by_lines(products, own_v, dy_lines, block * 16);
          u32 line = block * 16 + lane % 4 * 2;
#pragma unroll
          for (u32 i = 0; i < 8; i++) {
            float& value = weights[i / 4][i % 4];
            bool is_seen = key + i / 2 % 2 * 8 < ends[line + i / 4 * 8 + i % 2];
            value = is_seen ? in.scale * value : -INFINITY_F;
            keeps[i / 4][i % 4] = 1.0f;
          }
          if (in.has_mask()) {
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
              float& value = weights[i / 4][i % 4];
              if (value == -INFINITY_F) continue;
              i64 row = mask_row(of, b, h, start + line + i / 4 * 8 + i % 2);
              value = masked(value, in.mask, row + (i64)(key + i / 2 % 2 * 8) * of.mask[3]);
            }
          }
          if (in.dropout.probability != 0.0) {
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
              keeps[i / 4][i % 4] = kept(in.dropout, of, b, h, start + line + i / 4 * 8 + i % 2,
                                         key + i / 2 % 2 * 8);
            }
          }
#pragma unroll
          for (u32 i = 0; i < 8; i++) {
            u32 of_line = line + i / 4 * 8 + i % 2;
            float& weight = weights[i / 4][i % 4];
            float& product = products[i / 4][i % 4];
            float keep = keeps[i / 4][i % 4];
            weight = weight_of(weight, lses[of_line]);
            float gradient = weight * (keep * product - deltas[of_line]);
            product = weight == 0.0f ? 0.0f : gradient;
            weight *= keep;
          }
          multiply_lines<COLUMNS>(v_sums, weights, dy_lines, block * 16, first_column);
          multiply_lines<COLUMNS>(k_sums, products, q_lines, block * 16, first_column);
        }
      }
    }
    float scales[2] = {in.scale, in.scale}, ones[2] = {1.0f, 1.0f};
    store_lines<COLUMNS>(dk + group * of.keys * of.dim, k_sums, scales, key, of.keys, first_column,
                         of.dim);
    store_lines<COLUMNS>(dv + group * of.keys * of.v_dim, v_sums, ones, key, of.keys, first_column,
                         of.v_dim);
  }
}

extern "C" __global__ void __launch_bounds__(128, 3)
    KERNEL(attention_64)(Stored* y, float* lse, const Stored* q, const Stored* k, const Stored* v,
                         const u8* keep, const Stored* add, double scale, Dropout dropout,
                         Problem of) {
  attend<64>(y, lse, {q, k, v, {keep, add}, (float)scale, dropout}, of);
}

extern "C" __global__ void __launch_bounds__(128)
    KERNEL(attention_128)(Stored* y, float* lse, const Stored* q, const Stored* k,
                          const Stored* v, const u8* keep, const Stored* add, double scale,
                          Dropout dropout, Problem of) {
  attend<128>(y, lse, {q, k, v, {keep, add}, (float)scale, dropout}, of);
}

extern "C" __global__ void __launch_bounds__(128, 3)
    KERNEL(attention_dq_64)(Stored* dq, const Stored* q, const Stored* k, const Stored* v,
                            const Stored* dy, const float* lse, const float* delta,
                            const u8* keep, const Stored* add, double scale, Dropout dropout,
                            Problem of) {
  find_dq<64>(dq, {q, k, v, {keep, add}, (float)scale, dropout}, {dy, lse, delta}, of);
}

extern "C" __global__ void __launch_bounds__(128)
    KERNEL(attention_dq_128)(Stored* dq, const Stored* q, const Stored* k, const Stored* v,
                             const Stored* dy, const float* lse, const float* delta,
                             const u8* keep, const Stored* add, double scale, Dropout dropout,
                             Problem of) {
  find_dq<128>(dq, {q, k, v, {keep, add}, (float)scale, dropout}, {dy, lse, delta}, of);
}

extern "C" __global__ void __launch_bounds__(128, 3)
    KERNEL(attention_dk_dv_64)(Stored* dk, Stored* dv, const Stored* q, const Stored* k,
                               const Stored* v, const Stored* dy, const float* lse,
                               const float* delta, const u8* keep, const Stored* add,
                               double scale, Dropout dropout, Problem of) {
  find_dk_dv<64, 64>(dk, dv, {q, k, v, {keep, add}, (float)scale, dropout}, {dy, lse, delta}, of);
}

extern "C" __global__ void __launch_bounds__(128)
    KERNEL(attention_dk_dv_128)(Stored* dk, Stored* dv, const Stored* q, const Stored* k,
                                const Stored* v, const Stored* dy, const float* lse,
                                const float* delta, const u8* keep, const Stored* add,
                                double scale, Dropout dropout, Problem of) {
  find_dk_dv<128, 64>(dk, dv, {q, k, v, {keep, add}, (float)scale, dropout}, {dy, lse, delta}, of);
}
#endif
