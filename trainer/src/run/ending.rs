//! The end of a run whose result is worth nothing.

use lowtide_nn::optim::Stateful;

use crate::error::Result;
use crate::options::NonFinite;
use crate::run::score::Score;
use crate::run::trainer::Trainer;
use crate::step::not_finite::{NotFinite, NotFiniteWhat};
use crate::task::contract::Task;

impl<T: Task + Clone, O: Stateful + Clone> Trainer<T, O> {
    /// `Ok` if a run up to step `end` may end with this last score. [`Trainer::run`] checks this. A
    /// run that was stopped before `end` may go on, whatever its steps and its score are so far.
    ///
    /// # Errors
    /// `NotFinite` if all steps up to `end` were skipped without a loss scale; also if the loss of
    /// the score there is NaN, unless [`Options::non_finite`](crate::Options::non_finite) ignores
    /// that.
    pub fn check_end(&self, end: u64, score: &Score) -> Result<()> {
        let skipped = self.skipped_in_a_row;
        // A loss scale that begins too high is no reason: it falls with each step that it skips.
        let has_scale = self.scaler.is_enabled();
        let what = if !has_scale && skipped > 0 && skipped == self.step && skipped == end {
            NotFiniteWhat::Skipped { skipped }
        } else if self.step == end
            && score.loss_sum.is_nan()
            && self.options.non_finite != NonFinite::Ignore
        {
            NotFiniteWhat::Score
        } else {
            return Ok(());
        };
        Err(Box::new(NotFinite::new(self.step, what, score.loss())).into())
    }
}
