//! Language models: prediction of the next token.

use lowtide_autograd::{Pass, Var};
use lowtide_data::{BatchView, IGNORED_LABEL};
use lowtide_nn::models::{Gpt, LstmModel};
use lowtide_nn::{LinearCrossEntropyOptions, Logits, Loss, Module, Parameters, cross_entropy};
use lowtide_pretrained::Decoder;
use lowtide_tensor::{Device, Tensor};

use crate::error::{Result, TrainError};
use crate::run::score::{Metric, Score};
use crate::task::contract::Task;
use crate::task::fields::{field, labels_that_count, sum_of, upload, values};
use crate::task::outputs::Outputs;

/// Prediction of the next token by cross-entropy, from the field `tokens` `[B, T + 1]` of i64. The
/// model reads the first T tokens of a row. The targets are the last T tokens, or the field
/// `labels` `[B, T]` of i64 if the batch has it. A target of -100 does not count. Scored by
/// `perplexity`.
#[derive(Clone, Debug)]
pub struct LanguageModel<M> {
    model: M,
    base_is_elsewhere: bool,
}

/// A model that predicts the next token at each position.
pub trait TokenModel: Parameters {
    /// The loss of predicting `labels` `[B, T]` from `tokens` `[B, T]`, both of i64.
    ///
    /// # Errors
    /// Errors of the model and of cross-entropy.
    fn token_loss(&self, pass: &Pass, tokens: Var, labels: &Tensor) -> Result<Loss>;

    /// The logits of [`TokenModel::token_loss`], `[B, T, V]`, for other losses. `None` if the model
    /// does not give logits.
    ///
    /// # Errors
    /// Errors of the model.
    fn token_logits(&self, pass: &Pass, tokens: Var) -> Result<Option<Logits>> {
        let _ = (pass, tokens);
        Ok(None)
    }
}

impl TokenModel for Gpt {
    /// Computed in chunks: the logits, the largest tensor of a step, never exist as a whole.
    fn token_loss(&self, pass: &Pass, tokens: Var, labels: &Tensor) -> Result<Loss> {
        Ok(self.loss(pass, tokens, labels, LinearCrossEntropyOptions::default())?)
    }

    fn token_logits(&self, pass: &Pass, tokens: Var) -> Result<Option<Logits>> {
        Ok(Some(self.logits(pass, tokens)?))
    }
}

impl TokenModel for Decoder {
    /// Computed in chunks, as for [`Gpt`].
    fn token_loss(&self, pass: &Pass, tokens: Var, labels: &Tensor) -> Result<Loss> {
        Ok(self.loss(pass, tokens, labels, LinearCrossEntropyOptions::default())?)
    }

    fn token_logits(&self, pass: &Pass, tokens: Var) -> Result<Option<Logits>> {
        Ok(Some(self.linear_logits(pass, tokens)?))
    }
}

impl TokenModel for LstmModel {
    fn token_loss(&self, pass: &Pass, tokens: Var, labels: &Tensor) -> Result<Loss> {
        // [B, T, V]
        let logits = self.forward(pass, tokens)?;
        let [count, classes] = [labels.element_count(), logits.shape()[2]];
        Ok(cross_entropy(logits.reshape([count, classes])?, &labels.reshape([count])?)?)
    }

    fn token_logits(&self, pass: &Pass, tokens: Var) -> Result<Option<Logits>> {
        Ok(Some(Logits::Whole(self.forward(pass, tokens)?)))
    }
}

impl<M: TokenModel + Clone> LanguageModel<M> {
    /// The task of training `model`.
    pub fn new(model: M) -> Self {
        LanguageModel { model, base_is_elsewhere: false }
    }

    /// Marks the model as pretrained: its frozen parameters are in files that stay, see
    /// [`Task::base_is_elsewhere`].
    #[must_use]
    pub fn of_files(self) -> Self {
        LanguageModel { base_is_elsewhere: true, ..self }
    }

    /// The model that is trained.
    pub fn model(&self) -> &M {
        &self.model
    }

    fn loss_of(&self, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Loss> {
        let [inputs, labels] = self.read(device, part)?;
        self.model.token_loss(pass, pass.constant(inputs), &labels)
    }

    /// The input tokens, and the target tokens.
    fn read(&self, device: &Device, part: &BatchView<'_>) -> Result<[Tensor; 2]> {
        let tokens = upload(device, field(part, "tokens")?)?;
        let len = row_len(part)? - 1;
        let [inputs, labels] = [0, 1].map(|start| tokens.narrow(1, start, len));
        let (inputs, labels) = (inputs?.contiguous()?, labels?);
        let labels = match part.field("labels") {
            Some(labels) => upload(device, labels)?,
            None => labels.contiguous()?,
        };
        Ok([inputs, labels])
    }
}

/// Number of tokens of a row.
fn row_len(batch: &BatchView<'_>) -> Result<usize> {
    match field(batch, "tokens")?.sample_shape() {
        &[len] if len > 1 => Ok(len),
        shape => Err(TrainError::Setting {
            place: "field \"tokens\"".to_owned(),
            problem: format!("has samples of the shape {shape:?}, not rows of two tokens or more"),
        }),
    }
}

impl<M: TokenModel + Clone + 'static> Task for LanguageModel<M> {
    fn parameters(&mut self) -> &mut dyn Parameters {
        &mut self.model
    }

    fn count(&self, batch: &BatchView<'_>) -> Result<f64> {
        if batch.field("labels").is_some() {
            return Ok(labels_that_count(values(batch, "labels")?));
        }
        let rows = values::<i64>(batch, "tokens")?.chunks(row_len(batch)?);
        let counting =
            |row: &[i64]| row[1..].iter().filter(|&&label| label != IGNORED_LABEL).count();
        Ok(rows.map(counting).sum::<usize>() as f64)
    }

    fn loss(&self, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Loss> {
        self.loss_of(pass, device, part)
    }

    fn outputs(
        &self,
        pass: &Pass,
        device: &Device,
        part: &BatchView<'_>,
    ) -> Result<Option<Outputs>> {
        let [inputs, labels] = self.read(device, part)?;
        let logits = self.model.token_logits(pass, pass.constant(inputs))?;
        Ok(logits.map(|logits| Outputs { logits, labels, shares: None }))
    }

    fn base_is_elsewhere(&self) -> bool {
        self.base_is_elsewhere
    }

    fn score(&self, device: &Device, part: &BatchView<'_>) -> Result<Score> {
        let (sum, count) =
            (sum_of(&self.loss_of(&Pass::eval(), device, part)?)?, self.count(part)?);
        Ok(Score::new(sum, count).with(Metric::perplexity(sum, count)))
    }
}
