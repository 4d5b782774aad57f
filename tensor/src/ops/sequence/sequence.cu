// Elements that follow from their place, of floats in a tensor that lies in order; see `mod.rs`. A
// thread takes every n-th element.

enum Kind : u32 { RANGE, BETWEEN, EYE };

// Between: `count` numbers from `start` to `end`; a half from each end, so that both are exact.
__device__ inline double value_of(u32 kind, double start, double step, double end, u64 count,
                                  u64 i) {
  switch (kind) {
    case RANGE: return start + (double)i * step;
    case BETWEEN:
      return i < count / 2 || count == 1 ? start + (double)i * step
                                         : end - (double)(count - 1 - i) * step;
    case EYE: return i / count == i % count ? 1.0 : 0.0;
  }
  return 0.0;
}

extern "C" __global__ void KERNEL(sequence)(Stored* y, u32 kind, double start, double step,
                                            double end, u64 count, u64 len) {
  for (u64 i = thread_index(); i < len; i += thread_count()) {
    set(y[i], (Computed)value_of(kind, start, step, end, count, i));
  }
}
