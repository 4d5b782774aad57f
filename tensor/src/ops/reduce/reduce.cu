// Reductions of x[kept.., reduced..] over the dimensions that come last, however it lies, as on the
// processor: partial results of fixed ranges of the reduced elements, [part][output], accumulated
// in f64, which one more kernel merges in order. The order is fixed by the layout: the same bits in
// each run.

enum Fold : u32 {
  SUM, PROD, MAX, MIN, COUNT, ABS_SUM, ABS_MAX, ABS_MIN, SQUARE_SUM, POWER_SUM, SQUARED_DISTANCE,
  EXP_SUM
};

__device__ inline double infinity() { return (double)INFINITY_F; }

// What is accumulated of the elements of an output.
struct Folding {
  u32 fold;
  double exponent;

  __device__ double start() const {
    switch (fold) {
      case PROD: return 1.0;
      case MAX: return -infinity();
      case MIN: case ABS_MIN: return infinity();
    }
    return 0.0;
  }

  __device__ double join(double a, double b) const {
    switch (fold) {
      case PROD: return a * b;
      case MAX: case ABS_MAX: return greater(a, b);
      case MIN: case ABS_MIN: return -greater(-a, -b);
    }
    return a + b;
  }

  // What an element counts; `center` is that of its output.
  __device__ double of(float element, double center) const {
    double x = (double)element;
    switch (fold) {
      case COUNT: return x != 0.0 ? 1.0 : 0.0;
      case ABS_SUM: case ABS_MAX: case ABS_MIN: return fabs(x);
      case SQUARE_SUM: return x * x;
      case POWER_SUM: return pow(fabs(x), exponent);
      case SQUARED_DISTANCE: return (x - center) * (x - center);
      case EXP_SUM: return (double)expf((float)(x - center));
    }
    return x;
  }
};

// The range of reduced elements of each part.
struct Parts {
  u64 part_len;
  u64 count;
};

__device__ inline u64 place(const Walk<1>& walk, u64 index) {
  // Most often what is left of the dimensions is one.
  return walk.rank == 1 ? index * (u64)walk.strides[0][0] : (u64)places(walk, index).at[0];
}

__device__ inline u64 end_of(const Parts& parts, u64 part, const Walk<1>& reduced) {
  u64 end = (part + 1) * parts.part_len;
  return end < reduced.len ? end : reduced.len;
}

// A block of whole warps takes a part of an output, and every n-th: neighbours read what follows
// each other in the reduced dimensions. `centers` may be absent.
extern "C" __global__ void __launch_bounds__(256)
    fold_rows_f32(double* partials, const float* x, const double* centers, u32 fold,
                  double exponent, Parts parts, Walk<1> kept, Walk<1> reduced) {
  __shared__ double scratch[32];
  Folding folding = {fold, exponent};
  for (u64 at = blockIdx.x; at < parts.count * kept.len; at += gridDim.x) {
    u64 part = at / kept.len, output = at % kept.len;
    const float* from = x + place(kept, output);
    double center = centers != nullptr ? centers[output] : 0.0;
    double value = folding.start();
    u64 end = end_of(parts, part, reduced);
#pragma unroll 4
    for (u64 i = part * parts.part_len + threadIdx.x; i < end; i += blockDim.x) {
      value = folding.join(value, folding.of(from[place(reduced, i)], center));
    }
    value = join_block<Folding>(value, scratch, folding);
    if (threadIdx.x == 0) partials[at] = value;
  }
}

// A thread takes a part of an output: neighbours read outputs that lie side by side.
extern "C" __global__ void fold_columns_f32(double* partials, const float* x,
                                            const double* centers, u32 fold, double exponent,
                                            Parts parts, Walk<1> kept, Walk<1> reduced) {
  Folding folding = {fold, exponent};
  for (u64 at = thread_index(); at < parts.count * kept.len; at += thread_count()) {
    u64 part = at / kept.len, output = at % kept.len;
    const float* from = x + place(kept, output);
    double center = centers != nullptr ? centers[output] : 0.0;
    double value = folding.start();
    u64 end = end_of(parts, part, reduced);
#pragma unroll 4
    for (u64 i = part * parts.part_len; i < end; i++) {
      value = folding.join(value, folding.of(from[place(reduced, i)], center));
    }
    partials[at] = value;
  }
}

__device__ inline double merged(const Folding& folding, const double* partials, u64 output,
                                u64 outputs, u64 parts) {
  double value = partials[output];
  for (u64 part = 1; part < parts; part++) {
    value = folding.join(value, partials[part * outputs + output]);
  }
  return value;
}

// The mean, or the largest, or 0 where that is infinite.
extern "C" __global__ void centers_f64(double* centers, const double* partials, u32 fold,
                                       u64 outputs, u64 parts, double reduced) {
  Folding folding = {fold, 0.0};
  for (u64 i = thread_index(); i < outputs; i += thread_count()) {
    double value = merged(folding, partials, i, outputs, parts);
    bool is_infinite = value == infinity() || value == -infinity();
    centers[i] = fold == SUM ? value / reduced : is_infinite ? 0.0 : value;
  }
}

enum Finish : u32 { KEEP, DIVIDE, ROOT, POWER, LOG, AT_LEAST };

__device__ inline double finished(u32 finish, double value, double number, double center) {
  switch (finish) {
    case DIVIDE: return value / number;
    case ROOT: return sqrt(value / number);
    case POWER: return pow(value, number);
    case LOG: return center + log(value);
    case AT_LEAST: return value >= number ? 1.0 : 0.0;
  }
  return value;
}

// y[output] from its partial results; overwritten.
template <typename Y>
__device__ inline void finish_all(Y* y, const double* partials, const double* centers,
                                  const Folding& folding, u32 finish, double number, u64 outputs,
                                  u64 parts) {
  for (u64 i = thread_index(); i < outputs; i += thread_count()) {
    double value = merged(folding, partials, i, outputs, parts);
    y[i] = (Y)finished(finish, value, number, centers != nullptr ? centers[i] : 0.0);
  }
}

#define STAMP(Y, name)                                                                          \
  extern "C" __global__ void finish_##name(Y* y, const double* partials, const double* centers, \
                                           u32 fold, u32 finish, double number, u64 outputs,    \
                                           u64 parts) {                                         \
    finish_all(y, partials, centers, {fold, 0.0}, finish, number, outputs, parts);              \
  }

STAMP(float, f32)
STAMP(i64, i64)
STAMP(u8, bool)

// An element and its number among the reduced ones.
struct Best {
  double value;
  i64 position;
};

enum End : u32 { LARGEST, SMALLEST };

// Whether x is nearer to the end than the best so far; NaN is the nearest, the first of equals
// counts. Positions are below 0 where there is nothing yet.
__device__ inline bool is_better(u32 end, const Best& x, const Best& best) {
  if (x.position < 0 || best.position < 0) return best.position < 0 && x.position >= 0;
  bool x_is_nan = x.value != x.value, best_is_nan = best.value != best.value;
  bool is_equal = x.value == best.value || (x_is_nan && best_is_nan);
  if (is_equal) return x.position < best.position;
  if (x_is_nan || best_is_nan) return x_is_nan;
  return end == LARGEST ? x.value > best.value : x.value < best.value;
}

__device__ inline Best better(u32 end, const Best& a, const Best& b) {
  return is_better(end, b, a) ? b : a;
}

// As `fold_rows_f32`, by one warp for each part of an output.
extern "C" __global__ void __launch_bounds__(32)
    best_rows_f32(double* values, i64* positions, const float* x, u32 end, Parts parts,
                  Walk<1> kept, Walk<1> reduced) {
  for (u64 at = blockIdx.x; at < parts.count * kept.len; at += gridDim.x) {
    u64 part = at / kept.len, output = at % kept.len;
    const float* from = x + place(kept, output);
    Best best = {0.0, -1};
    u64 last = end_of(parts, part, reduced);
    for (u64 i = part * parts.part_len + threadIdx.x; i < last; i += 32) {
      best = better(end, best, {(double)from[place(reduced, i)], (i64)i});
    }
    for (u32 bit = 16; bit > 0; bit /= 2) {
      Best other = {__shfl_xor_sync(ALL_LANES, best.value, bit),
                    __shfl_xor_sync(ALL_LANES, best.position, bit)};
      best = better(end, best, other);
    }
    if (threadIdx.x == 0) values[at] = best.value;
    if (threadIdx.x == 0) positions[at] = best.position;
  }
}

// As `fold_columns_f32`.
extern "C" __global__ void best_columns_f32(double* values, i64* positions, const float* x,
                                            u32 end, Parts parts, Walk<1> kept,
                                            Walk<1> reduced) {
  for (u64 at = thread_index(); at < parts.count * kept.len; at += thread_count()) {
    u64 part = at / kept.len, output = at % kept.len;
    const float* from = x + place(kept, output);
    Best best = {0.0, -1};
    u64 last = end_of(parts, part, reduced);
    for (u64 i = part * parts.part_len; i < last; i++) {
      best = better(end, best, {(double)from[place(reduced, i)], (i64)i});
    }
    values[at] = best.value;
    positions[at] = best.position;
  }
}

// The best of all parts of each output: its position, and its value where that is asked for.
extern "C" __global__ void best_finish_f32(i64* positions, float* values, const double* partials,
                                           const i64* places, u32 end, u64 outputs, u64 parts) {
  for (u64 i = thread_index(); i < outputs; i += thread_count()) {
    Best best = {partials[i], places[i]};
    for (u64 part = 1; part < parts; part++) {
      u64 at = part * outputs + i;
      best = better(end, best, {partials[at], places[at]});
    }
    positions[i] = best.position;
    if (values != nullptr) values[i] = (float)best.value;
  }
}
