// Random numbers of a key's stream, for elements of any float type. Element i, in row-major order,
// comes from word i % 4 of block i / 4 of the stream, see `common.cu`. The bits are the
// processor's; normal numbers differ by a few units in the last place. Each thread takes blocks of
// four elements in a grid-stride loop.

enum Distribution : u32 { UNIFORM, NORMAL, BERNOULLI };

const double WORD = 1.0 / 4294967296.0;

// p + q · x with both operations rounded, as on the processor.
__device__ inline double line(double p, double q, double x) {
#ifdef __CUDACC__
  return __dadd_rn(p, __dmul_rn(q, x));
#else
  return p + q * x;
#endif
}

// Uniform: from the interval of length q from p on, with `digits` random bits. Normal: with mean p
// and deviation q, by the transformation of Box and Muller, "A note on the generation of random
// normal deviates" (1958). Bernoulli: 1 with probability p.
__device__ inline double number(const Words& words, u32 index, u32 distribution, u32 digits,
                                double p, double q) {
  u32 word = words.at[index];
  switch (distribution) {
    case UNIFORM: return line(p, q, (double)(word >> (32 - digits)) / (double)(1u << digits));
    case NORMAL: {
      u32 even = index & ~1u;
      double radius = sqrt(-2.0 * log(((double)words.at[even] + 1.0) * WORD));
      double angle = 6.283185307179586 * ((double)words.at[even + 1] * WORD);
      return line(p, q, radius * (index == even ? cos(angle) : sin(angle)));
    }
    case BERNOULLI: return (double)word * WORD < p ? 1.0 : 0.0;
  }
  return 0.0;
}

extern "C" __global__ void KERNEL(random)(Stored* y, Stream stream, u32 distribution, u32 digits,
                                          double p, double q, Walk<1> walk) {
  for (u64 block = thread_index(); 4 * block < walk.len; block += thread_count()) {
    Words words = block_of(stream, block);
#pragma unroll
    for (u32 index = 0; index < 4; index++) {
      if (4 * block + index >= walk.len) break;
      Computed y_at = (Computed)number(words, index, distribution, digits, p, q);
      set(y[places(walk, 4 * block + index).at[0]], y_at);
    }
  }
}
