//! Votes: ranks do something together only if all of them can.
//!
//! A step, an evaluation and the gathering of a state have one shape: each rank attempts the work
//! on its own, then the ranks vote. If one rank has failed, all ranks drop their results. A rank
//! that can recover tries again, and so do the others; a rank that gives up tells the others.

use lowtide_autograd::AutogradError;
use lowtide_nn::NnError;
use lowtide_ranks::{Collectives, Mirror, RanksError, vote};

use crate::error::{Result, TrainError};

/// Returns `own` if every rank has succeeded; without `ranks`, returns `own`.
///
/// # Errors
/// The rank's own error; `Ranks` for an error of another rank.
pub fn agree<T>(ranks: Option<&dyn Collectives>, own: Result<T>) -> Result<T> {
    let Some(ranks) = ranks else { return own };
    let problem = own.as_ref().err().map(TrainError::one_line);
    let verdict = vote(ranks, problem.as_deref().map_or(Ok(()), Err));
    let value = own?;
    verdict?;
    Ok(value)
}

/// Returns `own`, the result of work in which ranks call each other, if every rank has succeeded. A
/// rank that failed refuses, which fails the call that the other ranks are in, or their vote, so
/// that they refuse too. Once all have refused at once they have left the work, whatever calls each
/// of them had reached.
///
/// # Errors
/// The rank's own error; `Ranks` for an error of another rank.
pub(crate) fn agree_in_calls<T>(ranks: &dyn Collectives, own: Result<T>) -> Result<T> {
    let agreed = own.and_then(|value| {
        vote(ranks, Ok(()))?;
        Ok(value)
    });
    agreed.or_else(|error| {
        let error = out_of_pass(error);
        while !ranks.refuse(&error.one_line())? {}
        Err(error)
    })
}

/// Wraps an error of the ranks in an error of a pass. A lack of memory stays recognisable.
pub(crate) fn in_pass(error: RanksError) -> AutogradError {
    match error {
        RanksError::Tensor(error) => error.into(),
        error => AutogradError::segment(error),
    }
}

/// Returns the error of the ranks that `error` carries, else `error` itself.
fn out_of_pass(error: TrainError) -> TrainError {
    match &error {
        TrainError::Nn(NnError::Autograd(AutogradError::Segment(carried))) => {
            let of_ranks = carried.downcast_ref::<RanksError>().cloned();
            of_ranks.map_or(error, TrainError::from)
        }
        _ => error,
    }
}

/// True if another rank failed. That rank tries the same work again, or ends.
pub(crate) fn is_of_another(error: &TrainError) -> bool {
    let TrainError::Ranks(error) = error else { return false };
    matches!(error, RanksError::Failed { .. } | RanksError::Refused { .. })
}

/// The ranks of a rehearsal, in which the others do the same as this one.
pub(crate) fn mirrored(ranks: &dyn Collectives) -> Mirror {
    Mirror::new(ranks.rank()).expect("the rank that it is")
}
