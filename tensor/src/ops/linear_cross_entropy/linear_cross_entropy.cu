// The losses of rows of logits, and their gradients in place of the logits, as on the processor:
// with lse = ln Σ_c exp(z[c]), the loss of a row is lse - (1 - ε) · z[label] - ε / V · Σ z, and its
// gradient is dy · (exp(z - lse) - (1 - ε) · [c = label] - ε / V). Logits have the type of the
// computation. Gradients are factors of products, so they have the stored type: half types fill the
// first half of each row.

struct Rows {
  u64 rows;
  u64 classes;
  u64 row_len;  // between the logits of neighbouring rows
  i64 ignore_index;
};

// Elements of a row that are read at once. Rows begin at multiples of PACK.
enum : u32 { PACK = 16 / sizeof(Computed) };

// A thread's summary of the logits that it has seen: Σ exp(z - shift of the greatest), and Σ z.
struct Seen {
  Computed most, powers, plain;

  // With ∞ or NaN among the logits, a shift would make each logit NaN.
  static __device__ Computed shift(Computed most) {
    return most - most == (Computed)0 ? most : (Computed)0;
  }
  template <u32 LEN>
  __device__ void add(const Computed (&z)[LEN]) {
    Computed greatest = most;
#pragma unroll
    for (u32 i = 0; i < LEN; i++) greatest = greater(greatest, z[i]);
    powers *= exp(most - shift(greatest));
    most = greatest;
#pragma unroll
    for (u32 i = 0; i < LEN; i++) {
      powers += exp(z[i] - shift(most));
      plain += z[i];
    }
  }
};

// Computes the rows of one chunk. A block of whole warps takes one row at a time, in a grid-stride
// loop. If `dy` (one number) is given, gradients replace the logits; else the logits are left
// undefined. A label that is ignored or no class has no loss and no gradient.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(loss_of_logits)(Computed* logits, Computed* losses, const Stored* bias,
                           const i64* labels, const Computed* dy, double smoothing, Rows of) {
  __shared__ Computed scratch[32];
  Computed even = (Computed)(smoothing / (double)of.classes);
  Computed own = (Computed)(1.0 - smoothing);
  u64 packs = of.classes / PACK;
  for (u64 row = blockIdx.x; row < of.rows; row += gridDim.x) {
    Computed* z = logits + row * of.row_len;
    u64 label = (u64)labels[row];
    if (labels[row] == of.ignore_index || label >= of.classes) {
      for (u64 c = threadIdx.x; c < of.classes; c += blockDim.x) z[c] = (Computed)0;
      if (threadIdx.x == 0) losses[row] = (Computed)0;
      continue;
    }
    Seen seen = {(Computed)-INFINITY_F, (Computed)0, (Computed)0};
    for (u64 i = threadIdx.x; i < packs; i += blockDim.x) {
      Pack<Computed, PACK> pack = load_pack<PACK>(z, i);
      if (bias != nullptr) {
#pragma unroll
        for (u32 k = 0; k < PACK; k++) pack.at[k] += widened(bias[i * PACK + k]);
        store_pack<PACK>(z, i, pack);
      }
      seen.add(pack.at);
    }
    for (u64 c = packs * PACK + threadIdx.x; c < of.classes; c += blockDim.x) {
      if (bias != nullptr) z[c] += widened(bias[c]);
      Computed one[1] = {z[c]};
      seen.add(one);
    }
    Computed most = join_block<Max>(seen.most, scratch), shift = Seen::shift(most);
    Computed powers = seen.powers;
    // A thread without logits has -∞ and adds nothing.
    if (powers != (Computed)0) powers *= exp(Seen::shift(seen.most) - shift);
    Computed log_sum_exp = shift + log(join_block<Sum>(powers, scratch));
    Computed plain = smoothing != 0.0 ? join_block<Sum>(seen.plain, scratch) : (Computed)0;
    if (threadIdx.x == 0) {
      Computed loss = log_sum_exp - own * z[label];
      losses[row] = smoothing != 0.0 ? loss - even * plain : loss;
    }
    if (dy == nullptr) continue;
    // All threads have read the logit of the label.
    __syncthreads();
    auto gradient = [&](Computed logit, u64 c) {
      Computed found = exp(logit - log_sum_exp) - even;
      return *dy * (c == label ? found - own : found);
    };
    for (u64 first = 0; first < packs; first += blockDim.x) {
      u64 i = first + threadIdx.x;
      Pack<Computed, PACK> pack = {};
      Pack<Stored, PACK> result;
      if (i < packs) pack = load_pack<PACK>(z, i);
      // Smaller elements overwrite logits that other threads read.
      if (sizeof(Stored) < sizeof(Computed)) __syncthreads();
#pragma unroll
      for (u32 k = 0; k < PACK; k++) set(result.at[k], gradient(pack.at[k], i * PACK + k));
      if (i < packs) store_pack<PACK>((Stored*)z, i, result);
    }
    u64 c = packs * PACK + threadIdx.x;
    Computed last = c < of.classes ? z[c] : (Computed)0;
    __syncthreads();
    if (c < of.classes) set(((Stored*)z)[c], gradient(last, c));
  }
}

// db[c · step] += Σ of column c of a chunk's gradients, in the order of the rows.
template <typename Sum>
__device__ inline void add_columns(Sum* db, const Stored* gradients, i64 step, const Rows& of) {
  u64 row_len = of.row_len * (sizeof(Computed) / sizeof(Stored));
  for (u64 c = thread_index(); c < of.classes; c += thread_count()) {
    Computed sum = 0;
    for (u64 row = 0; row < of.rows; row++) sum += widened(gradients[row * row_len + c]);
    set(db[(i64)c * step], widened(db[(i64)c * step]) + sum);
  }
}

extern "C" __global__ void KERNEL(add_columns)(Stored* db, const Stored* gradients, i64 step,
                                               Rows of) {
  add_columns(db, gradients, step, of);
}

#if IS_HALF
extern "C" __global__ void KERNEL(add_columns_wide)(Computed* db, const Stored* gradients,
                                                    i64 step, Rows of) {
  add_columns(db, gradients, step, of);
}
#endif

// sum = Σ losses and count = number of labels that are not ignored. If one of these labels is no
// class, the sum is NaN, and the label is reported unless there is a complaint already. One block.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(sum_of_losses)(Computed* sum, Computed* count, Complaint* complaint,
                          const Computed* losses, const i64* labels, u64 op, Rows of) {
  __shared__ double scratch[32];
  __shared__ u64 firsts[32];
  double total = 0.0, counted = 0.0;
  u64 first = of.rows;
  for (u64 row = threadIdx.x; row < of.rows; row += blockDim.x) {
    if (labels[row] == of.ignore_index) continue;
    total += (double)losses[row];
    counted += 1.0;
    if ((u64)labels[row] >= of.classes && row < first) first = row;
  }
  total = join_block<Sum>(total, scratch);
  counted = join_block<Sum>(counted, scratch);
  first = join_block<Least>(first, firsts);
  if (threadIdx.x != 0) return;
  bool is_bad = first < of.rows;
  *sum = is_bad ? (Computed)__uint_as_float(0x7fc00000) : (Computed)total;
  *count = (Computed)counted;
  if (!is_bad || complaint->position != 0) return;
  *complaint = {(i64)first + 1, labels[first], (i64)of.classes, op};
}
