//! Exchange of tensors between stages.

use lowtide_allocator::Category;
use lowtide_autograd::TensorMeta;
use lowtide_ranks::{Collectives, RanksError};
use lowtide_tensor::{Device, Tensor};

use crate::error::{Result, TrainError};

/// Trades of a stage with others, and its work between them. A rank that has failed declines
/// everything that it would still trade, so that its partners fail as well and all of them come to
/// the end.
pub(crate) struct Lane<'a> {
    ranks: &'a dyn Collectives,
    device: &'a Device,
    /// The error after which this rank exchanges nothing any more.
    failure: Option<TrainError>,
}

impl<'a> Lane<'a> {
    pub(crate) fn new(ranks: &'a dyn Collectives, device: &'a Device) -> Self {
        Lane { ranks, device, failure: None }
    }

    /// The stage before this one.
    pub(crate) fn before(&self) -> Option<usize> {
        self.ranks.rank().index.checked_sub(1)
    }

    /// The stage after this one.
    pub(crate) fn after(&self) -> Option<usize> {
        let rank = self.ranks.rank();
        Some(rank.index + 1).filter(|&after| after < rank.count)
    }

    /// Runs `work` and returns its result; `None` if this rank has failed before or fails now.
    pub(crate) fn attempt<R>(&mut self, work: impl FnOnce() -> Result<R>) -> Option<R> {
        if self.failure.is_some() {
            return None;
        }
        work().map_err(|error| self.failure = Some(error)).ok()
    }

    /// Gives a tensor to a neighbour and takes one from it. Either may be absent, if the neighbour
    /// expects it to be absent. A rank that has failed declines.
    pub(crate) fn trade(
        &mut self,
        neighbour: Option<usize>,
        give: Option<Option<&Tensor>>,
        take: Option<Option<TensorMeta>>,
    ) -> Option<Tensor> {
        let neighbour = neighbour.filter(|_| give.is_some() || take.is_some())?;
        let device = self.device;
        let place = self.attempt(|| {
            let empty = |TensorMeta { shape, dtype }| {
                Tensor::empty_in(device, Category::Activation, shape, dtype)
            };
            Ok(take.flatten().map(empty).transpose()?)
        });
        let traded = match (&self.failure, place) {
            (None, Some(mut place)) => {
                let traded = self.ranks.trade(give.flatten(), place.as_mut(), neighbour);
                traded.map(|()| place)
            }
            (Some(error), _) if is_the_end(error) => return None,
            (failure, _) => {
                let reason = failure.as_ref().map_or_else(String::new, TrainError::one_line);
                self.ranks.decline(neighbour, &reason).map(|()| None)
            }
        };
        traded.map_err(|error| self.fail(error.into())).ok().flatten()
    }

    /// Records the error of this rank. An error that ends all ranks replaces an earlier one.
    fn fail(&mut self, error: TrainError) {
        if self.failure.is_none() || is_the_end(&error) {
            self.failure = Some(error);
        }
    }

    /// # Errors
    /// The error of this rank, if it has failed.
    pub(crate) fn finish(self) -> Result<()> {
        self.failure.map_or(Ok(()), Err)
    }
}

/// True if the ranks are no longer together.
fn is_the_end(error: &TrainError) -> bool {
    let TrainError::Ranks(error) = error else { return false };
    matches!(error, RanksError::Late { .. } | RanksError::Lost { .. } | RanksError::Aborted { .. })
}
