// C[M, N] = A[M, K] · B[K, N] + bias[N], for each of a batch; overwritten, or added to C. A grid is
// (columns of tiles, rows of tiles, batch) of 256 threads, see `tile_product`. Sums are in f32, in
// the order of K. Sizes are below 2^31; a device runs at most 65535 rows of tiles and matrices.

struct Sizes {
  u64 m, n, k;
  // Elements from a row to the next, from a column to the next, and from a matrix to the next.
  u64 a_row, a_column, a_matrix;
  u64 b_row, b_column, b_matrix;
  u64 c_row, c_column, c_matrix;
};

// `A_DEEP`: columns of A lie side by side; `B_DEEP`: rows of B do.
template <bool A_DEEP, bool B_DEEP>
struct Matmul {
  static const bool A_IS_DEEP = A_DEEP;
  static const bool B_IS_DEEP = B_DEEP;
  float* y;
  const float* x;
  const float* w;
  const float* bias;
  const Sizes& sizes;
  bool adds;

  __device__ float a(u32 row, u32 k) const {
    if (row >= sizes.m || k >= sizes.k) return 0.0f;
    return x[row * sizes.a_row + k * sizes.a_column];
  }
  __device__ float b(u32 k, u32 column) const {
    if (k >= sizes.k || column >= sizes.n) return 0.0f;
    return w[k * sizes.b_row + column * sizes.b_column];
  }
  __device__ void put(u32 row, u32 column, float value) const {
    if (row >= sizes.m || column >= sizes.n) return;
    float* place = &y[row * sizes.c_row + column * sizes.c_column];
    if (bias != nullptr) value += bias[column];
    *place = adds ? *place + value : value;
  }
};

template <bool A_DEEP, bool B_DEEP>
__device__ inline void matmul(float* c, const float* a, const float* b, const float* bias, u32 adds,
                              const Sizes& sizes) {
  u64 matrix = blockIdx.z;
  Matmul<A_DEEP, B_DEEP> product = {c + matrix * sizes.c_matrix, a + matrix * sizes.a_matrix,
                                    b + matrix * sizes.b_matrix, bias, sizes, adds != 0};
  tile_product(product, blockIdx.y * TILE, blockIdx.x * TILE, (u32)sizes.k);
}

#define STAMP(name, A_DEEP, B_DEEP)                                                              \
  extern "C" __global__ void __launch_bounds__(256)                                              \
      matmul_f32_##name(float* c, const float* a, const float* b, const float* bias, u32 adds,   \
                        Sizes sizes) {                                                           \
    matmul<A_DEEP, B_DEEP>(c, a, b, bias, adds, sizes);                                          \
  }

// By what lies side by side: n the rows' own elements, t those of a transposed matrix.
STAMP(nn, true, false)
STAMP(nt, true, true)
STAMP(tn, false, false)
STAMP(tt, false, true)
