//! Sums over ranks that share the samples of a batch.

use lowtide_ranks::{Collectives, Rank, RanksError, all_reduce_each};

use crate::error::{Result, TrainError};
use crate::parallel::vote::agree;
use crate::step::compute::Computed;
use crate::step::gradient_check::OwnNumbers;
use crate::step::summation::{Summation, add_counts, tree_sum};

/// # Errors
/// `Setting` unless each rank has a whole subtree of the tree of a batch.
pub(crate) fn check_tree(ranks: &dyn Collectives, summation: Summation) -> Result<()> {
    let count = ranks.rank().count;
    if summation == Summation::Sequential || count.is_power_of_two() {
        return Ok(());
    }
    let problem = format!("{count} ranks have no common tree: 1, 2, 4, 8 and so on have");
    Err(TrainError::Setting { place: "leaves".to_owned(), problem })
}

/// The sum of the counts of all ranks.
///
/// # Errors
/// `Setting` if ranks count different numbers of loss terms; `Ranks`.
pub(crate) fn sum_counts(ranks: &dyn Collectives, own: &[f64]) -> Result<Vec<f64>> {
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
    tree_sum(0..of_ranks.len(), of_rank, &|sum, counts| add_counts(sum, &counts))
}

/// The gradients that are summed over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduced {
    /// All gradients are summed.
    Gradients,
    /// No gradient is summed, because gradients are already parts of sums over the ranks.
    NoGradients,
}

/// Sums losses and gradients over the ranks. Averages float buffers over the ranks and over the
/// deterministic shards.
///
/// # Errors
/// `OutOfMemory` of this rank; `Ranks`.
pub(crate) fn all_reduce(
    ranks: &dyn Collectives,
    own: &mut Computed,
    reduced: Reduced,
) -> Result<()> {
    let mut floats = own.float_buffers();
    let gradients = own.gradients.iter_mut().filter(|_| reduced == Reduced::Gradients);
    all_reduce_each(ranks, [&mut own.loss_sum].into_iter().chain(gradients).chain(&mut floats))?;
    let term_count = own.term_count * ranks.rank().count;
    if term_count == 1 {
        return Ok(());
    }
    agree(Some(ranks), own.average_buffers(term_count))
}

/// Sums the numbers of all ranks; each rank has read its numbers from its own gradients. The sum of
/// the losses is already the same on all ranks, and is not added again.
///
/// # Errors
/// The rank's own error; `Ranks` for an error of another rank.
pub(crate) fn sum_numbers(ranks: &dyn Collectives, own: Result<OwnNumbers>) -> Result<OwnNumbers> {
    let words = match &own {
        Ok(numbers) => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
        Err(error) => error.one_line().into_bytes(),
    };
    let mark = [u8::from(own.is_ok())];
    let said = ranks.exchange(&[&mark[..], &words].concat())?;
    let [loss_sum, ..] = own?;
    let mut sums = [loss_sum, 0.0, 0.0];
    for (rank, said) in said.iter().enumerate() {
        let Some(words) = said.strip_prefix(&[1]) else {
            let reason = String::from_utf8_lossy(said.get(1..).unwrap_or_default()).into_owned();
            return Err(RanksError::Refused { rank, reason }.into());
        };
        let numbers = words.chunks_exact(8).map(|word| word.try_into().expect("eight bytes"));
        let numbers = numbers.map(f64::from_le_bytes);
        sums.iter_mut().zip(numbers).skip(1).for_each(|(sum, number)| *sum += number);
    }
    Ok(sums)
}

/// Bytes that a rank sends if `all_bytes` are divided equally and each other rank gets its part.
pub(crate) fn sent_to_others(all_bytes: usize, Rank { count, .. }: Rank) -> usize {
    all_bytes / count * (count - 1)
}
