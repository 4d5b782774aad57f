//! Plans that all stages have in common.

use lowtide_ranks::Collectives;

use crate::agreement::{Ranks, agree};
use crate::error::Result;
use crate::knobs::Knobs;
use crate::plan::Plan;

/// The knobs of a stage, in the largest micro-batches that all of them take.
///
/// # Errors
/// `Ranks`.
pub(crate) fn common_micro_batch(ranks: &dyn Collectives, own: Knobs) -> Result<Knobs> {
    let said = ranks.exchange(&(own.micro_batch as u64).to_le_bytes())?;
    let sizes = said.iter().filter_map(|words| words.as_slice().try_into().ok());
    let least = sizes.map(|words| u64::from_le_bytes(words) as usize).min();
    Ok(Knobs { micro_batch: least.map_or(own.micro_batch, |least| least.max(1)), ..own })
}

/// A plan of each stage, of which all have the same micro-batches, of at most `size_max` samples:
/// `find` makes one in micro-batches of at most so many.
///
/// # Errors
/// The own error of a plan; `Ranks` for that of another stage.
pub(crate) fn common_plan(
    ranks: Ranks<'_>,
    mut size_max: usize,
    find: impl Fn(usize) -> Result<Plan>,
) -> Result<Plan> {
    let Some(ranks) = ranks else { return find(size_max) };
    loop {
        let plan = agree(Some(ranks), find(size_max))?;
        let own = plan.knobs.micro_batch;
        let common = common_micro_batch(ranks, plan.knobs)?.micro_batch;
        let is_common = ranks.exchange(&[u8::from(own == common)])?;
        if is_common.iter().all(|said| said == &[1]) {
            return Ok(plan);
        }
        // Less each time, so that this comes to an end.
        size_max = common;
    }
}
