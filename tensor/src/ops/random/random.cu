// Numbers of a key's stream: element i, in row-major order, is made of word i % 4 of block i / 4 of
// its stream, see `common.cu`, with the bits of the processor; normal numbers to a few units in the
// last place. A thread takes every n-th block of four elements.

enum Distribution : u32 { UNIFORM, NORMAL, BERNOULLI };

const double WORD = 1.0 / 4294967296.0;

// Uniform: from p on, q long. Normal: the mean is p and the deviation q, by the transformation of
// Box and Muller, "A note on the generation of random normal deviates" (1958). Bernoulli: 1 with
// probability p.
__device__ inline double number(const Words& words, u32 index, u32 distribution, double p,
                                double q) {
  u32 word = words.at[index];
  switch (distribution) {
    case UNIFORM: return p + q * ((double)(word >> 8) / 16777216.0);
    case NORMAL: {
      u32 even = index & ~1u;
      double radius = sqrt(-2.0 * log(((double)words.at[even] + 1.0) * WORD));
      double angle = 6.283185307179586 * ((double)words.at[even + 1] * WORD);
      return p + q * (radius * (index == even ? cos(angle) : sin(angle)));
    }
    case BERNOULLI: return (double)word * WORD < p ? 1.0 : 0.0;
  }
  return 0.0;
}

extern "C" __global__ void random_f32(float* y, Stream stream, u32 distribution, double p,
                                      double q, Walk<1> walk) {
  for (u64 block = thread_index(); 4 * block < walk.len; block += thread_count()) {
    Words words = block_of(stream, block);
    for (u32 index = 0; index < 4 && 4 * block + index < walk.len; index++) {
      y[places(walk, 4 * block + index).at[0]] = (float)number(words, index, distribution, p, q);
    }
  }
}
