// Resized images, [planes, height, width], and their gradient, as on the processor: the nearest
// pixel, or the four surrounding pixels weighted by distance. Each thread takes elements of the
// destination in a grid-stride loop and gathers their sources, so each element has one writer.

enum Kind : u64 { NEAREST, ALIGNED, CENTERS };

struct Line {
  u64 in_len;
  u64 out_len;
  u64 kind;
  u64 copies;  // number of outputs that each input is copied to, or 0
  double scale;  // inputs for each output
};

// The two inputs around an output, and their weights.
struct Taps {
  u64 low;
  u64 high;
  Computed weights[2];
};

__device__ inline Taps taps_of(const Line& line, u64 at) {
  u64 last = line.in_len - 1;
  if (line.copies != 0) return {at / line.copies, at / line.copies, {(Computed)1, (Computed)0}};
  if (line.kind == NEAREST) {
    u64 low = (u64)((float)at * (float)line.scale);
    if (low > last) low = last;
    return {low, low, {(Computed)1, (Computed)0}};
  }
  Computed half = (Computed)0.5, scale = (Computed)line.scale, place = (Computed)at;
  Computed source = line.kind == ALIGNED ? scale * place : scale * (place + half) - half;
  if (source < (Computed)0) source = (Computed)0;
  u64 low = (u64)source;
  if (low > last) low = last;
  Computed weight = source - (Computed)low;
  if (weight > (Computed)1) weight = (Computed)1;
  return {low, low < last ? low + 1 : last, {(Computed)1 - weight, weight}};
}

// The first output with an upper input of at least `input`; with `by_lower`, the first output with
// a lower input above `input`. Taps of later outputs never go back.
__device__ inline u64 first_behind(const Line& line, u64 input, bool by_lower) {
  u64 low = 0, high = line.out_len;
  while (low < high) {
    u64 middle = low + (high - low) / 2;
    Taps taps = taps_of(line, middle);
    bool is_behind = by_lower ? taps.low > input : taps.high >= input;
    if (is_behind) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// The weight of an input in an output.
__device__ inline Computed weight_of(const Taps& taps, u64 input) {
  Computed weight = (Computed)0;
  if (taps.low == input) weight += taps.weights[0];
  if (taps.high == input) weight += taps.weights[1];
  return weight;
}

extern "C" __global__ void KERNEL(upsample2d)(Stored* y, const Stored* x, u64 planes, Line rows,
                                              Line columns) {
  u64 size = rows.out_len * columns.out_len;
  for (u64 i = thread_index(); i < planes * size; i += thread_count()) {
    const Stored* from = x + i / size * rows.in_len * columns.in_len;
    Taps down = taps_of(rows, i % size / columns.out_len);
    Taps across = taps_of(columns, i % columns.out_len);
    const Stored* upper = from + down.low * columns.in_len;
    const Stored* lower = from + down.high * columns.in_len;
    if (rows.kind == NEAREST) {
      y[i] = upper[across.low];
      continue;
    }
    Computed above = across.weights[0] * widened(upper[across.low]) +
                     across.weights[1] * widened(upper[across.high]);
    Computed below = across.weights[0] * widened(lower[across.low]) +
                     across.weights[1] * widened(lower[across.high]);
    set(y[i], down.weights[0] * above + down.weights[1] * below);
  }
}

extern "C" __global__ void KERNEL(upsample2d_backward)(Stored* dx, const Stored* dy, u64 planes,
                                                       Line rows, Line columns) {
  u64 size = rows.in_len * columns.in_len;
  for (u64 i = thread_index(); i < planes * size; i += thread_count()) {
    const Stored* from = dy + i / size * rows.out_len * columns.out_len;
    u64 row = i % size / columns.in_len, column = i % columns.in_len;
    u64 first = first_behind(rows, row, false), end = first_behind(rows, row, true);
    u64 right = first_behind(columns, column, true);
    Computed sum = (Computed)0;
    for (u64 c = first_behind(columns, column, false); c < right; c++) {
      Computed along = (Computed)0;
      for (u64 r = first; r < end; r++) {
        along += weight_of(taps_of(rows, r), row) * widened(from[r * columns.out_len + c]);
      }
      sum += weight_of(taps_of(columns, c), column) * along;
    }
    set(dx[i], sum);
  }
}
