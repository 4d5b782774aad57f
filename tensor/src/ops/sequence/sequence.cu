// Elements that are functions of their position, in a contiguous tensor; see `mod.rs`. Each thread
// takes elements in a grid-stride loop.
// Integers, too.

enum Kind : u32 { RANGE, BETWEEN, EYE };

// Between: `count` numbers from `start` to `end`. Each half counts from its own end, so that both
// ends are exact.
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

#if IS_INTEGER
__device__ inline void put(i64& y, double x) { y = truncated(x); }
__device__ inline void put(i32& y, double x) { y = truncated_to_32(x); }
__device__ inline void put(u8& y, double x) { y = (u8)truncated(x); }
__device__ inline void put(bool& y, double x) { y = x != 0.0; }
#else
__device__ inline void put(Stored& y, double x) { set(y, (Computed)x); }
#endif

extern "C" __global__ void KERNEL(sequence)(Stored* y, u32 kind, double start, double step,
                                            double end, u64 count, u64 len) {
  for (u64 i = thread_index(); i < len; i += thread_count()) {
    put(y[i], value_of(kind, start, step, end, count, i));
  }
}
