// For tensor cores.
//
// Convolution of x[N, C, H, W] with w[O, C/G, KH, KW] to y[N, O, OH, OW] by tensor cores, and its
// gradients; overwritten. Factors in f32 are rounded to tf32, which has 11 of its 24 binary digits.
// x and dy are first copied such that the channels of a pixel lie side by side (NHWC), and w such
// that the channels of a tap do. A tap then reads whole packs of 16 bytes, which are copied into
// shared memory while other packs are multiplied. Zeros fill up the channels of a group to whole
// packs. Blocks have 256 threads.

enum : u32 {
  PACK = 16 / sizeof(Stored),  // elements in 16 bytes
  COLUMNS = 128,               // of a block's tile of the result
  STEP_PACKS = 4,
  STEP = STEP_PACKS * PACK,    // length of K in a step of the loop
  DEPTH_AT_ONCE = 2 * PACK,    // length of K in a tensor core's product
#if defined(__CUDACC__) && __CUDA_ARCH__ < 800
  STAGES = 2,
#else
  STAGES = 3,                  // steps in shared memory
#endif
};

// The sizes of a convolution along one axis. The source is the tensor that is read: x, or dy for
// dx. The result is the tensor that is written: y or dx.
struct Side {
  u64 source_len, result_len;
  u64 kernel, stride, padding, dilation;
};

struct Conv {
  u64 images, groups;
  u64 source_channels, result_channels;  // of a group
  Side height, width;
  // Division by the places of the result in an image, and in a row. For dx, the places of one
  // phase.
  Divisor by_places, by_columns;
};

__device__ inline u32 in_whole_packs(u64 channels) {
  return ((u32)channels + PACK - 1) / PACK * PACK;
}

// Rounds a factor for tensor cores: f32 to the nearest number in tf32, ties away from 0.
__device__ inline float to_factor(float value) {
  bool is_nan = value != value;
  return is_nan ? value : __uint_as_float((__float_as_uint(value) + 0x1000) & 0xffffe000);
}
template <typename Half>
__device__ inline Half to_factor(Half value) {
  return value;
}

// to[image, place, group, channels in whole packs] = from[image, group, channel, place]. A grid is
// (64 places, 64 channels, images · groups); the last dimension is a grid-stride loop.
extern "C" __global__ void __launch_bounds__(256)
    KERNEL(channels_last)(Stored* to, const Stored* from, u32 images, u32 groups, u32 channels,
                          u32 places) {
  enum : u32 { SIDE = 64, ROW = SIDE + 2 };
  // Indexed by place. Neighbouring places begin in neighbouring banks.
  __shared__ __align__(16) Stored tile[SIDE * ROW];
  u32 depth = in_whole_packs(channels);
  // Number of this block's channels that are written.
  u32 rows = depth - blockIdx.y * SIDE < SIDE ? depth - blockIdx.y * SIDE : (u32)SIDE;
  u32 first_place = blockIdx.x * SIDE, first_channel = blockIdx.y * SIDE;
  bool in_fours = places % 4 == 0 && is_aligned<4>(from);
  for (u32 plane = blockIdx.z; plane < images * groups; plane += gridDim.z) {
    const Stored* source = from + (u64)plane * channels * places;
    for (u32 i = threadIdx.x; in_fours && i < rows * SIDE / 4; i += TILE_THREADS) {
      u32 channel = i / (SIDE / 4), place = i % (SIDE / 4) * 4;
      bool is_there = first_channel + channel < channels && first_place + place < places;
      u64 at = (u64)(first_channel + channel) * places + first_place + place;
      Pack<Stored, 4> four = is_there ? load_pack<4>(source, at / 4) : Pack<Stored, 4>();
#pragma unroll
      for (u32 k = 0; k < 4; k++) tile[(place + k) * ROW + channel] = to_factor(four.at[k]);
    }
    for (u32 i = threadIdx.x; !in_fours && i < rows * SIDE; i += TILE_THREADS) {
      u32 channel = i / SIDE, place = i % SIDE;
      bool is_there = first_channel + channel < channels && first_place + place < places;
      u64 at = (u64)(first_channel + channel) * places + first_place + place;
      tile[place * ROW + channel] = is_there ? to_factor(source[at]) : Stored();
    }
    __syncthreads();
    u32 image = plane / groups, group = plane % groups;
    for (u32 i = threadIdx.x; i < SIDE * SIDE / PACK; i += TILE_THREADS) {
      u32 place = first_place + i / (SIDE / PACK), channel = i % (SIDE / PACK) * PACK;
      if (place >= places || first_channel + channel >= depth) continue;
      Pack<Stored, PACK> pack;
#pragma unroll
      for (u32 k = 0; k < PACK; k++) pack.at[k] = tile[i / (SIDE / PACK) * ROW + channel + k];
      u64 line = ((u64)image * places + place) * groups + group;
      store_pack<PACK>(to, (line * depth + first_channel + channel) / PACK, pack);
    }
    // The next plane overwrites the tile.
    __syncthreads();
  }
}

// Asynchronous copies of packs from memory to shared memory. The copies since the last `close` form
// a group.
struct Copies {
#ifndef __CUDACC__
  // Copies are done as late as is allowed.
  struct Copy {
    Stored* to;
    const Stored* from;
    u32 group;
  };
  Copy under_way[STAGES * 4];
  u32 count = 0, group = 0;
#endif

  // Starts a copy, or writes zeros if `is_there` is false.
  __device__ void start(Stored* to, const Stored* from, bool is_there) {
#ifndef __CUDACC__
    under_way[count++] = {to, is_there ? from : nullptr, group};
#elif __CUDA_ARCH__ >= 800
    u32 size_bytes = is_there ? 16 : 0;
    asm volatile(
        "{ .reg .u64 place; cvta.to.shared.u64 place, %0; "
        "cp.async.cg.shared.global [place], [%1], 16, %2; }" ::"l"(to),
        "l"(from), "r"(size_bytes)
        : "memory");
#else
    store_pack<PACK>(to, 0, is_there ? load_pack<PACK>(from, 0) : Pack<Stored, PACK>());
#endif
  }

  __device__ void close() {
#ifndef __CUDACC__
    group++;
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
  }

  // Waits until at most GROUPS groups are under way.
  template <u32 GROUPS>
  __device__ void wait() {
#ifndef __CUDACC__
    u32 kept = 0;
    for (u32 i = 0; i < count; i++) {
      Copy copy = under_way[i];
      if (copy.group + GROUPS >= group) {
        under_way[kept++] = copy;
      } else {
        Pack<Stored, PACK> zeros = {};
        store_pack<PACK>(copy.to, 0, copy.from ? load_pack<PACK>(copy.from, 0) : zeros);
      }
    }
    count = kept;
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
#endif
  }
};

// A thread's sums of a tile of the result. A warp has half of the tile's rows and a quarter of its
// columns, in blocks of 16 by 8.
template <u32 ROWS>
struct Sums {
  enum : u32 { WARP_ROWS = ROWS / 2, BLOCKS = WARP_ROWS / 16, WARP_COLUMNS = 32 };
  float at[BLOCKS][4][4];

  static __device__ u32 first_row() { return threadIdx.x / 128 * WARP_ROWS; }
  static __device__ u32 first_column() { return threadIdx.x / 32 % 4 * WARP_COLUMNS; }

  // Calls `work` with row, column and both sums of each pair of neighbouring columns.
  template <typename Work>
  __device__ void for_each_pair(const Work& work) const {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 i = 0; i < BLOCKS; i++) {
#pragma unroll
      for (u32 side = 0; side < 2; side++) {
        u32 row = first_row() + i * 16 + side * 8 + lane / 4;
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
          work(row, first_column() + j * 8 + lane % 4 * 2, at[i][j][side * 2],
               at[i][j][side * 2 + 1]);
        }
      }
    }
  }
};

// Places of packs in shared memory. Packs that are read at once lie in different banks.
//
// The place of a pack of a line: a row of A or a column of B, with all packs of a step.
__device__ inline u32 place_in_lines(u32 line, u32 pack) {
  return line * STEP + (pack ^ line / 2 % STEP_PACKS) * PACK;
}
// The place of a pack of place `k` of the step; packs lie along `LINES` lines. For half types,
// eight places of one pack are read at once; for f32, four places of two packs.
template <u32 LINES>
__device__ inline u32 place_in_step(u32 k, u32 pack) {
  return k * LINES + (pack ^ (sizeof(Stored) == 4 ? k % 4 * 2 : k % 8)) * PACK;
}

// Element `line` of place `k` of a step, for f32.
template <u32 LINES>
__device__ inline u32 word_in_step(const Stored* tile, u32 k, u32 line) {
  return __float_as_uint(tile[place_in_step<LINES>(k, line / PACK) + line % PACK]);
}

// Adds the products of a step. `IS_TURNED`: the lines of each k lie side by side.
template <u32 ROWS, bool IS_TURNED>
__device__ inline void multiply_step(const Stored* a_tile, const Stored* b_tile, Sums<ROWS>& sums) {
  typedef Sums<ROWS> Of;
  u32 lane = threadIdx.x % 32, matrix = lane / 8, line = lane % 8;
#pragma unroll
  for (u32 k = 0; k < STEP; k += DEPTH_AT_ONCE) {
    u32 a[Of::BLOCKS][4], b[2][4];
#pragma unroll
    for (u32 i = 0; i < Of::BLOCKS; i++) {
      u32 row = Of::first_row() + i * 16;
      if constexpr (!IS_TURNED) {
        u32 at = place_in_lines(row + matrix % 2 * 8 + line, k / PACK + matrix / 2);
        load_matrices(a[i], (const u16*)(a_tile + at));
      } else if constexpr (sizeof(Stored) == 2) {
        u32 at = place_in_step<ROWS>(k + matrix / 2 * 8 + line, row / PACK + matrix % 2);
        load_turned_matrices(a[i], (const u16*)(a_tile + at));
      } else {
#pragma unroll
        for (u32 m = 0; m < 4; m++) {
          a[i][m] = word_in_step<ROWS>(a_tile, k + m / 2 * 4 + lane % 4, row + m % 2 * 8 + lane / 4);
        }
      }
    }
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
      u32 column = Of::first_column() + j * 16;
      if constexpr (!IS_TURNED) {
        u32 at = place_in_lines(column + matrix / 2 * 8 + line, k / PACK + matrix % 2);
        load_matrices(b[j], (const u16*)(b_tile + at));
      } else if constexpr (sizeof(Stored) == 2) {
        u32 at = place_in_step<COLUMNS>(k + matrix % 2 * 8 + line, column / PACK + matrix / 2);
        load_turned_matrices(b[j], (const u16*)(b_tile + at));
      } else {
#pragma unroll
        for (u32 m = 0; m < 4; m++) {
          u32 of_line = column + m / 2 * 8 + lane / 4;
          b[j][m] = word_in_step<COLUMNS>(b_tile, k + m % 2 * 4 + lane % 4, of_line);
        }
      }
    }
#pragma unroll
    for (u32 i = 0; i < Of::BLOCKS; i++) {
#pragma unroll
      for (u32 j = 0; j < 2; j++) {
        multiply_tiles(sums.at[i][2 * j], a[i], {b[j][0], b[j][1]}, Stored());
        multiply_tiles(sums.at[i][2 * j + 1], a[i], {b[j][2], b[j][3]}, Stored());
      }
    }
  }
}

// Multiplies all steps; `loader` starts the copies.
template <u32 ROWS, typename Loader>
__device__ inline void multiply_steps(Loader& loader, u32 step_count, Stored* shared,
                                      Sums<ROWS>& sums) {
  enum : u32 { A_LEN = ROWS * STEP, STAGE_LEN = A_LEN + COLUMNS * STEP };
  Copies copies;
#pragma unroll
  for (u32 stage = 0; stage < STAGES - 1; stage++) {
    Stored* to = shared + stage * STAGE_LEN;
    if (stage < step_count) loader.load(copies, to, to + A_LEN);
    copies.close();
  }
  u32 stage = 0;
  for (u32 step = 0; step < step_count; step++) {
    copies.wait<STAGES - 2>();
    // All threads have the packs of this step and are done with the previous step, whose memory is
    // reused.
    __syncthreads();
    Stored* to = shared + (stage == 0 ? STAGES - 1 : stage - 1) * STAGE_LEN;
    if (step + STAGES - 1 < step_count) loader.load(copies, to, to + A_LEN);
    copies.close();
    const Stored* from = shared + stage * STAGE_LEN;
    multiply_step<ROWS, Loader::IS_TURNED>(from, from + A_LEN, sums);
    stage = stage == STAGES - 1 ? 0 : stage + 1;
  }
  copies.wait<0>();
  __syncthreads();
}

// The correspondence along one axis. Place `phase + apart * i` of the result meets, for each j <
// count, place `i * scale + offset + j * step` of the source by tap `first + j * tap_step`.
struct Axis {
  u32 apart, phase;
  u32 scale;
  i32 offset, step;
  u32 first, tap_step, count;
};

// The axis for y.
__device__ inline Axis forward_axis(const Side& side) {
  return {1, 0, (u32)side.stride, -(i32)side.padding, (i32)side.dilation, 0, 1, (u32)side.kernel};
}

// The axis for the places of dx with remainder `phase` modulo the stride. These places meet the
// same taps.
__device__ inline Axis backward_axis(const Side& side, u32 phase) {
  i32 stride = (i32)side.stride, dilation = (i32)side.dilation;
  i32 start = (i32)(phase + (u32)side.padding);
  u32 kernel = (u32)side.kernel, first = 0, tap_step = 1;
  while (first < kernel && (start - (i32)first * dilation) % stride != 0) first++;
  while ((i32)tap_step * dilation % stride != 0) tap_step++;
  u32 count = first < kernel ? (kernel - 1 - first) / tap_step + 1 : 0;
  i32 offset = (start - (i32)first * dilation) / stride;
  return {(u32)stride, phase, 1, offset, -(i32)tap_step * dilation / stride, first, tap_step, count};
}

// The place in the result of a column of the tile.
struct Place {
  u32 image, row, column;
};

__device__ inline Place place_of(const Conv& conv, u32 index) {
  u32 image = conv.by_places.quotient(index), rest = index - image * conv.by_places.size;
  u32 row = conv.by_columns.quotient(rest);
  return {image, row, rest - row * conv.by_columns.size};
}

// Loads the taps of w[groups, rows, taps, channels in whole packs], and the places that they meet
// in source[images, places, groups, channels in whole packs], in the order (kh, kw, channel).
template <u32 ROWS>
struct TapLoader {
  static const bool IS_TURNED = false;
  // Lines that the threads of a block copy at once.
  enum : u32 { LINES = TILE_THREADS / STEP_PACKS };
  const Conv& conv;
  const Axis& down;
  const Axis& across;
  const Stored* w;
  const Stored* source;
  u32 rows_left;  // from this thread's first row on
  u32 w_row_len;
  u32 pitch;
  u32 depth;
  // For each column of this thread: the place that the first tap meets, and the first place of the
  // image.
  i32 top[COLUMNS / LINES], left[COLUMNS / LINES];
  u32 image[COLUMNS / LINES];
  // The position of this thread's next step.
  u32 channel, row_of_taps, tap_of_row;

  __device__ TapLoader(const Conv& conv, const Axis& down, const Axis& across, const Stored* w,
                       const Stored* source, u32 group, u32 first_row, u32 first_column)
      : conv(conv), down(down), across(across), row_of_taps(0), tap_of_row(0) {
    u32 line = threadIdx.x / STEP_PACKS, rows = (u32)conv.result_channels;
    depth = in_whole_packs(conv.source_channels);
    pitch = (u32)conv.groups * depth;
    w_row_len = (u32)(conv.height.kernel * conv.width.kernel) * depth;
    this->w = w + ((u64)group * rows + first_row + line) * w_row_len;
    this->source = source + group * depth;
    rows_left = first_row + line < rows ? rows - first_row - line : 0;
    u32 source_len = (u32)(conv.height.source_len * conv.width.source_len);
#pragma unroll
    for (u32 i = 0; i < COLUMNS / LINES; i++) {
      u32 column = first_column + line + i * LINES;
      bool is_there = column < (u32)conv.images * conv.by_places.size;
      Place place = is_there ? place_of(conv, column) : Place();
      image[i] = place.image * source_len;
      left[i] = (i32)(place.column * across.scale) + across.offset;
      // A row above every image: nothing is read.
      top[i] = is_there ? (i32)(place.row * down.scale) + down.offset : -(1 << 30);
    }
    channel = threadIdx.x % STEP_PACKS * PACK;
    settle();
  }

  // Moves a channel beyond the current tap's channels on to the tap that it belongs to.
  __device__ void settle() {
    while (channel >= depth) {
      channel -= depth;
      if (++tap_of_row == across.count) tap_of_row = 0, row_of_taps++;
    }
  }

  __device__ void load(Copies& copies, Stored* a, Stored* b) {
    u32 line = threadIdx.x / STEP_PACKS, pack = threadIdx.x % STEP_PACKS;
    bool is_tap = row_of_taps < down.count;
    u32 tap = (down.first + row_of_taps * down.tap_step) * (u32)conv.width.kernel + across.first +
              tap_of_row * across.tap_step;
    u32 of_tap = tap * depth + channel;
#pragma unroll
    for (u32 i = 0; i < ROWS / LINES; i++) {
      bool is_there = is_tap && i * LINES < rows_left;
      const Stored* from = w + (u64)(i * LINES) * w_row_len + of_tap;
      copies.start(a + place_in_lines(line + i * LINES, pack), is_there ? from : w, is_there);
    }
#pragma unroll
    for (u32 i = 0; i < COLUMNS / LINES; i++) {
      u32 row = (u32)(top[i] + (i32)row_of_taps * down.step);
      u32 column = (u32)(left[i] + (i32)tap_of_row * across.step);
      bool is_there =
          is_tap && row < (u32)conv.height.source_len && column < (u32)conv.width.source_len;
      u32 pixel = image[i] + row * (u32)conv.width.source_len + column;
      const Stored* from = source + (u64)pixel * pitch + channel;
      copies.start(b + place_in_lines(line + i * LINES, pack), is_there ? from : source, is_there);
    }
    channel += STEP;
    settle();
  }
};

// Writes rows of a tile of y or dx from shared memory, the first one to row `first_row`.
template <u32 ROWS>
__device__ inline void write_rows(Stored* y, const Stored* shared, const Conv& conv,
                                  const Axis& down, const Axis& across, u32 group, u32 first_row,
                                  u32 first_column) {
  enum : u32 { RESULT_ROW = COLUMNS + PACK };
  u32 groups = (u32)conv.groups, rows = (u32)conv.result_channels;
  u32 height = (u32)conv.height.result_len, width = (u32)conv.width.result_len;
  u64 plane_len = (u64)height * width;
  u32 count = (u32)conv.images * conv.by_places.size;
  bool is_whole = down.apart == 1 && across.apart == 1;
  if (is_whole && plane_len % PACK == 0 && is_aligned<PACK>(y)) {
    u32 column = threadIdx.x % (COLUMNS / PACK) * PACK;
    if (first_column + column >= count) return;
    u32 image = conv.by_places.quotient(first_column + column);
    u64 plane = ((u64)image * groups + group) * rows + first_row;
    u64 at = plane * plane_len + first_column + column - image * (u32)plane_len;
    for (u32 row = threadIdx.x / (COLUMNS / PACK); row < ROWS && first_row + row < rows;
         row += TILE_THREADS / (COLUMNS / PACK)) {
      Pack<Stored, PACK> pack = load_pack<PACK>(shared + row * RESULT_ROW + column, 0);
      store_pack<PACK>(y, (at + row * plane_len) / PACK, pack);
    }
    return;
  }
  u32 column = threadIdx.x % COLUMNS;
  if (first_column + column >= count) return;
  Place place = place_of(conv, first_column + column);
  u32 y_row = down.phase + down.apart * place.row;
  u32 y_column = across.phase + across.apart * place.column;
  // The last place of a phase may be beyond the end.
  if (y_row >= height || y_column >= width) return;
  u64 plane = ((u64)place.image * groups + group) * rows + first_row;
  u64 at = plane * plane_len + y_row * width + y_column;
  for (u32 row = threadIdx.x / COLUMNS; row < ROWS && first_row + row < rows;
       row += TILE_THREADS / COLUMNS) {
    y[at + row * plane_len] = shared[row * RESULT_ROW + column];
  }
}

// Computes y or dx. A grid is (tiles of places, tiles of channels, groups · phases).
template <u32 ROWS, bool IS_BACKWARD>
__device__ inline void multiply_taps(Stored* y, const Stored* source, const Stored* w,
                                     const Stored* bias, const Conv& conv) {
  enum : u32 {
    RESULT_ROW = COLUMNS + PACK,  // rows begin at different banks
    // For f32, shared memory holds half of the result at a time: the half of one half of the warps.
    ROUNDS = sizeof(Stored) == 4 ? 2 : 1,
    ROUND_ROWS = ROWS / ROUNDS,
    STAGES_LEN = STAGES * STEP * (ROWS + COLUMNS),
    LEN = STAGES_LEN > ROUND_ROWS * RESULT_ROW ? STAGES_LEN : ROUND_ROWS * RESULT_ROW,
  };
  __shared__ __align__(16) Stored shared[LEN];
  u32 groups = (u32)conv.groups, group = blockIdx.z % groups, phase = blockIdx.z / groups;
  u32 phases_across = (u32)conv.width.stride;
  Axis down = IS_BACKWARD ? backward_axis(conv.height, phase / phases_across)
                          : forward_axis(conv.height);
  Axis across = IS_BACKWARD ? backward_axis(conv.width, phase % phases_across)
                            : forward_axis(conv.width);
  u32 first_row = blockIdx.y * ROWS, first_column = blockIdx.x * COLUMNS;
  Sums<ROWS> sums = {};
  u32 len = down.count * across.count * in_whole_packs(conv.source_channels);
  if (len > 0) {
    TapLoader<ROWS> loader(conv, down, across, w, source, group, first_row, first_column);
    multiply_steps<ROWS>(loader, (len + STEP - 1) / STEP, shared, sums);
  }
  u32 rows = (u32)conv.result_channels;
#pragma unroll
  for (u32 round = 0; round < ROUNDS; round++) {
    u32 round_row = round * ROUND_ROWS;
    if (ROUNDS == 1 || threadIdx.x / 128 == round) {
      sums.for_each_pair([&](u32 row, u32 column, float left, float right) {
        if (bias != nullptr && first_row + row < rows) {
          float more = widened(bias[group * rows + first_row + row]);
          left += more, right += more;
        }
        set(shared[(row - round_row) * RESULT_ROW + column], left);
        set(shared[(row - round_row) * RESULT_ROW + column + 1], right);
      });
    }
    __syncthreads();
    write_rows<ROUND_ROWS>(y, shared, conv, down, across, group, first_row + round_row,
                           first_column);
    // The next round overwrites shared memory.
    if (round + 1 < ROUNDS) __syncthreads();
  }
}

// Loads pixels of y from `next` on: dy[pixel, groups, rows in whole packs], and the elements of
// x[pixel, groups, channels in whole packs] that the taps of the tile's columns meet.
template <u32 ROWS>
struct PixelLoader {
  static const bool IS_TURNED = true;
  enum : u32 {
    A_PACKS = ROWS / PACK,
    A_AT_ONCE = TILE_THREADS / A_PACKS,
    B_PACKS = COLUMNS / PACK,
    B_AT_ONCE = TILE_THREADS / B_PACKS,
  };
  const Conv& conv;
  const Stored* dy;
  const Stored* x;
  u32 dy_pitch, x_pitch;
  u32 next, end;
  bool is_row, is_tap;
  i32 row_offset, column_offset;  // of this thread's tap

  __device__ PixelLoader(const Conv& conv, const Stored* dy, const Stored* x, u32 group,
                         u32 first_row, u32 first_column, u32 start, u32 end)
      : conv(conv), next(start), end(end) {
    u32 groups = (u32)conv.groups, depth = in_whole_packs(conv.source_channels);
    u32 rows = in_whole_packs(conv.result_channels);
    u32 row = first_row + threadIdx.x % A_PACKS * PACK;
    u32 column = first_column + threadIdx.x % B_PACKS * PACK;
    u32 tap = column / depth, kernel_width = (u32)conv.width.kernel;
    is_row = row < rows;
    is_tap = tap < (u32)conv.height.kernel * kernel_width;
    dy_pitch = groups * rows;
    x_pitch = groups * depth;
    this->dy = dy + group * rows + (is_row ? row : 0);
    this->x = x + group * depth + column % depth;
    row_offset = (i32)(tap / kernel_width * (u32)conv.height.dilation) - (i32)conv.height.padding;
    column_offset = (i32)(tap % kernel_width * (u32)conv.width.dilation) - (i32)conv.width.padding;
  }

  __device__ void load(Copies& copies, Stored* a, Stored* b) {
#pragma unroll
    for (u32 i = 0; i < STEP / A_AT_ONCE; i++) {
      u32 k = threadIdx.x / A_PACKS + i * A_AT_ONCE;
      bool is_there = is_row && next + k < end;
      const Stored* from = dy + (u64)(next + k) * dy_pitch;
      u32 at = place_in_step<ROWS>(k, threadIdx.x % A_PACKS);
      copies.start(a + at, is_there ? from : dy, is_there);
    }
#pragma unroll
    for (u32 i = 0; i < STEP / B_AT_ONCE; i++) {
      u32 k = threadIdx.x / B_PACKS + i * B_AT_ONCE;
      Place place = place_of(conv, next + k);
      // Rows and columns before the first one wrap to numbers beyond the last one.
      u32 row = place.row * (u32)conv.height.stride + (u32)row_offset;
      u32 column = place.column * (u32)conv.width.stride + (u32)column_offset;
      u32 height = (u32)conv.height.source_len, width = (u32)conv.width.source_len;
      bool is_there = is_tap && next + k < end && row < height && column < width;
      const Stored* from = x + (u64)((place.image * height + row) * width + column) * x_pitch;
      u32 at = place_in_step<COLUMNS>(k, threadIdx.x % B_PACKS);
      copies.start(b + at, is_there ? from : x, is_there);
    }
    next += STEP;
  }
};

// Sums a part of the pixels for dw: parts[part, groups, rows, taps, channels in whole packs]. A
// grid is (tiles of taps and channels, tiles of rows, groups · parts).
template <u32 ROWS>
__device__ inline void multiply_pixels(float* parts, const Stored* x, const Stored* dy,
                                       u32 part_count, const Conv& conv) {
  __shared__ __align__(16) Stored shared[STAGES * STEP * (ROWS + COLUMNS)];
  u32 groups = (u32)conv.groups, group = blockIdx.z % groups, part = blockIdx.z / groups;
  u32 pixels = (u32)conv.images * conv.by_places.size;
  u32 part_len = (pixels + part_count * STEP - 1) / (part_count * STEP) * STEP;
  u32 start = part * part_len < pixels ? part * part_len : pixels;
  u32 end = start + part_len < pixels ? start + part_len : pixels;
  u32 first_row = blockIdx.y * ROWS, first_column = blockIdx.x * COLUMNS;
  Sums<ROWS> sums = {};
  PixelLoader<ROWS> loader(conv, dy, x, group, first_row, first_column, start, end);
  multiply_steps<ROWS>(loader, (end - start + STEP - 1) / STEP, shared, sums);
  u32 rows = (u32)conv.result_channels;
  u32 columns =
      (u32)(conv.height.kernel * conv.width.kernel) * in_whole_packs(conv.source_channels);
  float* to = parts + ((u64)part * groups + group) * rows * columns;
  sums.for_each_pair([&](u32 row, u32 column, float left, float right) {
    if (first_row + row >= rows || first_column + column >= columns) return;
    u64 at = (u64)(first_row + row) * columns + first_column + column;
    store_pack<2>(to, at / 2, Pack<float, 2>{{left, right}});
  });
}

#define STAMP(ROWS, conv2d, conv2d_backward_input, conv2d_backward_weight)                        \
  extern "C" __global__ void __launch_bounds__(256, 2)                                           \
      KERNEL(conv2d)(Stored* y, const Stored* x, const Stored* w, const Stored* bias,            \
                     Conv conv) {                                                                \
    multiply_taps<ROWS, false>(y, x, w, bias, conv);                                             \
  }                                                                                              \
  extern "C" __global__ void __launch_bounds__(256, 2)                                           \
      KERNEL(conv2d_backward_input)(Stored* dx, const Stored* dy, const Stored* w,               \
                                    const Stored* bias, Conv conv) {                             \
    multiply_taps<ROWS, true>(dx, dy, w, bias, conv);                                            \
  }                                                                                              \
  extern "C" __global__ void __launch_bounds__(256, 2)                                           \
      KERNEL(conv2d_backward_weight)(float* parts, const Stored* x, const Stored* dy,            \
                                     u32 part_count, Conv conv) {                                \
    multiply_pixels<ROWS>(parts, x, dy, part_count, conv);                                       \
  }

STAMP(64, channels_last_conv2d, channels_last_backward_input, channels_last_backward_weight)
STAMP(128, channels_last_tall_conv2d, channels_last_tall_backward_input,
      channels_last_tall_backward_weight)

// dw[filter, channel, tap] = Σ parts[part, filter, tap, channel in whole packs], in the order of
// the parts. `len` is the length of a part.
extern "C" __global__ void KERNEL(channels_last_sum_parts)(Stored* dw, const float* parts,
                                                           u32 part_count, u32 channels, u32 len,
                                                           Divisor by_depth, Divisor by_taps) {
  for (u64 i = thread_index(); i < len; i += thread_count()) {
    u32 line = by_depth.quotient((u32)i), channel = (u32)i - line * by_depth.size;
    if (channel >= channels) continue;
    float sum = 0;
    // There are few elements, so a thread waits for many loads at a time.
#pragma unroll 16
    for (u32 part = 0; part < part_count; part++) sum += parts[(u64)part * len + i];
    u32 filter = by_taps.quotient(line), tap = line - filter * by_taps.size;
    set(dw[((u64)filter * channels + channel) * by_taps.size + tap], sum);
  }
}
