//! The sums over alignments. State s of a target is a blank if s is even, and label `s / 2` if s is
//! odd. An alignment stays in a state, advances by one state, or skips a blank between different
//! labels.
//!
//! - α: the probability of all paths to state s at step t, including step t.
//! - β: the probability of all paths from state s at step t to the end, excluding step t.

use super::Sizes;
use crate::dtype::Element;
use crate::error::{Result, TensorError};
use crate::operand_view::View;

const NEVER: f64 = f64::NEG_INFINITY;

/// The operands. A row of the targets holds the labels of one sample.
pub(super) struct Batch<'a, E> {
    pub(super) sizes: Sizes,
    pub(super) targets: &'a [i64],
    pub(super) steps: &'a [i64],
    pub(super) lens: &'a [i64],
    pub(super) x: View<'a, E>,
}

/// `ln(exp(a) + exp(b) + exp(c))`
fn log_sum(parts: [f64; 3]) -> f64 {
    let max = parts[0].max(parts[1]).max(parts[2]);
    if max == NEVER {
        return NEVER;
    }
    max + parts.iter().map(|part| (part - max).exp()).sum::<f64>().ln()
}

impl<E: Element> Batch<'_, E> {
    /// Checks that all lengths, and the labels within the lengths, are in range.
    pub(super) fn check(&self) -> Result<()> {
        let Sizes { op, steps, classes, target_len_max, .. } = self.sizes;
        let within = |len: i64, max: usize| match usize::try_from(len) {
            Ok(len) if len <= max => Ok(len),
            _ => Err(TensorError::index(op, len as usize, max + 1)),
        };
        for (sample, (&step_count, &len)) in self.steps.iter().zip(self.lens).enumerate() {
            within(step_count, steps)?;
            let first = sample * target_len_max;
            for position in first..first + within(len, target_len_max)? {
                let label = self.targets[position];
                if usize::try_from(label).is_ok_and(|label| label < classes) {
                    continue;
                }
                return Err(TensorError::Label { op, position, label, class_count: classes });
            }
        }
        Ok(())
    }

    fn log_probability(&self, sample: usize, step: usize, class: usize) -> f64 {
        let strides = self.x.layout().strides();
        self.x.data()[step * strides[0] + sample * strides[1] + class * strides[2]].to_f64()
    }

    fn state_count(&self, sample: usize) -> usize {
        2 * self.lens[sample] as usize + 1
    }

    /// The class of a state.
    fn class(&self, sample: usize, state: usize) -> usize {
        match state % 2 {
            0 => self.sizes.blank,
            _ => self.targets[sample * self.sizes.target_len_max + state / 2] as usize,
        }
    }

    /// True if an alignment may advance from `state - 2` to `state`.
    fn skips(&self, sample: usize, state: usize) -> bool {
        state >= 2 && self.class(sample, state) != self.class(sample, state - 2)
    }

    /// The logarithm of the target's probability. Steps use the `row_count` rows of `alphas` in
    /// rotation. With a row for each step, `alphas` holds all α afterwards.
    pub(super) fn log_likelihood(
        &self,
        sample: usize,
        row_count: usize,
        alphas: &mut [f64],
    ) -> f64 {
        let (row, states) = (self.sizes.states(), self.state_count(sample));
        let steps = self.steps[sample] as usize;
        if steps == 0 {
            return if states == 1 { 0.0 } else { NEVER };
        }
        for step in 0..steps {
            let start = step % row_count * row;
            for state in 0..states {
                // The virtual state before the first step, which leads to the first two states.
                let before = |back: usize| match state.checked_sub(back) {
                    _ if step == 0 => {
                        if back == 0 && state < 2 {
                            0.0
                        } else {
                            NEVER
                        }
                    }
                    Some(from) => alphas[(step - 1) % row_count * row + from],
                    None => NEVER,
                };
                let two_back = if self.skips(sample, state) { before(2) } else { NEVER };
                let sum = log_sum([before(0), before(1), two_back]);
                let class = self.class(sample, state);
                alphas[start + state] = sum + self.log_probability(sample, step, class);
            }
        }
        let last = &alphas[(steps - 1) % row_count * row..][..states];
        let label = if states > 1 { last[states - 2] } else { NEVER };
        log_sum([last[states - 1], label, NEVER])
    }

    /// `dx[t, c] = -dy · Σ α · β / p` over the states of class c at step t, where p is the target's
    /// probability.
    pub(super) fn gradient(&self, sample: usize, dy: f64, scratch: &mut [f64], dx: &mut [E]) {
        let (row, states) = (self.sizes.states(), self.state_count(sample));
        let Sizes { steps: step_max, classes, .. } = self.sizes;
        let steps = self.steps[sample] as usize;
        dx.fill(E::ZERO);
        if dy == 0.0 {
            return;
        }
        let (alphas, betas) = scratch.split_at_mut(step_max * row);
        let likelihood = self.log_likelihood(sample, step_max, alphas);
        if likelihood == NEVER {
            dx[..steps * classes].fill(E::from_f64(f64::NAN));
            return;
        }
        let (mut beta, mut next) = betas.split_at_mut(row);
        for step in (0..steps).rev() {
            std::mem::swap(&mut beta, &mut next);
            for (state, beta) in beta.iter_mut().enumerate().take(states) {
                let after = |forth: usize| match state + forth {
                    _ if step + 1 == steps => {
                        if forth == 0 && state + 2 >= states {
                            0.0
                        } else {
                            NEVER
                        }
                    }
                    to if to < states => {
                        let class = self.class(sample, to);
                        next[to] + self.log_probability(sample, step + 1, class)
                    }
                    _ => NEVER,
                };
                let skips = state + 2 < states && self.skips(sample, state + 2);
                let two_forth = if skips { after(2) } else { NEVER };
                *beta = log_sum([after(0), after(1), two_forth]);
            }
            self.add_step(sample, dy, likelihood, [&alphas[step * row..], beta], {
                &mut dx[step * classes..][..classes]
            });
        }
    }

    /// Writes the gradient of one step from its α and β.
    fn add_step(
        &self,
        sample: usize,
        dy: f64,
        likelihood: f64,
        [alpha, beta]: [&[f64]; 2],
        dx: &mut [E],
    ) {
        for state in 0..self.state_count(sample) {
            let share = (alpha[state] + beta[state] - likelihood).exp();
            let class = self.class(sample, state);
            dx[class] = E::from_f64(dx[class].to_f64() - dy * share);
        }
    }
}
