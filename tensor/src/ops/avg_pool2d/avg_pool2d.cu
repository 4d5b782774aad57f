// Means over windows of images, [planes, height, width], and their gradient, as on the processor.
// Each thread takes elements of the destination in a grid-stride loop and gathers their sources, so
// each element has one writer.

// The windows along one dimension. Window i starts at i · stride - padding; without a kernel, it
// goes from ⌊i · in / out⌋ to ⌈(i + 1) · in / out⌉.
struct Axis {
  u64 in_len;
  u64 out_len;
  u64 kernel;
  u64 stride;
  u64 padding;
};

struct Range {
  u64 start;
  u64 end;
};

__device__ inline u64 less(u64 x, u64 y) { return x > y ? x - y : 0; }
__device__ inline u64 smaller(u64 x, u64 y) { return y < x ? y : x; }
__device__ inline u64 div_up(u64 x, u64 y) { return (x + y - 1) / y; }

__device__ inline Range window(const Axis& axis, u64 at) {
  if (axis.kernel == 0) {
    return {at * axis.in_len / axis.out_len, div_up((at + 1) * axis.in_len, axis.out_len)};
  }
  u64 end = smaller(less(at * axis.stride + axis.kernel, axis.padding), axis.in_len);
  return {smaller(less(at * axis.stride, axis.padding), end), end};
}

// Places of a window inside the input or its padding.
__device__ inline u64 padded_len(const Axis& axis, u64 at) {
  if (axis.kernel == 0) {
    Range of = window(axis, at);
    return of.end - of.start;
  }
  u64 end = smaller(at * axis.stride + axis.kernel, axis.in_len + 2 * axis.padding);
  return end - at * axis.stride;
}

// The windows that hold an input.
__device__ inline Range covering(const Axis& axis, u64 at) {
  if (axis.kernel == 0) {
    return {at * axis.out_len / axis.in_len, div_up((at + 1) * axis.out_len, axis.in_len)};
  }
  u64 end = smaller((at + axis.padding) / axis.stride + 1, axis.out_len);
  return {smaller(div_up(less(at + axis.padding + 1, axis.kernel), axis.stride), end), end};
}

struct Means {
  u64 planes;
  u64 is_inside;  // sums are divided by the places inside the input
  u64 exactly;    // sums are divided by this number, if it is not 0
  Axis rows;
  Axis columns;
};

__device__ inline u64 count(const Means& of, const Axis& axis, u64 at) {
  if (of.is_inside == 0) return padded_len(axis, at);
  Range places = window(axis, at);
  return places.end - places.start;
}

__device__ inline Computed divisor(const Means& of, u64 row, u64 column) {
  if (of.exactly != 0) return (Computed)of.exactly;
  u64 both = count(of, of.rows, row) * count(of, of.columns, column);
  return (Computed)(both == 0 ? 1 : both);
}

extern "C" __global__ void KERNEL(avg_pool2d)(Stored* y, const Stored* x, Means of) {
  u64 size = of.rows.out_len * of.columns.out_len;
  for (u64 i = thread_index(); i < of.planes * size; i += thread_count()) {
    u64 plane = i / size, row = i % size / of.columns.out_len, column = i % of.columns.out_len;
    const Stored* from = x + plane * of.rows.in_len * of.columns.in_len;
    Range rows = window(of.rows, row), columns = window(of.columns, column);
    Computed sum = (Computed)0;
    for (u64 r = rows.start; r < rows.end; r++) {
      for (u64 c = columns.start; c < columns.end; c++) {
        sum += widened(from[r * of.columns.in_len + c]);
      }
    }
    set(y[i], sum / divisor(of, row, column));
  }
}

// dx = Σ of dy / count over the windows that hold the input.
extern "C" __global__ void KERNEL(avg_pool2d_backward)(Stored* dx, const Stored* dy, Means of) {
  u64 size = of.rows.in_len * of.columns.in_len;
  for (u64 i = thread_index(); i < of.planes * size; i += thread_count()) {
    u64 plane = i / size;
    const Stored* from = dy + plane * of.rows.out_len * of.columns.out_len;
    Range rows = covering(of.rows, i % size / of.columns.in_len);
    Range columns = covering(of.columns, i % of.columns.in_len);
    Computed sum = (Computed)0;
    for (u64 r = rows.start; r < rows.end; r++) {
      for (u64 c = columns.start; c < columns.end; c++) {
        sum += widened(from[r * of.columns.out_len + c]) / divisor(of, r, c);
      }
    }
    set(dx[i], sum);
  }
}
