// One formula on each element: y = f(a, b, c) with scalars p and q, for elements of any float type.
// Overwrites y, which may be one of the sources in place. The formula is a number, the same for
// every thread. These kernels wait for memory, so one kernel for all formulas is as fast as a
// hundred, and is loaded once. Each thread takes elements in a grid-stride loop, or packs of
// elements for the formulas that are frequent in models; grids of one row. Formulas and corner
// cases are as on the processor, which follows PyTorch.

enum Formula : u32 {
  ABS, NEG, SIGN, RELU, CLAMP, EXP, EXPM1, LOG, LOG1P, SQRT, RSQRT, RECIPROCAL, SIN, COS, TANH, ERF,
  SIGMOID, LEAKY_RELU, ELU, GELU, GELU_TANH, SILU, SOFTPLUS, FLOOR, CEIL, ROUND, TRUNC, POW_SCALAR,
  TAN, ATAN, ASIN, ACOS, SINH, COSH, ASINH, ACOSH, ATANH, ERFC, FRAC, LOG2, LOG10, EXP2, MISH,
  HARDSWISH, HARDSIGMOID, SELU, SOFTSIGN, LOGSIGMOID, CELU,
  ADD_SCALED, SUB, MUL, DIV, MAXIMUM, MINIMUM, POW, LERP, DIV_FLOOR, DIV_TRUNC, REMAINDER, FMOD,
  FMAX, FMIN, HEAVISIDE, ATAN2, HYPOT, COPYSIGN, LOGADDEXP, XLOGY, NAN_TO_NUM,
  WHERE, MASKED_FILL, ADDCMUL, ADDCDIV,
  // Gradients of dy, and of y or x.
  D_RELU, D_SIGMOID, D_TANH, D_GELU, D_GELU_TANH, D_SILU, D_LEAKY_RELU, D_ELU, D_CELU, D_SOFTPLUS,
  D_MISH, D_HARDSWISH, D_HARDSIGMOID, D_HARDTANH, D_SELU, D_SOFTSIGN, D_LOGSIGMOID,
  // Tests, with truth values as results.
  NOT, IS_FINITE, IS_INF, IS_NAN, EQ, NE, IS_CLOSE, IS_CLOSE_OR_NAN, LT, LE, GT, GE, AND, OR, XOR
};

typedef Computed T;

__device__ inline T number(double x) { return (T)x; }
__device__ inline T infinity() { return (T)INFINITY_F; }
__device__ inline bool is_infinite(T x) { return fabs(x) == infinity(); }
__device__ inline bool is_nan(T x) { return x != x; }
__device__ inline T lesser(T x, T y) { return -greater(-x, -y); }
__device__ inline T sigmoid(T x) { return number(1.0) / (number(1.0) + exp(-x)); }

const double SQRT_HALF = 0.70710678118654752440;
const double SQRT_2_OVER_PI = 0.79788456080286535588;
const double CUBIC = 0.044715;
const double SELU_SCALE = 1.0507009873554804934, SELU_SLOPE = 1.7580993408473768599;

__device__ inline T modulo(T a, T b) {
  T rest = fmod(a, b);
  bool is_opposite = rest != number(0.0) && (b < number(0.0)) != (rest < number(0.0));
  return is_opposite ? rest + b : rest;
}

// As in Python: computed from the remainder, because the quotient itself is rounded.
__device__ inline T div_floor(T a, T b) {
  T rest = fmod(a, b), quotient = (a - rest) / b;
  bool is_above = rest != number(0.0) && (b < number(0.0)) != (rest < number(0.0));
  if (is_above) quotient -= number(1.0);
  T low = floor(quotient);
  T y = quotient - low > number(0.5) ? low + number(1.0) : low;
  if (quotient == number(0.0)) y = copysign(number(0.0), a / b);
  return b == number(0.0) ? a / b : y;
}

// tanh(ln(1 + e^x)) as a quotient of powers of e.
__device__ inline T tanh_softplus(T x) {
  T e = exp(x > number(20.0) ? number(20.0) : x), n = e * (e + number(2.0));
  return n / (n + number(2.0));
}

__device__ inline T hard_sigmoid(T x) {
  return lesser(greater(x + number(3.0), number(0.0)), number(6.0)) / number(6.0);
}

// The exponents with a shorter computation, as in PyTorch.
__device__ inline T pow_scalar(T x, double exponent) {
  if (exponent == 0.0) return number(1.0);
  if (exponent == 1.0) return x;
  if (exponent == 2.0) return x * x;
  if (exponent == 3.0) return x * x * x;
  if (exponent == 0.5) return sqrt(x);
  if (exponent == -0.5) return number(1.0) / sqrt(x);
  if (exponent == -1.0) return number(1.0) / x;
  if (exponent == -2.0) return number(1.0) / (x * x);
  return pow(x, number(exponent));
}

// Computed from the nearer end, so that weights 0 and 1 give the ends exactly.
__device__ inline T lerp(T a, T b, double weight) {
  if (weight < 0.5) return a + number(weight) * (b - a);
  return b - (b - a) * number(1.0 - weight);
}

__device__ inline T hypotenuse(T a, T b) {
  T high = greater(fabs(a), fabs(b)), low = lesser(fabs(a), fabs(b));
  T ratio = low / high, y = high * sqrt(number(1.0) + ratio * ratio);
  if (is_infinite(a) || is_infinite(b)) return infinity();
  return high == number(0.0) ? high : y;
}

__device__ inline T log_add_exp(T a, T b) {
  // The difference of two equal infinities is NaN.
  if (a == b && is_infinite(a)) return a;
  return greater(a, b) + log1p(exp(-fabs(a - b)));
}

__device__ inline bool is_close(T a, T b, double relative, double absolute) {
  double expected = (double)b, distance = fabs((double)a - expected);
  bool is_near = distance < (double)INFINITY_F && distance <= absolute + relative * fabs(expected);
  return a == b || is_near;
}

// Formulas of one source, of two sources, and of three sources or with a mask.
__device__ inline T value(u32 op, T a, T b, T c, bool mask, double p, double q) {
  const T ZERO = number(0.0), ONE = number(1.0), HALF = number(0.5);
  switch (op) {
    case ABS: return fabs(a);
    case NEG: return -a;
    case SIGN: return (T)((a > ZERO) - (a < ZERO));
    case RELU: return a < ZERO ? ZERO : a;
    case CLAMP: return a < number(p) ? number(p) : a > number(q) ? number(q) : a;
    case EXP: return exp(a);
    case EXPM1: return expm1(a);
    case LOG: return log(a);
    case LOG1P: return log1p(a);
    case SQRT: return sqrt(a);
    case RSQRT: return ONE / sqrt(a);
    case RECIPROCAL: return ONE / a;
    case SIN: return sin(a);
    case COS: return cos(a);
    case TANH: return tanh(a);
    case ERF: return erf(a);
    case SIGMOID: return sigmoid(a);
    case LEAKY_RELU: return a > ZERO ? a : number(p) * a;
    case ELU: return a > ZERO ? a : number(p) * expm1(a);
    case GELU: return HALF * a * (ONE + erf(a * number(SQRT_HALF)));
    case GELU_TANH: {
      T inner = number(SQRT_2_OVER_PI) * (a + number(CUBIC) * a * a * a);
      return HALF * a * (ONE + tanh(inner));
    }
    case SILU: return a / (ONE + exp(-a));
    case SOFTPLUS: return number(p) * a > number(q) ? a : log1p(exp(a * number(p))) / number(p);
    case FLOOR: return floor(a);
    case CEIL: return ceil(a);
    case ROUND: return rint(a);
    case TRUNC: return trunc(a);
    case POW_SCALAR: return pow_scalar(a, p);
    case TAN: return tan(a);
    case ATAN: return atan(a);
    case ASIN: return asin(a);
    case ACOS: return acos(a);
    case SINH: return sinh(a);
    case COSH: return cosh(a);
    case ASINH: return asinh(a);
    case ACOSH: return acosh(a);
    case ATANH: return atanh(a);
    case ERFC: return erfc(a);
    case FRAC: return a - trunc(a);
    case LOG2: return log2(a);
    case LOG10: return log10(a);
    case EXP2: return exp2(a);
    case MISH: return a * tanh_softplus(a);
    case HARDSWISH: return a * hard_sigmoid(a);
    case HARDSIGMOID: return hard_sigmoid(a);
    case SELU: return a > ZERO ? number(SELU_SCALE) * a : number(SELU_SLOPE) * expm1(a);
    case SOFTSIGN: return a / (ONE + fabs(a));
    case LOGSIGMOID: return (a > ZERO ? ZERO : a) - log1p(exp(-fabs(a)));
    case CELU: return a > ZERO ? a : number(p) * expm1(a / number(p));
    case ADD_SCALED: return a + number(p) * b;
    case SUB: return a - b;
    case MUL: return a * b;
    case DIV: return a / b;
    case MAXIMUM: return greater(a, b);
    case MINIMUM: return lesser(a, b);
    case POW: return pow(a, b);
    case LERP: return lerp(a, b, p);
    case DIV_FLOOR: return div_floor(a, b);
    case DIV_TRUNC: return trunc(a / b);
    case REMAINDER: return modulo(a, b);
    case FMOD: return fmod(a, b);
    case FMAX: return a >= b || is_nan(b) ? a : b;
    case FMIN: return a <= b || is_nan(b) ? a : b;
    case HEAVISIDE: return a == ZERO ? b : a > ZERO ? ONE : ZERO;
    case ATAN2: return atan2(a, b);
    case HYPOT: return hypotenuse(a, b);
    case COPYSIGN: return copysign(a, b);
    case LOGADDEXP: return log_add_exp(a, b);
    case XLOGY: return is_nan(b) ? b : a == ZERO ? ZERO : a * log(b);
    case NAN_TO_NUM:
      return is_nan(a) ? b : a == infinity() ? number(p) : a == -infinity() ? number(q) : a;
    case WHERE: return mask ? a : b;
    case MASKED_FILL: return mask ? b : a;
    case ADDCMUL: return a + number(p) * b * c;
    case ADDCDIV: return a + number(p) * (b / c);
    case D_RELU: return b <= ZERO ? ZERO : a;
    case D_SIGMOID: return a * (ONE - b) * b;
    case D_TANH: return a * (ONE - b * b);
    case D_GELU: {
      T density = number(0.5 * SQRT_2_OVER_PI) * exp(-HALF * b * b);
      return a * (HALF * (ONE + erf(b * number(SQRT_HALF))) + b * density);
    }
    case D_GELU_TANH: {
      T t = tanh(number(SQRT_2_OVER_PI) * (b + number(CUBIC) * b * b * b));
      T slope = number(SQRT_2_OVER_PI) * (ONE + number(3.0 * CUBIC) * b * b);
      return a * HALF * (ONE + t + b * (ONE - t * t) * slope);
    }
    case D_SILU: {
      T s = sigmoid(b);
      return a * s * (ONE + b * (ONE - s));
    }
    case D_LEAKY_RELU: return b > ZERO ? a : a * number(p);
    case D_ELU: return b > ZERO ? a : a * number(p) * exp(b);
    case D_CELU: return b > ZERO ? a : a * exp(b / number(p));
    case D_SOFTPLUS: return b * number(p) > number(q) ? a : a * sigmoid(b * number(p));
    case D_MISH: {
      T t = tanh_softplus(b);
      return a * (t + b * sigmoid(b) * (ONE - t * t));
    }
    case D_HARDSWISH:
      if (b <= number(-3.0)) return ZERO;
      return b >= number(3.0) ? a : a * (b / number(3.0) + HALF);
    case D_HARDSIGMOID:
      return b > number(-3.0) && b < number(3.0) ? a * number(1.0 / 6.0) : ZERO;
    case D_HARDTANH: return b <= number(p) || b >= number(q) ? ZERO : a;
    case D_SELU: return a * (b > ZERO ? number(SELU_SCALE) : number(SELU_SLOPE) * exp(b));
    case D_SOFTSIGN: {
      T below = ONE + fabs(b);
      return a / (below * below);
    }
    case D_LOGSIGMOID: return a * sigmoid(-b);
  }
  return ZERO;
}

__device__ inline bool holds(u32 op, T a, T b, double p, double q) {
  const T ZERO = number(0.0);
  switch (op) {
    case NOT: return a == ZERO;
    case IS_FINITE: return !is_nan(a) && !is_infinite(a);
    case IS_INF: return is_infinite(a);
    case IS_NAN: return is_nan(a);
    case EQ: return a == b;
    case NE: return a != b;
    case IS_CLOSE: return is_close(a, b, p, q);
    case IS_CLOSE_OR_NAN: return (is_nan(a) && is_nan(b)) || is_close(a, b, p, q);
    case LT: return a < b;
    case LE: return a <= b;
    case GT: return a > b;
    case GE: return a >= b;
    case AND: return a != ZERO && b != ZERO;
    case OR: return a != ZERO || b != ZERO;
    case XOR: return (a != ZERO) != (b != ZERO);
  }
  return false;
}

// The sources of a formula. If the last source is a single number, it has no memory; neither have
// sources that the formula does not use.
struct Sources {
  const Stored* a;
  const Stored* b;
  const Stored* c;
  const u8* mask;
};

struct Numbers {
  double constant;
  double p;
  double q;
};

__device__ inline T at(const Stored* x, i64 place, T constant) {
  return x != nullptr ? widened(x[place]) : constant;
}

__device__ inline void put(Stored* y, i64 place, u32 op, const Sources& from,
                           const i64 (&places)[4], T constant, const Numbers& numbers) {
  bool mask = from.mask != nullptr && from.mask[places[3]] != 0;
  set(y[place], value(op, at(from.a, places[0], constant), at(from.b, places[1], constant),
                      at(from.c, places[2], constant), mask, numbers.p, numbers.q));
}

__device__ inline void put(u8* y, i64 place, u32 op, const Sources& from, const i64 (&places)[4],
                           T constant, const Numbers& numbers) {
  y[place] = holds(op, at(from.a, places[0], constant), at(from.b, places[1], constant),
                   numbers.p, numbers.q);
}

// Applies the formula to contiguous elements, from `start` on.
template <typename Y>
__device__ inline void row(Y* y, const Sources& from, u32 op, const Numbers& numbers, u64 start,
                           u64 len) {
  T constant = number(numbers.constant);
  for (u64 i = start + thread_index(); i < len; i += thread_count()) {
    i64 place = (i64)i;
    put(y, place, op, from, {place, place, place, place}, constant, numbers);
  }
}

enum : u32 { LEN = pack_len<Stored>() };

__device__ inline T of_pack(const Pack<Stored, LEN>& x, u32 k, const Stored* from, T constant) {
  return from != nullptr ? widened(x.at[k]) : constant;
}

// Applies a formula that the compiler knows to packs of elements.
template <u32 OP>
__device__ inline void packs(Stored* y, const Sources& from, const Numbers& numbers, u64 count) {
  T constant = number(numbers.constant);
  for (u64 i = thread_index(); i < count; i += thread_count()) {
    Pack<Stored, LEN> a, b, c, to;
    Pack<u8, LEN> mask;
    if (from.a != nullptr) a = load_pack<LEN>(from.a, i);
    if (from.b != nullptr) b = load_pack<LEN>(from.b, i);
    if (from.c != nullptr) c = load_pack<LEN>(from.c, i);
    if (from.mask != nullptr) mask = load_pack<LEN>(from.mask, i);
#pragma unroll
    for (u32 k = 0; k < LEN; k++) {
      T x = of_pack(a, k, from.a, constant), z = of_pack(c, k, from.c, constant);
      bool is_marked = from.mask != nullptr && mask.at[k] != 0;
      set(to.at[k], value(OP, x, of_pack(b, k, from.b, constant), z, is_marked, numbers.p,
                          numbers.q));
    }
    store_pack<LEN>(y, i, to);
  }
}

// Applies the formula to the elements of whole packs. Returns their number; 0 for formulas without
// a kernel for packs.
__device__ inline u64 packed_row(Stored* y, const Sources& from, u32 op, const Numbers& numbers,
                                 u64 len) {
  bool are_aligned = is_aligned<LEN>(y) && is_aligned<LEN>(from.a) && is_aligned<LEN>(from.b) &&
                     is_aligned<LEN>(from.c) && is_aligned<LEN>(from.mask);
  if (!are_aligned) return 0;
  u64 count = len / LEN;
#define CASE(OP) \
  case OP: packs<OP>(y, from, numbers, count); break
  switch (op) {
    CASE(NEG);
    CASE(RELU);
    CASE(CLAMP);
    CASE(EXP);
    CASE(SQRT);
    CASE(TANH);
    CASE(SIGMOID);
    CASE(GELU);
    CASE(GELU_TANH);
    CASE(SILU);
    CASE(ADD_SCALED);
    CASE(SUB);
    CASE(MUL);
    CASE(DIV);
    CASE(MAXIMUM);
    CASE(MINIMUM);
    CASE(LERP);
    CASE(WHERE);
    CASE(MASKED_FILL);
    CASE(ADDCMUL);
    CASE(D_RELU);
    CASE(D_SIGMOID);
    CASE(D_TANH);
    CASE(D_GELU);
    CASE(D_GELU_TANH);
    CASE(D_SILU);
    CASE(D_HARDTANH);
    default: return 0;
  }
#undef CASE
  return count * LEN;
}

// Applies the formula to a walk over y, a, b, c and the mask. Strides of 0 repeat elements of
// sources.
template <typename Y>
__device__ inline void walk_all(Y* y, const Sources& from, u32 op, const Numbers& numbers,
                                const Walk<5>& walk) {
  T constant = number(numbers.constant);
  for (u64 i = thread_index(); i < walk.len; i += thread_count()) {
    Places<5> of = places(walk, i);
    put(y, of.at[0], op, from, {of.at[1], of.at[2], of.at[3], of.at[4]}, constant, numbers);
  }
}

extern "C" __global__ void KERNEL(formula)(Stored* y, const Stored* a, const Stored* b,
                                           const Stored* c, const u8* mask, u32 op,
                                           Numbers numbers, u64 len) {
  Sources from = {a, b, c, mask};
  row(y, from, op, numbers, packed_row(y, from, op, numbers, len), len);
}

extern "C" __global__ void KERNEL(formula_walk)(Stored* y, const Stored* a, const Stored* b,
                                                const Stored* c, const u8* mask, u32 op,
                                                Numbers numbers, Walk<5> walk) {
  walk_all(y, {a, b, c, mask}, op, numbers, walk);
}

extern "C" __global__ void KERNEL(test)(u8* y, const Stored* a, const Stored* b, u32 op,
                                        Numbers numbers, u64 len) {
  row(y, {a, b, nullptr, nullptr}, op, numbers, 0, len);
}

extern "C" __global__ void KERNEL(test_walk)(u8* y, const Stored* a, const Stored* b, u32 op,
                                             Numbers numbers, Walk<5> walk) {
  walk_all(y, {a, b, nullptr, nullptr}, op, numbers, walk);
}
