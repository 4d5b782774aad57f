// Reductions of x[kept.., reduced..] over the trailing dimensions, with any strides, as on the
// processor. Fixed ranges of the reduced elements give partial results, [part][output], in f64 or
// i64; one more kernel merges these in order. The order depends on the layout, and on the alignment
// of memory to packs: the same bits in each run.
// Integers, too.

enum Fold : u32 {
  SUM, PROD, MAX, MIN, COUNT, ABS_SUM, ABS_MAX, ABS_MIN, SQUARE_SUM, POWER_SUM, SQUARED_DISTANCE,
  EXP_SUM
};

// The type of accumulators.
#if IS_INTEGER
typedef i64 Wide;
__device__ inline Wide least() { return (i64)0x8000000000000000ull; }
__device__ inline Wide most() { return 0x7fffffffffffffffll; }
__device__ inline bool is_nan(Wide) { return false; }
#else
typedef double Wide;
__device__ inline Wide least() { return -(double)INFINITY_F; }
__device__ inline Wide most() { return (double)INFINITY_F; }
__device__ inline bool is_nan(Wide x) { return x != x; }
#endif

// The fold of the elements of an output.
struct Folding {
  u32 fold;
  double exponent;

  __device__ Wide start() const {
    switch (fold) {
      case PROD: return 1;
      case MAX: return least();
      case MIN: case ABS_MIN: return most();
    }
    return 0;
  }

  __device__ Wide join(Wide a, Wide b) const {
    switch (fold) {
#if IS_INTEGER
      // Integers wrap.
      case PROD: return (i64)((u64)a * (u64)b);
      case MAX: return b > a ? b : a;
      case MIN: return b < a ? b : a;
    }
    return (i64)((u64)a + (u64)b);
#else
      case PROD: return a * b;
      case MAX: case ABS_MAX: return greater(a, b);
      case MIN: case ABS_MIN: return -greater(-a, -b);
    }
    return a + b;
#endif
  }

  // The term of an element; `center` is the center of its output.
  __device__ Wide of(Stored element, [[maybe_unused]] double center) const {
    Wide x = widened(element);
    switch (fold) {
      case COUNT: return x != 0;
#if !IS_INTEGER
      case ABS_SUM: case ABS_MAX: case ABS_MIN: return fabs(x);
      case SQUARE_SUM: return x * x;
      case POWER_SUM: return pow(fabs(x), exponent);
      case SQUARED_DISTANCE: return (x - center) * (x - center);
      case EXP_SUM: return (double)exp((Computed)(x - center));
#endif
    }
    return x;
  }
};

// The cut of the reduced elements into parts.
struct Parts {
  u64 part_len;
  u64 count;
};

__device__ inline u64 place(const Walk<1>& walk, u64 index) {
  // The merged dimensions are usually one.
  return walk.rank == 1 ? index * (u64)walk.strides[0][0] : (u64)places(walk, index).at[0];
}

__device__ inline u64 end_of(const Parts& parts, u64 part, const Walk<1>& reduced) {
  u64 end = (part + 1) * parts.part_len;
  return end < reduced.len ? end : reduced.len;
}

// Calls `work` with the folding. Frequent foldings are constants that the compiler knows.
template <typename Work>
__device__ inline auto with_folding(const Folding& folding, const Work& work) {
  switch (folding.fold) {
    case SUM: return work(Folding{SUM, 0.0});
    case MAX: return work(Folding{MAX, 0.0});
    case MIN: return work(Folding{MIN, 0.0});
    case SQUARE_SUM: return work(Folding{SQUARE_SUM, 0.0});
  }
  return work(folding);
}

enum : u32 { LEN = pack_len<Stored>() };

// True if elements are contiguous along the merged dimensions.
__device__ inline bool is_dense(const Walk<1>& walk) {
  return walk.rank == 1 && walk.strides[0][0] == 1;
}

// A block of whole warps takes a part of an output at a time, in a grid-stride loop. Neighbouring
// threads read elements that are neighbours along the reduced dimensions. `centers` may be null.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(fold_rows)(Wide* partials, const Stored* x, const double* centers, u32 fold,
                      double exponent, Parts parts, Walk<1> kept, Walk<1> reduced) {
  __shared__ Wide scratch[32];
  Folding folding = {fold, exponent};
  for (u64 at = blockIdx.x; at < parts.count * kept.len; at += gridDim.x) {
    u64 part = at / kept.len, output = at % kept.len;
    const Stored* from = x + place(kept, output);
    double center = centers != nullptr ? centers[output] : 0.0;
    u64 start = part * parts.part_len, end = end_of(parts, part, reduced);
    bool is_packed = start < end && is_dense(reduced) && is_aligned<LEN>(from + start);
    u64 packs = is_packed ? (end - start) / LEN : 0;
    Wide value = with_folding(folding, [=](const Folding& known) {
      Wide value = known.start();
#pragma unroll 4
      for (u64 i = threadIdx.x; i < packs; i += blockDim.x) {
        Pack<Stored, LEN> pack = load_pack<LEN>(from + start, i);
#pragma unroll
        for (u32 k = 0; k < LEN; k++) value = known.join(value, known.of(pack.at[k], center));
      }
      return value;
    });
    for (u64 i = start + packs * LEN + threadIdx.x; i < end; i += blockDim.x) {
      value = folding.join(value, folding.of(from[place(reduced, i)], center));
    }
    value = join_block<Folding>(value, scratch, folding);
    if (threadIdx.x == 0) partials[at] = value;
  }
}

// A thread takes a part of one output, or of as many outputs as a pack has elements. Neighbouring
// threads read neighbouring outputs.
extern "C" __global__ void KERNEL(fold_columns)(Wide* partials, const Stored* x,
                                                const double* centers, u32 fold,
                                                double exponent, Parts parts, Walk<1> kept,
                                                Walk<1> reduced) {
  Folding folding = {fold, exponent};
  u64 stride = (u64)reduced.strides[0][0];
  bool is_packed = centers == nullptr && is_dense(kept) && kept.len % LEN == 0 &&
                   reduced.rank == 1 && stride % LEN == 0 && is_aligned<LEN>(x);
  if (is_packed) {
    with_folding(folding, [=](const Folding& known) {
      u64 lines = kept.len / LEN;
      for (u64 at = thread_index(); at < parts.count * lines; at += thread_count()) {
        u64 part = at / lines, pack = at % lines, end = end_of(parts, part, reduced);
        Wide values[LEN];
#pragma unroll
        for (u32 k = 0; k < LEN; k++) values[k] = known.start();
#pragma unroll 4
        for (u64 i = part * parts.part_len; i < end; i++) {
          Pack<Stored, LEN> elements = load_pack<LEN>(x, i * (stride / LEN) + pack);
#pragma unroll
          for (u32 k = 0; k < LEN; k++) {
            values[k] = known.join(values[k], known.of(elements.at[k], 0.0));
          }
        }
#pragma unroll
        for (u32 k = 0; k < LEN; k++) partials[at * LEN + k] = values[k];
      }
    });
    return;
  }
  for (u64 at = thread_index(); at < parts.count * kept.len; at += thread_count()) {
    u64 part = at / kept.len, output = at % kept.len;
    const Stored* from = x + place(kept, output);
    double center = centers != nullptr ? centers[output] : 0.0;
    Wide value = folding.start();
    u64 end = end_of(parts, part, reduced);
#pragma unroll 4
    for (u64 i = part * parts.part_len; i < end; i++) {
      value = folding.join(value, folding.of(from[place(reduced, i)], center));
    }
    partials[at] = value;
  }
}

// Number of parts of an output from which a warp merges them instead of a thread.
enum : u32 { WARP_PARTS = 32 };

// Calls `work` with the merged partial results of each output, in one thread.
template <typename Work>
__device__ inline void for_each_output(const Wide* partials, u32 fold, u64 outputs, u64 parts,
                                       const Work& work) {
  Folding folding = {fold, 0.0};
  u32 lanes = parts >= WARP_PARTS ? 32 : 1, lane = threadIdx.x % lanes;
  for (u64 output = thread_index() / lanes; output < outputs; output += thread_count() / lanes) {
    Wide value = folding.start();
    // There may be a single output, so a thread has many loads under way.
#pragma unroll 16
    for (u64 part = lane; part < parts; part += lanes) {
      value = folding.join(value, partials[part * outputs + output]);
    }
    if (lanes > 1) {
      for (u32 bit = 16; bit > 0; bit /= 2) {
        value = folding.join(value, __shfl_xor_sync(ALL_LANES, value, bit));
      }
    }
    if (lane == 0) work(output, value);
  }
}

#if !IS_INTEGER
// The center of each output: the mean, or the largest element, or 0 if that is infinite.
extern "C" __global__ void KERNEL(centers)(double* centers, const double* partials, u32 fold,
                                           u64 outputs, u64 parts, double reduced) {
  for_each_output(partials, fold, outputs, parts, [=](u64 output, double value) {
    bool is_infinite = value == least() || value == most();
    centers[output] = fold == SUM ? value / reduced : is_infinite ? 0.0 : value;
  });
}
#endif

enum Finish : u32 { KEEP, DIVIDE, ROOT, POWER, LOG, AT_LEAST };

__device__ inline Wide finished(u32 finish, Wide value, double number,
                                [[maybe_unused]] double center) {
  switch (finish) {
    case AT_LEAST: return (double)value >= number;
#if !IS_INTEGER
    case DIVIDE: return value / number;
    case ROOT: return sqrt(value / number);
    case POWER: return pow(value, number);
    case LOG: return center + log(value);
#endif
  }
  return value;
}

// y[output], computed from its partial results; overwritten.
#define STAMP(Y, name, put)                                                                      \
  extern "C" __global__ void KERNEL(name)(Y* y, const Wide* partials, const double* centers,     \
                                          u32 fold, u32 finish, double number, u64 outputs,      \
                                          u64 parts) {                                           \
    for_each_output(partials, fold, outputs, parts, [=](u64 output, Wide folded) {               \
      double center = centers != nullptr ? centers[output] : 0.0;                                \
      Wide value = finished(finish, folded, number, center);                                     \
      put;                                                                                       \
    });                                                                                          \
  }

STAMP(Stored, finish, set(y[output], (Computed)value))
STAMP(i64, finish_i64, y[output] = (i64)value)
STAMP(bool, finish_bool, y[output] = value != 0)

// An element and its index among the reduced elements.
struct Best {
  Wide value;
  i64 position;
};

enum End : u32 { LARGEST, SMALLEST };

// True if x is nearer to the end than the best so far. NaN is nearest; the first of equal elements
// wins. A negative position means that there is no element yet.
__device__ inline bool is_better(u32 end, const Best& x, const Best& best) {
  if (x.position < 0 || best.position < 0) return best.position < 0 && x.position >= 0;
  bool x_is_nan = is_nan(x.value), best_is_nan = is_nan(best.value);
  bool is_equal = x.value == best.value || (x_is_nan && best_is_nan);
  if (is_equal) return x.position < best.position;
  if (x_is_nan || best_is_nan) return x_is_nan;
  return end == LARGEST ? x.value > best.value : x.value < best.value;
}

__device__ inline Best better(u32 end, const Best& a, const Best& b) {
  return is_better(end, b, a) ? b : a;
}

__device__ inline Best best_of_warp(u32 end, Best best) {
  for (u32 bit = 16; bit > 0; bit /= 2) {
    Best other = {__shfl_xor_sync(ALL_LANES, best.value, bit),
                  __shfl_xor_sync(ALL_LANES, best.position, bit)};
    best = better(end, best, other);
  }
  return best;
}

// True if an element cannot be better than the earlier ones, which is the usual case.
__device__ inline bool is_behind(u32 end, Wide x, const Best& best) {
  return best.position >= 0 && (end == LARGEST ? x <= best.value : x >= best.value);
}

// The search along rows, in the order of `fold_rows`. A warp takes each part of an output.
extern "C" __global__ void __launch_bounds__(32)
    KERNEL(best_rows)(Wide* values, i64* positions, const Stored* x, u32 end, Parts parts,
                      Walk<1> kept, Walk<1> reduced) {
  for (u64 at = blockIdx.x; at < parts.count * kept.len; at += gridDim.x) {
    u64 part = at / kept.len, output = at % kept.len;
    const Stored* from = x + place(kept, output);
    Best best = {0, -1};
    u64 start = part * parts.part_len, last = end_of(parts, part, reduced);
    bool is_packed = is_dense(reduced) && is_aligned<LEN>(from + start);
    u64 packs = is_packed && start < last ? (last - start) / LEN : 0;
#pragma unroll 8
    for (u64 i = threadIdx.x; i < packs; i += 32) {
      Pack<Stored, LEN> pack = load_pack<LEN>(from + start, i);
#pragma unroll
      for (u32 k = 0; k < LEN; k++) {
        Wide value = widened(pack.at[k]);
        if (is_behind(end, value, best)) continue;
        best = better(end, best, {value, (i64)(start + i * LEN + k)});
      }
    }
    for (u64 i = start + packs * LEN + threadIdx.x; i < last; i += 32) {
      best = better(end, best, {widened(from[place(reduced, i)]), (i64)i});
    }
    best = best_of_warp(end, best);
    if (threadIdx.x == 0) values[at] = best.value;
    if (threadIdx.x == 0) positions[at] = best.position;
  }
}

// The search along columns, in the order of `fold_columns`.
extern "C" __global__ void KERNEL(best_columns)(Wide* values, i64* positions, const Stored* x,
                                                u32 end, Parts parts, Walk<1> kept,
                                                Walk<1> reduced) {
  for (u64 at = thread_index(); at < parts.count * kept.len; at += thread_count()) {
    u64 part = at / kept.len, output = at % kept.len;
    const Stored* from = x + place(kept, output);
    Best best = {0, -1};
    u64 last = end_of(parts, part, reduced);
    for (u64 i = part * parts.part_len; i < last; i++) {
      best = better(end, best, {widened(from[place(reduced, i)]), (i64)i});
    }
    values[at] = best.value;
    positions[at] = best.position;
  }
}

// The best of all parts of each output: its position, and its value if wanted.
extern "C" __global__ void KERNEL(best_finish)(i64* positions, Stored* values,
                                               const Wide* partials, const i64* places, u32 end,
                                               u64 outputs, u64 parts) {
  u32 lanes = parts >= WARP_PARTS ? 32 : 1, lane = threadIdx.x % lanes;
  for (u64 output = thread_index() / lanes; output < outputs; output += thread_count() / lanes) {
    Best best = {0, -1};
#pragma unroll 8
    for (u64 part = lane; part < parts; part += lanes) {
      u64 at = part * outputs + output;
      best = better(end, best, {partials[at], places[at]});
    }
    if (lanes > 1) best = best_of_warp(end, best);
    if (lane != 0) continue;
    positions[output] = best.position;
    if (values != nullptr) set(values[output], (Computed)best.value);
  }
}
