//! The half types, f16 and bf16, as elements.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::stored::{round_slice, widen_slice};
use crate::dtype::{DType, Element, is_same_type};

/// Makes a half type an [`Element`]. Conversions go through f32, as in PyTorch, by these functions
/// for one number and for slices.
macro_rules! half_element {
    ($type:ty => $dtype:ident, $widened:path, $rounded:path, $widen:path, $round:path) => {
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            type Compute = f32;
            const ZERO: Self = <$type>::ZERO;
            const ONE: Self = <$type>::ONE;
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                $rounded(value as f32)
            }
            #[inline(always)]
            fn from_f32(value: f32) -> Self {
                $rounded(value)
            }
            #[inline(always)]
            fn from_i64(value: i64) -> Self {
                $rounded(value as f32)
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from($widened(self))
            }
            #[inline(always)]
            fn cast<T: Element>(self) -> T {
                T::from_f32($widened(self))
            }
            #[inline(always)]
            fn from_f32_slice(from: &[f32], to: &mut [Self]) {
                assert_eq!(from.len(), to.len());
                $round(from, to);
            }
            #[inline(always)]
            fn cast_slice<T: Element>(from: &[Self], to: &mut [T]) {
                assert_eq!(from.len(), to.len());
                if is_same_type::<T, f32>() {
                    $widen(from, bytemuck::cast_slice_mut(to));
                } else {
                    to.iter_mut().zip(from).for_each(|(to, from)| *to = from.cast());
                }
            }
        }
    };
}
half_element!(f16 => F16, f16::to_f32, f16::from_f32, widen_f16, round_f16);
half_element!(bf16 => BF16, widened_bf16, rounded_bf16, widen_bf16, round_bf16);

fn widen_f16(from: &[f16], to: &mut [f32]) {
    from.convert_to_f32_slice(to);
}

fn round_f16(from: &[f32], to: &mut [f16]) {
    to.convert_from_f32_slice(from);
}

/// Smallest number of conversions that is worth a choice of instructions. A shorter loop uses the
/// instructions of the function that calls it.
const MANY: usize = 64;

#[inline(always)]
fn widened_bf16(value: bf16) -> f32 {
    f32::from_bits(u32::from(value.to_bits()) << 16)
}

/// The nearest bf16; ties go to the even number. A NaN keeps its upper bits and becomes quiet.
/// There is no branch, so that loops become vectors.
#[inline(always)]
fn rounded_bf16(value: f32) -> bf16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1));
    let bits = if value.is_nan() { bits | 1 << 22 } else { rounded };
    bf16::from_bits((bits >> 16) as u16)
}

#[inline(always)]
fn widen_bf16(from: &[bf16], to: &mut [f32]) {
    if from.len() >= MANY {
        return widen_slice(from, to);
    }
    let from = &from[..to.len()];
    for i in 0..to.len() {
        to[i] = widened_bf16(from[i]);
    }
}

#[inline(always)]
fn round_bf16(from: &[f32], to: &mut [bf16]) {
    if from.len() >= MANY {
        return round_slice(from, to);
    }
    let from = &from[..to.len()];
    for i in 0..to.len() {
        to[i] = rounded_bf16(from[i]);
    }
}
