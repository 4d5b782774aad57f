//! Reductions in one or two passes over fixed chunks of outputs and of the reduced range.

use super::fold::{Fold, Folding, Reducible};
use super::plan::Tasks;
use crate::cpu::Cpu;
use crate::cpu::arithmetic::Arithmetic;
use crate::cpu::chunk::for_each_chunk;
use crate::cpu::math::SimdFloat;
use crate::dtype::Element;
use crate::operand_view::View;

/// Outputs of a task that finishes results.
const CHUNK_LEN: usize = 1 << 12;

/// The step from an output's accumulated value `a` to the output; `c` is its center.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Finish {
    /// `a`
    Keep,
    /// `a / divisor`
    Divide(f64),
    /// `√(a / divisor)`
    Root(f64),
    /// `a^exponent`
    Power(f64),
    /// `c + ln a`
    Log,
    /// True if `a` is at least this number.
    AtLeast(f64),
}

impl Finish {
    #[inline(always)]
    fn apply<A: Element, O: Element>(self, a: A, center: impl FnOnce() -> f64) -> O {
        match self {
            Finish::Keep => a.cast(),
            Finish::Divide(divisor) => O::from_f64(a.to_f64() / divisor),
            Finish::Root(divisor) => O::from_f64((a.to_f64() / divisor).sqrt()),
            Finish::Power(exponent) => O::from_f64(a.to_f64().powf(exponent)),
            Finish::Log => O::from_f64(center() + a.to_f64().ln()),
            Finish::AtLeast(least) => O::from_i64((a.to_f64() >= least).into()),
        }
    }
}

/// The center of each output, which the first of two passes computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Center {
    Mean,
    /// The largest element, or 0 if it is infinite.
    Max,
}

/// Writes the partial results of `fold`, in the layout of [`Tasks::pieces`].
pub(super) fn fold<E: Element<Compute = T>, T: Reducible>(
    cpu: &Cpu,
    plan: &Tasks,
    fold: Fold,
    x: View<'_, E>,
    partials: &mut [T::Accumulator],
    centers: &[T::Accumulator],
) {
    let mut tasks = plan.pieces(partials);
    for_each_chunk(cpu.pool(), &mut tasks, 1, |index, task| {
        let sums = &mut *task[0];
        sums.fill(fold.start());
        let (outputs, reduced) = plan.task(index);
        let centers = centers.get(outputs.clone()).unwrap_or_default();
        plan.walk::<E, T>(x.data(), (outputs, reduced), |block| {
            T::Registers::dispatch(Folding { fold, block, sums, centers });
        });
    });
}

/// The merged partial results of output `k`.
fn merged<A: Arithmetic>(plan: &Tasks, fold: Fold, partials: &[A], k: usize) -> A {
    (1..plan.parts()).fold(partials[k], |a, part| fold.merge(a, partials[part * plan.outputs + k]))
}

/// Computes the centers from the partial results of their pass.
pub(super) fn centers<A: Arithmetic>(
    cpu: &Cpu,
    plan: &Tasks,
    center: Center,
    partials: &[A],
    centers: &mut [A],
) {
    let fold = center.fold();
    for_each_chunk(cpu.pool(), centers, CHUNK_LEN, |index, chunk| {
        for (k, c) in (index * CHUNK_LEN..).zip(chunk) {
            let a = merged(plan, fold, partials, k);
            *c = match center {
                Center::Mean => A::from_f64(a.to_f64() / plan.reduced as f64),
                Center::Max if a.is_infinite() => A::ZERO,
                Center::Max => a,
            };
        }
    });
}

impl Center {
    pub(super) fn fold(self) -> Fold {
        if self == Center::Mean { Fold::Sum } else { Fold::Max }
    }
}

/// Computes the results from the partial results.
pub(super) fn finish<A: Arithmetic, O: Element>(
    cpu: &Cpu,
    plan: &Tasks,
    (fold, finish): (Fold, Finish),
    partials: &[A],
    centers: &[A],
    y: &mut [O],
) {
    for_each_chunk(cpu.pool(), y, CHUNK_LEN, |index, chunk| {
        for (k, y) in (index * CHUNK_LEN..).zip(chunk) {
            *y = finish.apply(merged(plan, fold, partials, k), || centers[k].to_f64());
        }
    });
}
