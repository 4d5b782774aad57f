//! The ways of dividing a training among ranks, side by side.

use serde_json::{Value, json};

use crate::command::say;
use crate::error::{Result, TrainError};
use crate::human::format_bytes;
use crate::json::with_knobs;
use crate::outline::Fit;
use crate::plan::Plan;
use crate::recipe::RecipeTrainer;
use crate::zero::Zero;

/// What each way comes to; nothing for one rank.
#[derive(Default)]
pub(super) struct Ways(Vec<Way>);

/// A way of dividing a training among ranks.
struct Way {
    zero: Zero,
    /// The plan within the budget, or the least bytes that it needs.
    plan: std::result::Result<Plan, usize>,
    /// Bytes that a rank sends in a step.
    sent_bytes: usize,
}

impl Ways {
    /// Those that the optimizer allows, within the budget of `plan`.
    ///
    /// # Errors
    /// Those of a plan but `DoesNotFit`.
    pub(super) fn of(
        plan: &Plan,
        fit: &Fit<'_>,
        trainer_of: impl Fn(Zero) -> Result<RecipeTrainer>,
    ) -> Result<Ways> {
        let mut ways = Vec::new();
        for zero in Zero::ALL {
            let mut trainer = trainer_of(zero)?;
            if zero != Zero::Off && !trainer.optimizer().can_update_parts() {
                continue;
            }
            trainer.device().allocator().set_capacity(plan.budget_bytes);
            let planned = match trainer.plan_for(fit) {
                Err(TrainError::DoesNotFit(error)) => Err(error.needed_bytes),
                planned => Ok(planned?),
            };
            let knobs = planned.as_ref().map_or(plan.knobs, |plan| plan.knobs);
            let parts = plan.batch_size.div_ceil(knobs.micro_batch.max(1));
            let sent_bytes = trainer.sent_bytes(parts);
            ways.push(Way { zero, plan: planned, sent_bytes });
        }
        Ok(Ways(ways))
    }

    /// Prints them, `chosen` with a mark.
    pub(super) fn tell(&self, chosen: Zero) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let exact = |bytes: usize| format!("{} ({bytes} bytes)", format_bytes(bytes as u64));
        let width = "the optimizer's states, gradients and parameters".len();
        say("")?;
        say(&format!(
            "{:<width$}  {:<32}{:<14}{}",
            "divided among the ranks", "peak of each", "sends a step", "plan"
        ))?;
        for Way { zero, plan, sent_bytes } in &self.0 {
            let (peak, knobs) = match plan {
                Ok(plan) => (plan.predicted_peak_bytes(), plan.knobs.to_string()),
                Err(needed_bytes) => (*needed_bytes, "does not fit".to_owned()),
            };
            let mark = if *zero == chosen { "  <- plan" } else { "" };
            let (what, peak) = (zero.divided().unwrap_or("nothing"), exact(peak));
            let sent = format_bytes(*sent_bytes as u64);
            say(&format!("{what:<width$}  {peak:<32}{sent:<14}{knobs}{mark}"))?;
        }
        Ok(())
    }

    pub(super) fn to_json(&self) -> Value {
        let ways = self.0.iter().map(|Way { zero, plan, sent_bytes }| match plan {
            Ok(plan) => with_knobs(
                plan.knobs,
                json!({
                    "zero": zero,
                    "predicted_peak_bytes": plan.predicted_peak_bytes(),
                    "sent_bytes": sent_bytes,
                }),
            ),
            Err(needed_bytes) => json!({
                "zero": zero,
                "needed_bytes": needed_bytes,
                "sent_bytes": sent_bytes,
            }),
        });
        ways.collect()
    }
}
