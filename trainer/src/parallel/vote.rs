//! Votes: ranks do something together only if all of them can.
//!
//! All that ranks do together has one shape, a step, an evaluation and the gathering of a state
//! alike: each attempts it on its own, then they vote. If one has failed all of them drop what they
//! have made. A rank that can recover attempts it again, as the others do; one that gives up tells
//! them.

use lowtide_autograd::AutogradError;
use lowtide_nn::NnError;
use lowtide_ranks::{Collectives, Mirror, RanksError, vote};

use crate::error::{Result, TrainError};

/// The own result, if every rank has one; without `ranks`, the own result.
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
/// rank that failed reports its error in place of the call that the others are in, or come to. If
/// that call itself failed, it failed on all ranks.
///
/// # Errors
/// The rank's own error; `Ranks` for an error of another rank.
pub(crate) fn agree_in_calls<T>(ranks: &dyn Collectives, own: Result<T>) -> Result<T> {
    match own {
        Ok(value) => {
            vote(ranks, Ok(()))?;
            Ok(value)
        }
        Err(error) => {
            let error = out_of_pass(error);
            ranks.refuse(&error.one_line())?;
            Err(error)
        }
    }
}

/// An error of ranks as one of a pass, in which a lack of memory is seen.
pub(crate) fn in_pass(error: RanksError) -> AutogradError {
    match error {
        RanksError::Tensor(error) => error.into(),
        error => AutogradError::segment(error),
    }
}

/// The error, or the error of ranks that it carries.
fn out_of_pass(error: TrainError) -> TrainError {
    match &error {
        TrainError::Nn(NnError::Autograd(AutogradError::Segment(carried))) => {
            let of_ranks = carried.downcast_ref::<RanksError>().cloned();
            of_ranks.map_or(error, TrainError::from)
        }
        _ => error,
    }
}

/// True if another rank failed: it attempts the same again, or ends.
pub(crate) fn is_of_another(error: &TrainError) -> bool {
    let TrainError::Ranks(error) = error else { return false };
    matches!(error, RanksError::Failed { .. } | RanksError::Refused { .. })
}

/// The ranks of a rehearsal, in which the others do the same as this one.
pub(crate) fn mirrored(ranks: &dyn Collectives) -> Mirror {
    Mirror::new(ranks.rank()).expect("the rank that it is")
}
