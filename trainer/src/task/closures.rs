//! A task made of functions.

use std::rc::Rc;

use lowtide_autograd::Pass;
use lowtide_data::BatchView;
use lowtide_nn::{Loss, Parameters};
use lowtide_tensor::Device;

use crate::error::Result;
use crate::run::score::Score;
use crate::task::contract::Task;
use crate::task::fields::sum_of;

type LossOf<M> = dyn Fn(&M, &Pass, &Device, &BatchView<'_>) -> Result<Loss>;
type CountOf = dyn Fn(&BatchView<'_>) -> Result<f64>;
type ScoreOf<M> = dyn Fn(&M, &Device, &BatchView<'_>) -> Result<Score>;

/// A task made of a model and functions. The functions follow the rules of a [`Task`]: they use the
/// given device, keep no tensor for the next call, and also run without values.
#[derive(Clone)]
pub struct FnTask<M> {
    model: M,
    loss: Rc<LossOf<M>>,
    count: Rc<CountOf>,
    score: Option<Rc<ScoreOf<M>>>,
}

impl<M: Parameters + Clone + 'static> FnTask<M> {
    /// The task of training `model` by this loss. By default every sample of a batch counts once,
    /// and the model is scored by its loss.
    pub fn new(
        model: M,
        loss: impl Fn(&M, &Pass, &Device, &BatchView<'_>) -> Result<Loss> + 'static,
    ) -> Self {
        let count = Rc::new(|batch: &BatchView<'_>| Ok(batch.len() as f64));
        FnTask { model, loss: Rc::new(loss), count, score: None }
    }

    /// Replaces the count of targets, see [`Task::count`].
    #[must_use]
    pub fn with_count(mut self, count: impl Fn(&BatchView<'_>) -> Result<f64> + 'static) -> Self {
        self.count = Rc::new(count);
        self
    }

    /// Replaces the score, see [`Task::score`].
    #[must_use]
    pub fn with_score(
        mut self,
        score: impl Fn(&M, &Device, &BatchView<'_>) -> Result<Score> + 'static,
    ) -> Self {
        self.score = Some(Rc::new(score));
        self
    }

    /// The model that is trained.
    pub fn model(&self) -> &M {
        &self.model
    }
}

impl<M: Parameters + Clone + 'static> Task for FnTask<M> {
    fn parameters(&mut self) -> &mut dyn Parameters {
        &mut self.model
    }

    fn count(&self, batch: &BatchView<'_>) -> Result<f64> {
        (self.count)(batch)
    }

    fn loss(&self, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Loss> {
        (self.loss)(&self.model, pass, device, part)
    }

    fn score(&self, device: &Device, part: &BatchView<'_>) -> Result<Score> {
        match &self.score {
            Some(score) => score(&self.model, device, part),
            None => {
                let loss = (self.loss)(&self.model, &Pass::eval(), device, part)?;
                Ok(Score::new(sum_of(&loss)?, self.count(part)?))
            }
        }
    }
}
