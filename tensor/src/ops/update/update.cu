// Steps of optimizers, in place and in one pass over the memory of many tensors. The formulas are
// those of the processor, see `UpdateFormula` and `KnownFormula`. Parameters and gradients are
// widened, computed and rounded once. States are of the type of the computation, or in 8 bits.

// The formulas by number; `known.rs` looks the numbers up here.
enum Formula : u32 {
  SGD, MOMENTUM, ADAM, AMSGRAD, NADAM, ADAMAX, ADAGRAD, ADADELTA, RMS_PROP, RMS_PROP_MOMENTUM,
  RMS_PROP_VARIANCE, RMS_PROP_VARIANCE_MOMENTUM, RPROP, LION, LAMB, ADAFACTOR, STEP, AVERAGE
};

// The values whose squares are summed.
enum Values : u32 { PARAMETER_AND_GRADIENT, LAMB_DIRECTION, MUON_DIRECTION };

enum GradientType : u32 { OF_F32, OF_F64, OF_F16, OF_BF16 };

enum : u32 {
  CONSTANTS_MAX = 10,
  // Pointers of all tensors of a launch.
  POINTERS_MAX = 328,
  LENS_MAX = 164,
  // Pointers of a launch with one tensor: parameter, gradient, four states, two scalars.
  POINTERS_OF_ONE = 8,
  THREADS = 256,
  // Elements that a thread loads at a time.
  UNROLLED = 4,
  TILE_OF_UPDATE = THREADS * UNROLLED
};

// The common properties of all tensors of a launch.
struct Common {
  u64 formula;
  u64 gradient_type;
  u64 is_stochastic;
  u64 seed;
  u64 count;  // of tensors
  double constants[CONSTANTS_MAX];
};

// Parameter, gradient, states and scalars, tensor by tensor.
template <u32 LEN>
struct Pointers {
  void* at[LEN];
};

// For each tensor its length, and the random stream of its rounding.
struct Lens {
  u64 at[LENS_MAX];
};

// A formula with its constants, in the order of its fields.
template <typename F>
__device__ inline F formula_of(const Common& common) {
  F formula;
  Computed* fields = (Computed*)&formula;
#pragma unroll
  for (u32 k = 0; k < sizeof(F) / sizeof(Computed); k++) fields[k] = (Computed)common.constants[k];
  return formula;
}

__device__ inline Computed root(Computed x) { return sqrt(x); }

// A formula's `step` returns the new parameter and overwrites the states.

struct Sgd {
  enum : u32 { STATES = 0, SCALARS = 0 };
  Computed decay, keep, take, along_g, along_m;

  __device__ Computed step(const Computed*, Computed p, Computed g, Computed*) const {
    return p - along_g * (g + decay * p);
  }
};

struct Momentum {
  enum : u32 { STATES = 1, SCALARS = 0 };
  Computed decay, keep, take, along_g, along_m;

  __device__ Computed step(const Computed*, Computed p, Computed g, Computed* m) const {
    g = g + decay * p;
    m[0] = keep * m[0] + take * g;
    return p - (along_g * g + along_m * m[0]);
  }
};

// Mean and mean square of the gradient, to which weight decay may be added: s is m, v.
struct Moments {
  Computed keep1, take1, keep2, take2, coupled;

  // The gradient with weight decay; updates both moments.
  __device__ Computed take(Computed p, Computed g, Computed* s) const {
    g = g + coupled * p;
    s[0] = keep1 * s[0] + take1 * g;
    s[1] = keep2 * s[1] + take2 * g * g;
    return g;
  }
};

struct Adam {
  enum : u32 { STATES = 2, SCALARS = 0 };
  Moments moments;
  Computed keep, rate, root_scale, eps;

  __device__ Computed step(const Computed*, Computed p, Computed g, Computed* s) const {
    moments.take(p, g, s);
    return keep * p - rate * s[0] / (root(s[1]) * root_scale + eps);
  }
};

// The third state is the largest mean square so far.
struct Amsgrad {
  enum : u32 { STATES = 3, SCALARS = 0 };
  Moments moments;
  Computed keep, rate, root_scale, eps;

  __device__ Computed step(const Computed*, Computed p, Computed g, Computed* s) const {
    moments.take(p, g, s);
    s[2] = greater(s[1], s[2]);
    return keep * p - rate * s[0] / (root(s[2]) * root_scale + eps);
  }
};

struct Nadam {
  enum : u32 { STATES = 2, SCALARS = 0 };
  Moments moments;
  Computed keep, mean_rate, rate, root_scale, eps;

  __device__ Computed step(const Computed*, Computed p, Computed g, Computed* s) const {
    g = moments.take(p, g, s);
    return keep * p - (mean_rate * s[0] + rate * g) / (root(s[1]) * root_scale + eps);
  }
};

struct Adamax {
  enum : u32 { STATES = 2, SCALARS = 0 };
  Computed keep, take, fade, decay, rate, eps;

  __device__ Computed step(const Computed*, Computed p, Computed g, Computed* s) const {
    g = g + decay * p;
    s[0] = keep * s[0] + take * g;
    s[1] = greater(greater(-g, g) + eps, fade * s[1]);
    return p - rate * s[0] / s[1];
  }
};

struct Adagrad {
  enum : u32 { STATES = 1, SCALARS = 0 };
  Computed added, decay, rate, eps;

  __device__ Computed step(const Computed*, Computed p, Computed g, Computed* s) const {
    g = g + decay * p;
    s[0] = s[0] + added + g * g;
    return p - rate * g / (root(s[0]) + eps);
  }
};

struct Adadelta {
  enum : u32 { STATES = 2, SCALARS = 0 };
  Computed keep, take, decay, rate, eps;

  __device__ Computed step(const Computed*, Computed p, Computed g, Computed* s) const {
    g = g + decay * p;
    s[0] = keep * s[0] + take * g * g;
    Computed d = root(s[1] + eps) / root(s[0] + eps) * g;
    s[1] = keep * s[1] + take * d * d;
    return p - rate * d;
  }
};

// The states are the mean square, then the mean if there is one, then the momentum if there is one.
template <bool HAS_MEAN, bool HAS_MOMENTUM>
struct RmsProp {
  enum : u32 { STATES = 1 + HAS_MEAN + HAS_MOMENTUM, SCALARS = 0 };
  Computed keep, take, decay, rate, eps, momentum;

  __device__ Computed step(const Computed*, Computed p, Computed g, Computed* s) const {
    g = g + decay * p;
    s[0] = keep * s[0] + take * g * g;
    Computed spread = s[0];
    if (HAS_MEAN) {
      s[HAS_MEAN] = keep * s[HAS_MEAN] + take * g;
      spread = spread - s[HAS_MEAN] * s[HAS_MEAN];
    }
    Computed direction = g / (root(spread) + eps);
    if (HAS_MOMENTUM) direction = s[STATES - 1] = momentum * s[STATES - 1] + direction;
    return p - rate * direction;
  }
};

// s is the previous gradient, and the step size.
struct Rprop {
  enum : u32 { STATES = 2, SCALARS = 0 };
  Computed added, down, up, low, high;

  __device__ Computed step(const Computed*, Computed p, Computed g, Computed* s) const {
    const Computed ZERO = 0;
    Computed same = g * s[0];
    Computed factor = same < ZERO ? down : same > ZERO ? up : (Computed)1;
    Computed size = (s[1] + added) * factor;
    size = size < low ? low : size;
    size = size > high ? high : size;
    g = same < ZERO ? ZERO : g;
    s[0] = g;
    s[1] = size;
    return g < ZERO ? p + size : g > ZERO ? p - size : p;
  }
};

struct Lion {
  enum : u32 { STATES = 1, SCALARS = 0 };
  Computed keep1, take1, keep2, take2, keep, rate;

  __device__ Computed step(const Computed*, Computed p, Computed g, Computed* m) const {
    const Computed ZERO = 0;
    Computed direction = keep1 * m[0] + take1 * g;
    Computed up = direction > ZERO ? rate : ZERO, down = direction < ZERO ? rate : ZERO;
    m[0] = keep2 * m[0] + take2 * g;
    return keep * p - up + down;
  }
};

// The scalars are the norms of parameter and direction.
struct Lamb {
  enum : u32 { STATES = 2, SCALARS = 2, VALUES = 2 };
  Computed keep1, take1, keep2, take2, scale, root_scale, eps, decay, rate;

  __device__ Computed direction(Computed p, Computed g, Computed* s) const {
    s[0] = keep1 * s[0] + take1 * g;
    s[1] = keep2 * s[1] + take2 * g * g;
    return scale * s[0] / (root(s[1]) * root_scale + eps) + decay * p;
  }

  __device__ Computed step(const Computed* norms, Computed p, Computed g, Computed* s) const {
    Computed along = direction(p, g, s);
    bool has_norms = norms[0] > (Computed)0 && norms[1] > (Computed)0;
    Computed trust = has_norms ? norms[0] / norms[1] : (Computed)1;
    return p - rate * trust * along;
  }

  __device__ void values(Computed p, Computed g, Computed* s, Computed* to) const {
    to[0] = p;
    to[1] = direction(p, g, s);
  }
};

// The gradient is the update before scaling. The scalars are the norms of parameter and update.
struct Adafactor {
  enum : u32 { STATES = 0, SCALARS = 2 };
  Computed scale_min, rate, per_root_len, per_clip, keep;

  __device__ Computed step(const Computed* norms, Computed p, Computed u, Computed*) const {
    Computed alpha = greater(norms[0] * per_root_len, scale_min) * rate;
    Computed size = alpha / greater(norms[1] * per_clip, (Computed)1);
    return keep * p - size * u;
  }
};

struct PlainStep {
  enum : u32 { STATES = 0, SCALARS = 0 };
  Computed keep, rate;

  __device__ Computed step(const Computed*, Computed p, Computed x, Computed*) const {
    return keep * p - rate * x;
  }
};

// The parameter is an average of the gradient.
struct Average {
  enum : u32 { STATES = 0, SCALARS = 0 };
  Computed take;

  __device__ Computed step(const Computed*, Computed average, Computed x, Computed*) const {
    return average + take * (x - average);
  }
};

// Runs a job with a formula.
template <typename Job>
__device__ inline void with_formula(u32 formula, const Job& job) {
  switch (formula) {
    case SGD: return job.template run<Sgd>();
    case MOMENTUM: return job.template run<Momentum>();
    case ADAM: return job.template run<Adam>();
    case AMSGRAD: return job.template run<Amsgrad>();
    case NADAM: return job.template run<Nadam>();
    case ADAMAX: return job.template run<Adamax>();
    case ADAGRAD: return job.template run<Adagrad>();
    case ADADELTA: return job.template run<Adadelta>();
    case RMS_PROP: return job.template run<RmsProp<false, false>>();
    case RMS_PROP_MOMENTUM: return job.template run<RmsProp<false, true>>();
    case RMS_PROP_VARIANCE: return job.template run<RmsProp<true, false>>();
    case RMS_PROP_VARIANCE_MOMENTUM: return job.template run<RmsProp<true, true>>();
    case RPROP: return job.template run<Rprop>();
    case LION: return job.template run<Lion>();
    case LAMB: return job.template run<Lamb>();
    case ADAFACTOR: return job.template run<Adafactor>();
    case STEP: return job.template run<PlainStep>();
    case AVERAGE: return job.template run<Average>();
  }
}

__device__ inline Computed gradient_at(const void* gradient, u64 type, u64 i) {
  switch (type) {
    case OF_F32: return (Computed)((const float*)gradient)[i];
    case OF_F16: return (Computed)widened(((const f16*)gradient)[i]);
    case OF_BF16: return (Computed)widened(((const bf16*)gradient)[i]);
    default: return (Computed)((const double*)gradient)[i];
  }
}

// Sets the new parameter at `place`, rounded to nearest.
template <typename T>
__device__ inline void set_drawn(T& y, Computed x, const Stream&, u64) { set(y, x); }

// Sets a bf16, rounded up with the probability that makes the mean exact.
__device__ inline void set_drawn(bf16& y, float x, const Stream& stream, u64 place) {
  if (x - x != 0.0f) return set(y, x);
  // Eight places share a block of four words. Each has 16 random bits, the number of bits that are
  // cut off.
  Words words = block_of(stream, place / 8);
  u32 even = place & 4 ? words.at[2] : words.at[0], odd = place & 4 ? words.at[3] : words.at[1];
  u32 word = place & 2 ? odd : even;
  u32 bits = place & 1 ? word >> 16 : word & 0xffff;
  y.bits = (u16)((__float_as_uint(x) + bits) >> 16);
}

// A tensor of a launch, with states of type `State`.
template <typename F, typename State, u32 SCALARS = F::SCALARS>
struct Tensor {
  Stored* parameter;
  const void* gradient;
  State* states[F::STATES + 1];
  Computed scalars[SCALARS + 1];
  Stream stream;

  template <u32 LEN>
  __device__ Tensor(const Pointers<LEN>& pointers, u32 first, Stream stream) : stream(stream) {
    parameter = (Stored*)pointers.at[first];
    gradient = pointers.at[first + 1];
#pragma unroll
    for (u32 k = 0; k < F::STATES; k++) states[k] = (State*)pointers.at[first + 2 + k];
#pragma unroll
    for (u32 k = 0; k < SCALARS; k++) {
      scalars[k] = *(const Computed*)pointers.at[first + 2 + F::STATES + k];
    }
  }

  __device__ void set_parameter(u64 at, u64 place, Computed x, const Common& common) const {
    if (common.is_stochastic) set_drawn(parameter[at], x, stream, place);
    else set(parameter[at], x);
  }
};

// Distributes the tiles of all tensors, of `tile_len` elements each, over the blocks: run(tensor,
// the tile's first element, the tensor's length).
template <typename F, typename State, typename Run>
__device__ inline void each_tile(const Common& common, const Pointers<POINTERS_MAX>& pointers,
                                 const Lens& lens, u32 tile_len, const Run& run) {
  u64 tile = blockIdx.x, first = 0;
  for (u32 index = 0; index < (u32)common.count; index++) {
    u64 len = lens.at[2 * index], end = first + (len + tile_len - 1) / tile_len;
    if (tile < end) {
      Stream stream = {common.seed, lens.at[2 * index + 1]};
      Tensor<F, State> tensor(pointers, index * (2 + F::STATES + F::SCALARS), stream);
      for (; tile < end; tile += gridDim.x) run(tensor, (tile - first) * tile_len, len);
    }
    first = end;
  }
}

struct Plain {
  const Common& common;
  const Pointers<POINTERS_MAX>& pointers;
  const Lens& lens;

  template <typename F>
  __device__ void run() const {
    const F formula = formula_of<F>(common);
    auto update = [&](const Tensor<F, Computed>& tensor, u64 start, u64 len) {
      Computed p[UNROLLED], g[UNROLLED], s[UNROLLED][F::STATES + 1];
#pragma unroll
      for (u32 u = 0; u < UNROLLED; u++) {
        u64 i = start + u * THREADS + threadIdx.x;
        if (i >= len) continue;
        p[u] = widened(tensor.parameter[i]);
        g[u] = gradient_at(tensor.gradient, common.gradient_type, i);
#pragma unroll
        for (u32 k = 0; k < F::STATES; k++) s[u][k] = tensor.states[k][i];
      }
#pragma unroll
      for (u32 u = 0; u < UNROLLED; u++) {
        u64 i = start + u * THREADS + threadIdx.x;
        if (i >= len) continue;
        Computed y = formula.step(tensor.scalars, p[u], g[u], s[u]);
        tensor.set_parameter(i, i, y, common);
#pragma unroll
        for (u32 k = 0; k < F::STATES; k++) tensor.states[k][i] = s[u][k];
      }
    };
    each_tile<F, Computed>(common, pointers, lens, TILE_OF_UPDATE, update);
  }
};

// Updates contiguous tensors by tiles. A block takes one tile at a time, in a grid-stride loop.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(update)(Common common, Pointers<POINTERS_MAX> pointers, Lens lens) {
  with_formula((u32)common.formula, Plain{common, pointers, lens});
}

struct Strided {
  const Common& common;
  const Pointers<POINTERS_OF_ONE>& pointers;
  u64 stream;
  const Walk<6>& walk;

  template <typename F>
  __device__ void run() const {
    const F formula = formula_of<F>(common);
    const Tensor<F, Computed> tensor(pointers, 0, {common.seed, stream});
    for (u64 i = thread_index(); i < walk.len; i += thread_count()) {
      Places<6> of = places(walk, i);
      Computed s[F::STATES + 1];
#pragma unroll
      for (u32 k = 0; k < F::STATES; k++) s[k] = tensor.states[k][of.at[2 + k]];
      Computed p = widened(tensor.parameter[of.at[0]]);
      Computed g = gradient_at(tensor.gradient, common.gradient_type, (u64)of.at[1]);
      Computed y = formula.step(tensor.scalars, p, g, s);
      tensor.set_parameter((u64)of.at[0], i, y, common);
#pragma unroll
      for (u32 k = 0; k < F::STATES; k++) tensor.states[k][of.at[2 + k]] = s[k];
    }
  }
};

// Updates one tensor. The walk is over parameter, gradient and states; each thread takes elements
// in a grid-stride loop.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(update_strided)(Common common, Pointers<POINTERS_OF_ONE> pointers, u64 stream,
                           Walk<6> walk) {
  with_formula((u32)common.formula, Strided{common, pointers, stream, walk});
}

// States in 8 bits, see `quantized.rs`: blocks of codes, each followed by its scale.
enum : u32 { BLOCK_LEN = 256, BLOCK_BYTES = BLOCK_LEN + 4, DECADES = 7 };

// The values of the codes in ascending order.
struct CodeMap {
  const float* values;
  u32 first_count;  // codes in the smallest decade; each further decade has twice as many
  u32 zero;         // the code of 0

  // The map for values of both signs, or for values of at least 0.
  __device__ CodeMap(const float* values, bool is_positive)
      : values(values), first_count(is_positive ? 2 : 1), zero(is_positive ? 0 : 127) {}

  __device__ float value_of(u32 code) const {
    u32 rank = code < zero ? zero - code : code - zero;
    if (rank == 0) return 0.0f;
    if (code == 255) return 1.0f;
    u32 part = rank - 1, count = first_count, decade = 0;
    for (; part >= count; decade++) {
      part -= count;
      count *= 2;
    }
    double below = 1.0;
    for (u32 k = decade + 1; k < DECADES; k++) below *= 10.0;
    double middle = 0.1 + 0.9 * ((double)part + 0.5) / (double)count;
    float value = (float)(middle * (1.0 / below));
    return code < zero ? -value : value;
  }

  // The midpoint between the values of `code` and the next code.
  __device__ float middle(u32 code) const { return 0.5f * (values[code] + values[code + 1]); }

  // The code of the value nearest to x, from -1 to 1. NaN has the code of 0.
  __device__ u32 code_of(float x) const {
    if (x != x) return zero;
    float size = fabsf(x), top = 1e-6f;
    u32 count = first_count;
    for (u32 k = 1; k < DECADES; k++) {
      bool is_above = size >= top;
      count = is_above ? 2 * count : count;
      top = is_above ? 10.0f * top : top;
    }
    float at = (size / top - 0.1f) / 0.9f * (float)count;
    u32 part = at > 0.0f ? (u32)at : 0;
    u32 rank = 1 + (count - first_count) + (part < count - 1 ? part : count - 1);
    u32 guess = x < 0.0f ? zero - (rank < zero ? rank : zero) : zero + rank;
    // The border between two decades is not halfway between their values, so the neighbours decide.
    if (guess < 255 && x > middle(guess)) return guess + 1;
    if (guess > 0 && x <= middle(guess - 1)) return guess - 1;
    return guess;
  }

  __device__ float load(const u8* state, u64 i) const {
    const u8* block = state + i / BLOCK_LEN * BLOCK_BYTES;
    return *(const float*)(block + BLOCK_LEN) * values[block[i % BLOCK_LEN]];
  }
};

// Computes the values of both maps. The block has as many threads as there are codes.
__device__ inline void fill_maps(float maps[2][256]) {
  for (u32 is_positive = 0; is_positive < 2; is_positive++) {
    maps[is_positive][threadIdx.x] =
        CodeMap(maps[is_positive], is_positive == 1).value_of(threadIdx.x);
  }
  __syncthreads();
}

// Bit k is set if state k has no values below 0.
__device__ inline bool is_positive(u64 ranges, u32 state) { return ranges >> state & 1; }

struct Quantized {
  const Common& common;
  const Pointers<POINTERS_MAX>& pointers;
  const Lens& lens;
  u64 ranges;
  const float (*maps)[256];
  float* scratch;

  template <typename F>
  __device__ void run() const {
    const F formula = formula_of<F>(common);
    auto update = [&](const Tensor<F, u8>& tensor, u64 start, u64 len) {
      u64 i = start + threadIdx.x;
      bool is_inside = i < len;
      Computed s[F::STATES + 1];
#pragma unroll
      for (u32 k = 0; k < F::STATES; k++) {
        CodeMap map(maps[is_positive(ranges, k)], is_positive(ranges, k));
        s[k] = is_inside ? (Computed)map.load(tensor.states[k], i) : (Computed)0;
      }
      if (is_inside) {
        Computed g = gradient_at(tensor.gradient, common.gradient_type, i);
        Computed y = formula.step(tensor.scalars, widened(tensor.parameter[i]), g, s);
        tensor.set_parameter(i, i, y, common);
      }
#pragma unroll
      for (u32 k = 0; k < F::STATES; k++) {
        CodeMap map(maps[is_positive(ranges, k)], is_positive(ranges, k));
        float x = (float)s[k];
        // NaN does not affect the scale. All threads have read the old scale before this join ends.
        float scale = join_block<Max>(is_inside && x == x ? fabsf(x) : 0.0f, scratch);
        x *= scale > 0.0f ? 1.0f / scale : 0.0f;
        x = x < -1.0f ? -1.0f : x > 1.0f ? 1.0f : x;
        u8* block = tensor.states[k] + start / BLOCK_LEN * BLOCK_BYTES;
        block[threadIdx.x] = (u8)(is_inside ? map.code_of(x) : map.zero);
        if (threadIdx.x == 0) *(float*)(block + BLOCK_LEN) = scale;
      }
    };
    each_tile<F, u8>(common, pointers, lens, BLOCK_LEN, update);
  }
};

// `update` with states in 8 bits. A block takes a block of codes at a time, in a grid-stride loop.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(update_quantized)(Common common, Pointers<POINTERS_MAX> pointers, Lens lens,
                             u64 ranges) {
  __shared__ float maps[2][256];
  __shared__ float scratch[32];
  fill_maps(maps);
  with_formula((u32)common.formula, Quantized{common, pointers, lens, ranges, maps, scratch});
}

struct PlainValues {
  enum : u32 { STATES = 0, SCALARS = 0, VALUES = 2 };
  __device__ void values(Computed p, Computed g, Computed*, Computed* to) const {
    to[0] = p;
    to[1] = g;
  }
};

// The direction of Muon before orthogonalisation. The parameter is the momentum.
struct MuonDirection {
  enum : u32 { STATES = 0, SCALARS = 0, VALUES = 1 };
  Computed keep, take, is_nesterov;

  __device__ void values(Computed m, Computed g, Computed*, Computed* to) const {
    m = m + take * (g - m);
    to[0] = is_nesterov != (Computed)0 ? g + keep * (m - g) : m;
  }
};

template <>
__device__ inline PlainValues formula_of<PlainValues>(const Common&) {
  return {};
}

// partials[value][block] = Σ value² over the block's elements, overwritten. The grid fixes the
// order.
template <typename F, typename State, typename Load>
__device__ inline void add_squares(double* partials, const Common& common,
                                   const Pointers<POINTERS_OF_ONE>& pointers, const Walk<6>& walk,
                                   const Load& load) {
  __shared__ double scratch[32];
  const F formula = formula_of<F>(common);
  const Tensor<F, State, 0> tensor(pointers, 0, {});
  double sums[F::VALUES] = {};
  for (u64 i = thread_index(); i < walk.len; i += thread_count()) {
    Places<6> of = places(walk, i);
    Computed s[F::STATES + 1], values[F::VALUES];
#pragma unroll
    for (u32 k = 0; k < F::STATES; k++) s[k] = load(tensor.states[k], k, (u64)of.at[2 + k]);
    Computed g = gradient_at(tensor.gradient, common.gradient_type, (u64)of.at[1]);
    formula.values(widened(tensor.parameter[of.at[0]]), g, s, values);
#pragma unroll
    for (u32 k = 0; k < F::VALUES; k++) sums[k] += (double)values[k] * (double)values[k];
  }
#pragma unroll
  for (u32 k = 0; k < F::VALUES; k++) {
    double sum = join_block<Sum>(sums[k], scratch);
    if (threadIdx.x == 0) partials[k * gridDim.x + blockIdx.x] = sum;
  }
}

// Sums the squares of one tensor's values. The walk is over parameter, gradient and states.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(update_squares)(double* partials, Common common, Pointers<POINTERS_OF_ONE> pointers,
                           Walk<6> walk) {
  auto load = [](const Computed* state, u32, u64 at) { return state[at]; };
  switch ((u32)common.formula) {
    case PARAMETER_AND_GRADIENT:
      return add_squares<PlainValues, Computed>(partials, common, pointers, walk, load);
    case LAMB_DIRECTION:
      return add_squares<Lamb, Computed>(partials, common, pointers, walk, load);
    case MUON_DIRECTION:
      return add_squares<MuonDirection, Computed>(partials, common, pointers, walk, load);
  }
}

// `update_squares` of contiguous tensors with states in 8 bits, for the one formula with states.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(update_squares_quantized)(double* partials, Common common,
                                     Pointers<POINTERS_OF_ONE> pointers, Walk<6> walk,
                                     u64 ranges) {
  __shared__ float maps[2][256];
  fill_maps(maps);
  auto load = [&](const u8* state, u32 k, u64 at) {
    CodeMap map(maps[is_positive(ranges, k)], is_positive(ranges, k));
    return (Computed)map.load(state, at);
  };
  add_squares<Lamb, u8>(partials, common, pointers, walk, load);
}

// norms[block] = √Σ partials[block]. A block of whole warps for each norm.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(update_norms)(Computed* norms, const double* partials, u64 len) {
  __shared__ double scratch[32];
  double sum = 0.0;
  for (u64 i = threadIdx.x; i < len; i += blockDim.x) sum += partials[blockIdx.x * len + i];
  sum = join_block<Sum>(sum, scratch);
  if (threadIdx.x == 0) norms[blockIdx.x] = (Computed)sqrt(sum);
}
