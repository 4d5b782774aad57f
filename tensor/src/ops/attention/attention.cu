// Attention in blocks, as on the processor: y = softmax(scale · q kᵀ + mask) v for each head,
// without the weights of all pairs. Dao, "FlashAttention-2: faster attention with better
// parallelism and work partitioning" (2023), without its atomic sums: backward makes dq in a pass of
// its own, so that each result is one block's and has the same bits in each run.
//
// A block of 8 warps has 32 rows, 4 for each warp (queries, or keys in the pass for dk and dv), and
// meets the other side in tiles of 32 lines, one for each lane.

enum : u32 {
  WARP_ROWS = 4,
  ROWS = 32,
  LANES = 32,
  THREADS = 256,
  // Columns that are in shared memory at once.
  CHUNK = sizeof(Computed) == 8 ? 32 : 64,
  // A row of a tile begins at another bank than the one before.
  TILE_LINE = CHUNK + 1,
  // Columns of a result that a block sums up; more are another block's.
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

// What is done with a score besides.
struct Mask {
  const u8* keep;     // the pairs that count, or nothing
  const Stored* add;  // what is added to the scores, or nothing
};

struct Dropout {
  double probability;  // 0 for none
  double factor;       // of a weight that is kept
  Stream stream;
};

// A matrix of a head.
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

// How many keys a query sees by its place: the first ones.
__device__ inline u64 visible(const Problem& of, u64 query) {
  if (of.causal == ALL) return of.keys;
  u64 end = query + 1;
  if (of.causal == LOWER_RIGHT) {
    end += of.keys;
    end = end > of.queries ? end - of.queries : 0;
  }
  return end < of.keys ? end : of.keys;
}

// The first query that sees a key by its place.
__device__ inline u64 first_query(const Problem& of, u64 key) {
  if (of.causal == ALL) return 0;
  if (of.causal == UPPER_LEFT) return key;
  u64 place = key + of.queries;
  return place > of.keys ? place - of.keys : 0;
}

struct Shared {
  Computed own[CHUNK * ROWS];         // columns of the block's rows
  Computed tile[LANES * TILE_LINE];   // lines of the other side
  Computed weights[LANES * ROWS];     // of each line for each row
};

// sums[r] = Σ_c own[row r of this warp, c] · other[line of this lane, c].
__device__ inline void products(Computed* sums, const Side& own, u64 own_first, const Side& other,
                                u64 other_first, Shared& shared) {
  u32 lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
  for (u32 r = 0; r < WARP_ROWS; r++) sums[r] = (Computed)0;
  for (u64 first = 0; first < own.columns; first += CHUNK) {
    // What was read before is written over.
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

// sums[r][..] += Σ_l weights[r of line l] · other[l, columns from `first` on]: a lane has every
// 32nd of them. Each lane gives the weights of its line.
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

// Writes sums · factor[r] to the rows of this warp, which lie one behind the other.
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

// The score of a pair from the product of its query and its key; -∞ where it does not count.
__device__ inline Computed score(Computed product, Computed scale, const Mask& mask,
                                 const Problem& of, u64 b, u64 h, u64 query, u64 key) {
  const Computed NONE = (Computed)-INFINITY_F;
  if (query >= of.queries || key >= visible(of, query)) return NONE;
  i64 place = (i64)b * of.mask[0] + (i64)h * of.mask[1] + (i64)query * of.mask[2] +
              (i64)key * of.mask[3];
  if (mask.keep != nullptr && mask.keep[place] == 0) return NONE;
  Computed result = scale * product;
  return mask.add != nullptr ? result + widened(mask.add[place]) : result;
}

// What dropout makes of the weight 1 of a pair.
__device__ inline Computed kept(const Dropout& dropout, const Problem& of, u64 b, u64 h, u64 query,
                                u64 key) {
  if (dropout.probability == 0.0) return (Computed)1;
  u64 row = ((of.first_sample + b) * of.heads + h) * of.queries + query;
  Words words = block_of(dropout.stream, row * ((of.keys + 3) / 4) + key / 4);
  // An array that is indexed by what is not known beforehand lies in memory.
  u32 first = key % 2 == 0 ? words.at[0] : words.at[1];
  u32 second = key % 2 == 0 ? words.at[2] : words.at[3];
  u32 word = key % 4 < 2 ? first : second;
  bool is_dropped = (double)word < dropout.probability * 4294967296.0;
  return is_dropped ? (Computed)0 : (Computed)dropout.factor;
}

// A value of each lane joined, in a fixed order; all lanes get the result.
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

// y and lse. A block takes 32 queries of a head and up to COLUMNS columns of y, and every n-th.
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
        // As long as nothing counts there is nothing to scale.
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

// delta = Σ dy·y of each query. A warp takes a query, and every n-th.
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

// The weight of a pair, what dropout leaves of it, and the gradient of its score, from the products
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

// dq = scale · ds k. A block takes 32 queries of a head and up to COLUMNS columns of dq, and every
// n-th.
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

// dk = scale · dsᵀ q and dv = pᵀ dy over the heads of q that share them. A block takes 32 keys of a
// head and up to COLUMNS columns of both, and every n-th.
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
