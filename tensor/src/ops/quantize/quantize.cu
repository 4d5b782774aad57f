// Decodes a part of a quantised matrix to floats, row by row; see `mod.rs` for the formats. Values
// are computed in f32 and rounded once, as on the processor. Each thread takes elements in a
// grid-stride loop.

enum Format : u32 { INT8_ROWS, NF4_PLAIN, NF4_DOUBLE, Q8_0, Q4_0 };

struct Part {
  // Columns of the whole matrix.
  u64 inputs;
  u64 first_row;
  u64 first_column;
  u64 columns;
  u64 len;
};

__device__ const float NF4[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

// The f16 at the start of a block of GGUF, at any address.
__device__ inline float scale_of(const u8* block) {
  f16 scale;
  scale.bits = (u16)((u32)block[0] | (u32)block[1] << 8);
  return widened(scale);
}

// Decodes a value. Products and sums are separate, so that the compiler does not fuse them into one
// rounding.
__device__ inline float value_of(u32 format, const u8* codes, const void* scales,
                                 const float* nested, const float* map, const float* offset,
                                 u64 row, u64 at) {
  switch (format) {
    case INT8_ROWS: {
      float code = (float)(signed char)codes[at];
      return __fmul_rn(__fmul_rn(code, ((const float*)scales)[row]), 1.0f / 127.0f);
    }
    case NF4_PLAIN:
    case NF4_DOUBLE: {
      u8 pair = codes[at / 2];
      float value = NF4[at % 2 == 0 ? pair >> 4 : pair & 15];
      u64 block = at / 64;
      float scale;
      if (format == NF4_PLAIN) {
        scale = ((const float*)scales)[block];
      } else {
        float nested_scale = nested[block / 256];
        scale = __fadd_rn(__fmul_rn(map[((const u8*)scales)[block]], nested_scale), *offset);
      }
      return __fmul_rn(value, scale);
    }
    case Q8_0: {
      const u8* block = codes + at / 32 * 34;
      return __fmul_rn((float)(signed char)block[2 + at % 32], scale_of(block));
    }
    case Q4_0: {
      const u8* block = codes + at / 32 * 18;
      u8 pair = block[2 + at % 16];
      int code = (at % 32 < 16 ? pair & 15 : pair >> 4) - 8;
      return __fmul_rn((float)code, scale_of(block));
    }
  }
  return 0.0f;
}

extern "C" __global__ void KERNEL(dequantize)(Stored* y, const u8* codes, const void* scales,
                                              const float* nested, const float* map,
                                              const float* offset, u32 format, Part part) {
  for (u64 i = thread_index(); i < part.len; i += thread_count()) {
    u64 line = i / part.columns;
    u64 row = part.first_row + line;
    u64 at = row * part.inputs + part.first_column + (i - line * part.columns);
    set(y[i], (Computed)value_of(format, codes, scales, nested, map, offset, row, at));
  }
}
