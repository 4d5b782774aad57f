// Kernels with a fault each, for tests that have to find it. `which` is 0 for the kernel without it.

typedef unsigned long long u64;

// Reverses each block's values. 1: without a barrier. 2: with one that not all threads reach.
// 3: with two that do not meet.
extern "C" __global__ void reverse(float* y, const float* x, int which) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x];
  if (which == 2 && threadIdx.x >= 40) return;
  if (which == 0 || which == 2) {
    __syncthreads();
  } else if (which == 3) {
    if (threadIdx.x < 32) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  }
  y[blockIdx.x * 64 + threadIdx.x] = tile[63 - threadIdx.x];
}

// Copies. 1: reads one too many. 2: writes one too many. 3: writes what it is to read. 4: reads far
// from everything.
extern "C" __global__ void copy(float* y, float* x, u64 len, int which) {
  u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < len + (which == 1)) {
    float value = x[i + (which == 4 ? 1ull << 40 : 0)];
    if (i < len) y[i] = value;
    if (which == 2 && i == len - 1) y[len] = value;
    if (which == 3) x[i] = value;
  }
}

// Adds the values of a block. 1: all threads to one place at once. 2: four at once from a place that
// is not aligned. 3: a lane that left is asked for its value. 4: shared memory that nobody wrote.
extern "C" __global__ void gather(float* y, const float* x, int which) {
  __shared__ float tile[64];
  float value = x[threadIdx.x];
  if (which == 1) *y = value;
  if (which == 2) value = ((const float4*)(x + threadIdx.x))->w;
  if (which == 3 && threadIdx.x % 2 == 1) return;
  if (which == 3) value = __shfl_xor_sync(0xffffffffu, value, 1);
  if (which != 4) tile[threadIdx.x] = value;
  value = tile[threadIdx.x];
  if (which != 1) atomicAdd(y, value);
}
