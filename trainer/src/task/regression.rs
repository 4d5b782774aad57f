//! Regression: prediction of numbers.

use lowtide_autograd::Pass;
use lowtide_data::BatchView;
use lowtide_nn::{Loss, Module, Parameters, mse};
use lowtide_tensor::{DType, Device, Tensor};

use crate::error::Result;
use crate::run::score::{Metric, Score};
use crate::task::contract::Task;
use crate::task::fields::{field, float_type, sum_of, upload_as, values_of};

/// Regression by the mean of squared differences. Fields: `inputs` `[B, ..]` and `targets` `[B,
/// ..]` of floats; all targets count. Scored by `rmse`, the root of that mean, and by `mae`, the
/// mean of absolute differences. Both are in the unit of the targets.
#[derive(Clone, Debug)]
pub struct Regression<M> {
    model: M,
    dtype: DType,
    unit: &'static str,
}

impl<M: Module + Clone> Regression<M> {
    /// The task of training `model`, whose outputs have the shape of the targets. `unit` is the
    /// unit of the targets, or empty.
    pub fn new(mut model: M, unit: &'static str) -> Self {
        let dtype = float_type(&mut model);
        Regression { model, dtype, unit }
    }

    /// The model that is trained.
    pub fn model(&self) -> &M {
        &self.model
    }

    fn upload(&self, device: &Device, part: &BatchView<'_>) -> Result<[Tensor; 2]> {
        let upload = |name| upload_as(device, field(part, name)?, self.dtype);
        Ok([upload("inputs")?, upload("targets")?])
    }
}

impl<M: Module + Clone + 'static> Task for Regression<M> {
    fn parameters(&mut self) -> &mut dyn Parameters {
        &mut self.model
    }

    fn count(&self, batch: &BatchView<'_>) -> Result<f64> {
        Ok(field(batch, "targets")?.shape().iter().product::<usize>() as f64)
    }

    fn loss(&self, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Loss> {
        let [inputs, targets] = self.upload(device, part)?;
        Ok(mse(self.model.forward(pass, pass.constant(inputs))?, &targets)?)
    }

    fn score(&self, device: &Device, part: &BatchView<'_>) -> Result<Score> {
        let pass = Pass::eval();
        let [inputs, targets] = self.upload(device, part)?;
        let outputs = self.model.forward(&pass, pass.constant(inputs))?;
        let distance = outputs.value().sub(&targets)?.abs()?.to_dtype(DType::F64)?;
        let distance = values_of::<f64>(&distance.sum_all()?)?.first().copied().unwrap_or(0.0);
        let squares = sum_of(&mse(outputs, &targets)?)?;
        let count = self.count(part)?;
        Ok(Score::new(squares, count)
            .with(Metric::root_mean_square("rmse", self.unit, squares, count))
            .with(Metric::mean_error("mae", self.unit, distance, count)))
    }
}
