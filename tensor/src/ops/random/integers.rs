//! Uniform integers. Element `i`, in row-major order, comes from block `i` of the key's stream.

use std::ops::Range;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::tiles::{Mode, Order, Source, evaluate};
use crate::dtype::{DType, Element, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::random::RandomKey;
use crate::tensor::Tensor;

pub(super) struct RandomIntegers {
    pub(super) key: RandomKey,
    pub(super) low: i64,
    /// Number of integers from `low` on, at most 2^64 - 1.
    pub(super) count: u64,
    pub(super) dtype: DType,
    pub(super) len: usize,
}

impl FullKernel for RandomIntegers {
    fn name(&self) -> &'static str {
        "random_integers"
    }

    fn cost(&self) -> Cost {
        let bytes = (self.len * self.dtype.size_bytes()) as f64;
        Cost { class: OpClass::Random, flops: 80.0 * self.len as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        let order = Order::row_major();
        for_each_dtype!(self.dtype, T => {
            let out = operands.write::<T>(0);
            evaluate::<T, T>(cpu, out, &order, Mode::Overwrite, &[&self], None);
        });
        Ok(())
    }
}

impl<T: Element> Source<T> for RandomIntegers {
    fn write(&self, from: usize, to: &mut [T]) {
        for (index, to) in (from as u64..).zip(to) {
            let [low, high, ..] = self.key.block(index).map(u128::from);
            let chosen = ((high << 32 | low) * u128::from(self.count)) >> 64;
            *to = T::from_i64(self.low.wrapping_add(chosen as i64));
        }
    }
}

impl Tensor {
    /// Fills with random integers of `range`; `torch.randint`. For a range of n integers, all are
    /// equally likely up to a difference of `n / 2^64`. Any element type but truth values.
    ///
    /// # Errors
    /// `Index` for an empty range, or if the type cannot hold a number of the range; `DType` for
    /// truth values, `Frozen`, `Overlap` (on an expanded view).
    #[track_caller]
    pub fn random_integers_(&mut self, key: RandomKey, range: Range<i64>) -> Result<()> {
        let (op, dtype, len) = ("random_integers", self.dtype(), self.element_count());
        if dtype == DType::Bool {
            return Err(TensorError::DType { op, left: dtype, right: DType::I64 });
        }
        let count = range.end.abs_diff(range.start);
        let (low, high) = exact_range(dtype);
        if range.is_empty() || range.start < low || range.end - 1 > high {
            let index = range.start as isize;
            return Err(TensorError::Index { op, index, len: count as usize });
        }
        let kernel = RandomIntegers { key, low: range.start, count, dtype, len };
        self.device().launch(kernel, &[], &[self])
    }
}

/// The range in which a type represents every whole number.
fn exact_range(dtype: DType) -> (i64, i64) {
    let around_zero = |bits: u32| (-(1 << bits), 1 << bits);
    match dtype {
        DType::F64 => around_zero(53),
        DType::F32 => around_zero(24),
        DType::F16 => around_zero(11),
        DType::BF16 => around_zero(8),
        DType::I64 => (i64::MIN, i64::MAX),
        DType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        DType::U8 | DType::Bool => (0, i64::from(u8::MAX)),
    }
}
