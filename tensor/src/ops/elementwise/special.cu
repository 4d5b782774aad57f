// Special functions of each element, for elements of any float type: computed in f64 by the
// formulas of `special.rs`, as on the processor. They have a file of their own because they need
// more registers than all other formulas. The walk is over y, a and b; y may be a.

enum Special : u32 { ERF_INV, LGAMMA, DIGAMMA, D_DIGAMMA };

const double PI = 3.14159265358979323846;
const double TWO_OVER_SQRT_PI = 1.12837916709551257390;

// The smallest argument at which Stirling's series has the precision of f64.
const double SERIES_MIN = 10.0;

__device__ inline double infinity() { return (double)INFINITY_F; }
__device__ inline double not_a_number() { return (double)__uint_as_float(0x7fc00000); }

__device__ inline double erf_inverse(double x) {
  double far = fabs(x);
  if (!(far < 1.0)) return far == 1.0 ? x * infinity() : not_a_number();
  const double a = 0.147;
  double ln = log1p(-far * far), middle = 2.0 / (PI * a) + ln / 2.0;
  double square = sqrt(middle * middle - ln / a) - middle;
  double y = sqrt(square > 0.0 ? square : 0.0);
  for (u32 round = 0; round < 3; round++) {
    // Near 1 the difference of the complements is more precise.
    double excess = far > 0.5 ? (1.0 - far) - erfc(y) : erf(y) - far;
    double step = excess / (TWO_OVER_SQRT_PI * exp(-y * y));
    y -= step / (1.0 + y * step);
  }
  return copysign(y, x);
}

// For x above 0.
__device__ inline double digamma_above(double x) {
  double below = 0.0;
  while (x < SERIES_MIN) {
    below += 1.0 / x;
    x += 1.0;
  }
  double z = 1.0 / (x * x), sum = 1.0 / 12.0;
  const double terms[] = {691.0 / 32760.0, 1.0 / 132.0, 1.0 / 240.0,
                          1.0 / 252.0,     1.0 / 120.0, 1.0 / 12.0};
#pragma unroll
  for (u32 i = 0; i < 6; i++) sum = terms[i] - z * sum;
  return log(x) - 0.5 / x - z * sum - below;
}

__device__ inline double digamma(double x) {
  if (x == 0.0) return copysign(infinity(), -x);
  if (!(x < 0.0)) return digamma_above(x);
  double rest = x - trunc(x);
  return rest == 0.0 ? not_a_number() : digamma_above(1.0 - x) - PI / tan(PI * rest);
}

// For x of at least 1/2.
__device__ inline double trigamma_above(double x) {
  double below = 0.0;
  while (x < SERIES_MIN) {
    below += 1.0 / (x * x);
    x += 1.0;
  }
  double z = 1.0 / (x * x), sum = 7.0 / 6.0;
  const double terms[] = {691.0 / 2730.0, 5.0 / 66.0, 1.0 / 30.0,
                          1.0 / 42.0,     1.0 / 30.0, 1.0 / 6.0};
#pragma unroll
  for (u32 i = 0; i < 6; i++) sum = terms[i] - z * sum;
  return below + 1.0 / x + 0.5 * z + z / x * sum;
}

__device__ inline double trigamma(double x) {
  if (!(x < 0.5)) return trigamma_above(x);
  double slope = PI / sin(PI * (x - trunc(x)));
  return slope * slope - trigamma_above(1.0 - x);
}

__device__ inline Computed value(u32 op, Computed a, Computed b) {
  switch (op) {
    case ERF_INV: return (Computed)erf_inverse((double)a);
    case LGAMMA: return (Computed)lgamma((double)a);
    case DIGAMMA: return (Computed)digamma((double)a);
    case D_DIGAMMA: return a * (Computed)trigamma((double)b);
  }
  return a;
}

extern "C" __global__ void KERNEL(special)(Stored* y, const Stored* a, const Stored* b, u32 op,
                                           Walk<3> walk) {
  for (u64 i = thread_index(); i < walk.len; i += thread_count()) {
    Places<3> at = places(walk, i);
    Computed second = b != nullptr ? widened(b[at.at[2]]) : (Computed)0.0f;
    set(y[at.at[0]], value(op, widened(a[at.at[1]]), second));
  }
}
