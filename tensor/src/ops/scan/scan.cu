// Scans over y[before, along, after]: each element is replaced by a value of all elements along the
// dimension, up to and including it. Floats are computed in f64, integers and truth values in i64,
// which wraps; results are overwritten. A walk reads the elements of x in row-major order.
//
// A scan is a rule: the state of one element, the join of the states of two neighbouring parts, and
// the result from the state up to an element. By lines, a block of whole warps takes a line along
// the dimension at a time, in a grid-stride loop, and joins its elements as a tree; the sizes fix
// the order. By columns, a thread takes a line, one element after the other, and neighbouring
// threads read neighbouring elements.

struct Lines {
  u64 before;
  u64 along;
  u64 after;
};

// The type of accumulators: f64, or i64.
__device__ inline double accumulated(float x) { return (double)x; }
__device__ inline double accumulated(double x) { return x; }
__device__ inline i64 accumulated(i64 x) { return x; }
template <typename X>
__device__ inline auto wide(X x) {
  return accumulated(widened(x));
}

__device__ inline void put(f64& y, double x) { y = x; }
__device__ inline void put(f32& y, double x) { y = (float)x; }
__device__ inline void put(f16& y, double x) { set(y, (float)x); }
__device__ inline void put(bf16& y, double x) { set(y, (float)x); }
__device__ inline void put(i64& y, i64 x) { y = x; }

__device__ inline double sum(double a, double b) { return a + b; }
__device__ inline i64 sum(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
__device__ inline double product(double a, double b) { return a * b; }
__device__ inline i64 product(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }

__device__ inline double infinity() { return (double)INFINITY_F; }

// Elements with any strides, by their index in row-major order.
template <typename X>
struct View {
  const X* x;
  const Walk<1>& walk;

  __device__ X at(u64 index) const {
    // The merged dimensions are usually one, which needs no division.
    return x[walk.rank == 1 ? (i64)index * walk.strides[0][0] : places(walk, index).at[0]];
  }
};

template <typename X, typename Y>
struct Sums {
  typedef decltype(wide(X())) State;
  View<X> x;
  Y* y;

  __device__ State start() const { return 0; }
  __device__ State load(u64 at, u64) const { return wide(x.at(at)); }
  __device__ State join(State before, State here) const { return sum(before, here); }
  __device__ void store(u64 at, u64, State state) const { put(y[at], state); }
  static __device__ State of_lane(State state, u32 lane) {
    return __shfl_sync(ALL_LANES, state, lane);
  }
};

template <typename X, typename Y>
struct Products {
  typedef decltype(wide(X())) State;
  View<X> x;
  Y* y;

  __device__ State start() const { return 1; }
  __device__ State load(u64 at, u64) const { return wide(x.at(at)); }
  __device__ State join(State before, State here) const { return product(before, here); }
  __device__ void store(u64 at, u64, State state) const { put(y[at], state); }
};

// The largest or smallest element so far, and its position along the dimension. The last of equal
// elements wins; NaN stays until the next NaN.
template <typename X>
struct Extremes {
  struct State {
    decltype(wide(X())) value;
    i64 position;  // negative before the first element
  };
  View<X> x;
  X* y;
  i64* positions;
  u64 after;
  bool is_largest;

  __device__ State start() const { return {0, -1}; }
  __device__ State load(u64 at, u64 t) const { return {wide(x.at(at)), (i64)t}; }
  __device__ State join(State before, State here) const {
    if (here.position < 0 || before.position < 0) return here.position < 0 ? before : here;
    bool is_beyond = is_largest ? here.value >= before.value : here.value <= before.value;
    bool here_is_nan = here.value != here.value, before_is_nan = before.value != before.value;
    return here_is_nan || (!before_is_nan && is_beyond) ? here : before;
  }
  __device__ void store(u64 at, u64 t, State state) const {
    y[at] = x.at(at - (t - (u64)state.position) * after);
    positions[at] = state.position;
  }
  static __device__ State of_lane(State state, u32 lane) {
    return {__shfl_sync(ALL_LANES, state.value, lane),
            __shfl_sync(ALL_LANES, state.position, lane)};
  }
};

// ln Σ e^x as the largest x so far and Σ e^(x - largest). A running logarithm would round once for
// each element, at its own magnitude.
template <typename X>
struct LogSumExp {
  struct State {
    double largest;
    double sum;
  };
  View<X> x;
  X* y;

  __device__ State start() const { return {-infinity(), 0.0}; }
  __device__ State load(u64 at, u64) const {
    double element = wide(x.at(at));
    bool is_nan = element != element;
    return {is_nan ? -infinity() : element, is_nan ? element : 1.0};
  }
  __device__ State join(State before, State here) const {
    double largest = here.largest > before.largest ? here.largest : before.largest;
    return {largest, scaled(before, largest) + scaled(here, largest)};
  }
  static __device__ double scaled(State state, double largest) {
    // `largest` and the state's largest may be the same infinity.
    return state.largest == largest ? state.sum : state.sum * exp(state.largest - largest);
  }
  __device__ void store(u64 at, u64, State state) const {
    put(y[at], state.largest + log(state.sum));
  }
  static __device__ State of_lane(State state, u32 lane) {
    return {__shfl_sync(ALL_LANES, state.largest, lane), __shfl_sync(ALL_LANES, state.sum, lane)};
  }
};

// The quotient e^part / e^whole; 0 if e^whole is 0.
__device__ inline double share(double part, double whole) {
  return whole == -infinity() ? 0.0 : exp(part - whole);
}

// The gradient of LogSumExp, from the end of the dimension backwards, from contiguous dy, x and y.
// The sum at an element is dy plus a share of the next element's sum. So the state of several
// elements is a sum, and the factor for the sum after them.
template <typename X>
struct LogSumExpBackward {
  struct State {
    double sum;
    double factor;
  };
  const X* dy;
  const X* x;
  const X* y;
  X* dx;
  u64 after;

  __device__ State start() const { return {0.0, 1.0}; }
  __device__ State load(u64 at, u64 t) const {
    // y never decreases, so the share is at most 1. Nothing follows the last element.
    return {wide(dy[at]), t == 0 ? 0.0 : share(wide(y[at]), wide(y[at + after]))};
  }
  __device__ State join(State before, State here) const {
    return {here.sum + before.sum * here.factor, here.factor * before.factor};
  }
  __device__ void store(u64 at, u64, State state) const {
    put(dx[at], state.sum * share(wide(x[at]), wide(y[at])));
  }
  static __device__ State of_lane(State state, u32 lane) {
    return {__shfl_sync(ALL_LANES, state.sum, lane), __shfl_sync(ALL_LANES, state.factor, lane)};
  }
};

template <typename Rule>
__device__ inline void by_lines(const Rule& rule, const Lines& lines, u32 is_backwards) {
  typedef typename Rule::State State;
  __shared__ State totals[32];
  u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (u64 line = blockIdx.x; line < lines.before * lines.after; line += gridDim.x) {
    u64 outer = line / lines.after;
    u64 first = outer * lines.along * lines.after + (line - outer * lines.after);
    State carried = rule.start();
    for (u64 begin = 0; begin < lines.along; begin += blockDim.x) {
      u64 t = begin + threadIdx.x;
      bool is_inside = t < lines.along;
      u64 at = first + (is_backwards ? lines.along - 1 - t : t) * lines.after;
      State state = is_inside ? rule.load(at, t) : rule.start();
      for (u32 distance = 1; distance < 32; distance *= 2) {
        State before = Rule::of_lane(state, lane >= distance ? lane - distance : lane);
        if (lane >= distance) state = rule.join(before, state);
      }
      if (lane == 31) totals[warp] = state;
      __syncthreads();
      State before = carried;
      for (u32 other = 0; other < warps; other++) {
        if (other == warp) before = carried;
        carried = rule.join(carried, totals[other]);
      }
      if (is_inside) rule.store(at, t, rule.join(before, state));
      // The next round overwrites the totals.
      __syncthreads();
    }
  }
}

template <typename Rule>
__device__ inline void by_columns(const Rule& rule, const Lines& lines, u32 is_backwards) {
  for (u64 line = thread_index(); line < lines.before * lines.after; line += thread_count()) {
    u64 outer = line / lines.after;
    u64 first = outer * lines.along * lines.after + (line - outer * lines.after);
    typename Rule::State state = rule.start();
    for (u64 t = 0; t < lines.along; t++) {
      u64 at = first + (is_backwards ? lines.along - 1 - t : t) * lines.after;
      state = rule.join(state, rule.load(at, t));
      rule.store(at, t, state);
    }
  }
}

// Sums by lines and by columns, products by columns alone: the product of a part may overflow
// although the product before it is 0.
#define STAMP_SUMS(X, Y)                                                                          \
  extern "C" __global__ void __launch_bounds__(512)                                               \
      sums_lines_##X(Y* y, const X* x, Lines lines, u32 is_backwards, Walk<1> walk) {             \
    by_lines(Sums<X, Y>{{x, walk}, y}, lines, is_backwards);                                      \
  }                                                                                               \
  extern "C" __global__ void sums_columns_##X(Y* y, const X* x, Lines lines, u32 is_backwards,    \
                                              Walk<1> walk) {                                     \
    by_columns(Sums<X, Y>{{x, walk}, y}, lines, is_backwards);                                    \
  }                                                                                               \
  extern "C" __global__ void products_columns_##X(Y* y, const X* x, Lines lines,                  \
                                                  u32 is_backwards, Walk<1> walk) {               \
    by_columns(Products<X, Y>{{x, walk}, y}, lines, is_backwards);                                \
  }
STAMP_SUMS(f32, f32)
STAMP_SUMS(f64, f64)
STAMP_SUMS(f16, f16)
STAMP_SUMS(bf16, bf16)
STAMP_SUMS(i64, i64)
STAMP_SUMS(i32, i64)
STAMP_SUMS(u8, i64)
STAMP_SUMS(bool, i64)

#define STAMP_EXTREMES(X)                                                                         \
  extern "C" __global__ void __launch_bounds__(512)                                               \
      extremes_lines_##X(X* y, i64* positions, const X* x, Lines lines, u32 is_largest,           \
                         Walk<1> walk) {                                                          \
    by_lines(Extremes<X>{{x, walk}, y, positions, lines.after, is_largest != 0}, lines, 0);       \
  }                                                                                               \
  extern "C" __global__ void extremes_columns_##X(X* y, i64* positions, const X* x, Lines lines,  \
                                                  u32 is_largest, Walk<1> walk) {                 \
    by_columns(Extremes<X>{{x, walk}, y, positions, lines.after, is_largest != 0}, lines, 0);     \
  }
STAMP_EXTREMES(f32)
STAMP_EXTREMES(f64)
STAMP_EXTREMES(f16)
STAMP_EXTREMES(bf16)
STAMP_EXTREMES(i64)
STAMP_EXTREMES(i32)
STAMP_EXTREMES(u8)
STAMP_EXTREMES(bool)

#define STAMP_LOG_SUM_EXP(X)                                                                      \
  extern "C" __global__ void __launch_bounds__(512)                                               \
      log_sum_exp_lines_##X(X* y, const X* x, Lines lines, Walk<1> walk) {                        \
    by_lines(LogSumExp<X>{{x, walk}, y}, lines, 0);                                               \
  }                                                                                               \
  extern "C" __global__ void log_sum_exp_columns_##X(X* y, const X* x, Lines lines,               \
                                                     Walk<1> walk) {                              \
    by_columns(LogSumExp<X>{{x, walk}, y}, lines, 0);                                             \
  }                                                                                               \
  extern "C" __global__ void __launch_bounds__(512)                                               \
      log_sum_exp_backward_lines_##X(X* dx, const X* dy, const X* x, const X* y, Lines lines) {   \
    by_lines(LogSumExpBackward<X>{dy, x, y, dx, lines.after}, lines, 1);                          \
  }                                                                                               \
  extern "C" __global__ void log_sum_exp_backward_columns_##X(X* dx, const X* dy, const X* x,     \
                                                              const X* y, Lines lines) {          \
    by_columns(LogSumExpBackward<X>{dy, x, y, dx, lines.after}, lines, 1);                        \
  }
STAMP_LOG_SUM_EXP(f32)
STAMP_LOG_SUM_EXP(f64)
STAMP_LOG_SUM_EXP(f16)
STAMP_LOG_SUM_EXP(bf16)
