//! One fused step of stochastic gradient descent, in place.

mod cpu;

pub use cpu::SgdStep;

use crate::cpu::Cpu;
use crate::dtype::for_float;
use crate::layout::{Layout, Nest};
use crate::{Cost, DType, Kernel, Operands, Result, Tensor};

struct Sgd {
    step: SgdStep,
    dtype: DType,
    len: usize,
}

impl Kernel for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn cost(&self) -> Cost {
        let passes = if self.step.momentum == 0.0 { 3 } else { 5 };
        let bytes = (passes * self.len * self.dtype.size_bytes()) as f64;
        Cost { flops: 6.0 * self.len as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_float!(self.dtype, T => {
            let gradient = operands.read::<T>(0);
            let mut p = operands.write::<T>(0);
            let mut momentum = (self.step.momentum != 0.0).then(|| operands.write::<T>(1));
            let layout = *p.layout();
            let momentum_layout = momentum.as_ref().map_or(layout, |momentum| *momentum.layout());
            let layouts = [&layout, gradient.layout(), &momentum_layout];
            let nest = Nest::new(layout.shape(), layouts.map(Layout::strides));
            nest.runs(self.len, |[p_at, g_at, m_at], len| {
                let p = &mut p.data()[p_at..][..len];
                let gradient = &gradient.data()[g_at..][..len];
                let momentum = momentum.as_mut().map(|m| &mut m.data()[m_at..][..len]);
                cpu::sgd(cpu.pool(), self.step, p, gradient, momentum);
            });
        }, else unreachable!("checked to be a float"));
        Ok(())
    }
}

impl Tensor {
    /// One step of SGD on `self`, and on its momentum exactly when `step.momentum` is not 0. All
    /// tensors are of one shape and float type; where they are not contiguous, it is slow.
    /// Allocates nothing.
    ///
    /// # Errors
    /// `Shape`, `DType`, `Frozen`, `Overlap`.
    ///
    /// # Panics
    /// With a momentum that `step` has no use for, or without one that it needs.
    #[track_caller]
    pub fn sgd_(
        &mut self,
        gradient: &Tensor,
        momentum: Option<&mut Tensor>,
        step: SgdStep,
    ) -> Result<()> {
        let op = "sgd";
        assert_eq!(momentum.is_some(), step.momentum != 0.0, "momentum {}", step.momentum);
        self.check_float(op)?;
        for other in [Some(gradient), momentum.as_deref()].into_iter().flatten() {
            self.check_dtype(op, other)?;
            self.check_shape(op, *other.shape())?;
        }
        let kernel = Sgd { step, dtype: self.dtype(), len: self.element_count() };
        let writes: Vec<&Tensor> =
            [Some(&*self), momentum.as_deref()].into_iter().flatten().collect();
        self.device().launch(kernel, &[gradient], &writes)
    }
}
