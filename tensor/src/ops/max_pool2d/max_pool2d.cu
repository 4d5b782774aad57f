// Maximum over windows of x[planes, H, W] → y[planes, OH, OW] with the position inside its window,
// kh · KW + kw, as one byte. The first of equals counts; NaN is greater than everything. Both
// directions overwrite. A thread takes every n-th element.

struct Pool {
  u64 planes;
  u64 height, width;
  u64 out_height, out_width;
  u64 kernel_height, kernel_width;
  u64 stride_height, stride_width;
  u64 padding_height, padding_width;
  u64 dilation_height, dilation_width;
};

extern "C" __global__ void max_pool2d_f32(float* y, u8* positions, const float* x, Pool pool) {
  u64 out_len = pool.out_height * pool.out_width;
  for (u64 i = thread_index(); i < pool.planes * out_len; i += thread_count()) {
    const float* plane = x + i / out_len * pool.height * pool.width;
    i64 top = (i64)(i % out_len / pool.out_width * pool.stride_height) - (i64)pool.padding_height;
    i64 left = (i64)(i % pool.out_width * pool.stride_width) - (i64)pool.padding_width;
    float best = 0.0f;
    u32 position = 256;
    for (u64 kh = 0; kh < pool.kernel_height; kh++) {
      i64 row = top + (i64)(kh * pool.dilation_height);
      if (row < 0 || row >= (i64)pool.height) continue;
      for (u64 kw = 0; kw < pool.kernel_width; kw++) {
        i64 column = left + (i64)(kw * pool.dilation_width);
        if (column < 0 || column >= (i64)pool.width) continue;
        float value = plane[row * (i64)pool.width + column];
        bool is_first = position == 256;
        if (is_first || value > best || (value != value && best == best)) {
          best = value;
          position = (u32)(kh * pool.kernel_width + kw);
        }
      }
    }
    y[i] = best;
    positions[i] = (u8)position;
  }
}

// The windows from `first` to `last` that reach over one place along one direction, if any.
struct Covering {
  u64 first, last;

  __device__ Covering(u64 place, u64 out_len, u64 kernel, u64 stride, u64 dilation) {
    u64 reach = (kernel - 1) * dilation + 1;
    first = place < reach ? 0 : (place - reach) / stride + 1;
    last = place / stride;
    if (last >= out_len) last = out_len - 1;
  }
};

// dx[h, w] = Σ dy over the windows whose maximum stood there, in their order: a thread looks at each
// of them, so that none is written by two.
extern "C" __global__ void max_pool2d_backward_f32(float* dx, const float* dy, const u8* positions,
                                                   Pool pool) {
  u64 len = pool.height * pool.width;
  for (u64 i = thread_index(); i < pool.planes * len; i += thread_count()) {
    u64 first = i / len * pool.out_height * pool.out_width;
    u64 row = i % len / pool.width + pool.padding_height;
    u64 column = i % pool.width + pool.padding_width;
    Covering rows(row, pool.out_height, pool.kernel_height, pool.stride_height,
                  pool.dilation_height);
    Covering columns(column, pool.out_width, pool.kernel_width, pool.stride_width,
                     pool.dilation_width);
    float sum = 0.0f;
    for (u64 oh = rows.first; oh <= rows.last; oh++) {
      u64 kh = row - oh * pool.stride_height;
      if (pool.dilation_height != 1 && kh % pool.dilation_height != 0) continue;
      kh /= pool.dilation_height;
      for (u64 ow = columns.first; ow <= columns.last; ow++) {
        u64 kw = column - ow * pool.stride_width;
        if (pool.dilation_width != 1 && kw % pool.dilation_width != 0) continue;
        kw /= pool.dilation_width;
        u64 at = first + oh * pool.out_width + ow;
        if (positions[at] == kh * pool.kernel_width + kw) sum += dy[at];
      }
    }
    dx[i] = sum;
  }
}
