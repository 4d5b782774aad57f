// Random integers and truth values of a key's stream, see `random.cu`.

// The upper 64 bits of a product of two numbers of 64 bits.
__device__ inline u64 product_high(u64 a, u64 b) {
  u64 a0 = (u32)a, a1 = a >> 32, b0 = (u32)b, b1 = b >> 32;
  u64 low = a0 * b0, left = a1 * b0 + (low >> 32), right = a0 * b1 + (u32)left;
  return a1 * b1 + (left >> 32) + (right >> 32);
}

__device__ inline void put(f64& y, i64 x) { y = (double)x; }
__device__ inline void put(f32& y, i64 x) { y = (float)x; }
__device__ inline void put(f16& y, i64 x) { set(y, (float)x); }
__device__ inline void put(bf16& y, i64 x) { set(y, (float)x); }
__device__ inline void put(i64& y, i64 x) { y = x; }
__device__ inline void put(i32& y, i64 x) { y = (i32)x; }
__device__ inline void put(u8& y, i64 x) { y = (u8)x; }

// Element i is one of the `count` integers from `low` on, drawn by block i of the stream.
template <typename Y>
__device__ inline void integers(Y* y, const Stream& stream, i64 low, u64 count,
                                const Walk<1>& walk) {
  for (u64 i = thread_index(); i < walk.len; i += thread_count()) {
    Words words = block_of(stream, i);
    u64 chosen = product_high((u64)words.at[1] << 32 | words.at[0], count);
    put(y[places(walk, i).at[0]], (i64)((u64)low + chosen));
  }
}

#define STAMP(Y)                                                                                 \
  extern "C" __global__ void random_integers_##Y(Y* y, Stream stream, i64 low, u64 count,        \
                                                 Walk<1> walk) {                                 \
    integers(y, stream, low, count, walk);                                                       \
  }
STAMP(f64)
STAMP(f32)
STAMP(f16)
STAMP(bf16)
STAMP(i64)
STAMP(i32)
STAMP(u8)

// 1 with probability p, else 0: from word i % 4 of block i / 4.
template <typename Y>
__device__ inline void truths(Y* y, const Stream& stream, double p, const Walk<1>& walk) {
  for (u64 block = thread_index(); 4 * block < walk.len; block += thread_count()) {
    Words words = block_of(stream, block);
    for (u32 index = 0; index < 4 && 4 * block + index < walk.len; index++) {
      bool is_one = (double)words.at[index] / 4294967296.0 < p;
      y[places(walk, 4 * block + index).at[0]] = is_one ? (Y)1 : (Y)0;
    }
  }
}

#define STAMP_TRUTHS(Y)                                                                          \
  extern "C" __global__ void random_truths_##Y(Y* y, Stream stream, double p, Walk<1> walk) {    \
    truths(y, stream, p, walk);                                                                  \
  }
STAMP_TRUTHS(i64)
STAMP_TRUTHS(i32)
STAMP_TRUTHS(u8)
