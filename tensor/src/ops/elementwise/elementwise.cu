// One formula on each element: y = f(x), y = f(a, b), y = f(x, a, b) with scalars p and q.
// Overwrites y, which may be one of the sources in place. The formula is a number, the same for
// every thread: these kernels wait for memory, and one kernel is loaded instead of fifty.
// A thread takes every n-th element; grids of one row. Formulas and corner cases as on the
// processor, which follow PyTorch.

enum Unary : u32 {
  ABS, NEG, SIGN, RELU, CLAMP, EXP, EXPM1, LOG, LOG1P, SQRT, RSQRT, RECIPROCAL, SIN, COS, TANH, ERF,
  SIGMOID, LEAKY_RELU, ELU, GELU, GELU_TANH, SILU, SOFTPLUS, FLOOR, CEIL, ROUND, TRUNC, POW_SCALAR,
  ADD_SCALAR, MUL_SCALAR, DIV_SCALAR
};

enum Binary : u32 {
  ADD_SCALED, SUB, MUL, DIV, MAXIMUM, MINIMUM, POW, LERP,
  // Gradients: dy, and y or x.
  D_RELU, D_SIGMOID, D_TANH, D_GELU, D_GELU_TANH, D_SILU, D_LEAKY_RELU
};

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

const float SQRT_HALF = 0.70710678118654752f;
const float SQRT_2_OVER_PI = 0.79788456080286536f;
const float CUBIC = 0.044715f;

__device__ inline float unary(u32 op, float x, float p, float q) {
  switch (op) {
    case ABS: return fabsf(x);
    case NEG: return -x;
    case SIGN: return (float)((x > 0.0f) - (x < 0.0f));
    case RELU: return x > 0.0f || x != x ? x : 0.0f;
    case CLAMP: return x < p ? p : x > q ? q : x;
    case EXP: return expf(x);
    case EXPM1: return expm1f(x);
    case LOG: return logf(x);
    case LOG1P: return log1pf(x);
    case SQRT: return sqrtf(x);
    case RSQRT: return 1.0f / sqrtf(x);
    case RECIPROCAL: return 1.0f / x;
    case SIN: return sinf(x);
    case COS: return cosf(x);
    case TANH: return tanhf(x);
    case ERF: return erff(x);
    case SIGMOID: return sigmoid(x);
    case LEAKY_RELU: return x > 0.0f ? x : p * x;
    case ELU: return x > 0.0f ? x : p * expm1f(x);
    case GELU: return 0.5f * x * (1.0f + erff(x * SQRT_HALF));
    case GELU_TANH: {
      float inner = SQRT_2_OVER_PI * (x + CUBIC * x * x * x);
      return 0.5f * x * (1.0f + tanhf(inner));
    }
    case SILU: return x * sigmoid(x);
    case SOFTPLUS: return p * x > q ? x : log1pf(expf(p * x)) / p;
    case FLOOR: return floorf(x);
    case CEIL: return ceilf(x);
    case ROUND: return rintf(x);
    case TRUNC: return truncf(x);
    case POW_SCALAR: return powf(x, p);
    case ADD_SCALAR: return x + p;
    case MUL_SCALAR: return x * p;
    case DIV_SCALAR: return x / p;
  }
  return 0.0f;
}

__device__ inline float binary(u32 op, float a, float b, float p) {
  switch (op) {
    case ADD_SCALED: return a + p * b;
    case SUB: return a - b;
    case MUL: return a * b;
    case DIV: return a / b;
    case MAXIMUM: return greater(a, b);
    case MINIMUM: return -greater(-a, -b);
    case POW: return powf(a, b);
    case LERP: return a + p * (b - a);
    case D_RELU: return b > 0.0f ? a : 0.0f;
    case D_SIGMOID: return a * b * (1.0f - b);
    case D_TANH: return a * (1.0f - b * b);
    case D_GELU: {
      float density = 0.5f * SQRT_2_OVER_PI * expf(-0.5f * b * b);
      return a * (0.5f * (1.0f + erff(b * SQRT_HALF)) + b * density);
    }
    case D_GELU_TANH: {
      float t = tanhf(SQRT_2_OVER_PI * (b + CUBIC * b * b * b));
      float slope = SQRT_2_OVER_PI * (1.0f + 3.0f * CUBIC * b * b);
      return a * (0.5f * (1.0f + t) + 0.5f * b * (1.0f - t * t) * slope);
    }
    case D_SILU: {
      float s = sigmoid(b);
      return a * s * (1.0f + b * (1.0f - s));
    }
    case D_LEAKY_RELU: return b > 0.0f ? a : p * a;
  }
  return 0.0f;
}

// Elements that lie side by side in both.
extern "C" __global__ void unary_f32(float* y, const float* x, u64 len, u32 op, float p, float q) {
  for (u64 i = thread_index(); i < len; i += thread_count()) y[i] = unary(op, x[i], p, q);
}

extern "C" __global__ void unary_f32_walk(float* y, const float* x, u32 op, float p, float q,
                                          Walk<2> walk) {
  for (u64 i = thread_index(); i < walk.len; i += thread_count()) {
    Places<2> at = places(walk, i);
    y[at.at[0]] = unary(op, x[at.at[1]], p, q);
  }
}

// Elements that lie side by side in all.
extern "C" __global__ void binary_f32(float* y, const float* a, const float* b, u64 len, u32 op,
                                      float p) {
  for (u64 i = thread_index(); i < len; i += thread_count()) y[i] = binary(op, a[i], b[i], p);
}

// Sources may repeat their elements.
extern "C" __global__ void binary_f32_walk(float* y, const float* a, const float* b, u32 op,
                                           float p, Walk<3> walk) {
  for (u64 i = thread_index(); i < walk.len; i += thread_count()) {
    Places<3> at = places(walk, i);
    y[at.at[0]] = binary(op, a[at.at[1]], b[at.at[2]], p);
  }
}

// The arithmetic of f64, for sums that go on over many batches.
__device__ inline double arithmetic(u32 op, double a, double b, double p) {
  switch (op) {
    case ADD_SCALED: return a + p * b;
    case SUB: return a - b;
    case MUL: return a * b;
    case DIV: return a / b;
  }
  return 0.0;
}

extern "C" __global__ void binary_f64_walk(double* y, const double* a, const double* b, u32 op,
                                           double p, Walk<3> walk) {
  for (u64 i = thread_index(); i < walk.len; i += thread_count()) {
    Places<3> at = places(walk, i);
    y[at.at[0]] = arithmetic(op, a[at.at[1]], b[at.at[2]], p);
  }
}
