// Places of values in sorted rows: the number of elements of a row that come before a value. With
// the right side, equal elements count, too. All elements come before NaN. Each thread takes values
// in a grid-stride loop; the walk is over the values. The steps of the search are the processor's,
// so that unsorted rows, such as rows with NaN at the end, give the same places.

template <typename T>
__device__ inline void search(i64* y, const T* sorted, const T* values, u64 sorted_len,
                              u64 row_len, u32 is_right, const Walk<1>& walk) {
  for (u64 i = thread_index(); i < walk.len; i += thread_count()) {
    const T* row = sorted + i / row_len * sorted_len;
    auto value = widened(values[places(walk, i).at[0]]);
    u64 first = 0;
    for (u64 left = sorted_len; left > 1;) {
      u64 half = left / 2;
      auto x = widened(row[first + half]);
      bool is_before = x == value ? is_right != 0 : !(x > value);
      if (is_before) first += half;
      left -= half;
    }
    if (sorted_len > 0) {
      auto x = widened(row[first]);
      bool is_before = x == value ? is_right != 0 : !(x > value);
      first += is_before ? 1 : 0;
    }
    y[i] = (i64)first;
  }
}

#define STAMP(T)                                                                               \
  extern "C" __global__ void search_##T(i64* y, const T* sorted, const T* values,              \
                                        u64 sorted_len, u64 row_len, u32 is_right,             \
                                        Walk<1> walk) {                                        \
    search(y, sorted, values, sorted_len, row_len, is_right, walk);                            \
  }
STAMP(f32)
STAMP(f64)
STAMP(f16)
STAMP(bf16)
STAMP(i64)
STAMP(i32)
STAMP(u8)
STAMP(bool)
