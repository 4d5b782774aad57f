//! Plans for each parallelism, side by side.

use std::io::{self, Write as _};

use lowtide_trainer::{Fit, Parallelism, Plan, PlanOptions, Result, TrainError};
use serde_json::{Value, json};

use crate::command::capacity::Capacity;
use crate::command::rows::Row;
use crate::human::{exact_bytes, format_bytes, format_seconds};
use crate::json::with_knobs;
use crate::recipe::RecipeTrainer;

/// A plan for each parallelism; empty for one rank.
#[derive(Default)]
pub(super) struct ParallelismTable(Vec<ParallelPlan>);

/// A plan of a training with one parallelism.
struct ParallelPlan {
    zero: Parallelism,
    /// The plan within the budget, and the bytes that a rank sends in a step. If none fits, the
    /// bytes that the smallest plan needs.
    plan: std::result::Result<(Plan, usize), usize>,
}

impl ParallelPlan {
    /// Simulated seconds of a step, if the plan fits.
    fn seconds(&self) -> Option<f64> {
        self.plan.as_ref().ok().map(|(plan, _)| plan.forecast.step_seconds)
    }
}

impl ParallelismTable {
    /// Plans within a capacity, for each parallelism that shares batches and that the optimizer
    /// supports.
    ///
    /// # Errors
    /// Errors of a plan except `DoesNotFit`.
    pub(super) fn of(
        capacity: Capacity,
        fit: &Fit<'_>,
        trainer_of: impl Fn(Parallelism) -> Result<RecipeTrainer>,
    ) -> Result<ParallelismTable> {
        let mut plans = Vec::new();
        for zero in Parallelism::OF_SHARED_BATCHES {
            let mut trainer = trainer_of(zero)?;
            if zero != Parallelism::DataParallel && !trainer.optimizer().can_update_parts() {
                continue;
            }
            let planned = capacity.plan(&mut trainer, fit, &PlanOptions::default());
            let planned = planned.map(|(plan, _)| {
                let sent_bytes = trainer.sent_bytes(&plan);
                (plan, sent_bytes)
            });
            plans.push(ParallelPlan { zero, plan: or_needed(planned)? });
        }
        Ok(ParallelismTable(plans))
    }

    /// Adds the plans in which ranks share a model instead of batches, if the model can be shared.
    /// `plan` returns the plan and the bytes that a rank sends in a step.
    ///
    /// # Errors
    /// Errors of `plan` except `DoesNotFit`.
    pub(super) fn add_those_of_one_model(
        &mut self,
        plan: impl Fn(Parallelism) -> Result<Option<(Plan, usize)>>,
    ) -> Result<()> {
        for zero in [Parallelism::Pipeline, Parallelism::TensorParallel] {
            if let Some(planned) = plan(zero).transpose() {
                self.0.push(ParallelPlan { zero, plan: or_needed(planned)? });
            }
        }
        Ok(())
    }

    /// Prints the flags of the plans that fit to the error stream, if no plan without a flag fits.
    pub(super) fn hint(&self) {
        if self.fastest().is_some() {
            return;
        }
        let fitting = self.0.iter().filter(|of| of.plan.is_ok());
        for flag in fitting.filter_map(|of| flag_of(of.zero)) {
            drop(writeln!(io::stderr(), "note: it fits with {flag}"));
        }
    }

    /// The parallelism with the shortest steps among the plans that fit and share batches. On ties,
    /// the parallelism that divides least.
    pub(super) fn fastest(&self) -> Option<Parallelism> {
        let sharing = self.0.iter().filter(|of| of.zero.shares_batches());
        let fitting = sharing.filter_map(|of| Some((of.zero, of.seconds()?)));
        let fastest = fitting.min_by(|(_, own), (_, other)| own.total_cmp(other));
        fastest.map(|(zero, _)| zero)
    }

    /// The table with a mark at `chosen`. Times are in seconds if rates were measured.
    pub(super) fn row(&self, chosen: Parallelism, is_measured: bool) -> Row {
        Row::block(self.lines(chosen, is_measured)).with("ways", self.to_json())
    }

    fn lines(&self, chosen: Parallelism, is_measured: bool) -> Vec<String> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let name_of = |zero: Parallelism| {
            let what = zero.divided().unwrap_or("nothing");
            flag_of(zero).map_or_else(|| what.to_owned(), |flag| format!("{what} ({flag})"))
        };
        let names = self.0.iter().map(|of| name_of(of.zero).len());
        let width = names.max().unwrap_or(0);
        let head = format!(
            "{:<width$}  {:<32}{:<14}{:<9}{}",
            "divided among the ranks", "peak of each", "sends a step", "time", "plan"
        );
        let seconds = self.0.iter().filter_map(ParallelPlan::seconds);
        let least_seconds = seconds.fold(f64::INFINITY, f64::min);
        let rows = self.0.iter().map(|of| {
            let ParallelPlan { zero, plan } = of;
            let (peak, sent, knobs) = match plan {
                Ok((plan, sent_bytes)) => {
                    let sent = format_bytes(*sent_bytes as u64);
                    (plan.predicted_peak_bytes(), sent, plan.knobs.to_string())
                }
                Err(needed_bytes) => (*needed_bytes, "-".to_owned(), "does not fit".to_owned()),
            };
            let mark = if *zero == chosen { "  <- plan" } else { "" };
            let (what, peak) = (name_of(*zero), exact_bytes(peak));
            let time = match of.seconds() {
                None => "-".to_owned(),
                Some(seconds) if is_measured => format_seconds(seconds),
                Some(seconds) => format!("{:.2}", seconds / least_seconds),
            };
            format!("{what:<width$}  {peak:<32}{sent:<14}{time:<9}{knobs}{mark}")
        });
        [String::new(), head].into_iter().chain(rows).collect()
    }

    fn to_json(&self) -> Value {
        let fastest = self.0.iter().filter_map(ParallelPlan::seconds).fold(f64::INFINITY, f64::min);
        let plans = self.0.iter().map(|ParallelPlan { zero, plan }| match plan {
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
        plans.collect()
    }
}

/// The plan, or the needed bytes if it does not fit.
///
/// # Errors
/// Errors of a plan except `DoesNotFit`.
fn or_needed<P>(planned: Result<P>) -> Result<std::result::Result<P, usize>> {
    match planned {
        Err(TrainError::DoesNotFit(error)) => Ok(Err(error.needed_bytes)),
        planned => planned.map(Ok),
    }
}

/// The flag of a parallelism that is only used on request.
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
