//! Norms of values that a formula computes from a parameter, its gradient and its states.

use half::{bf16, f16};

use super::{Form, KnownNorms, StateRange, cpu, for_update};
use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::math::SimdFloat;
use crate::device::Device;
use crate::dtype::{DType, Element, Float};
use crate::error::Result;
use crate::launch::{FullKernel, Operands};
use crate::layout::{Layout, Nest};
use crate::ops::workspace::Workspace;
use crate::spec::DeviceKind;
use crate::tensor::Tensor;

/// Values of each element whose norms an optimizer needs before its update, such as the step
/// itself. [`Tensor::update_norms`] computes the norms in one pass and stores no values.
pub trait NormFormula<const STATES: usize, const NORMS: usize>: Copy + Send + Sync {
    /// The operation's name in errors.
    const NAME: &'static str;

    /// Arithmetic operations for each element, for the simulated time.
    const FLOPS: f64;

    /// The range of each state; used for quantised states only.
    fn state_ranges(&self) -> [StateRange; STATES] {
        [StateRange::Signed; STATES]
    }

    /// The equivalent known norms, for devices that have kernels for known norms only.
    fn known(&self) -> Option<KnownNorms> {
        None
    }

    /// The values of an element; see [`super::UpdateFormula::element`].
    fn element<T: Float>(&self, parameter: T, gradient: T, states: [T; STATES]) -> [T; NORMS];
}

/// Reads parameter, gradient and states; writes the norms. The second destination, if any, holds
/// partial sums.
pub(super) struct Norms<F, const STATES: usize, const NORMS: usize> {
    pub(super) formula: F,
    pub(super) form: Form,
    pub(super) len: usize,
}

/// Largest number of operands of a formula: parameter, gradient and four states.
pub(super) const READS_MAX: usize = 6;

/// Largest number of partial sums of a norm on an NVIDIA device.
pub(super) const PARTIALS_MAX: usize = 1024;

impl<F, const STATES: usize, const NORMS: usize> Norms<F, STATES, NORMS>
where
    F: NormFormula<STATES, NORMS>,
{
    fn run<P: Element, G: Element, T: SimdFloat>(&self, cpu: &Cpu, operands: &mut Operands<'_>) {
        let (pool, formula) = (cpu.pool(), self.formula);
        let (parameter, gradient) = (operands.read::<P>(0), operands.read::<G>(1));
        let mut squares = [0.0; NORMS];
        if self.form.quantized {
            let states = std::array::from_fn(|k| operands.read::<u8>(2 + k).slice());
            let (parameter, gradient) = (parameter.slice(), gradient.slice());
            let run = cpu::NormRun { formula, parameter, gradient };
            squares = run.squares_quantized::<T, STATES, NORMS>(pool, states);
        } else {
            let states: [_; STATES] = std::array::from_fn(|k| operands.read::<T>(2 + k));
            let layout_of = |index: usize| match index {
                0 => *parameter.layout(),
                1 => *gradient.layout(),
                _ => states.get(index - 2).map_or(*parameter.layout(), |state| *state.layout()),
            };
            let layouts: [Layout; READS_MAX] = std::array::from_fn(layout_of);
            let nest = Nest::new(layouts[0].shape(), layouts.each_ref().map(Layout::strides));
            nest.runs(self.len, |starts, len| {
                let run = cpu::NormRun {
                    formula,
                    parameter: &parameter.data()[starts[0]..][..len],
                    gradient: &gradient.data()[starts[1]..][..len],
                };
                let states = std::array::from_fn(|k| &states[k].data()[starts[2 + k]..][..len]);
                let of_run = run.squares::<T, STATES, NORMS>(pool, states);
                squares.iter_mut().zip(of_run).for_each(|(sum, square)| *sum += square);
            });
        }
        let norms = operands.write::<T>(0).slice();
        norms.iter_mut().zip(squares).for_each(|(norm, sum)| *norm = T::from_f64(sum.sqrt()));
    }
}

impl<F, const STATES: usize, const NORMS: usize> FullKernel for Norms<F, STATES, NORMS>
where
    F: NormFormula<STATES, NORMS>,
{
    fn name(&self) -> &'static str {
        F::NAME
    }

    fn cost(&self) -> Cost {
        let [parameter, gradient] = self.form.dtypes.map(DType::size_bytes);
        let state = self.form.state_dtype().size_bytes();
        let bytes = self.len * (parameter + gradient + STATES * state);
        let flops = (F::FLOPS + 2.0 * NORMS as f64) * self.len as f64;
        Cost { class: OpClass::Update, flops, bytes: bytes as f64 }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_update!(self.form.dtypes, self.run(cpu, operands));
        Ok(())
    }
}

impl Tensor {
    /// The Euclidean norms of the `NORMS` values that `formula` computes for each element of
    /// `self`, a parameter, its gradient and its states. Types and shapes are as in
    /// [`Tensor::update_`]. Sums are in f64 and do not depend on the number of threads.
    ///
    /// # Shapes
    /// `[..] → [NORMS]`, of f64 for a parameter of f64, else of f32
    ///
    /// # Errors
    /// The errors of [`Tensor::update_`] for operands that do not match, `OutOfMemory`; `NoKernel`
    /// on an NVIDIA device for all but [`KnownNorms`].
    #[track_caller]
    pub fn update_norms<const STATES: usize, const NORMS: usize>(
        &self,
        gradient: &Tensor,
        states: &[Tensor; STATES],
        formula: impl NormFormula<STATES, NORMS>,
    ) -> Result<Tensor> {
        const { assert!(STATES + 2 <= READS_MAX, "too many states") };
        let form = Form::of(formula_name(&formula), self, gradient, states, &[])?;
        let device = self.device();
        let norms = Tensor::empty(device, [NORMS], self.dtype().computed())?;
        let partials = match update_norms_workspace_len(device, NORMS) {
            0 => Workspace::none(),
            len => Workspace::new(DType::F64, [len]),
        };
        let kernel = Norms { formula, form, len: self.element_count() };
        let reads: Vec<&Tensor> = [self, gradient].into_iter().chain(states).collect();
        device.launch_with(&partials, kernel, &reads, &[&norms])?;
        Ok(norms)
    }
}

/// Length of the f64 workspace that [`Tensor::update_norms`] needs to compute `norms` norms.
pub fn update_norms_workspace_len(device: &Device, norms: usize) -> usize {
    if device.kind() == DeviceKind::Cuda { norms * PARTIALS_MAX } else { 0 }
}

fn formula_name<F: NormFormula<STATES, NORMS>, const STATES: usize, const NORMS: usize>(
    _: &F,
) -> &'static str {
    F::NAME
}
