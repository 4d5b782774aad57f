//! Decoding on the processor, and the operands of integer products.

use half::f16;

use super::encode::NF4_VALUES;
use super::{Decode, GGUF_BLOCK_LEN, NESTED_BLOCK_LEN, NF4_BLOCK_LEN, QuantFormat};
use crate::cpu::Cpu;
use crate::cpu::gemm::{Matrix, MatrixMut};
use crate::cpu::int8::{Int8Product, QuantizedRows, quantize};
use crate::cpu::math::SimdFloat;
use crate::dtype::Element;
use crate::launch::Operands;

/// Elements of a task.
const CHUNK_LEN: usize = 1 << 14;
/// Elements that are decoded in f32 before they are rounded.
const RUN_LEN: usize = 256;

pub(super) fn decode<E: Element>(op: &Decode, cpu: &Cpu, operands: &mut Operands<'_>) {
    let codes = Codes::of(op, operands);
    let [_, columns] = op.size;
    let y = operands.write::<E>(0).slice();
    cpu.for_each_chunk(y, CHUNK_LEN, |index, chunk| {
        let mut at = index * CHUNK_LEN;
        let mut rest = chunk;
        let mut values = [0.0; RUN_LEN];
        while !rest.is_empty() {
            let (row, column) = (at / columns, at % columns);
            let len = RUN_LEN.min(columns - column).min(rest.len());
            let (run, next) = rest.split_at_mut(len);
            let place = [op.first[0] + row, op.first[1] + column];
            codes.values(op.inputs, place, &mut values[..len]);
            E::from_f32_slice(&values[..len], run);
            (at, rest) = (at + len, next);
        }
    });
}

/// Quantises the rows of x: codes, scales and sums of codes.
pub(super) fn quantize_rows<T: SimdFloat, E: Element>(
    size: [usize; 2],
    cpu: &Cpu,
    operands: &mut Operands<'_>,
) {
    let x = operands.read::<E>(0);
    let [row_stride, col_stride] = [0, 1].map(|axis| x.layout().strides()[axis]);
    let x = Matrix { data: x.data(), row_stride, col_stride };
    let to = (
        bytemuck::cast_slice_mut(operands.write::<u8>(0).slice()),
        operands.write::<T>(1).slice(),
        operands.write::<i32>(2).slice(),
    );
    quantize(cpu.pool(), size, x, to);
}

/// Computes y from the codes of x and of w.
pub(super) fn multiply_int8<T: SimdFloat, E: Element>(
    size: [usize; 3],
    cpu: &Cpu,
    operands: &mut Operands<'_>,
) {
    let codes = |index: usize| bytemuck::cast_slice(operands.read::<u8>(index).slice());
    let has_bias = operands.read_count() > 5;
    let product = Int8Product {
        size,
        x: QuantizedRows {
            codes: codes(0),
            scales: operands.read::<T>(1).slice(),
            sums: operands.read::<i32>(2).slice(),
        },
        w: codes(3),
        w_scales: operands.read::<f32>(4).slice(),
        bias: if has_bias { operands.read::<E>(5).slice() } else { &[] },
    };
    product.run(cpu.pool(), MatrixMut::row_major(operands.write::<E>(0).slice(), size[2]));
}

/// The codes of a matrix with their scales.
enum Codes<'a> {
    Int8 {
        codes: &'a [u8],
        scales: &'a [f32],
    },
    Nf4 {
        codes: &'a [u8],
        scales: Scales<'a>,
    },
    /// Blocks of GGUF: each scale precedes the codes of its block.
    Blocks {
        bytes: &'a [u8],
        block_bytes: usize,
    },
}

/// The scales of blocks.
enum Scales<'a> {
    Plain(&'a [f32]),
    Double { codes: &'a [u8], nested: &'a [f32], map: &'a [f32], offset: f32 },
}

impl Scales<'_> {
    fn get(&self, block: usize) -> f32 {
        match self {
            Scales::Plain(scales) => scales[block],
            Scales::Double { codes, nested, map, offset } => {
                map[usize::from(codes[block])] * nested[block / NESTED_BLOCK_LEN] + offset
            }
        }
    }
}

impl<'a> Codes<'a> {
    fn of(op: &Decode, operands: &Operands<'a>) -> Self {
        let codes = operands.read::<u8>(0).slice();
        let scales = |index: usize| operands.read::<f32>(index).slice();
        match op.format {
            QuantFormat::Int8Rows => Codes::Int8 { codes, scales: scales(1) },
            QuantFormat::Nf4 { double: false } => {
                Codes::Nf4 { codes, scales: Scales::Plain(scales(1)) }
            }
            QuantFormat::Nf4 { double: true } => {
                let of_scales = operands.read::<u8>(1).slice();
                let (nested, map, offset) = (scales(2), scales(3), scales(4)[0]);
                let scales = Scales::Double { codes: of_scales, nested, map, offset };
                Codes::Nf4 { codes, scales }
            }
            QuantFormat::Q8_0 => Codes::Blocks { bytes: codes, block_bytes: 2 + GGUF_BLOCK_LEN },
            QuantFormat::Q4_0 => {
                Codes::Blocks { bytes: codes, block_bytes: 2 + GGUF_BLOCK_LEN / 2 }
            }
        }
    }

    /// Writes values of one row of a matrix with `inputs` columns, from `row` and `column` on.
    fn values(&self, inputs: usize, [row, column]: [usize; 2], to: &mut [f32]) {
        let first = row * inputs + column;
        match *self {
            Codes::Int8 { codes, scales } => {
                let scale = scales[row];
                for (to, code) in to.iter_mut().zip(&codes[first..]) {
                    // The order of the operations and the constant are those of bitsandbytes.
                    *to = f32::from(code.cast_signed()) * scale * (1.0 / 127.0);
                }
            }
            Codes::Nf4 { codes, ref scales } => {
                let mut at = first;
                let mut rest = to;
                while !rest.is_empty() {
                    let block = at / NF4_BLOCK_LEN;
                    let len = ((block + 1) * NF4_BLOCK_LEN - at).min(rest.len());
                    let (run, next) = rest.split_at_mut(len);
                    let scale = scales.get(block);
                    for (to, index) in run.iter_mut().zip(at..) {
                        let pair = codes[index / 2];
                        let code = if index % 2 == 0 { pair >> 4 } else { pair & 15 };
                        *to = NF4_VALUES[usize::from(code)] * scale;
                    }
                    (at, rest) = (at + len, next);
                }
            }
            Codes::Blocks { bytes, block_bytes } => {
                for (to, index) in to.iter_mut().zip(first..) {
                    let (block, place) = (index / GGUF_BLOCK_LEN, index % GGUF_BLOCK_LEN);
                    let block = &bytes[block * block_bytes..][..block_bytes];
                    let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
                    let code = if block_bytes == 2 + GGUF_BLOCK_LEN {
                        i16::from(block[2 + place].cast_signed())
                    } else {
                        // The first half of the block is in the low bits, the second half in the
                        // high bits.
                        let half = GGUF_BLOCK_LEN / 2;
                        let pair = block[2 + place % half];
                        i16::from(if place < half { pair & 15 } else { pair >> 4 }) - 8
                    };
                    *to = f32::from(code) * scale;
                }
            }
        }
    }
}
