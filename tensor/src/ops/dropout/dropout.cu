// y[i] = x[i] · m[i], where m[i] is 0 if word (first + i) % 4 of block (first + i) / 4 of the
// stream is below the threshold, and `scale` otherwise. In place if x is absent. Each thread takes
// blocks of the stream in a grid-stride loop; it moves the elements of a block at once if they are
// contiguous. The walk is over y and x.
__device__ inline Computed factor(u32 word, u64 threshold, double scale) {
  return (u64)word < threshold ? (Computed)0 : (Computed)scale;
}

extern "C" __global__ void KERNEL(dropout)(Stored* y, const Stored* x, u64 threshold, double scale,
                                           u64 first, Stream stream, Walk<2> walk) {
  u64 start = first / 4, blocks = (first + walk.len + 3) / 4 - start;
  const Stored* from = x != nullptr ? x : y;
  if (is_row(walk) && first % 4 == 0 && walk.len % 4 == 0 && is_aligned<4>(from) &&
      is_aligned<4>(y)) {
    for (u64 at = thread_index(); at < blocks; at += thread_count()) {
      Words words = block_of(stream, start + at);
      Pack<Stored, 4> pack = load_pack<4>(from, at);
#pragma unroll
      for (u32 word = 0; word < 4; word++) {
        set(pack.at[word], widened(pack.at[word]) * factor(words.at[word], threshold, scale));
      }
      store_pack<4>(y, at, pack);
    }
    return;
  }
  for (u64 at = thread_index(); at < blocks; at += thread_count()) {
    Words words = block_of(stream, start + at);
#pragma unroll
    for (u32 word = 0; word < 4; word++) {
      u64 place = 4 * (start + at) + word;
      if (place < first || place - first >= walk.len) continue;
      Places<2> of = places(walk, place - first);
      Computed value = widened(x != nullptr ? x[of.at[1]] : y[of.at[0]]);
      set(y[of.at[0]], value * factor(words.at[word], threshold, scale));
    }
  }
}
