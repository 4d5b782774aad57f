// Convolution of x[N, C, H, W] with w[O, C/G, KH, KW] to y[N, O, OH, OW] as products of matrices
// that nobody writes down (implicit GEMM), and its gradients; overwritten. A grid is (columns of
// tiles, rows of tiles, groups) of 256 threads, see `tile_product`.

struct Conv {
  u64 images, groups;
  u64 in_channels, out_channels;  // of a group
  u64 height, width;
  u64 out_height, out_width;
  u64 kernel_height, kernel_width;
  u64 stride_height, stride_width;
  u64 padding_height, padding_width;
  u64 dilation_height, dilation_width;
};

// Sizes in 32 bits, which divide faster. There are fewer than 2^31 pixels, and taps of a channel, on
// either side.
struct Shape {
  u32 group;
  u32 in_channels, out_channels, groups;
  u32 height, width, out_height, out_width, kernel_height, kernel_width;
  i64 stride_height, stride_width, padding_height, padding_width, dilation_height, dilation_width;
  u32 in_len, out_len, kernel_len;

  __device__ explicit Shape(const Conv& conv)
      : group(blockIdx.z),
        in_channels((u32)conv.in_channels),
        out_channels((u32)conv.out_channels),
        groups((u32)conv.groups),
        height((u32)conv.height),
        width((u32)conv.width),
        out_height((u32)conv.out_height),
        out_width((u32)conv.out_width),
        kernel_height((u32)conv.kernel_height),
        kernel_width((u32)conv.kernel_width),
        stride_height((i64)conv.stride_height),
        stride_width((i64)conv.stride_width),
        padding_height((i64)conv.padding_height),
        padding_width((i64)conv.padding_width),
        dilation_height((i64)conv.dilation_height),
        dilation_width((i64)conv.dilation_width),
        in_len(height * width),
        out_len(out_height * out_width),
        kernel_len(kernel_height * kernel_width) {}

  // x of a channel of the group and a place in a window: `tap` is (c, kh, kw), `pixel` (n, oh, ow).
  __device__ float x_at(const float* x, u32 tap, u32 pixel) const {
    u32 c = tap / kernel_len, inside = tap % kernel_len;
    u32 image = pixel / out_len, place = pixel % out_len;
    i64 row = (i64)(place / out_width) * stride_height - padding_height +
              (i64)(inside / kernel_width) * dilation_height;
    i64 column = (i64)(place % out_width) * stride_width - padding_width +
                 (i64)(inside % kernel_width) * dilation_width;
    if (row < 0 || row >= (i64)height || column < 0 || column >= (i64)width) return 0.0f;
    u64 plane = ((u64)image * groups + group) * in_channels + c;
    return x[plane * in_len + (u64)row * width + (u64)column];
  }

  // Where y has an output channel of the group and (n, oh, ow).
  __device__ u64 y_index(u32 o, u32 pixel) const {
    u32 image = pixel / out_len, place = pixel % out_len;
    return (((u64)image * groups + group) * out_channels + o) * out_len + place;
  }

  __device__ u64 w_index(u32 o, u32 c, u32 inside) const {
    return (((u64)group * out_channels + o) * in_channels + c) * kernel_len + inside;
  }
};

// y[o, (n, oh, ow)] = Σ w[o, (c, kh, kw)] · x.
struct Forward {
  static const bool A_IS_DEEP = true;
  static const bool B_IS_DEEP = false;
  Shape shape;
  u32 pixels;
  float* y;
  const float* x;
  const float* w;
  const float* bias;

  __device__ float a(u32 o, u32 tap) const {
    u32 tap_count = shape.in_channels * shape.kernel_len;
    if (o >= shape.out_channels || tap >= tap_count) return 0.0f;
    return w[((u64)shape.group * shape.out_channels + o) * tap_count + tap];
  }
  __device__ float b(u32 tap, u32 pixel) const {
    if (tap >= shape.in_channels * shape.kernel_len || pixel >= pixels) return 0.0f;
    return shape.x_at(x, tap, pixel);
  }
  __device__ void put(u32 o, u32 pixel, float value) const {
    if (o >= shape.out_channels || pixel >= pixels) return;
    if (bias != nullptr) value += bias[shape.group * shape.out_channels + o];
    y[shape.y_index(o, pixel)] = value;
  }
};

// dx[c, (n, h, w)] = Σ w[o, c, kh, kw] · dy[o, n, oh, ow] over the (o, kh, kw) that meet there. With a
// bias for each c it is the transposed convolution of dy.
struct BackwardInput {
  static const bool A_IS_DEEP = false;
  static const bool B_IS_DEEP = false;
  Shape shape;
  u32 pixels;
  float* dx;
  const float* dy;
  const float* w;
  const float* bias;

  __device__ float a(u32 c, u32 tap) const {
    u32 o = tap / shape.kernel_len;
    if (c >= shape.in_channels || o >= shape.out_channels) return 0.0f;
    return w[shape.w_index(o, c, tap % shape.kernel_len)];
  }
  __device__ float b(u32 tap, u32 pixel) const {
    u32 o = tap / shape.kernel_len, inside = tap % shape.kernel_len;
    if (o >= shape.out_channels || pixel >= pixels) return 0.0f;
    u32 image = pixel / shape.in_len, place = pixel % shape.in_len;
    i64 row = (i64)(place / shape.width) + shape.padding_height -
              (i64)(inside / shape.kernel_width) * shape.dilation_height;
    i64 column = (i64)(place % shape.width) + shape.padding_width -
                 (i64)(inside % shape.kernel_width) * shape.dilation_width;
    if (row < 0 || column < 0) return 0.0f;
    if (row % shape.stride_height != 0 || column % shape.stride_width != 0) return 0.0f;
    u64 oh = (u64)(row / shape.stride_height), ow = (u64)(column / shape.stride_width);
    if (oh >= shape.out_height || ow >= shape.out_width) return 0.0f;
    u64 plane = ((u64)image * shape.groups + shape.group) * shape.out_channels + o;
    return dy[plane * shape.out_len + oh * shape.out_width + ow];
  }
  __device__ void put(u32 c, u32 pixel, float value) const {
    if (c >= shape.in_channels || pixel >= pixels) return;
    u32 image = pixel / shape.in_len, place = pixel % shape.in_len;
    u64 plane = ((u64)image * shape.groups + shape.group) * shape.in_channels + c;
    if (bias != nullptr) value += bias[shape.group * shape.in_channels + c];
    dx[plane * shape.in_len + place] = value;
  }
};

// dw[o, (c, kh, kw)] = Σ dy[o, (n, oh, ow)] · x.
struct BackwardWeight {
  static const bool A_IS_DEEP = true;
  static const bool B_IS_DEEP = true;
  Shape shape;
  u32 pixels;
  float* dw;
  const float* x;
  const float* dy;

  __device__ float a(u32 o, u32 pixel) const {
    if (o >= shape.out_channels || pixel >= pixels) return 0.0f;
    return dy[shape.y_index(o, pixel)];
  }
  __device__ float b(u32 pixel, u32 tap) const {
    if (pixel >= pixels || tap >= shape.in_channels * shape.kernel_len) return 0.0f;
    return shape.x_at(x, tap, pixel);
  }
  __device__ void put(u32 o, u32 tap, float value) const {
    if (o >= shape.out_channels || tap >= shape.in_channels * shape.kernel_len) return;
    dw[shape.w_index(o, tap / shape.kernel_len, tap % shape.kernel_len)] = value;
  }
};

extern "C" __global__ void __launch_bounds__(256)
    conv2d_f32(float* y, const float* x, const float* w, const float* bias, Conv conv) {
  Shape shape(conv);
  u32 pixels = (u32)conv.images * shape.out_len;
  Forward product = {shape, pixels, y, x, w, bias};
  u32 tap_count = shape.in_channels * shape.kernel_len;
  tile_product(product, blockIdx.y * TILE, blockIdx.x * TILE, tap_count);
}

extern "C" __global__ void __launch_bounds__(256)
    conv2d_backward_input_f32(float* dx, const float* dy, const float* w, const float* bias,
                              Conv conv) {
  Shape shape(conv);
  u32 pixels = (u32)conv.images * shape.in_len;
  BackwardInput product = {shape, pixels, dx, dy, w, bias};
  u32 tap_count = shape.out_channels * shape.kernel_len;
  tile_product(product, blockIdx.y * TILE, blockIdx.x * TILE, tap_count);
}

extern "C" __global__ void __launch_bounds__(256)
    conv2d_backward_weight_f32(float* dw, const float* x, const float* dy, Conv conv) {
  Shape shape(conv);
  u32 pixels = (u32)conv.images * shape.out_len;
  BackwardWeight product = {shape, pixels, dw, x, dy};
  tile_product(product, blockIdx.y * TILE, blockIdx.x * TILE, pixels);
}
