//! Classification of images or other inputs.

use lowtide_allocator::Category;
use lowtide_autograd::{Pass, Var};
use lowtide_data::BatchView;
use lowtide_nn::{Logits, Loss, Module, Parameters, cross_entropy};
use lowtide_tensor::{DType, Device, SortOrder, Tensor};

use crate::error::{Result, TrainError};
use crate::run::score::{Metric, Score};
use crate::task::contract::Task;
use crate::task::fields::{
    field, float_type, labels_that_count, right_ones, sum_of, upload, upload_as, values, values_of,
};
use crate::task::outputs::Outputs;

/// Classification of images by cross-entropy. Fields: `images` `[B, ..]` (floats, or bytes, which
/// become values from 0 to 1) and `labels` `[B]` of i64. A label of -100 does not count, as in
/// PyTorch; any other label outside the classes is an error of the step. Scored by `accuracy`, and
/// by `top-k accuracy` with [`Classification::with_top`].
///
/// Images that [`Mixed`](lowtide_data::Mixed) has mixed have the loss of both labels, each weighted
/// by its share.
#[derive(Clone, Debug)]
pub struct Classification<M> {
    model: M,
    dtype: DType,
    input: &'static str,
    top: Option<usize>,
}

impl<M: Module + Clone> Classification<M> {
    /// The task of training `model`, which returns logits [B, classes]. Images are converted to the
    /// type of the model's parameters.
    pub fn new(mut model: M) -> Self {
        let dtype = float_type(&mut model);
        Classification { model, dtype, input: "images", top: None }
    }

    /// Reads the inputs from `field` instead of `images`.
    #[must_use]
    pub fn with_input(mut self, field: &'static str) -> Self {
        self.input = field;
        self
    }

    /// Also scores by the `k` most likely classes.
    #[must_use]
    pub fn with_top(mut self, k: usize) -> Self {
        self.top = Some(k);
        self
    }

    /// The model that is trained.
    pub fn model(&self) -> &M {
        &self.model
    }

    fn logits(&self, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<(Var, Tensor)> {
        let images = upload_as(device, field(part, self.input)?, self.dtype)?;
        let labels = upload(device, field(part, "labels")?)?;
        Ok((self.model.forward(pass, pass.constant(images))?, labels))
    }

    fn outputs_of(&self, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Outputs> {
        let (logits, labels) = self.logits(pass, device, part)?;
        let shares = match part.field("labels.other") {
            Some(_) => {
                let shares = shares(part, logits.shape()[1])?;
                let _scope = device.category(Category::Input);
                let shares = Tensor::from_slice(device, *logits.shape(), &shares)?;
                Some(shares.to_dtype(logits.value().dtype())?)
            }
            None => None,
        };
        Ok(Outputs { logits: Logits::Whole(logits), labels, shares })
    }
}

impl<M: Module + Clone + 'static> Task for Classification<M> {
    fn parameters(&mut self) -> &mut dyn Parameters {
        &mut self.model
    }

    fn count(&self, batch: &BatchView<'_>) -> Result<f64> {
        Ok(labels_that_count(values(batch, "labels")?))
    }

    fn loss(&self, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Loss> {
        self.outputs_of(pass, device, part)?.loss()
    }

    fn outputs(
        &self,
        pass: &Pass,
        device: &Device,
        part: &BatchView<'_>,
    ) -> Result<Option<Outputs>> {
        self.outputs_of(pass, device, part).map(Some)
    }

    fn score(&self, device: &Device, part: &BatchView<'_>) -> Result<Score> {
        let pass = Pass::eval();
        let (logits, labels) = self.logits(&pass, device, part)?;
        let predicted = logits.value().argmax()?;
        let top =
            |k| Ok::<_, TrainError>((k, logits.value().topk(k, -1, SortOrder::Descending)?.1));
        let top = self.top.map(top).transpose()?;
        let loss = cross_entropy(logits, &labels)?;
        let (here, count) = (values::<i64>(part, "labels")?, self.count(part)?);
        let hits = right_ones(&predicted, here)?;
        let score =
            Score::new(sum_of(&loss)?, count).with(Metric::fraction("accuracy", hits, count));
        let Some((k, classes)) = top else { return Ok(score) };
        let classes = values_of::<i64>(&classes)?;
        let rows = classes.chunks(k.max(1)).zip(here);
        let hits = rows.filter(|(classes, label)| classes.contains(label)).count() as f64;
        Ok(score.with(Metric::fraction(format!("top-{k} accuracy"), hits, count)))
    }
}

/// The share of each class in each mixed sample, `[B, classes]`.
fn shares(part: &BatchView<'_>, classes: usize) -> Result<Vec<f32>> {
    let [labels, others] = [values::<i64>(part, "labels")?, values::<i64>(part, "labels.other")?];
    let weights = values::<f32>(part, "labels.weight")?;
    let mut shares = vec![0.0; part.len() * classes];
    for (sample, row) in shares.chunks_mut(classes.max(1)).enumerate() {
        let weight = weights[sample];
        for (label, share) in [(labels[sample], weight), (others[sample], 1.0 - weight)] {
            let class = usize::try_from(label).ok().and_then(|class| row.get_mut(class));
            *class.ok_or_else(|| TrainError::Setting {
                place: "field \"labels\"".to_owned(),
                problem: format!("{label} is none of the {classes} classes of mixed images"),
            })? += share;
        }
    }
    Ok(shares)
}
