// Forward: the largest value in each window of x[planes, H, W], and its place row · W + column.
// Backward: the gradient of x. Elements are of any float type. Window i of n over a length goes
// from floor(i · length / n) to ceil((i + 1) · length / n). Each thread takes elements of the
// result in a grid-stride loop. Results are overwritten.


struct Size {
  u32 rows;
  u32 columns;
};

// Start and end of a range.
struct Range {
  u32 start;
  u32 end;
};

// The places in window `at` of n windows over `length` places. With `length` and n exchanged: the
// windows that hold place `at`.
__device__ inline Range window(u32 at, u32 length, u32 n) {
  u64 start = (u64)at * length / n, end = ((u64)(at + 1) * length + n - 1) / n;
  return {(u32)start, (u32)end};
}

// True if x replaces max. The first NaN wins, and the first of equal values.
__device__ inline bool exceeds(Computed x, Computed max) {
  return x > max || (x != x && max == max);
}

extern "C" __global__ void KERNEL(adaptive_max_pool2d)(Stored* y, i32* winners, const Stored* x,
                                                       Size in, Size out, u64 len) {
  u64 plane_len = (u64)in.rows * in.columns;
  u64 out_len = (u64)out.rows * out.columns;
  for (u64 i = thread_index(); i < len; i += thread_count()) {
    u64 plane = i / out_len;
    u32 place = (u32)(i - plane * out_len), row = place / out.columns;
    Range rows = window(row, in.rows, out.rows);
    Range columns = window(place - row * out.columns, in.columns, out.columns);
    const Stored* from = x + plane * plane_len;
    u32 found = rows.start * in.columns + columns.start;
    Computed max = widened(from[found]);
    for (u32 h = rows.start; h < rows.end; h++) {
      for (u32 w = columns.start; w < columns.end; w++) {
        Computed value = widened(from[h * in.columns + w]);
        if (!exceeds(value, max)) continue;
        max = value;
        found = h * in.columns + w;
      }
    }
    y[i] = from[found];
    winners[i] = (i32)found;
  }
}

extern "C" __global__ void KERNEL(adaptive_max_pool2d_backward)(Stored* dx, const Stored* dy,
                                                                const i32* winners, Size in,
                                                                Size out, u64 len) {
  u64 plane_len = (u64)in.rows * in.columns;
  u64 out_len = (u64)out.rows * out.columns;
  for (u64 i = thread_index(); i < len; i += thread_count()) {
    u64 plane = i / plane_len;
    u32 place = (u32)(i - plane * plane_len), row = place / in.columns;
    Range rows = window(row, out.rows, in.rows);
    Range columns = window(place - row * in.columns, out.columns, in.columns);
    u64 start = plane * out_len;
    Computed sum = (Computed)0.0f;
    for (u32 h = rows.start; h < rows.end; h++) {
      for (u32 w = columns.start; w < columns.end; w++) {
        u64 at = start + (u64)h * out.columns + w;
        if (winners[at] == (i32)place) sum += widened(dy[at]);
      }
    }
    set(dx[i], sum);
  }
}
