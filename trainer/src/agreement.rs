//! What the ranks of a training agree on, and what they add up.
//!
//! Each rank has a share of the logical batch. It counts, computes and prepares on its own, and
//! after each of these votes, so that a step is a transaction over all ranks: one that fails before
//! COMMIT makes all of them roll back. If it can recover it tries again, as the others do; if it
//! gives up it tells them.

use lowtide_nn::optim::Stateful;
use lowtide_ranks::{Collectives, Mirror, RanksError, all_reduce_each, vote};

use crate::error::{Result, TrainError};
use crate::leaves::{Computed, add_counts, summed};
use crate::task::Task;
use crate::trainer::Trainer;

/// The other ranks, if there are any.
pub(crate) type Ranks<'a> = Option<&'a dyn Collectives>;

/// The own result, if every rank has one.
///
/// # Errors
/// The own error; `Ranks` for that of another rank.
pub fn agree<T>(ranks: Ranks<'_>, own: Result<T>) -> Result<T> {
    let Some(ranks) = ranks else { return own };
    let problem = own.as_ref().err().map(TrainError::one_line);
    let verdict = vote(ranks, problem.as_deref().map_or(Ok(()), Err));
    let value = own?;
    verdict?;
    Ok(value)
}

/// The counts of all ranks together.
///
/// # Errors
/// `Setting` if they count differently many terms of a loss; `Ranks`.
pub(crate) fn counted_together(ranks: Ranks<'_>, own: Vec<f64>) -> Result<Vec<f64>> {
    let Some(ranks) = ranks else { return Ok(own) };
    let words: Vec<u8> = own.iter().flat_map(|count| count.to_le_bytes()).collect();
    let mut of_ranks = Vec::new();
    for (rank, words) in ranks.exchange(&words)?.into_iter().enumerate() {
        let counts = words.chunks_exact(8).map(|word| word.try_into().map(f64::from_le_bytes));
        let counts: Vec<f64> = counts.map(|count| count.expect("eight bytes")).collect();
        if counts.len() != own.len() {
            let problem = format!(
                "rank {rank} has {} terms of the loss, this one {}",
                counts.len(),
                own.len()
            );
            return Err(TrainError::Setting { place: "task".to_owned(), problem });
        }
        of_ranks.push(counts);
    }
    let of_rank = &mut |rank: usize| Ok(of_ranks[rank].clone());
    summed(0..of_ranks.len(), of_rank, &|sum, counts| add_counts(sum, &counts))
}

/// Adds up losses and gradients of all ranks, unless these are parts of such sums already, and
/// takes the means of buffers of floats: over the ranks, or all of their leaves.
///
/// # Errors
/// `OutOfMemory` of this rank; `Ranks`.
pub(crate) fn add_up(ranks: Ranks<'_>, own: &mut Computed, are_parts: bool) -> Result<()> {
    let mut floats = own.float_buffers();
    if let Some(ranks) = ranks {
        let gradients = own.gradients.iter_mut().filter(|_| !are_parts);
        let sums = [&mut own.loss_sum].into_iter().chain(gradients).chain(&mut floats);
        all_reduce_each(ranks, sums)?;
    }
    let terms = own.leaf_count * ranks.map_or(1, |ranks| ranks.rank().count);
    if terms == 1 {
        return Ok(());
    }
    let share = 1.0 / terms as f64;
    let scaled = floats.iter_mut().try_for_each(|value| value.mul_scalar_(share));
    agree(ranks, scaled.map_err(TrainError::from))
}

impl<T: Task + Clone, O: Stateful + Clone> Trainer<T, O> {
    pub(crate) fn ranks(&self) -> Ranks<'_> {
        self.options.ranks.as_deref()
    }

    /// The result; of one that ends the training here, the other ranks hear.
    pub(crate) fn told<R>(&self, result: Result<R>) -> Result<R> {
        if let (Some(ranks), Err(error)) = (self.ranks(), &result) {
            // What the others have, too, ends nothing that is common.
            if !matches!(error, TrainError::NotFinite(_) | TrainError::Ranks(_)) {
                ranks.abort(&error.one_line());
            }
        }
        result
    }
}

/// Whether another rank failed: it tries again, or ends.
pub(crate) fn is_of_another(error: &TrainError) -> bool {
    let TrainError::Ranks(error) = error else { return false };
    matches!(error, RanksError::Failed { .. } | RanksError::Refused { .. })
}

/// The ranks of a rehearsal: those that do the same as this one.
pub(crate) fn mirrored(ranks: Ranks<'_>) -> Option<Mirror> {
    ranks.map(|ranks| Mirror::new(ranks.rank()).expect("the rank that it is"))
}
