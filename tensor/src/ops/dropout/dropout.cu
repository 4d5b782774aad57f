// y[i] = x[i] · m[i], where m[i] is 0 if word (first + i) % 4 of block (first + i) / 4 of the
// stream is below the threshold, and else `scale`. In place where x is absent. A thread takes the
// elements of every n-th block of the stream; the walk is over y and x.
extern "C" __global__ void KERNEL(dropout)(Stored* y, const Stored* x, u64 threshold, double scale,
                                           u64 first, Stream stream, Walk<2> walk) {
  u64 start = first / 4, blocks = (first + walk.len + 3) / 4 - start;
  for (u64 at = thread_index(); at < blocks; at += thread_count()) {
    Words words = block_of(stream, start + at);
#pragma unroll
    for (u32 word = 0; word < 4; word++) {
      u64 place = 4 * (start + at) + word;
      if (place < first || place - first >= walk.len) continue;
      Places<2> of = places(walk, place - first);
      Computed value = widened(x != nullptr ? x[of.at[1]] : y[of.at[0]]);
      set(y[of.at[0]], value * ((u64)words.at[word] < threshold ? (Computed)0 : (Computed)scale));
    }
  }
}
