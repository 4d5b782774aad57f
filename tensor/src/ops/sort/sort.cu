// Rows are sorted as words with the key in the high bits and the position in the low bits, so that
// no two words are equal and equal elements keep their order. If a key needs a whole word, rows are
// sorted as pairs of words. NaN comes after every number; 0 and -0 are equal.
//
// The network is bitonic, in the form where all comparisons have the same direction (the first step
// of a merge compares mirrored places). Words beyond the end of a row would be larger than all
// others and stay in place, so rows of any length are sorted in place.

// The bits of an f64.
struct long_float {
  u64 bits;
};

enum : u32 {
  THREADS = 256,
  // Words that a block sorts in shared memory.
  TILE_LOG = 11,
  TILE_WORDS = 1 << TILE_LOG
};

const u64 POSITION_MAX = 0xffffffffu;

struct Pair {
  u64 key;
  u64 position;
};

__device__ inline bool is_after(u64 a, u64 b) { return a > b; }
__device__ inline bool is_after(const Pair& a, const Pair& b) {
  return a.key > b.key || (a.key == b.key && a.position > b.position);
}

__device__ inline u64 key_of(u64 word) { return word >> 32; }
__device__ inline u64 key_of(const Pair& word) { return word.key; }
__device__ inline u64 position_of(u64 word) { return word & POSITION_MAX; }
__device__ inline u64 position_of(const Pair& word) { return word.position; }

__device__ inline void make(u64& word, u64 key, u64 position) { word = key << 32 | position; }
__device__ inline void make(Pair& word, u64 key, u64 position) { word = {key, position}; }

// Sets a word that comes after every other word.
__device__ inline void make_last(u64& word) { word = ~0ull; }
__device__ inline void make_last(Pair& word) { word = {~0ull, ~0ull}; }

// The bits of positive floats sort like the numbers, the bits of negative floats in reverse. -0
// becomes 0, and all NaN become one key, which is the last.
template <typename Bits>
__device__ inline u64 float_key(Bits bits, bool is_nan) {
  const Bits SIGN = (Bits)((Bits)1 << (8 * sizeof(Bits) - 1));
  Bits key = (bits & SIGN) != 0 ? (Bits)((Bits)~bits + 1) : (Bits)(bits | SIGN);
  return is_nan ? (u64)(Bits)~(Bits)0 : (u64)key;
}

// Keys are below 2^32 if a word has room for a key and a position.
__device__ inline u64 key(const f32* x, i64 at) {
  return float_key(__float_as_uint(x[at]), x[at] != x[at]);
}
__device__ inline u64 key(const f16* x, i64 at) {
  return float_key(x[at].bits, (x[at].bits & 0x7fff) > 0x7c00);
}
__device__ inline u64 key(const bf16* x, i64 at) {
  return float_key(x[at].bits, (x[at].bits & 0x7fff) > 0x7f80);
}
__device__ inline u64 key(const long_float* x, i64 at) {
  return float_key(x[at].bits, (x[at].bits & ~0ull >> 1) > 0x7ffull << 52);
}
__device__ inline u64 key(const i64* x, i64 at) { return (u64)x[at] ^ 1ull << 63; }
__device__ inline u64 key(const i32* x, i64 at) { return (u32)x[at] ^ 1u << 31; }
__device__ inline u64 key(const u8* x, i64 at) { return x[at]; }
__device__ inline u64 key(const bool* x, i64 at) { return x[at]; }

// words[row, i] from x[row, i]; the walk is over all elements. `all` is the largest key.
template <typename Word, typename X>
__device__ inline void make_words(Word* words, const X* x, u64 row_len, u32 is_descending, u64 all,
                                  const Walk<1>& walk) {
  // A 64-bit division costs several times as much as a 32-bit division.
  bool is_short = walk.len >> 32 == 0;
  for (u64 i = thread_index(); i < walk.len; i += thread_count()) {
    u64 row = is_short ? (u64)((u32)i / (u32)row_len) : i / row_len;
    u64 k = key(x, walk.rank == 1 ? (i64)i * walk.strides[0][0] : places(walk, i).at[0]);
    make(words[i], is_descending != 0 ? all - k : k, i - row * row_len);
  }
}

#define STAMP_WORDS(X, Word, ALL)                                                               \
  extern "C" __global__ void make_words_##X(Word* words, const X* x, u64 row_len,               \
                                            u32 is_descending, Walk<1> walk) {                  \
    make_words(words, x, row_len, is_descending, ALL, walk);                                    \
  }
STAMP_WORDS(f32, u64, POSITION_MAX)
STAMP_WORDS(f16, u64, POSITION_MAX)
STAMP_WORDS(bf16, u64, POSITION_MAX)
STAMP_WORDS(i32, u64, POSITION_MAX)
STAMP_WORDS(u8, u64, POSITION_MAX)
STAMP_WORDS(bool, u64, POSITION_MAX)
STAMP_WORDS(long_float, Pair, ~0ull)
STAMP_WORDS(i64, Pair, ~0ull)

// The rows, and their cut into parts of 2^part_log words: a tile, or less for shorter rows.
struct Rows {
  u64 count;
  u64 len;
  u64 part_log;
  u64 parts;  // in a row
};

template <typename Word>
__device__ inline void compare(Word* words, u32 a, u32 b) {
  Word first = words[a], second = words[b];
  if (!is_after(first, second)) return;
  words[a] = second;
  words[b] = first;
}

// Compares mirrored places: the first step of a merge of 2^size_log words in a tile. The other
// steps compare places that are 2^step_log apart.
template <typename Word>
__device__ inline void mirror_step(Word* tile, u32 size_log) {
  for (u32 i = threadIdx.x; i < TILE_WORDS / 2; i += THREADS) {
    u32 half = 1u << (size_log - 1), place = i & (half - 1), first = (i - place) * 2;
    compare(tile, first + place, first + 2 * half - 1 - place);
  }
  __syncthreads();
}

template <typename Word>
__device__ inline void straight_steps(Word* tile, u32 step_log) {
  for (u32 left = step_log + 1; left > 0; left--) {
    u32 step = 1u << (left - 1);
    for (u32 i = threadIdx.x; i < TILE_WORDS / 2; i += THREADS) {
      u32 place = i & (step - 1), first = (i - place) * 2 + place;
      compare(tile, first, first + step);
    }
    __syncthreads();
  }
}

// Sorts each part. With `merges`, it only runs the last steps of a merge of larger parts. A block
// takes a tile of one or several parts at a time, in a grid-stride loop.
template <typename Word>
__device__ inline void sort_tiles(Word* words, const Rows& rows, u32 merges) {
  __shared__ Word tile[TILE_WORDS];
  u32 part_log = (u32)rows.part_log, parts_per_tile = TILE_WORDS >> part_log;
  u64 parts = rows.count * rows.parts, tiles = (parts + parts_per_tile - 1) / parts_per_tile;
  for (u64 at = blockIdx.x; at < tiles; at += gridDim.x) {
    for (u32 i = threadIdx.x; i < TILE_WORDS; i += THREADS) {
      u64 part = at * parts_per_tile + (i >> part_log), row = part / rows.parts;
      u64 place = ((part - row * rows.parts) << part_log) + (i & ((1u << part_log) - 1));
      if (part < parts && place < rows.len) {
        tile[i] = words[row * rows.len + place];
      } else {
        make_last(tile[i]);
      }
    }
    __syncthreads();
    if (merges != 0) {
      straight_steps(tile, part_log - 1);
    } else {
      for (u32 size_log = 1; size_log <= part_log; size_log++) {
        mirror_step(tile, size_log);
        if (size_log > 1) straight_steps(tile, size_log - 2);
      }
    }
    for (u32 i = threadIdx.x; i < TILE_WORDS; i += THREADS) {
      u64 part = at * parts_per_tile + (i >> part_log), row = part / rows.parts;
      u64 place = ((part - row * rows.parts) << part_log) + (i & ((1u << part_log) - 1));
      if (part < parts && place < rows.len) words[row * rows.len + place] = tile[i];
    }
    // The next tile overwrites this tile.
    __syncthreads();
  }
}

// One step of a merge of 2^size_log words of each row. A row has 2^pairs_log pairs, including pairs
// beyond its end.
template <typename Word>
__device__ inline void merge_step(Word* words, const Rows& rows, u32 pairs_log, u32 step_log,
                                  u32 is_mirrored) {
  u64 step = 1ull << step_log;
  for (u64 i = thread_index(); i < rows.count << pairs_log; i += thread_count()) {
    u64 row = i >> pairs_log, pair = i & ((1ull << pairs_log) - 1);
    u64 place = pair & (step - 1), first = (pair - place) * 2;
    u64 a = first + place, b = is_mirrored != 0 ? first + 2 * step - 1 - place : a + step;
    if (b >= rows.len) continue;
    Word* of_row = words + row * rows.len;
    Word x = of_row[a], y = of_row[b];
    if (!is_after(x, y)) continue;
    of_row[a] = y;
    of_row[b] = x;
  }
}

// Writes the positions, and the elements if wanted, of the first `kept` words of each row. The
// positions may overwrite the words. The walk is over rows of x, whose elements are `step` apart.
template <typename Word, typename T>
__device__ inline void take_first(i64* positions, T* values, const Word* words, const T* x,
                                  u64 row_len, u64 kept, i64 step, const Walk<1>& walk) {
  bool is_short = (walk.len * kept) >> 32 == 0;
  for (u64 i = thread_index(); i < walk.len * kept; i += thread_count()) {
    u64 row = is_short ? (u64)((u32)i / (u32)kept) : i / kept;
    i64 position = (i64)position_of(words[row * row_len + (i - row * kept)]);
    positions[i] = position;
    if (values != nullptr) values[i] = x[places(walk, row).at[0] + position * step];
  }
}

enum Rank : u32 { NUMBER, MEDIAN, MEDIAN_OF_NUMBERS, MODE };

struct Later {
  static __device__ u64 join(u64 x, u64 y) { return y > x ? y : x; }
};

// Number of words of a sorted row with a key below this key.
template <typename Word>
__device__ inline u64 count_below(const Word* words, u64 len, u64 key) {
  u64 low = 0, high = len;
  while (low < high) {
    u64 middle = low + (high - low) / 2;
    if (key_of(words[middle]) < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// The element of each sorted row at a rank, and its position. `nan_key` is the key of NaN; it is
// above every key if the type has no NaN. A block takes one row at a time, in a grid-stride loop.
template <typename Word, typename T>
__device__ inline void pick(i64* positions, T* values, const Word* words, const T* x, u64 row_len,
                            u32 rank, u64 number, u64 nan_key, u32 has_nan, i64 step,
                            const Walk<1>& walk) {
  __shared__ u64 longest[32];
  for (u64 row = blockIdx.x; row < walk.len; row += gridDim.x) {
    const Word* of_row = words + row * row_len;
    u64 at = number;
    if (rank == MODE) {
      // Finds the last word of the longest run of equal keys. Of equally long runs, the first wins.
      u64 best = 0;
      for (u64 i = threadIdx.x; i < row_len; i += blockDim.x) {
        u64 k = key_of(of_row[i]);
        if (i + 1 < row_len && key_of(of_row[i + 1]) == k) continue;
        u64 run = i + 1 - count_below(of_row, row_len, k);
        best = Later::join(best, run << 32 | (POSITION_MAX - i));
      }
      best = join_block<Later>(best, longest);
      at = POSITION_MAX - (best & POSITION_MAX);
    } else if (rank != NUMBER) {
      u64 numbers = has_nan != 0 ? count_below(of_row, row_len, nan_key) : row_len;
      if (rank == MEDIAN) at = numbers < row_len ? numbers : (row_len - 1) / 2;
      if (rank == MEDIAN_OF_NUMBERS) at = numbers > 0 ? (numbers - 1) / 2 : 0;
    }
    if (threadIdx.x != 0) continue;
    i64 position = (i64)position_of(of_row[at]);
    positions[row] = position;
    values[row] = x[places(walk, row).at[0] + position * step];
  }
}

#define STAMP(Word, words_name)                                                                   \
  extern "C" __global__ void __launch_bounds__(256)                                               \
      sort_tiles_##words_name(Word* words, Rows rows, u32 merges) {                               \
    sort_tiles(words, rows, merges);                                                              \
  }                                                                                               \
  extern "C" __global__ void merge_step_##words_name(Word* words, Rows rows, u32 pairs_log,       \
                                                     u32 step_log, u32 is_mirrored) {             \
    merge_step(words, rows, pairs_log, step_log, is_mirrored);                                    \
  }
STAMP(u64, words)
STAMP(Pair, pairs)

#define STAMP_TAKE(Word, words_name, T, SIZE)                                                     \
  extern "C" __global__ void take_first_##words_name##_##SIZE(                                    \
      i64* positions, T* values, const Word* words, const T* x, u64 row_len, u64 kept, i64 step,  \
      Walk<1> walk) {                                                                             \
    take_first(positions, values, words, x, row_len, kept, step, walk);                           \
  }                                                                                               \
  extern "C" __global__ void __launch_bounds__(256) pick_##words_name##_##SIZE(                   \
      i64* positions, T* values, const Word* words, const T* x, u64 row_len, u32 rank,            \
      u64 number, u64 nan_key, u32 has_nan, i64 step, Walk<1> walk) {                             \
    pick(positions, values, words, x, row_len, rank, number, nan_key, has_nan, step, walk);       \
  }
STAMP_TAKE(u64, words, u8, 1)
STAMP_TAKE(u64, words, u16, 2)
STAMP_TAKE(u64, words, u32, 4)
STAMP_TAKE(Pair, pairs, u64, 8)
