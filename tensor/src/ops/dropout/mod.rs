//! Dropout: `y[i] = x[i] · m[i]`, where the factor `m[i]` is 0 with the probability p and
//! `1 / (1 - p)` otherwise. The factor is a function of key and place, so nothing is saved for the
//! gradient: the gradient is dropout of dy with the same key.
//!
//! Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting" (2014),
//! scaled at training time as in PyTorch.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;

use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::tiles::{Formula, Mode, Order, Source, Strided, evaluate};
use crate::dtype::for_each_float;
use crate::error::Result;
use crate::launch::{FullKernel, Operands};
use crate::random::RandomKey;
use crate::tensor::Tensor;

/// The options of [`Tensor::dropout`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Probability of an element to become 0, with 32 bits of precision; below 0 counts as 0, above
    /// 1 as 1.
    pub probability: f64,
    /// The key of the random stream that decides.
    pub key: RandomKey,
    /// Index of the tensor's first element in the stream. For a part of a batch: number of elements
    /// before the part, so that the parts drop the same elements as the whole batch. Otherwise 0.
    pub first: u64,
}

struct Drop {
    dropout: Dropout,
    dtype: crate::dtype::DType,
    len: usize,
}

impl FullKernel for Drop {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn cost(&self) -> Cost {
        let bytes = (2 * self.len * self.dtype.size_bytes()) as f64;
        Cost { class: OpClass::Random, flops: 20.0 * self.len as f64, bytes }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_each_float!(self.dtype, E as T => {
            let order = Order::row_major();
            let factors = cpu::Factors::new(self.dropout);
            let x = (operands.read_count() == 1)
                .then(|| Strided::new(operands.read::<E>(0), &order));
            let out = operands.write::<E>(0);
            let formula: Formula<'_, T> = &cpu::multiply;
            match &x {
                Some(x) => {
                    let sources: [&dyn Source<T>; 2] = [&factors, x];
                    evaluate(cpu, out, &order, Mode::Overwrite, &sources, Some(formula));
                }
                None => {
                    let sources: [&dyn Source<T>; 1] = [&factors];
                    evaluate(cpu, out, &order, Mode::UpdateInPlace, &sources, Some(formula));
                }
            }
        });
        Ok(())
    }
}

impl Tensor {
    /// Sets elements to 0 at random and scales the others by `1 / (1 - probability)`. Any float
    /// type. The gradient of x is the same dropout of dy. As in PyTorch, a dropped element that is
    /// not finite becomes NaN.
    ///
    /// # Errors
    /// `DType` unless float, `OutOfMemory`.
    #[track_caller]
    pub fn dropout(&self, dropout: Dropout) -> Result<Tensor> {
        self.check_any_float("dropout")?;
        let y = Tensor::empty(self.device(), *self.shape(), self.dtype())?;
        let kernel = Drop { dropout, dtype: self.dtype(), len: self.element_count() };
        self.device().launch(kernel, &[self], &[&y])?;
        Ok(y)
    }

    /// [`Tensor::dropout`] in place.
    ///
    /// # Errors
    /// `DType` unless float, `Frozen`, `Overlap` (on an expanded view).
    #[track_caller]
    pub fn dropout_(&mut self, dropout: Dropout) -> Result<()> {
        self.check_any_float("dropout")?;
        let kernel = Drop { dropout, dtype: self.dtype(), len: self.element_count() };
        self.device().launch(kernel, &[], &[self])
    }
}
