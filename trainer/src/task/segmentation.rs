//! Segmentation: a class for each pixel of an image.

use lowtide_autograd::Pass;
use lowtide_data::{BatchView, IGNORED_LABEL};
use lowtide_nn::{Loss, Module, Parameters, cross_entropy};
use lowtide_tensor::{DType, Device};

use crate::error::Result;
use crate::run::score::{Metric, Ratio, Score};
use crate::task::contract::Task;
use crate::task::fields::{
    field, float_type, labels_that_count, sum_of, upload, upload_as, values, values_of,
};

/// Segmentation of images by cross-entropy. Fields: `images` `[B, C, H, W]` and `labels` `[B, H,
/// W]` of i64; a label of -100 does not count. Scored by the `accuracy` of pixels and by `iou`, the
/// mean over classes of intersection over union.
#[derive(Clone, Debug)]
pub struct Segmentation<M> {
    model: M,
    dtype: DType,
}

impl<M: Module + Clone> Segmentation<M> {
    /// The task of training `model`, which returns logits [B, classes, H, W]. Images are converted
    /// to the type of the model's parameters.
    pub fn new(mut model: M) -> Self {
        let dtype = float_type(&mut model);
        Segmentation { model, dtype }
    }

    /// The model that is trained.
    pub fn model(&self) -> &M {
        &self.model
    }
}

impl<M: Module + Clone + 'static> Task for Segmentation<M> {
    fn parameters(&mut self) -> &mut dyn Parameters {
        &mut self.model
    }

    fn count(&self, batch: &BatchView<'_>) -> Result<f64> {
        Ok(labels_that_count(values(batch, "labels")?))
    }

    fn loss(&self, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Loss> {
        let images = upload_as(device, field(part, "images")?, self.dtype)?;
        let labels = upload(device, field(part, "labels")?)?;
        Ok(cross_entropy(self.model.forward(pass, pass.constant(images))?, &labels)?)
    }

    fn score(&self, device: &Device, part: &BatchView<'_>) -> Result<Score> {
        let pass = Pass::eval();
        let images = upload_as(device, field(part, "images")?, self.dtype)?;
        let labels = upload(device, field(part, "labels")?)?;
        let logits = self.model.forward(&pass, pass.constant(images))?;
        let classes = logits.shape()[1];
        let predicted = logits.value().argmax_axis(1)?;
        let loss = cross_entropy(logits, &labels)?;
        let (mut both, mut either, mut hits) = (vec![0.0; classes], vec![0.0; classes], 0.0);
        let here = values::<i64>(part, "labels")?;
        for (predicted, &label) in values_of::<i64>(&predicted)?.into_iter().zip(here) {
            if label == IGNORED_LABEL {
                continue;
            }
            // Labels are in range, because the loss was computed with them.
            let (predicted, label) = (predicted as usize, label as usize);
            either[label] += 1.0;
            if predicted == label {
                both[label] += 1.0;
                hits += 1.0;
            } else {
                either[predicted] += 1.0;
            }
        }
        let ratios = both.into_iter().zip(either).map(|(part, whole)| Ratio { part, whole });
        let count = self.count(part)?;
        Ok(Score::new(sum_of(&loss)?, count)
            .with(Metric::fraction("accuracy", hits, count))
            .with(Metric::fractions("iou", ratios.collect())))
    }
}
