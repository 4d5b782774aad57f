// C[M, N] = A[M, K] · B[K, N] + bias[N], for each matrix of a batch; overwritten, or added to C. A
// grid is (columns of tiles, rows of tiles, batch) of 256 threads, see `tile_product`. Sums are in
// the order of K. Sizes are below 2^31; a device runs at most 65535 rows of tiles and matrices.
// `matmul_row_sums` also writes the sums of the rows of A; without columns, it writes only these
// sums.

struct Sizes {
  u64 m, n, k;
  // Elements between neighbouring rows, columns and matrices.
  u64 a_row, a_column, a_matrix;
  u64 b_row, b_column, b_matrix;
  u64 c_row, c_column, c_matrix;
};

// `A_DEEP`: rows of A are contiguous; `B_DEEP`: columns of B are. C, bias and sums are of type `C`.
template <bool A_DEEP, bool B_DEEP, bool ROW_SUMS, typename C>
struct Matmul {
  typedef Stored Factor;
  static const bool A_IS_DEEP = A_DEEP;
  static const bool B_IS_DEEP = B_DEEP;
  static const bool HAS_ROW_SUMS = ROW_SUMS;
  C* y;
  const Stored* x;
  const Stored* w;
  const C* bias;
  C* row_sums;
  const Sizes& sizes;
  bool adds;

  __device__ Stored a(u32 row, u32 k) const {
    if (row >= sizes.m) return Stored();
    return x[row * sizes.a_row + k * sizes.a_column];
  }
  __device__ Stored b(u32 k, u32 column) const {
    if (column >= sizes.n) return Stored();
    return w[k * sizes.b_row + column * sizes.b_column];
  }
  __device__ void put(u32 row, u32 column, Computed value) const {
    if (row >= sizes.m || column >= sizes.n) return;
    C* place = &y[row * sizes.c_row + column * sizes.c_column];
    if (bias != nullptr) value += widened(bias[column]);
    set(*place, adds ? widened(*place) + value : value);
  }
  __device__ void put_row_sum(u32 row, Computed sum) const {
    if (row < sizes.m) set(row_sums[row], sum);
  }
};

template <bool A_DEEP, bool B_DEEP, typename C>
__device__ inline void matmul(C* c, const Stored* a, const Stored* b, const C* bias, u32 adds,
                              const Sizes& sizes) {
  u64 matrix = blockIdx.z;
  Matmul<A_DEEP, B_DEEP, false, C> product = {
      c + matrix * sizes.c_matrix, a + matrix * sizes.a_matrix, b + matrix * sizes.b_matrix,
      bias, nullptr, sizes, adds != 0};
  tile_product(product, blockIdx.y * TILE, blockIdx.x * TILE, 0, (u32)sizes.k);
}

#define STAMP(name, C, A_DEEP, B_DEEP)                                                          \
  extern "C" __global__ void __launch_bounds__(256)                                             \
      KERNEL(name)(C* c, const Stored* a, const Stored* b, const C* bias, u32 adds,             \
                   Sizes sizes) {                                                               \
    matmul<A_DEEP, B_DEEP>(c, a, b, bias, adds, sizes);                                         \
  }

// The last two letters are for A and B: n for contiguous rows, t for contiguous columns.
STAMP(matmul_nn, Stored, true, false)
STAMP(matmul_nt, Stored, true, true)
STAMP(matmul_tn, Stored, false, false)
STAMP(matmul_tt, Stored, false, true)
#if IS_HALF
// Without rounding, for sums of several products.
STAMP(matmul_wide_nn, Computed, true, false)
STAMP(matmul_wide_nt, Computed, true, true)
STAMP(matmul_wide_tn, Computed, false, false)
STAMP(matmul_wide_tt, Computed, false, true)
#endif

// For a layer's gradients: A is one transposed matrix.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(matmul_row_sums)(Stored* c, Stored* row_sums, const Stored* a, const Stored* b,
                            Sizes sizes) {
  Matmul<false, false, true, Stored> product = {c, a, b, nullptr, row_sums, sizes, false};
  tile_product(product, blockIdx.y * TILE, blockIdx.x * TILE, 0, (u32)sizes.k);
}
