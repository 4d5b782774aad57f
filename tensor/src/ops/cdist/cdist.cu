// Distances d[b, m, r] of order p between the rows x[b, m, :] and y[b, r, :], and the gradient of
// x. Elements are of any float type. Differences and sums are in f64; each sum is in the order of
// its elements, as on the processor.

enum Order : u32 { COUNT, SUM, EUCLID, MAX, POWER };

enum : u32 { SIDE = 16 };

struct Sizes {
  u64 batch;
  u64 m;
  u64 r;
  u64 len;
};

// The strides of numbers of pairs of rows.
struct Pairs {
  i64 strides[3];
};

__device__ inline double added(u32 order, double power, double sum, double d) {
  switch (order) {
    case COUNT: return sum + (d != 0.0 ? 1.0 : 0.0);
    case SUM: return sum + d;
    case EUCLID: return sum + d * d;
    // A NaN stays.
    case MAX: return d > sum || d != d ? d : sum;
  }
  return sum + pow(d, power);
}

__device__ inline double finished(u32 order, double power, double sum) {
  if (order == EUCLID) return sqrt(sum);
  return order == POWER ? pow(sum, 1.0 / power) : sum;
}

__device__ inline double sign(double t) { return t > 0.0 ? 1.0 : t < 0.0 ? -1.0 : t; }

// The derivative of a distance with respect to one difference.
__device__ inline double derivative(u32 order, double power, double t, double d) {
  switch (order) {
    case SUM: return sign(t);
    case EUCLID: return t / d;
    case MAX: {
      // Each of several equal largest differences gets the whole gradient. d was rounded, so |t| is
      // too.
      Stored rounded;
      set(rounded, (Computed)fabs(t));
      return (double)widened(rounded) == d ? sign(t) : 0.0;
    }
  }
  return t == 0.0 ? 0.0 : sign(t) * pow(fabs(t) / d, power - 1.0);
}

// A block of 16 by 16 threads takes a tile of 16 by 16 distances at a time, in a grid-stride loop.
// It reads 16 elements of 16 rows of x and of y at once.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(cdist)(Stored* d, const Stored* x, const Stored* y, u32 order, double power,
                  Sizes sizes) {
  __shared__ Stored x_tile[SIDE][SIDE + 1];
  __shared__ Stored y_tile[SIDE][SIDE + 1];
  u32 row = threadIdx.x / SIDE, column = threadIdx.x % SIDE;
  u64 tiles_m = (sizes.m + SIDE - 1) / SIDE, tiles_r = (sizes.r + SIDE - 1) / SIDE;
  for (u64 tile = blockIdx.x; tile < sizes.batch * tiles_m * tiles_r; tile += gridDim.x) {
    u64 batch = tile / (tiles_m * tiles_r), rest = tile % (tiles_m * tiles_r);
    u64 first_m = rest / tiles_r * SIDE, first_r = rest % tiles_r * SIDE;
    const Stored* of_x = x + batch * sizes.m * sizes.len;
    const Stored* of_y = y + batch * sizes.r * sizes.len;
    double sum = 0.0;
    for (u64 first = 0; first < sizes.len; first += SIDE) {
      u64 at = first + column;
      if (first_m + row < sizes.m && at < sizes.len) {
        x_tile[row][column] = of_x[(first_m + row) * sizes.len + at];
      }
      if (first_r + row < sizes.r && at < sizes.len) {
        y_tile[row][column] = of_y[(first_r + row) * sizes.len + at];
      }
      __syncthreads();
      u64 left = sizes.len - first;
      u32 count = left < SIDE ? (u32)left : SIDE;
      if (first_m + row < sizes.m && first_r + column < sizes.r) {
        for (u32 i = 0; i < count; i++) {
          double a = (double)widened(x_tile[row][i]), b = (double)widened(y_tile[column][i]);
          sum = added(order, power, sum, fabs(a - b));
        }
      }
      // The next tiles overwrite these.
      __syncthreads();
    }
    u64 m = first_m + row, r = first_r + column;
    if (m >= sizes.m || r >= sizes.r) continue;
    set(d[(batch * sizes.m + m) * sizes.r + r], (Computed)finished(order, power, sum));
  }
}

// dx[m, i] = Σ_r dy[m, r] · derivative of d[m, r] by x[m, i]. Each thread takes elements of dx in a
// grid-stride loop.
extern "C" __global__ void KERNEL(cdist_backward)(Stored* dx, const Stored* dy, const Stored* d,
                                                  const Stored* x, const Stored* y, u32 order,
                                                  double power, Sizes sizes, Pairs of_dy,
                                                  Pairs of_d) {
  u64 len = sizes.batch * sizes.m * sizes.len;
  for (u64 i = thread_index(); i < len; i += thread_count()) {
    u64 row = i / sizes.len, place = i - row * sizes.len;
    i64 batch = (i64)(row / sizes.m), m = (i64)(row % sizes.m);
    const Stored* dy_row = dy + batch * of_dy.strides[0] + m * of_dy.strides[1];
    const Stored* d_row = d + batch * of_d.strides[0] + m * of_d.strides[1];
    const Stored* y_column = y + (u64)batch * sizes.r * sizes.len + place;
    double element = (double)widened(x[i]), sum = 0.0;
    for (u64 r = 0; order != COUNT && r < sizes.r; r++) {
      double distance = (double)widened(d_row[(i64)r * of_d.strides[2]]);
      if (distance == 0.0) continue;
      double t = element - (double)widened(y_column[r * sizes.len]);
      double of_r = (double)widened(dy_row[(i64)r * of_dy.strides[2]]);
      sum += of_r * derivative(order, power, t, distance);
    }
    set(dx[i], (Computed)sum);
  }
}
