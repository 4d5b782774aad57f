//! Comparison up to rounding, comparison of whole tensors, and replacement of NaN and infinities.

use half::{bf16, f16};

use super::op::Op;
use super::table::{Float, Test};
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

/// The distance up to which two numbers count as equal; the default is PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Closeness {
    /// The allowed difference as a fraction of the magnitude of the expected number.
    pub relative: f64,
    /// The allowed difference in addition to the relative one.
    pub absolute: f64,
    /// True if a NaN is close to a NaN.
    pub is_nan_equal: bool,
}

impl Default for Closeness {
    fn default() -> Self {
        Closeness { relative: 1e-5, absolute: 1e-8, is_nan_equal: false }
    }
}

/// Replacements of numbers that are not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Replacements {
    /// The number in place of NaN.
    pub nan: f64,
    /// The number in place of infinity; by default the largest number of the type.
    pub infinity: Option<f64>,
    /// The number in place of minus infinity; by default the smallest number of the type.
    pub negative_infinity: Option<f64>,
}

impl Replacements {
    fn op(self, dtype: DType) -> Op {
        let high = match dtype {
            DType::F32 => f32::MAX.into(),
            DType::F16 => f16::MAX.to_f64(),
            DType::BF16 => bf16::MAX.to_f64(),
            _ => f64::MAX,
        };
        let [high, low] = [self.infinity.unwrap_or(high), self.negative_infinity.unwrap_or(-high)];
        Op::with(Float::NanToNum, &[high, low])
    }
}

impl Tensor {
    /// True where `|self - other| <= absolute + relative · |other|`, or where both are equal,
    /// infinities included; broadcast. Any element type; the differences are computed in f64.
    ///
    /// # Errors
    /// `Shape`, `DType` (both the same), `OutOfMemory`.
    #[track_caller]
    pub fn isclose(&self, other: &Tensor, closeness: Closeness) -> Result<Tensor> {
        let Closeness { relative, absolute, is_nan_equal } = closeness;
        let formula = if is_nan_equal { Test::IsCloseOrNan } else { Test::IsClose };
        let op = Op::with(formula, &[relative, absolute]);
        Tensor::elementwise("isclose", op, &[self, other], None)
    }

    /// True if all elements are close by [`Tensor::isclose`]; true for tensors without elements.
    /// Waits for the device.
    ///
    /// # Errors
    /// The errors of [`Tensor::isclose`], and `ValueUnavailable` on a simulated device.
    #[track_caller]
    pub fn allclose(&self, other: &Tensor, closeness: Closeness) -> Result<bool> {
        all_of(&self.isclose(other, closeness)?)
    }

    /// True if both tensors have the same shape and equal elements; NaN equals nothing. Waits for
    /// the device.
    ///
    /// # Errors
    /// `DType` unless the types are the same, `OutOfMemory`, and `ValueUnavailable` on a simulated
    /// device.
    #[track_caller]
    pub fn equal(&self, other: &Tensor) -> Result<bool> {
        if self.shape() != other.shape() && self.dtype() == other.dtype() {
            return Ok(false);
        }
        all_of(&self.eq(other)?)
    }

    /// Replaces NaN and infinities by numbers of the caller's choice. Any element type; integers
    /// and truth values are copied unchanged.
    ///
    /// # Errors
    /// The errors of [`Tensor::add`].
    #[track_caller]
    pub fn nan_to_num(&self, replacements: Replacements) -> Result<Tensor> {
        if !self.dtype().is_float() {
            return self.copied();
        }
        let op = replacements.op(self.dtype());
        Tensor::elementwise("nan_to_num", op, &[self], Some(replacements.nan))
    }

    /// [`Tensor::nan_to_num`] in place.
    ///
    /// # Errors
    /// The errors of [`Tensor::add_`].
    #[track_caller]
    pub fn nan_to_num_(&mut self, replacements: Replacements) -> Result<()> {
        if !self.dtype().is_float() {
            return self.check_writable("nan_to_num");
        }
        let op = replacements.op(self.dtype());
        self.elementwise_("nan_to_num", op, &[], Some(replacements.nan))
    }
}

/// True if all of these truth values are true.
#[track_caller]
fn all_of(truths: &Tensor) -> Result<bool> {
    let axes: Vec<usize> = (0..truths.shape().len()).collect();
    truths.all(&axes)?.item()
}
