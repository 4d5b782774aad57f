// Convolution of x[N, C, H, W] with w[O, C/G, KH, KW] to y[N, O, OH, OW], and its gradients, as
// products of matrices that are never stored (implicit GEMM). Results are overwritten. A grid is
// (columns of tiles, rows of tiles, groups) of 256 threads, see `tile_product`.

// Blocks that fit on a multiprocessor. Some compute while others wait for memory.
enum : u32 { BLOCKS_AT_ONCE = sizeof(Stored) == 8 ? 2 : 3 };

struct Conv {
  u64 images, groups;
  u64 in_channels, out_channels;  // of a group
  u64 height, width;
  u64 out_height, out_width;
  u64 kernel_height, kernel_width;
  u64 stride_height, stride_width;
  u64 padding_height, padding_width;
  u64 dilation_height, dilation_width;
  Divisor by_kernel, by_kernel_width;     // by taps of a channel, and taps of a row of the kernel
  Divisor by_image, by_width;             // by places of an image of x, and places of a row
  Divisor by_out_image, by_out_width;     // by places of an image of y, and places of a row
  Divisor by_stride_height, by_stride_width;
};

// Sizes in 32 bits: x and y each have fewer than 2^31 pixels, taps of a channel, and elements of an
// image.
struct Shape {
  u32 group;
  u32 in_channels, out_channels, groups;
  u32 height, width, out_height, out_width, kernel_width;
  i32 padding_height, padding_width;
  u32 stride_height, stride_width, dilation_height, dilation_width;
  u32 in_len, out_len, kernel_len;
  Divisor by_kernel, by_kernel_width, by_image, by_width, by_out_image, by_out_width;
  Divisor by_stride_height, by_stride_width;

  __device__ Shape(const Conv& conv, u32 group)
      : group(group),
        in_channels((u32)conv.in_channels),
        out_channels((u32)conv.out_channels),
        groups((u32)conv.groups),
        height((u32)conv.height),
        width((u32)conv.width),
        out_height((u32)conv.out_height),
        out_width((u32)conv.out_width),
        kernel_width((u32)conv.kernel_width),
        padding_height((i32)conv.padding_height),
        padding_width((i32)conv.padding_width),
        stride_height((u32)conv.stride_height),
        stride_width((u32)conv.stride_width),
        dilation_height((u32)conv.dilation_height),
        dilation_width((u32)conv.dilation_width),
        in_len(height * width),
        out_len(out_height * out_width),
        kernel_len((u32)conv.kernel_height * kernel_width),
        by_kernel(conv.by_kernel),
        by_kernel_width(conv.by_kernel_width),
        by_image(conv.by_image),
        by_width(conv.by_width),
        by_out_image(conv.by_out_image),
        by_out_width(conv.by_out_width),
        by_stride_height(conv.by_stride_height),
        by_stride_width(conv.by_stride_width) {}

  // The element of x in a channel of the group at a place in a window: `tap` is (c, kh, kw),
  // `pixel` is (n, oh, ow).
  __device__ Stored x_at(const Stored* x, u32 tap, u32 pixel) const {
    u32 c = by_kernel.quotient(tap), inside = tap - c * kernel_len;
    u32 kh = by_kernel_width.quotient(inside), kw = inside - kh * kernel_width;
    u32 image = by_out_image.quotient(pixel), place = pixel - image * out_len;
    u32 oh = by_out_width.quotient(place), ow = place - oh * out_width;
    // Rows and columns before the first one wrap to numbers beyond the last one.
    u32 row = oh * stride_height - (u32)padding_height + kh * dilation_height;
    u32 column = ow * stride_width - (u32)padding_width + kw * dilation_width;
    if (row >= height || column >= width) return Stored();
    const Stored* planes = x + ((u64)image * groups + group) * in_channels * in_len;
    return planes[c * in_len + row * width + column];
  }

  // The place in y of an output channel of the group at (n, oh, ow).
  __device__ u64 y_index(u32 o, u32 pixel) const {
    u32 image = by_out_image.quotient(pixel), place = pixel - image * out_len;
    return (((u64)image * groups + group) * out_channels + o) * out_len + place;
  }
};

// y[o, (n, oh, ow)] = Σ w[o, (c, kh, kw)] · x.
struct Forward {
  typedef Stored Factor;
  static const bool A_IS_DEEP = true;
  static const bool B_IS_DEEP = false;
  static const bool HAS_ROW_SUMS = false;
  Shape shape;
  u32 pixels;
  u32 tap_count;
  Stored* y;
  const Stored* x;
  const Stored* w;
  const Stored* bias;

  __device__ Stored a(u32 o, u32 tap) const {
    if (o >= shape.out_channels) return Stored();
    return w[((u64)shape.group * shape.out_channels + o) * tap_count + tap];
  }
  __device__ Stored b(u32 tap, u32 pixel) const {
    return pixel < pixels ? shape.x_at(x, tap, pixel) : Stored();
  }
  __device__ void put(u32 o, u32 pixel, Computed value) const {
    if (o >= shape.out_channels || pixel >= pixels) return;
    if (bias != nullptr) value += widened(bias[shape.group * shape.out_channels + o]);
    set(y[shape.y_index(o, pixel)], value);
  }
};

// dx[c, (n, h, w)] = Σ w[o, c, kh, kw] · dy[o, n, oh, ow] over the (o, kh, kw) that meet the place.
// With a bias for each c this is the transposed convolution of dy.
struct BackwardInput {
  typedef Stored Factor;
  static const bool A_IS_DEEP = false;
  static const bool B_IS_DEEP = false;
  static const bool HAS_ROW_SUMS = false;
  Shape shape;
  u32 pixels;
  Stored* dx;
  const Stored* dy;
  const Stored* w;
  const Stored* bias;

  __device__ Stored a(u32 c, u32 tap) const {
    if (c >= shape.in_channels) return Stored();
    u32 o = shape.by_kernel.quotient(tap), inside = tap - o * shape.kernel_len;
    u64 filter = ((u64)shape.group * shape.out_channels + o) * shape.in_channels + c;
    return w[filter * shape.kernel_len + inside];
  }
  __device__ Stored b(u32 tap, u32 pixel) const {
    if (pixel >= pixels) return Stored();
    u32 o = shape.by_kernel.quotient(tap), inside = tap - o * shape.kernel_len;
    u32 kh = shape.by_kernel_width.quotient(inside), kw = inside - kh * shape.kernel_width;
    u32 image = shape.by_image.quotient(pixel), place = pixel - image * shape.in_len;
    u32 h = shape.by_width.quotient(place), at = place - h * shape.width;
    i32 row = (i32)h + shape.padding_height - (i32)(kh * shape.dilation_height);
    i32 column = (i32)at + shape.padding_width - (i32)(kw * shape.dilation_width);
    if (row < 0 || column < 0) return Stored();
    u32 oh = shape.by_stride_height.quotient((u32)row);
    u32 ow = shape.by_stride_width.quotient((u32)column);
    bool is_met = oh * shape.stride_height == (u32)row && ow * shape.stride_width == (u32)column;
    if (!is_met || oh >= shape.out_height || ow >= shape.out_width) return Stored();
    const Stored* planes =
        dy + ((u64)image * shape.groups + shape.group) * shape.out_channels * shape.out_len;
    return planes[o * shape.out_len + oh * shape.out_width + ow];
  }
  __device__ void put(u32 c, u32 pixel, Computed value) const {
    if (c >= shape.in_channels || pixel >= pixels) return;
    u32 image = shape.by_image.quotient(pixel), place = pixel - image * shape.in_len;
    u64 plane = ((u64)image * shape.groups + shape.group) * shape.in_channels + c;
    if (bias != nullptr) value += widened(bias[shape.group * shape.in_channels + c]);
    set(dx[plane * shape.in_len + place], value);
  }
};

// dw[o, (c, kh, kw)] = Σ dy[o, (n, oh, ow)] · x over a part of the pixels. The sum goes to dw, or
// to the part's place in `parts`.
struct BackwardWeight {
  typedef Stored Factor;
  static const bool A_IS_DEEP = true;
  static const bool B_IS_DEEP = true;
  static const bool HAS_ROW_SUMS = false;
  Shape shape;
  u32 tap_count;
  Stored* dw;
  Computed* parts;
  const Stored* x;
  const Stored* dy;

  __device__ Stored a(u32 o, u32 pixel) const {
    return o < shape.out_channels ? dy[shape.y_index(o, pixel)] : Stored();
  }
  __device__ Stored b(u32 pixel, u32 tap) const {
    return tap < tap_count ? shape.x_at(x, tap, pixel) : Stored();
  }
  __device__ void put(u32 o, u32 tap, Computed value) const {
    if (o >= shape.out_channels || tap >= tap_count) return;
    u64 at = ((u64)shape.group * shape.out_channels + o) * tap_count + tap;
    if (parts != nullptr) {
      parts[at] = value;
    } else {
      set(dw[at], value);
    }
  }
};

__device__ inline void forward(Stored* y, const Stored* x, const Stored* w, const Stored* bias,
                               const Conv& conv) {
  Shape shape(conv, blockIdx.z);
  u32 pixels = (u32)conv.images * shape.out_len;
  u32 tap_count = shape.in_channels * shape.kernel_len;
  Forward product = {shape, pixels, tap_count, y, x, w, bias};
  tile_product(product, blockIdx.y * TILE, blockIdx.x * TILE, 0, tap_count);
}

__device__ inline void backward_input(Stored* dx, const Stored* dy, const Stored* w,
                                      const Stored* bias, const Conv& conv) {
  Shape shape(conv, blockIdx.z);
  u32 pixels = (u32)conv.images * shape.in_len;
  BackwardInput product = {shape, pixels, dx, dy, w, bias};
  u32 tap_count = shape.out_channels * shape.kernel_len;
  tile_product(product, blockIdx.y * TILE, blockIdx.x * TILE, 0, tap_count);
}

// The third dimension of the grid is (parts of the pixels, groups).
__device__ inline void backward_weight(Stored* dw, Computed* parts, const Stored* x,
                                       const Stored* dy, u32 part_count, const Conv& conv) {
  u32 group = blockIdx.z % (u32)conv.groups, part = blockIdx.z / (u32)conv.groups;
  Shape shape(conv, group);
  u32 pixels = (u32)conv.images * shape.out_len;
  // Parts are whole steps of K.
  u32 part_len = (pixels + part_count * DEPTH - 1) / (part_count * DEPTH) * DEPTH;
  u32 start = part * part_len < pixels ? part * part_len : pixels;
  u32 end = start + part_len < pixels ? start + part_len : pixels;
  u32 tap_count = shape.in_channels * shape.kernel_len;
  u64 len = (u64)shape.groups * shape.out_channels * tap_count;
  BackwardWeight product = {shape, tap_count, dw, parts + part * len, x, dy};
  if (part_count == 1) product.parts = nullptr;
  tile_product(product, blockIdx.y * TILE, blockIdx.x * TILE, start, end);
}

extern "C" __global__ void __launch_bounds__(256, BLOCKS_AT_ONCE)
    KERNEL(conv2d)(Stored* y, const Stored* x, const Stored* w, const Stored* bias, Conv conv) {
  forward(y, x, w, bias, conv);
}

extern "C" __global__ void __launch_bounds__(256, BLOCKS_AT_ONCE)
    KERNEL(conv2d_backward_input)(Stored* dx, const Stored* dy, const Stored* w,
                                  const Stored* bias, Conv conv) {
  backward_input(dx, dy, w, bias, conv);
}

extern "C" __global__ void __launch_bounds__(256, BLOCKS_AT_ONCE)
    KERNEL(conv2d_backward_weight)(Stored* dw, Computed* parts, const Stored* x, const Stored* dy,
                                   u32 part_count, Conv conv) {
  backward_weight(dw, parts, x, dy, part_count, conv);
}

// dw[i] = Σ parts[part][i], in the order of the parts.
extern "C" __global__ void KERNEL(conv2d_sum_parts)(Stored* dw, const Computed* parts,
                                                    u32 part_count, u64 len) {
  for (u64 i = thread_index(); i < len; i += thread_count()) {
    Computed sum = 0;
#pragma unroll 4
    for (u32 part = 0; part < part_count; part++) sum += parts[part * len + i];
    set(dw[i], sum);
  }
}
