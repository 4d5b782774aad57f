//! Rotary position embedding: rotates pairs of elements by an angle that depends on their position.
//! Su et al., "RoFormer: enhanced transformer with rotary position embedding" (2021).
//!
//! x: [.., T, D], cos and sin: [T, R / 2] with R ≤ D; elements from R on are unchanged.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::dtype::{DType, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::ops::direction::Direction;
use crate::tensor::Tensor;

/// The elements of a row that form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotaryPairs {
    /// `2i` and `2i + 1`, as in the paper.
    Interleaved,
    /// `i` and `i + R / 2`, as in GPT-NeoX and Llama.
    HalfSplit,
}

struct Rotary {
    op: &'static str,
    pairs: RotaryPairs,
    direction: Direction,
    dtype: DType,
    len: usize,
}

impl FullKernel for Rotary {
    fn name(&self) -> &'static str {
        self.op
    }

    fn cost(&self) -> Cost {
        let bytes = 2.0 * (self.len * self.dtype.size_bytes()) as f64;
        Cost { class: OpClass::Elementwise, flops: 3.0 * self.len as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_dtype!(self.dtype, T => {
            let [cos, sin] = [0, 1].map(|index| operands.read::<T>(index).slice());
            let sign = if self.direction == Direction::Forward { 1.0 } else { -1.0 };
            cpu::rotate(cpu, operands.write::<T>(0), cos, sin, self.pairs, sign);
        });
        Ok(())
    }
}

impl Tensor {
    fn rotate_(
        &mut self,
        op: &'static str,
        cos: &Tensor,
        sin: &Tensor,
        pairs: RotaryPairs,
        direction: Direction,
    ) -> Result<()> {
        if !self.dtype().is_float() {
            return Err(TensorError::DType { op, left: self.dtype(), right: DType::F32 });
        }
        self.check_dtype(op, cos)?;
        self.check_dtype(op, sin)?;
        let (left, right) = (*self.shape(), *cos.shape());
        match (&*left, &*right) {
            (&[.., len, dim], &[cos_len, half]) if len == cos_len && half <= dim / 2 => {}
            _ => return Err(TensorError::Shape { op, left, right }),
        }
        sin.check_shape(op, right)?;
        if [cos, sin].iter().any(|table| !table.layout().is_contiguous()) {
            return Err(TensorError::Strided { op });
        }
        let (dtype, len) = (self.dtype(), self.element_count());
        let kernel = Rotary { op, pairs, direction, dtype, len };
        self.device().launch(kernel, &[cos, sin], &[self])
    }

    /// Rotates each pair `(a, b)` of a row at position `t` to `(a·cos - b·sin, a·sin + b·cos)`,
    /// with `cos[t, i]` and `sin[t, i]` for pair `i`.
    ///
    /// # Shapes
    /// `x: [.., T, D], cos and sin: [T, R / 2]`, contiguous, with R ≤ D; elements from R on are
    /// unchanged.
    ///
    /// # Errors
    /// `Shape`, `Strided`, `DType` (all the same float type), `Frozen`, `Overlap`.
    #[track_caller]
    pub fn rotary_(&mut self, cos: &Tensor, sin: &Tensor, pairs: RotaryPairs) -> Result<()> {
        self.rotate_("rotary", cos, sin, pairs, Direction::Forward)
    }

    /// [`Tensor::rotary_`] into a new tensor.
    ///
    /// # Errors
    /// As [`Tensor::rotary_`], `OutOfMemory`.
    #[track_caller]
    pub fn rotary(&self, cos: &Tensor, sin: &Tensor, pairs: RotaryPairs) -> Result<Tensor> {
        let mut y = self.copied()?;
        y.rotary_(cos, sin, pairs)?;
        Ok(y)
    }

    /// The gradient of x through [`Tensor::rotary`], for `self = dy`, in place: the inverse
    /// rotation.
    ///
    /// # Errors
    /// As [`Tensor::rotary_`].
    #[track_caller]
    pub fn rotary_backward_(
        &mut self,
        cos: &Tensor,
        sin: &Tensor,
        pairs: RotaryPairs,
    ) -> Result<()> {
        self.rotate_("rotary_backward", cos, sin, pairs, Direction::Backward)
    }

    /// [`Tensor::rotary_backward_`] into a new tensor.
    ///
    /// # Errors
    /// As [`Tensor::rotary_`], `OutOfMemory`.
    #[track_caller]
    pub fn rotary_backward(
        &self,
        cos: &Tensor,
        sin: &Tensor,
        pairs: RotaryPairs,
    ) -> Result<Tensor> {
        let mut dx = self.copied()?;
        dx.rotary_backward_(cos, sin, pairs)?;
        Ok(dx)
    }
}
