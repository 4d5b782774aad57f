// One formula on each element of integers, which wrap, and of truth values: as `elementwise.cu`,
// computed in 64 bits and cut to the element's size. The walk is over y, a, b, c and the mask.

enum Integers : u32 {
  ABS, NEG, SIGN, RELU, CLAMP, ADD_SCALED, SUB, MUL, MAXIMUM, MINIMUM, WHERE, MASKED_FILL, ADDCMUL,
  DIV_FLOOR, DIV_TRUNC, REMAINDER, FMOD, HEAVISIDE,
  NOT, EQ, NE, LT, LE, GT, GE, AND, OR, XOR
};


// If the last source is a single number, it has no memory.
struct Numbers {
  i64 constant;
  i64 p;
  i64 q;
};

// Operations that wrap are computed without a sign.
__device__ inline i64 sum(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
__device__ inline i64 product(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }

// 0 for a divisor of 0. The smallest number over -1 wraps.
__device__ inline i64 div_trunc(i64 a, i64 b) {
  if (b == 0) return 0;
  return b == -1 ? product(a, -1) : a / b;
}

__device__ inline i64 rest(i64 a, i64 b) { return b == 0 || b == -1 ? 0 : a % b; }

__device__ inline i64 div_floor(i64 a, i64 b) {
  i64 quotient = div_trunc(a, b);
  bool is_above = product(quotient, b) != a && (a < 0) != (b < 0);
  return is_above ? sum(quotient, -1) : quotient;
}

__device__ inline i64 modulo(i64 a, i64 b) {
  i64 left = rest(a, b);
  return left != 0 && (b < 0) != (left < 0) ? sum(left, b) : left;
}

__device__ inline i64 value(u32 op, i64 a, i64 b, i64 c, bool mask, i64 p, i64 q) {
  switch (op) {
    case ABS: return a < 0 ? product(a, -1) : a;
    case NEG: return product(a, -1);
    case SIGN: return (a > 0) - (a < 0);
    case RELU: return a < 0 ? 0 : a;
    case CLAMP: {
      i64 low = a > p ? a : p;
      return low < q ? low : q;
    }
    case ADD_SCALED: return sum(a, product(p, b));
    case SUB: return sum(a, product(b, -1));
    case MUL: return product(a, b);
    case MAXIMUM: return a > b ? a : b;
    case MINIMUM: return a < b ? a : b;
    case WHERE: return mask ? a : b;
    case MASKED_FILL: return mask ? b : a;
    case ADDCMUL: return sum(a, product(product(p, b), c));
    case DIV_FLOOR: return div_floor(a, b);
    case DIV_TRUNC: return div_trunc(a, b);
    case REMAINDER: return modulo(a, b);
    case FMOD: return rest(a, b);
    case HEAVISIDE: return a == 0 ? b : a > 0;
    case NOT: return a == 0;
    case EQ: return a == b;
    case NE: return a != b;
    case LT: return a < b;
    case LE: return a <= b;
    case GT: return a > b;
    case GE: return a >= b;
    case AND: return a != 0 && b != 0;
    case OR: return a != 0 || b != 0;
    case XOR: return (a != 0) != (b != 0);
  }
  return 0;
}

template <typename T>
__device__ inline i64 at(const T* x, i64 place, i64 constant) {
  return x != nullptr ? (i64)x[place] : constant;
}

template <typename Y, typename T>
__device__ inline void apply(Y* y, const T* a, const T* b, const T* c, const u8* mask, u32 op,
                             const Numbers& numbers, const Walk<5>& walk) {
  for (u64 i = thread_index(); i < walk.len; i += thread_count()) {
    Places<5> of = places(walk, i);
    bool is_true = mask != nullptr && mask[of.at[4]] != 0;
    y[of.at[0]] = (Y)value(op, at(a, of.at[1], numbers.constant), at(b, of.at[2], numbers.constant),
                           at(c, of.at[3], numbers.constant), is_true, numbers.p, numbers.q);
  }
}

// Reports a divisor of 0, unless there is a complaint already. One block.
template <typename T>
__device__ inline void check_divisors(Complaint* complaint, const T* x, u64 op,
                                      const Walk<1>& walk) {
  bool is_found = false;
#pragma unroll 4
  for (u64 i = threadIdx.x; i < walk.len; i += blockDim.x) {
    is_found = is_found || x[places(walk, i).at[0]] == 0;
  }
  is_found = __syncthreads_or(is_found);
  if (threadIdx.x != 0 || !is_found || complaint->position != 0) return;
  *complaint = {1, 0, 0, op};
}

#define STAMP(T)                                                                             \
  extern "C" __global__ void formula_walk_##T(T* y, const T* a, const T* b, const T* c,      \
                                              const u8* mask, u32 op, Numbers numbers,       \
                                              Walk<5> walk) {                                \
    apply(y, a, b, c, mask, op, numbers, walk);                                              \
  }                                                                                          \
  extern "C" __global__ void test_walk_##T(u8* y, const T* a, const T* b, u32 op,            \
                                           Numbers numbers, Walk<5> walk) {                  \
    apply(y, a, b, (const T*)nullptr, nullptr, op, numbers, walk);                           \
  }                                                                                          \
  extern "C" __global__ void __launch_bounds__(512)                                          \
      check_divisors_##T(Complaint* complaint, const T* x, u64 op, Walk<1> walk) {           \
    check_divisors(complaint, x, op, walk);                                                  \
  }

STAMP(i64)
STAMP(i32)
STAMP(u8)
