//! Encoding of floats to codes: once for each weight, on the host, for every device.

use std::sync::LazyLock;

use half::f16;

use super::{GGUF_BLOCK_LEN, NESTED_BLOCK_LEN, NF4_BLOCK_LEN, QuantFormat, Quantized};
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

/// Quantiles of the normal distribution with 0 among them, scaled to [-1, 1]: appendix E of the
/// QLoRA paper.
#[expect(clippy::excessive_precision, reason = "the paper's digits")]
pub const NF4_VALUES: [f32; 16] = [
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
];

/// Smallest divisor: a scale of 0 would divide by 0.
const SCALE_MIN: f32 = 1e-38;

/// The 256 values of a scale's code: bitsandbytes' signed dynamic map. The map has seven decades,
/// each with twice as many values as the decade below, and 0 and 1.
fn dynamic_map() -> &'static [f32; 256] {
    static MAP: LazyLock<[f32; 256]> = LazyLock::new(|| {
        let mut values = vec![0.0, 1.0_f32];
        for decade in 0..7 {
            let (count, top) = (1_usize << decade, 10f64.powi(decade - 6) as f32);
            // Rounded as the library's `linspace` rounds: in f32, each half from its own end.
            let (start, end) = (0.1_f32, 1.0_f32);
            let step = f64::from((end - start) / count as f32);
            let bound = |part: usize| match part < count.div_ceil(2) {
                true => (f64::from(start) + step * part as f64) as f32,
                false => (f64::from(end) - step * (count - part) as f64) as f32,
            };
            for part in 0..count {
                let value = top * ((bound(part) + bound(part + 1)) / 2.0);
                values.extend([value, -value]);
            }
        }
        values.sort_by(f32::total_cmp);
        std::array::from_fn(|index| values[index])
    });
    &MAP
}

/// The midpoints between neighbouring values of an increasing map.
fn middles(map: &[f32]) -> Vec<f32> {
    map.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0).collect()
}

/// The code of the value nearest to x; the lower code for a midpoint. NaN has the last code.
fn code(middles: &[f32], x: f32) -> u8 {
    middles.partition_point(|&middle| x > middle || x.is_nan()) as u8
}

/// A block's largest magnitude, and its values divided by that magnitude. Rounding follows the
/// library: a whole block is multiplied by the inverse, a shorter block at the end is divided.
fn scaled(block: &[f32], len: usize) -> (f32, impl Iterator<Item = f32> + '_) {
    let largest = block.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    let divisor = largest.max(SCALE_MIN);
    let is_whole = block.len() == len;
    let by = move |&x: &f32| if is_whole { x * (1.0 / divisor) } else { x / divisor };
    (if is_whole { largest } else { divisor }, block.iter().map(move |x| by(x).clamp(-1.0, 1.0)))
}

/// The bytes of each part of a matrix.
fn encode(format: QuantFormat, values: &[f32], shape: &[usize]) -> Vec<Vec<u8>> {
    match format {
        QuantFormat::Int8Rows => int8_rows(values, [shape[0], shape[1]]),
        QuantFormat::Nf4 { double } => nf4(values, double),
        QuantFormat::Q8_0 => vec![values.chunks(GGUF_BLOCK_LEN).flat_map(q8_0).collect()],
        QuantFormat::Q4_0 => vec![values.chunks(GGUF_BLOCK_LEN).flat_map(q4_0).collect()],
    }
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

fn int8_rows(values: &[f32], [rows, columns]: [usize; 2]) -> Vec<Vec<u8>> {
    let (mut codes, mut scales) = (Vec::with_capacity(values.len()), Vec::with_capacity(rows));
    for row in (0..rows).map(|row| &values[row * columns..][..columns]) {
        let largest = row.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        // The library multiplies by the reciprocal, which rounds twice.
        let factor = if largest > 0.0 { 1.0 / largest * 127.0 } else { 0.0 };
        codes.extend(row.iter().map(|x| ((x * factor).round_ties_even() as i8).cast_unsigned()));
        scales.push(largest);
    }
    vec![codes, bytes_of(&scales)]
}

fn nf4(values: &[f32], double: bool) -> Vec<Vec<u8>> {
    let middles_of_nf4 = middles(&NF4_VALUES);
    let (mut codes, mut scales) = (Vec::with_capacity(values.len() + 1), Vec::new());
    for block in values.chunks(NF4_BLOCK_LEN) {
        let (scale, values) = scaled(block, NF4_BLOCK_LEN);
        codes.extend(values.map(|x| code(&middles_of_nf4, x)));
        scales.push(scale);
    }
    // The library fills up the last pair with the value 0, not with code 0.
    if codes.len() % 2 == 1 {
        codes.push(code(&middles_of_nf4, 0.0));
    }
    let pairs = codes.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    if !double {
        return vec![pairs, bytes_of(&scales)];
    }
    let sum: f64 = scales.iter().map(|&scale| f64::from(scale)).sum();
    let offset = (sum / scales.len().max(1) as f64) as f32;
    let around: Vec<f32> = scales.iter().map(|scale| scale - offset).collect();
    let map = dynamic_map();
    let middles_of_map = middles(map);
    let (mut nested_codes, mut nested_scales) = (Vec::with_capacity(scales.len()), Vec::new());
    for block in around.chunks(NESTED_BLOCK_LEN) {
        let (scale, values) = scaled(block, NESTED_BLOCK_LEN);
        nested_codes.extend(values.map(|x| code(&middles_of_map, x)));
        nested_scales.push(scale);
    }
    vec![pairs, nested_codes, bytes_of(&nested_scales), bytes_of(map), bytes_of(&[offset])]
}

/// The stored scale, and the codes, which are computed with the scale before rounding.
fn q8_0(block: &[f32]) -> Vec<u8> {
    let largest = block.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    let scale = largest / 127.0;
    let factor = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let mut bytes = f16::from_f32(scale).to_le_bytes().to_vec();
    bytes.extend(block.iter().map(|x| ((x * factor).round() as i8).cast_unsigned()));
    bytes
}

fn q4_0(block: &[f32]) -> Vec<u8> {
    // The first number of the largest magnitude, with its sign: its code stands for -8.
    let largest =
        block.iter().fold(0.0_f32, |most, &x| if x.abs() > most.abs() { x } else { most });
    let scale = largest / -8.0;
    let factor = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let code = |x: f32| (x * factor + 8.5).trunc().clamp(0.0, 15.0) as u8;
    let mut bytes = f16::from_f32(scale).to_le_bytes().to_vec();
    let (low, high) = block.split_at(GGUF_BLOCK_LEN / 2);
    bytes.extend(low.iter().zip(high).map(|(&low, &high)| code(low) | code(high) << 4));
    bytes
}

impl Quantized {
    /// Encodes `weight` in few bits. The host encodes from f32, which temporarily takes four bytes
    /// for each element, beside the codes.
    ///
    /// # Shapes
    /// `weight: [O, I]`
    ///
    /// # Errors
    /// `DType` unless floats; `Shape` as [`QuantFormat::parts`] states; `OutOfMemory`.
    #[track_caller]
    pub fn encode(weight: &Tensor, format: QuantFormat) -> Result<Self> {
        weight.check_any_float("quantize")?;
        let (device, shape) = (weight.device(), *weight.shape());
        let specs = format.parts(shape)?;
        let category = weight.category();
        let mut parts = Vec::with_capacity(specs.len());
        for part in &specs {
            parts.push(Tensor::empty_in(device, category, part.shape, part.dtype)?);
        }
        let bytes = if device.is_simulated() {
            parts.iter().map(|part| vec![0; part.size_bytes()]).collect()
        } else {
            encode(format, &f32s(weight)?, &shape)
        };
        for (part, bytes) in parts.iter_mut().zip(&bytes) {
            part.set_bytes_(bytes)?;
        }
        Quantized::from_parts(format, shape, parts)
    }
}

/// The elements on the host.
fn f32s(weight: &Tensor) -> Result<Vec<f32>> {
    Ok(match weight.dtype() {
        DType::F64 => weight.to_vec::<f64>()?.into_iter().map(|x| x as f32).collect(),
        DType::F16 => weight.to_vec::<f16>()?.into_iter().map(f16::to_f32).collect(),
        DType::BF16 => weight.to_vec::<half::bf16>()?.into_iter().map(half::bf16::to_f32).collect(),
        _ => weight.to_vec::<f32>()?,
    })
}
