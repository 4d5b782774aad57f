//! The launch of an update: the operands of several tensors as one job.

use half::{bf16, f16};

use super::{Form, Rounding, STATES_MAX, UpdateFormula, cpu, for_update};
use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::cpu::math::SimdFloat;
use crate::dtype::{DType, Element};
use crate::error::Result;
use crate::launch::{FullKernel, Operands};
use crate::layout::{Layout, Nest};

/// Largest number of pointers of a launch on an NVIDIA device: parameter, gradient, states and
/// scalars of each tensor. Pointers and lengths together fill the driver's argument space.
pub(super) const POINTERS_MAX: usize = 328;
/// Largest number of tensors whose lengths fit a launch, beside the pointers.
pub(super) const TENSORS_MAX: usize = 82;

/// Reads gradient and scalars, writes parameter and states, item by item.
pub(super) struct Update<F, const STATES: usize, const SCALARS: usize> {
    pub(super) form: Form,
    pub(super) items: Vec<Item<F>>,
}

pub(super) struct Item<F> {
    pub(super) formula: F,
    pub(super) rounding: Rounding,
    pub(super) len: usize,
}

type Parts<'a, F, P, G, T, X, const STATES: usize, const SCALARS: usize> =
    (Vec<cpu::Run<'a, F, G, T, SCALARS>>, Vec<cpu::Written<'a, P, X, STATES>>);

impl<F, const STATES: usize, const SCALARS: usize> Update<F, STATES, SCALARS>
where
    F: UpdateFormula<STATES, SCALARS>,
{
    /// Largest number of tensors in a launch on an NVIDIA device.
    pub(super) const ITEMS_MAX: usize = {
        let by_pointers = POINTERS_MAX / (2 + STATES + SCALARS);
        if by_pointers < TENSORS_MAX { by_pointers } else { TENSORS_MAX }
    };

    fn run<P: Element, G: Element, T: SimdFloat>(&self, cpu: &Cpu, operands: &mut Operands<'_>) {
        if !self.form.is_contiguous {
            self.run_strided::<P, G, T>(cpu, operands);
        } else if self.form.quantized {
            let (runs, written) = self.parts::<P, G, T, u8>(operands);
            cpu::update_quantized(cpu.pool(), &runs, written);
        } else {
            let (runs, written) = self.parts::<P, G, T, T>(operands);
            cpu::update(cpu.pool(), &runs, written);
        }
    }

    /// The operands of contiguous items, with states in `X`.
    fn parts<'a, P: Element, G: Element, T: SimdFloat, X: Element>(
        &self,
        operands: &mut Operands<'a>,
    ) -> Parts<'a, F, P, G, T, X, STATES, SCALARS> {
        let of_item = |(index, item): (usize, &Item<F>)| {
            let (reads, writes) = (index * (1 + SCALARS), index * (1 + STATES));
            let run = cpu::Run {
                formula: item.formula,
                rounding: item.rounding,
                scalars: std::array::from_fn(|k| operands.read(reads + 1 + k).data()[0]),
                first: 0,
                gradient: operands.read(reads).slice(),
            };
            let parameter = operands.write(writes).slice();
            (run, (parameter, std::array::from_fn(|k| operands.write(writes + 1 + k).slice())))
        };
        self.items.iter().enumerate().map(of_item).unzip()
    }

    /// [`Update::run`] for a launch with a single item: one contiguous run after the other.
    fn run_strided<P: Element, G: Element, T: SimdFloat>(
        &self,
        cpu: &Cpu,
        operands: &mut Operands<'_>,
    ) {
        let [Item { formula, rounding, len }] = self.items[..] else {
            unreachable!("strided operands have a launch of their own")
        };
        let gradient = operands.read::<G>(0);
        let scalars = std::array::from_fn(|k| operands.read::<T>(1 + k).data()[0]);
        let mut parameter = operands.write::<P>(0);
        let mut states: [_; STATES] = std::array::from_fn(|k| operands.write::<T>(1 + k));
        // All layouts have one shape. Their number is a constant, because the nest needs a
        // constant.
        let layout_of = |index: usize| match index {
            0 => *parameter.layout(),
            1 => *gradient.layout(),
            _ => states.get(index - 2).map_or(*parameter.layout(), |state| *state.layout()),
        };
        let layouts: [Layout; 2 + STATES_MAX] = std::array::from_fn(layout_of);
        let nest = Nest::new(layouts[0].shape(), layouts.each_ref().map(Layout::strides));
        let mut first = 0;
        nest.runs(len, |starts, len| {
            let mut rest = states.iter_mut().zip(&starts[2..]);
            let states = std::array::from_fn(|_| {
                let (state, &start) = rest.next().expect("as many as states");
                &mut state.data()[start..][..len]
            });
            let gradient = &gradient.data()[starts[1]..][..len];
            let run = cpu::Run { formula, rounding, scalars, first, gradient };
            let parameter = &mut parameter.data()[starts[0]..][..len];
            cpu::update(cpu.pool(), &[run], vec![(parameter, states)]);
            first += len as u64;
        });
    }
}

impl<F, const STATES: usize, const SCALARS: usize> FullKernel for Update<F, STATES, SCALARS>
where
    F: UpdateFormula<STATES, SCALARS>,
{
    fn name(&self) -> &'static str {
        F::NAME
    }

    fn cost(&self) -> Cost {
        let len: usize = self.items.iter().map(|item| item.len).sum();
        let [parameter, gradient] = self.form.dtypes.map(DType::size_bytes);
        let state = self.form.state_dtype().size_bytes();
        let bytes = len * (2 * parameter + gradient + 2 * STATES * state);
        Cost { class: OpClass::Update, flops: F::FLOPS * len as f64, bytes: bytes as f64 }
    }

    fn cpu(self, cpu: &Cpu, operands: &mut Operands<'_>) -> Result<()> {
        for_update!(self.form.dtypes, self.run(cpu, operands));
        Ok(())
    }
}
