//! One fused step of Adam or AdamW, in place.

mod cpu;

pub use cpu::{AdamStep, WeightDecay};

use crate::cpu::Cpu;
use crate::dtype::for_float;
use crate::layout::{Layout, Nest};
use crate::{Cost, DType, Kernel, Operands, Result, Tensor};

struct Adam {
    step: AdamStep,
    dtype: DType,
    len: usize,
}

impl Kernel for Adam {
    fn name(&self) -> &'static str {
        "adam"
    }

    fn cost(&self) -> Cost {
        let bytes = (7 * self.len * self.dtype.size_bytes()) as f64;
        Cost { flops: 12.0 * self.len as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_float!(self.dtype, T => {
            let gradient = operands.read::<T>(0);
            let [mut p, mut m, mut v] = [0, 1, 2].map(|index| operands.write::<T>(index));
            let layouts = [*p.layout(), *gradient.layout(), *m.layout(), *v.layout()];
            let nest = Nest::new(layouts[0].shape(), layouts.each_ref().map(Layout::strides));
            nest.runs(self.len, |[p_at, g_at, m_at, v_at], len| {
                let p = &mut p.data()[p_at..][..len];
                let gradient = &gradient.data()[g_at..][..len];
                let m = &mut m.data()[m_at..][..len];
                let v = &mut v.data()[v_at..][..len];
                cpu::adam(cpu.pool(), self.step, p, gradient, m, v);
            });
        }, else unreachable!("checked to be a float"));
        Ok(())
    }
}

impl Tensor {
    /// One step of Adam on `self` and its moments (running mean `m` and mean square `v`, zeros
    /// before the first step). All tensors are of one shape and float type; where they are not
    /// contiguous, it is slow. Allocates nothing.
    ///
    /// # Errors
    /// `Shape`, `DType`, `Frozen`, `Overlap`.
    #[track_caller]
    pub fn adam_(
        &mut self,
        gradient: &Tensor,
        m: &mut Tensor,
        v: &mut Tensor,
        step: AdamStep,
    ) -> Result<()> {
        let op = "adam";
        self.check_float(op)?;
        for other in [gradient, m, v] {
            self.check_dtype(op, other)?;
            self.check_shape(op, *other.shape())?;
        }
        let kernel = Adam { step, dtype: self.dtype(), len: self.element_count() };
        self.device().launch(kernel, &[gradient], &[self, m, v])
    }
}
