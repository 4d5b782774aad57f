//! The ways of dividing a training among ranks, side by side.

use std::io::{self, Write as _};

use lowtide_trainer::{Fit, Parallelism, Plan, Result, TrainError};
use serde_json::{Value, json};

use crate::command::say;
use crate::human::{format_bytes, format_seconds};
use crate::json::with_knobs;
use crate::recipe::RecipeTrainer;

/// What each way comes to; nothing for one rank.
#[derive(Default)]
pub(super) struct Ways(Vec<Way>);

/// A way of dividing a training among ranks.
struct Way {
    zero: Parallelism,
    /// The plan within the budget and the bytes that a rank sends in a step, or the least bytes
    /// that it needs.
    plan: std::result::Result<(Plan, usize), usize>,
}

impl Way {
    /// Simulated time of a step, if it fits.
    fn seconds(&self) -> Option<f64> {
        self.plan.as_ref().ok().map(|(plan, _)| plan.forecast.step_seconds)
    }
}

impl Ways {
    /// Those that the optimizer allows, within a budget.
    ///
    /// # Errors
    /// Those of a plan but `DoesNotFit`.
    pub(super) fn of(
        budget_bytes: usize,
        fit: &Fit<'_>,
        trainer_of: impl Fn(Parallelism) -> Result<RecipeTrainer>,
    ) -> Result<Ways> {
        let mut ways = Vec::new();
        for zero in Parallelism::OF_SHARED_BATCHES {
            let mut trainer = trainer_of(zero)?;
            if zero != Parallelism::DataParallel && !trainer.optimizer().can_update_parts() {
                continue;
            }
            trainer.device().allocator().set_capacity(budget_bytes);
            let planned = trainer.plan_run(fit, &Default::default()).map(|plan| {
                let sent_bytes = trainer.sent_bytes(&plan);
                (plan, sent_bytes)
            });
            ways.push(Way { zero, plan: or_needed(planned)? });
        }
        Ok(Ways(ways))
    }

    /// Those in which ranks share a model instead of batches, as far as it can be shared: `plan`
    /// gives what is planned and the bytes that a rank sends in a step.
    ///
    /// # Errors
    /// Those of `plan` but `DoesNotFit`.
    pub(super) fn add_those_of_one_model(
        &mut self,
        plan: impl Fn(Parallelism) -> Result<Option<(Plan, usize)>>,
    ) -> Result<()> {
        for zero in [Parallelism::Pipeline, Parallelism::TensorParallel] {
            if let Some(planned) = plan(zero).transpose() {
                self.0.push(Way { zero, plan: or_needed(planned)? });
            }
        }
        Ok(())
    }

    /// Says on the error stream which way fits that has to be asked for, where no other one does.
    pub(super) fn hint(&self) {
        if self.fastest().is_some() {
            return;
        }
        let fitting = self.0.iter().filter(|way| way.plan.is_ok());
        for flag in fitting.filter_map(|way| flag_of(way.zero)) {
            drop(writeln!(io::stderr(), "note: it fits with {flag}"));
        }
    }

    /// The one whose steps are shortest, of those that fit and in which ranks share batches; of
    /// equal ones that which divides least.
    pub(super) fn fastest(&self) -> Option<Parallelism> {
        let sharing =
            self.0.iter().filter(|way| Parallelism::OF_SHARED_BATCHES.contains(&way.zero));
        let fitting = sharing.filter_map(|way| Some((way.zero, way.seconds()?)));
        let fastest = fitting.min_by(|(_, own), (_, other)| own.total_cmp(other));
        fastest.map(|(zero, _)| zero)
    }

    /// Prints them, `chosen` with a mark; times in seconds if they are measured.
    pub(super) fn tell(&self, chosen: Parallelism, is_measured: bool) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let exact = |bytes: usize| format!("{} ({bytes} bytes)", format_bytes(bytes as u64));
        let name_of = |zero: Parallelism| {
            let what = zero.divided().unwrap_or("nothing");
            flag_of(zero).map_or_else(|| what.to_owned(), |flag| format!("{what} ({flag})"))
        };
        let names = self.0.iter().map(|way| name_of(way.zero).len());
        let width = names.max().unwrap_or(0);
        say("")?;
        say(&format!(
            "{:<width$}  {:<32}{:<14}{:<9}{}",
            "divided among the ranks", "peak of each", "sends a step", "time", "plan"
        ))?;
        let seconds = self.0.iter().filter_map(Way::seconds);
        let least_seconds = seconds.fold(f64::INFINITY, f64::min);
        for way in &self.0 {
            let Way { zero, plan } = way;
            let (peak, sent, knobs) = match plan {
                Ok((plan, sent_bytes)) => {
                    let sent = format_bytes(*sent_bytes as u64);
                    (plan.predicted_peak_bytes(), sent, plan.knobs.to_string())
                }
                Err(needed_bytes) => (*needed_bytes, "-".to_owned(), "does not fit".to_owned()),
            };
            let mark = if *zero == chosen { "  <- plan" } else { "" };
            let (what, peak) = (name_of(*zero), exact(peak));
            let time = match way.seconds() {
                None => "-".to_owned(),
                Some(seconds) if is_measured => format_seconds(seconds),
                Some(seconds) => format!("{:.2}", seconds / least_seconds),
            };
            say(&format!("{what:<width$}  {peak:<32}{sent:<14}{time:<9}{knobs}{mark}"))?;
        }
        Ok(())
    }

    pub(super) fn to_json(&self) -> Value {
        let fastest = self.0.iter().filter_map(Way::seconds).fold(f64::INFINITY, f64::min);
        let ways = self.0.iter().map(|Way { zero, plan }| match plan {
            Ok((plan, sent_bytes)) => with_knobs(
                plan.knobs,
                json!({
                    "zero": zero,
                    "predicted_peak_bytes": plan.predicted_peak_bytes(),
                    "sent_bytes": sent_bytes,
                    "relative_time": plan.forecast.step_seconds / fastest,
                }),
            ),
            Err(needed_bytes) => json!({
                "zero": zero,
                "needed_bytes": needed_bytes,
            }),
        });
        ways.collect()
    }
}

/// What was planned, or the bytes that it needs if it does not fit.
///
/// # Errors
/// Those of a plan but `DoesNotFit`.
fn or_needed<P>(planned: Result<P>) -> Result<std::result::Result<P, usize>> {
    match planned {
        Err(TrainError::DoesNotFit(error)) => Ok(Err(error.needed_bytes)),
        planned => planned.map(Ok),
    }
}

/// The flag of a way that is taken only where it is asked for.
fn flag_of(zero: Parallelism) -> Option<&'static str> {
    match zero {
        Parallelism::Pipeline => Some("--pipeline"),
        Parallelism::TensorParallel => Some("--tensor-parallel"),
        Parallelism::DataParallel
        | Parallelism::Zero1
        | Parallelism::Zero2
        | Parallelism::Zero3 => None,
    }
}
