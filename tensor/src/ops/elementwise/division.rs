//! Integers have no quotient by 0, so divisors are checked before anything is written. An NVIDIA
//! device checks the divisors while it computes; the next read of a value reports a 0.

use std::sync::atomic::{AtomicBool, Ordering};

use super::op::Op;
use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::dtype::{DType, Element, for_each_dtype};
use crate::error::{Result, TensorError};
use crate::launch::{FullKernel, Operands};
use crate::layout::Nest;
use crate::tensor::Tensor;

/// Checks that no divisor is 0, if `op` divides integers. The last operand is the divisor.
#[track_caller]
pub(super) fn check(
    name: &'static str,
    op: Op,
    dtype: DType,
    operands: &[&Tensor],
    scalar: Option<f64>,
) -> Result<()> {
    if !op.is_division() || dtype.is_float() {
        return Ok(());
    }
    match (scalar, operands.last()) {
        (Some(0.0), _) => Err(TensorError::DivisionByZero { op: name }),
        (None, Some(divisor)) => {
            let kernel = CheckDivisor { name, dtype, len: divisor.element_count() };
            divisor.device().launch(kernel, &[divisor], &[])
        }
        _ => Ok(()),
    }
}

/// Fails if one of the elements is 0.
pub(super) struct CheckDivisor {
    pub(super) name: &'static str,
    pub(super) dtype: DType,
    len: usize,
}

impl FullKernel for CheckDivisor {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cost(&self) -> Cost {
        let bytes = (self.len * self.dtype.size_bytes()) as f64;
        Cost { class: OpClass::Elementwise, flops: self.len as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        const CHUNK_LEN: usize = 1 << 15;
        let is_zero_found = AtomicBool::new(false);
        for_each_dtype!(self.dtype, T => {
            let x = operands.read::<T>(0);
            let nest = Nest::new(x.layout().shape(), [x.layout().strides()]);
            let step = nest.inner_strides()[0];
            cpu.pool().run(self.len.div_ceil(CHUNK_LEN), &|index| {
                let from = index * CHUNK_LEN;
                let mut is_found = false;
                nest.rows(from, self.len.min(from + CHUNK_LEN), |row| {
                    let data = &x.data()[row.starts[0]..];
                    for i in 0..row.len {
                        is_found |= data[i * step] == T::from_i64(0);
                    }
                });
                // The flag is only ever raised, so the order of the chunks does not matter.
                if is_found {
                    is_zero_found.store(true, Ordering::Relaxed);
                }
            });
        });
        if is_zero_found.into_inner() {
            return Err(TensorError::DivisionByZero { op: self.name });
        }
        Ok(())
    }
}
