//! `lowtide plan --longest`.

use lowtide_trainer::{Plan, Result, lock_pages};
use serde_json::{Value, json};

use super::PlanArgs;
use super::budgets::{BudgetPlanner, FittingPlan, WithinBudget};
use crate::command::device::Simulated;
use crate::command::say;
use crate::human::{exact_bytes, format_bytes};
use crate::json::with_knobs;

/// A budget, with the tokens and the plan of the longest rows that fit.
type Longest = (usize, Option<(usize, Plan)>);

/// Prints the longest rows that fit each budget in one line. Returns true if every budget fits
/// some.
pub(super) fn run(arguments: &PlanArgs) -> Result<bool> {
    let of_rank = arguments.device.of_rank(arguments.planning.first_rank())?;
    of_rank.check_budgets()?;
    let limit = arguments.model.context_max(&arguments.recipe)?;
    let Simulated { device: sim, .. } = of_rank.open_simulated(of_rank.process_budget())?;
    let host = arguments.planning.open_simulated_host(&arguments.device)?;
    let planner = BudgetPlanner::new(arguments, &sim, host.as_ref());
    let mut rows = Vec::new();
    for &budget_bytes in &arguments.device.budgets {
        let plan_of = |context: usize| -> Result<WithinBudget> {
            let recipe = arguments.model.recipe_of(&arguments.recipe, Some(context))?;
            let mut data = recipe.open_share(arguments.planning.first_reader())?;
            lock_pages(&mut data.train, &sim)?;
            planner.plan(budget_bytes, &recipe, &data)
        };
        rows.push((budget_bytes, longest_that_fits(limit, plan_of)?));
    }
    let fits = rows.iter().all(|(_, found)| found.is_some());
    if arguments.json {
        let rows = rows.iter().map(row_json).collect::<Vec<_>>();
        say(&json!({ "fits": fits, "limit": limit, "longest": rows }).to_string())?;
        return Ok(fits);
    }
    say(&format!("the longest rows that fit, of {limit} tokens at most"))?;
    say("")?;
    say("budget       tokens   peak                             plan")?;
    rows.iter().try_for_each(|row| say(&row_line(row)))?;
    Ok(fits)
}

fn row_json((budget_bytes, found): &Longest) -> Value {
    match found {
        Some((context, plan)) => with_knobs(
            plan.knobs,
            json!({
                "budget_bytes": budget_bytes,
                "context": context,
                "predicted_peak_bytes": plan.predicted_peak_bytes(),
            }),
        ),
        None => json!({ "budget_bytes": budget_bytes, "context": null }),
    }
}

fn row_line((budget_bytes, found): &Longest) -> String {
    let budget = format_bytes(*budget_bytes as u64);
    match found {
        Some((context, plan)) => {
            let peak = exact_bytes(plan.predicted_peak_bytes());
            format!("{budget:<12} {context:<8} {peak:<32} {}", plan.knobs)
        }
        None => format!("{budget:<12} none fits, not even of one token"),
    }
}

/// The largest number from 1 to `limit` that has a plan, and the plan. If longer rows fit, shorter
/// rows fit too.
///
/// # Errors
/// Errors of `plan_of`.
fn longest_that_fits(
    limit: usize,
    plan_of: impl Fn(usize) -> Result<WithinBudget>,
) -> Result<Option<(usize, Plan)>> {
    if let Ok(FittingPlan { plan, .. }) = plan_of(limit)? {
        return Ok(Some((limit, plan)));
    }
    let (mut found, mut within, mut over) = (None, 0, limit);
    while over - within > 1 {
        let middle = within.midpoint(over);
        match plan_of(middle)? {
            Ok(FittingPlan { plan, .. }) => (found, within) = (Some((middle, plan)), middle),
            Err(_) => over = middle,
        }
    }
    Ok(found)
}
