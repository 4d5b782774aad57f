// Rotates pairs of elements by an angle of their position, in place: (a, b) becomes (a · cos - b ·
// sin, a · sin + b · cos), computed in f64 and rounded once, as on the processor.

struct Pairs {
  u64 len;  // positions
  u64 half;  // pairs in a row
  u64 is_interleaved;  // 1: elements 2i and 2i + 1 are a pair; 0: i and i + half
  i64 step;  // between neighbouring elements of a row
};

// The walk is over the rows, whose positions repeat from 0 to len - 1.
extern "C" __global__ void KERNEL(rotary)(Stored* x, const Stored* cosines, const Stored* sines,
                                          double sign, Pairs of, Walk<1> walk) {
  for (u64 at = thread_index(); at < walk.len * of.half; at += thread_count()) {
    u64 row = at / of.half, pair = at % of.half;
    u64 entry = row % of.len * of.half + pair;
    double cosine = (double)widened(cosines[entry]), sine = sign * (double)widened(sines[entry]);
    i64 start = places(walk, row).at[0];
    u64 first = of.is_interleaved != 0 ? 2 * pair : pair;
    u64 second = of.is_interleaved != 0 ? 2 * pair + 1 : pair + of.half;
    Stored& left = x[start + (i64)first * of.step];
    Stored& right = x[start + (i64)second * of.step];
    double a = (double)widened(left), b = (double)widened(right);
    set(left, (Computed)(a * cosine - b * sine));
    set(right, (Computed)(a * sine + b * cosine));
  }
}
