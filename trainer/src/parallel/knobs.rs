//! Knobs and plans that are the same on all ranks.

use lowtide_ranks::Collectives;

use crate::error::Result;
use crate::parallel::division::Wanted;
use crate::parallel::vote::agree;
use crate::plan::Plan;
use crate::plan::knobs::Knobs;

/// Knobs that need no more memory than the knobs of any rank. All ranks need common knobs if
/// gradients are summed as they are completed, or parameters are gathered as they are used, because
/// these calls must come in the same order on every rank.
///
/// # Errors
/// `Ranks`.
pub(crate) fn common_knobs(ranks: &dyn Collectives, own: Knobs) -> Result<Knobs> {
    let words = serde_json::to_vec(&own).expect("plain values");
    let said = ranks.exchange(&words)?;
    let others = said.iter().filter_map(|words| serde_json::from_slice::<Knobs>(words).ok());
    Ok(others.fold(own, |common, other| Knobs {
        micro_batch: common.micro_batch.min(other.micro_batch),
        cheap_recomputed: common.cheap_recomputed || other.cheap_recomputed,
        recomputed_blocks: common.recomputed_blocks.max(other.recomputed_blocks),
        blocks_at_once: common.blocks_at_once.max(other.blocks_at_once),
        offloaded_blocks: common.offloaded_blocks.max(other.offloaded_blocks),
        fused_update: false,
    }))
}

/// The knobs of this rank, in the largest micro-batch that every rank can take.
///
/// # Errors
/// `Ranks`.
pub(crate) fn common_micro_batch(ranks: &dyn Collectives, own: Knobs) -> Result<Knobs> {
    Ok(Knobs { micro_batch: smallest(ranks, own.micro_batch)?, ..own })
}

/// The smallest number of samples that a rank takes at once, 1 or more.
///
/// # Errors
/// `Ranks`.
pub(crate) fn smallest(ranks: &dyn Collectives, own: usize) -> Result<usize> {
    let said = ranks.exchange(&(own as u64).to_le_bytes())?;
    let sizes = said.iter().filter_map(|words| words.as_slice().try_into().ok());
    let smallest = sizes.map(|words| u64::from_le_bytes(words) as usize).min();
    Ok(smallest.unwrap_or(own).max(1))
}

/// A plan with common knobs, which need no more memory than the knobs of any rank.
///
/// # Errors
/// The rank's own error of a plan; `Ranks` for an error of another rank.
pub(crate) fn plan_of_common_knobs(
    ranks: &dyn Collectives,
    size_max: usize,
    find: &dyn Fn(Wanted) -> Result<Plan>,
) -> Result<Plan> {
    let plan = agree(Some(ranks), find(Wanted::UpTo(size_max)))?;
    let common = common_knobs(ranks, plan.knobs)?;
    if is_said_by_all(ranks, plan.knobs == common)? {
        return Ok(plan);
    }
    agree(Some(ranks), find(Wanted::With(common)))
}

/// A plan of this rank whose micro-batches have the size that all ranks agree on.
///
/// # Errors
/// The rank's own error of a plan; `Ranks` for an error of another rank.
pub(crate) fn plan_of_common_micro_batches(
    ranks: &dyn Collectives,
    mut size_max: usize,
    find: &dyn Fn(Wanted) -> Result<Plan>,
) -> Result<Plan> {
    loop {
        let plan = agree(Some(ranks), find(Wanted::UpTo(size_max)))?;
        let own = plan.knobs.micro_batch;
        let common = common_micro_batch(ranks, plan.knobs)?.micro_batch;
        if is_said_by_all(ranks, own == common)? {
            return Ok(plan);
        }
        // The size falls in each round, so the loop ends.
        size_max = common;
    }
}

fn is_said_by_all(ranks: &dyn Collectives, own: bool) -> Result<bool> {
    let said = ranks.exchange(&[u8::from(own)])?;
    Ok(said.iter().all(|said| said == &[1]))
}
