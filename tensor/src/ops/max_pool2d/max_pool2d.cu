// Maximum over windows of x[planes, H, W] → y[planes, OH, OW], with the position of each maximum
// inside its window, kh · KW + kw, as one byte. The first of equal values wins; NaN is greater than
// everything. Both directions overwrite. Each thread takes elements in a grid-stride loop.

struct Pool {
  u64 planes;
  u64 height, width;
  u64 out_height, out_width;
  u64 kernel_height, kernel_width;
  u64 stride_height, stride_width;
  u64 padding_height, padding_width;
  u64 dilation_height, dilation_width;
  Divisor by_len, by_width, by_out_len, by_out_width;
  Divisor by_stride_height, by_stride_width, by_dilation_height, by_dilation_width;
};

// The positions of a window that are inside the plane, along one direction: from `first` to before
// `end`. Position 0 is at place `start`.
struct Window {
  i32 start;
  u32 first, end;

  __device__ Window(u32 out, u32 len, u32 kernel, u32 stride, u32 padding, u32 dilation,
                    const Divisor& by_dilation) {
    start = (i32)(out * stride) - (i32)padding;
    first = start < 0 ? by_dilation.quotient((u32)-start + dilation - 1) : 0;
    i32 room = (i32)len - start;
    u32 inside = room > 0 ? by_dilation.quotient((u32)room + dilation - 1) : 0;
    end = inside < kernel ? inside : kernel;
  }
};

// The plane of element i of all `count` elements; `by_len` divides by the elements of a plane.
__device__ inline u64 plane_of(u64 i, const Divisor& by_len, u64 count) {
  return count >> 31 == 0 ? by_len.quotient((u32)i) : i / by_len.size;
}

extern "C" __global__ void KERNEL(max_pool2d)(Stored* y, u8* positions, const Stored* x,
                                              Pool pool) {
  u32 out_width = (u32)pool.out_width, out_len = (u32)pool.out_height * out_width;
  u32 width = (u32)pool.width, kernel_width = (u32)pool.kernel_width;
  u32 dilation_height = (u32)pool.dilation_height, dilation_width = (u32)pool.dilation_width;
  u64 count = pool.planes * out_len;
  for (u64 i = thread_index(); i < count; i += thread_count()) {
    u64 plane = plane_of(i, pool.by_out_len, count);
    const Stored* from = x + plane * pool.height * width;
    u32 at = (u32)(i - plane * out_len), oh = pool.by_out_width.quotient(at);
    Window rows(oh, (u32)pool.height, (u32)pool.kernel_height, (u32)pool.stride_height,
                (u32)pool.padding_height, dilation_height, pool.by_dilation_height);
    Window columns(at - oh * out_width, width, kernel_width, (u32)pool.stride_width,
                   (u32)pool.padding_width, dilation_width, pool.by_dilation_width);
    Stored best = {};
    u32 position = 256;
    for (u32 kh = rows.first; kh < rows.end; kh++) {
      const Stored* row = from + (u32)(rows.start + (i32)(kh * dilation_height)) * width;
      for (u32 kw = columns.first; kw < columns.end; kw++) {
        Stored element = row[columns.start + (i32)(kw * dilation_width)];
        Computed value = widened(element), so_far = widened(best);
        bool is_first = position == 256;
        if (is_first || value > so_far || (value != value && so_far == so_far)) {
          best = element;
          position = kh * kernel_width + kw;
        }
      }
    }
    y[i] = best;
    positions[i] = (u8)position;
  }
}

// The windows along one direction that span a place: from `first` to `last`, if there are any.
struct Covering {
  u32 first, last;

  __device__ Covering(u32 place, u32 out_len, u32 kernel, u32 dilation,
                      const Divisor& by_stride) {
    u32 reach = (kernel - 1) * dilation + 1;
    first = place < reach ? 0 : by_stride.quotient(place - reach) + 1;
    last = by_stride.quotient(place);
    if (last >= out_len) last = out_len - 1;
  }
};

// dx[h, w] = Σ dy over the windows whose maximum is at this place, in order. A thread visits all
// these windows, so that each element of dx has one writer. It takes runs of RUN places of a row.
template <u32 RUN>
__device__ inline void gradients(Stored* dx, const Stored* dy, const u8* positions,
                                 const Pool& pool) {
  u32 width = (u32)pool.width, len = (u32)pool.height * width;
  u32 out_width = (u32)pool.out_width, kernel_width = (u32)pool.kernel_width;
  u32 stride_height = (u32)pool.stride_height, stride_width = (u32)pool.stride_width;
  u32 dilation_height = (u32)pool.dilation_height, dilation_width = (u32)pool.dilation_width;
  u64 count = pool.planes * len;
  for (u64 run = thread_index(); run < count / RUN; run += thread_count()) {
    u64 i = run * RUN, plane = plane_of(i, pool.by_len, count);
    u64 first = plane * pool.out_height * out_width;
    u32 at = (u32)(i - plane * len), h = pool.by_width.quotient(at);
    u32 row = h + (u32)pool.padding_height;
    u32 first_column = at - h * width + (u32)pool.padding_width;
    Covering rows(row, (u32)pool.out_height, (u32)pool.kernel_height, dilation_height,
                  pool.by_stride_height);
    Pack<Stored, RUN> to;
#pragma unroll
    for (u32 k = 0; k < RUN; k++) {
      u32 column = first_column + k;
      Covering columns(column, out_width, kernel_width, dilation_width, pool.by_stride_width);
      Computed sum = 0;
      for (u32 oh = rows.first; oh <= rows.last; oh++) {
        u32 down = row - oh * stride_height, kh = pool.by_dilation_height.quotient(down);
        if (kh * dilation_height != down) continue;
        for (u32 ow = columns.first; ow <= columns.last; ow++) {
          u32 right = column - ow * stride_width, kw = pool.by_dilation_width.quotient(right);
          if (kw * dilation_width != right) continue;
          u64 window = first + oh * out_width + ow;
          if (positions[window] == kh * kernel_width + kw) sum += widened(dy[window]);
        }
      }
      set(to.at[k], sum);
    }
    store_pack<RUN>(dx, run, to);
  }
}

extern "C" __global__ void KERNEL(max_pool2d_backward)(Stored* dx, const Stored* dy,
                                                       const u8* positions, Pool pool) {
  constexpr u32 LEN = pack_len<Stored>();
  bool is_packed = pool.width % LEN == 0 && is_aligned<LEN>(dx);
  if (is_packed) gradients<LEN>(dx, dy, positions, pool);
  if (!is_packed) gradients<1>(dx, dy, positions, pool);
}
