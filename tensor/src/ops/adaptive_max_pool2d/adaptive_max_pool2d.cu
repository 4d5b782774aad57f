// The largest value in each window of x[planes, H, W], and its place row · W + column; and the
// gradient of x. For elements of every type of floats. Window i of n over a length goes from
// floor(i · length / n) to ceil((i + 1) · length / n). A thread takes every n-th element of the
// result, which is overwritten.


struct Size {
  u32 rows;
  u32 columns;
};

// What a range is from, and its end.
struct Range {
  u32 start;
  u32 end;
};

// The places in window `at` of n; or the windows of which a place is, with both exchanged.
__device__ inline Range window(u32 at, u32 length, u32 n) {
  u64 start = (u64)at * length / n, end = ((u64)(at + 1) * length + n - 1) / n;
  return {(u32)start, (u32)end};
}

// Whether x takes the place of max: the first NaN stays, and so does the first of equals.
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
