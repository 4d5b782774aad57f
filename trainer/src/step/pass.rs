//! Training passes, and the sum of the terms of a loss.

use lowtide_autograd::{Attempt, Pass, Var};
use lowtide_nn::Loss;
use lowtide_tensor::{Device, RandomKey};

use crate::error::{Result, TrainError};
use crate::precision::Precision;
use crate::step::turn::ModelTurn;

/// Properties that the passes of a step share.
#[derive(Clone, Copy)]
pub(crate) struct PassOptions<'a> {
    pub(crate) device: &'a Device,
    /// The run's random key at this step.
    pub(crate) key: RandomKey,
    pub(crate) precision: Precision,
}

impl PassOptions<'_> {
    /// A training pass over the samples of the logical batch from `first_sample` on. Each turn
    /// draws its own random numbers.
    pub(crate) fn pass(&self, attempt: &Attempt, turn: &ModelTurn, first_sample: usize) -> Pass {
        let key = turn.model().map_or(self.key, |model| self.key.op(model));
        let mut pass = Pass::train(key, attempt).with_first_sample(first_sample as u64);
        pass = pass.with_device(self.device);
        if let Some(turn) = turn.of_pass() {
            pass = pass.with_turn(turn.clone());
        }
        match self.precision.casts() {
            Some(casts) => pass.with_casts(casts),
            None => pass,
        }
    }
}

/// Joins the terms of a loss into one sum, to be divided by `count`. Each term is weighted for its
/// own count; a term whose count is 0 adds nothing.
///
/// # Errors
/// `Setting` unless each term has a count; `OutOfMemory`.
pub(crate) fn joined(terms: Vec<Loss>, counts: &[f64], count: f64) -> Result<Var> {
    if terms.is_empty() || terms.len() != counts.len() {
        return Err(TrainError::Setting {
            place: "task".to_owned(),
            problem: format!(
                "has {} terms of the loss and {} counts of them",
                terms.len(),
                counts.len()
            ),
        });
    }
    let mut sum: Option<Var> = None;
    for (term, &own) in terms.into_iter().zip(counts) {
        let term = match own {
            own if own == count => term.sum,
            own if own > 0.0 => term.sum.mul_scalar(count / own)?,
            _ => term.sum.mul_scalar(0.0)?,
        };
        sum = Some(match sum {
            Some(sum) => sum.add(term)?,
            None => term,
        });
    }
    Ok(sum.expect("one term or more"))
}
