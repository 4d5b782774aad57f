// Kernels that use a device's means one by one, for tests of the gate and of the executor.

typedef unsigned long long u64;

struct Words {
  u64 values[3];
};

extern "C" __global__ void __launch_bounds__(256) add(float* y, const float* a, const float* b,
                                                      u64 len) {
  u64 step = (u64)gridDim.x * blockDim.x;
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < len; i += step) y[i] = a[i] + b[i];
}

// Every kind of parameter, at places that need gaps between them.
extern "C" __global__ void tell(double* y, int a, long long b, unsigned c, u64 d, float e, double f,
                                float g, Words words) {
  double values[] = {(double)a, (double)b, (double)c, (double)d, (double)e, f, (double)g};
  if (threadIdx.x < 7) y[threadIdx.x] = values[threadIdx.x];
  else if (threadIdx.x < 10) y[threadIdx.x] = (double)words.values[threadIdx.x - 7];
}

// y[block][thread]: where the thread is, in one number.
extern "C" __global__ void place(unsigned* y) {
  unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  y[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 10000 + thread;
}

// The sum of a block's values by a tree in memory that the launch adds, and whether any is negative.
extern "C" __global__ void sum_tree(float* y, int* negative, const float* x) {
#ifdef __CUDACC__
  extern __shared__ float tile[];
#else
  DYNAMIC_SHARED(float, tile);
#endif
  float value = x[blockIdx.x * blockDim.x + threadIdx.x];
  tile[threadIdx.x] = value;
  int any = __syncthreads_or(value < 0.0f);
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) tile[threadIdx.x] += tile[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    y[blockIdx.x] = tile[0];
    negative[blockIdx.x] = any;
  }
}

// The same by exchanges within warps; lanes without a value give 0. In bits, who has one.
extern "C" __global__ void sum_warps(float* y, unsigned* bits, const float* x, unsigned len) {
  __shared__ float sums[32];
  unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  bool has_value = threadIdx.x < len;
  float sum = has_value ? x[threadIdx.x] : 0.0f;
  for (unsigned bit = 16; bit > 0; bit /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, bit);
  unsigned who = __ballot_sync(0xffffffffu, has_value);
  if (lane == 0) {
    sums[warp] = sum;
    bits[warp] = who;
  }
  __syncthreads();
  if (warp == 0) {
    float total = lane < blockDim.x / 32 ? sums[lane] : 0.0f;
    for (unsigned delta = 16; delta > 0; delta /= 2) {
      total += __shfl_down_sync(0xffffffffu, total, delta);
    }
    if (lane == 0) *y = total;
  }
}

// How many values fall into each of eight bins.
extern "C" __global__ void count(unsigned* bins, const unsigned* x, unsigned len) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < len) atomicAdd(&bins[x[i] % 8], 1u);
}
