//! The one check of the numbers of a turn, before anything is written.

use std::collections::BTreeSet;

use lowtide_amp::ScaledGradients;
use lowtide_autograd::{Gradients, LeafId};
use lowtide_tensor::{DType, Device, Tensor, TensorResult, scale_and_check_finite, squared_norm};

use crate::error::{Result, TrainError};
use crate::step::not_finite::NotFiniteWhat;

/// The sum of the losses; a flag that is 1 if a gradient is not finite, else 0; the sum of the
/// squares of all gradients.
pub(crate) type OwnNumbers = [f64; 3];

/// Loss and gradients of a turn, read together so that the host waits for the device only once.
pub(crate) struct GradientCheck<'a> {
    pub(crate) device: &'a Device,
    /// A single f64 without dimensions.
    pub(crate) loss_sum: &'a Tensor,
    pub(crate) gradients: &'a mut Gradients,
    /// Gradients whose length another rank counts.
    pub(crate) counted_elsewhere: BTreeSet<LeafId>,
    /// True if the loss may be infinite or NaN.
    pub(crate) ignores_loss: bool,
    /// True if the length of the gradients is wanted.
    pub(crate) wants_norm: bool,
    /// Turns the numbers of this rank into numbers of the whole model.
    pub(crate) complete: &'a dyn Fn(Result<OwnNumbers>) -> Result<OwnNumbers>,
    pub(crate) found: StepNumbers,
}

/// Numbers of a turn, read by the host.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepNumbers {
    /// The sum of the losses.
    pub(crate) loss_sum: f64,
    /// The length of all gradients as one vector, if requested.
    pub(crate) gradient_norm: Option<f64>,
    /// The reason why the turn may not be committed, if any.
    pub(crate) not_finite: Option<NotFiniteWhat>,
}

impl ScaledGradients for GradientCheck<'_> {
    type Error = TrainError;

    fn unscale(&mut self, inverse_scale: f32) -> Result<bool> {
        let flag = lowtide_amp::unscale(self.device, self.gradients, inverse_scale);
        self.read(flag.map(Some).map_err(TrainError::from))
    }
}

impl GradientCheck<'_> {
    /// Checks gradients that are not scaled.
    ///
    /// # Errors
    /// Errors of the device and of [`GradientCheck::complete`].
    pub(crate) fn check(&mut self) -> Result<()> {
        let flag = scale_and_check_finite(self.device, self.gradients.iter_mut(), 1.0);
        self.read(flag.map(Some).map_err(TrainError::from)).map(drop)
    }

    /// Accepts the gradients without a check.
    ///
    /// # Errors
    /// Errors of the device and of [`GradientCheck::complete`].
    pub(crate) fn accept(&mut self) -> Result<()> {
        self.read(Ok(None)).map(drop)
    }

    /// The numbers of this device. A number that is not requested is 0.
    fn own_numbers(&self, flag: Option<&Tensor>) -> Result<OwnNumbers> {
        let squares = if self.wants_norm {
            let leaves = self.gradients.leaves().zip(self.gradients.iter());
            let own = leaves.filter(|(leaf, _)| !self.counted_elsewhere.contains(leaf));
            Some(squared_norm(self.device, own.map(|(_, gradient)| gradient))?)
        } else {
            None
        };
        let numbers = [Some(self.loss_sum), flag, squares.as_ref()];
        let numbers: Vec<&Tensor> = numbers.into_iter().flatten().collect();
        let mut values = read_together(&numbers)?.into_iter();
        let loss_sum = values.next().unwrap_or(f64::NAN);
        let flag = flag.and_then(|_| values.next());
        Ok([loss_sum, flag.unwrap_or(0.0), values.next().unwrap_or(0.0)])
    }

    /// Reads the numbers. Returns true if the step must not be committed. `flag` is 1 if a gradient
    /// is not finite, else 0.
    fn read(&mut self, flag: Result<Option<Tensor>>) -> Result<bool> {
        let own = flag.and_then(|flag| self.own_numbers(flag.as_ref()));
        let [loss_sum, flag, squares] = (self.complete)(own)?;
        let gradient_norm = self.wants_norm.then(|| squares.sqrt());
        let not_finite = if loss_sum.is_finite() || self.ignores_loss {
            (flag > 0.0).then_some(NotFiniteWhat::Gradient)
        } else {
            Some(NotFiniteWhat::Loss)
        };
        self.found = StepNumbers { loss_sum, gradient_norm, not_finite };
        Ok(not_finite.is_some())
    }
}

/// All elements of float tensors in one list. Waits for the device once. On a simulated device
/// every element is 0.
pub(crate) fn read_together(numbers: &[&Tensor]) -> TensorResult<Vec<f64>> {
    let rows =
        numbers.iter().map(|number| number.to_dtype(DType::F64)?.reshape([number.element_count()]));
    let rows: Vec<Tensor> = rows.collect::<TensorResult<_>>()?;
    let all = Tensor::cat(&rows.iter().collect::<Vec<_>>(), 0)?;
    if !all.device().is_simulated() {
        return all.to_vec::<f64>();
    }
    let assumed = all.select(0, 0)?.item_assuming(0.0f64)?;
    Ok(vec![assumed; all.element_count()])
}
