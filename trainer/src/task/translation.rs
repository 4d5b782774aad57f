//! Translation from sequences to sequences.

use lowtide_autograd::Pass;
use lowtide_data::{BatchView, IGNORED_LABEL};
use lowtide_nn::models::Seq2Seq;
use lowtide_nn::{CrossEntropyOptions, Loss, Parameters, cross_entropy_with};
use lowtide_tensor::{Device, Tensor};

use crate::error::Result;
use crate::run::score::{Metric, Score};
use crate::task::contract::Task;
use crate::task::fields::{field, right_ones, sum_of, upload, values};

/// Translation by cross-entropy. Fields: `source` `[B, S]` and `target` `[B, T + 1]` of i64,
/// optionally padded with one token. The model reads the first T tokens of a target and predicts
/// the last T; padding does not count. Scored by `perplexity`, and by the `accuracy` of tokens.
#[derive(Clone, Debug)]
pub struct Translation {
    model: Seq2Seq,
    padding: Option<i64>,
}

impl Translation {
    /// The task of training `model`. `padding` is the token that fills up rows, if any.
    pub fn new(model: Seq2Seq, padding: Option<i64>) -> Self {
        Translation { model, padding }
    }

    /// The model that is trained.
    pub fn model(&self) -> &Seq2Seq {
        &self.model
    }

    /// The loss, and the most likely tokens.
    fn loss_of(
        &self,
        pass: &Pass,
        device: &Device,
        part: &BatchView<'_>,
        wants_tokens: bool,
    ) -> Result<(Loss, Option<Tensor>)> {
        let source = upload(device, field(part, "source")?)?;
        let target = upload(device, field(part, "target")?)?;
        let len = target.shape()[1] - 1;
        let inputs = target.narrow(1, 0, len)?.contiguous()?;
        let count = part.len() * len;
        let labels = target.narrow(1, 1, len)?.contiguous()?.reshape([count])?;
        let mask = |tokens: &Tensor| {
            let padding = self.padding.map(|padding| tokens.eq_scalar(padding as f64));
            padding.transpose()
        };
        let masks = [mask(&source)?, mask(&inputs)?];
        let masks = [masks[0].as_ref(), masks[1].as_ref()];
        let logits = self.model.logits(pass, [&source, &inputs], masks)?;
        let classes = logits.shape()[2];
        let logits = logits.reshape([count, classes])?;
        let tokens = wants_tokens.then(|| logits.value().argmax()).transpose()?;
        let ignore_index = self.padding.unwrap_or(IGNORED_LABEL);
        let options = CrossEntropyOptions { ignore_index, ..Default::default() };
        Ok((cross_entropy_with(logits, &labels, options)?, tokens))
    }

    /// The target tokens of all rows.
    fn labels(batch: &BatchView<'_>) -> Result<Vec<i64>> {
        let len = field(batch, "target")?.sample_shape().first().copied().unwrap_or(1).max(1);
        let rows = values::<i64>(batch, "target")?.chunks(len);
        Ok(rows.flat_map(|row| row[1..].iter().copied()).collect())
    }
}

impl Task for Translation {
    fn parameters(&mut self) -> &mut dyn Parameters {
        &mut self.model
    }

    fn count(&self, batch: &BatchView<'_>) -> Result<f64> {
        let labels = Self::labels(batch)?.into_iter();
        Ok(labels.filter(|&label| Some(label) != self.padding).count() as f64)
    }

    fn loss(&self, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Loss> {
        Ok(self.loss_of(pass, device, part, false)?.0)
    }

    fn score(&self, device: &Device, part: &BatchView<'_>) -> Result<Score> {
        let (loss, tokens) = self.loss_of(&Pass::eval(), device, part, true)?;
        let (sum, count) = (sum_of(&loss)?, self.count(part)?);
        // A prediction never equals the label of a position that does not count.
        let mut labels = Self::labels(part)?;
        let padding = self.padding;
        labels.iter_mut().filter(|label| Some(**label) == padding).for_each(|label| *label = -1);
        let hits = tokens.map_or(Ok(0.0), |tokens| right_ones(&tokens, &labels))?;
        Ok(Score::new(sum, count)
            .with(Metric::perplexity(sum, count))
            .with(Metric::fraction("accuracy", hits, count)))
    }
}
