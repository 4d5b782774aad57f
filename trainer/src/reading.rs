//! The one look at what a step has computed, before any of it is written.

use lowtide_amp::ScaledGradients;
use lowtide_autograd::Gradients;
use lowtide_tensor::{DType, Device, Tensor, TensorResult, scale_and_check_finite, squared_norm};

use crate::error::{Result, TrainError};
use crate::not_finite::NotFiniteWhat;

/// Loss and gradients of a turn, read together so that the device is waited for once.
pub(crate) struct Reading<'a> {
    pub(crate) device: &'a Device,
    /// One f64 without dimensions.
    pub(crate) loss_sum: &'a Tensor,
    pub(crate) gradients: &'a mut Gradients,
    /// Whether the loss may be infinite or NaN.
    pub(crate) is_ignored: bool,
    /// Whether the length of the gradients is asked for.
    pub(crate) wants_norm: bool,
    pub(crate) found: Found,
}

/// What a turn has come to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Found {
    /// The sum of the losses.
    pub(crate) loss_sum: f64,
    /// The length of the gradients, taken as one vector, if it was asked for.
    pub(crate) gradient_norm: Option<f64>,
    /// What may not be committed.
    pub(crate) not_finite: Option<NotFiniteWhat>,
}

impl ScaledGradients for Reading<'_> {
    type Error = TrainError;

    fn unscale(&mut self, inverse_scale: f32) -> Result<bool> {
        let flag = lowtide_amp::unscale(self.device, self.gradients, inverse_scale)?;
        self.read(Some(&flag))
    }
}

impl Reading<'_> {
    /// Looks at gradients that are not scaled.
    pub(crate) fn look(&mut self) -> Result<bool> {
        let flag = scale_and_check_finite(self.device, self.gradients.iter_mut(), 1.0)?;
        self.read(Some(&flag))
    }

    /// Takes the gradients as they are.
    pub(crate) fn look_away(&mut self) -> Result<()> {
        self.read(None).map(drop)
    }

    /// Whether something may not be committed; `flag` is 1 where that is a gradient, else 0.
    fn read(&mut self, flag: Option<&Tensor>) -> Result<bool> {
        let squares = match self.wants_norm {
            true => Some(squared_norm(self.device, self.gradients.iter())?),
            false => None,
        };
        let numbers = [Some(self.loss_sum), flag, squares.as_ref()];
        let numbers: Vec<&Tensor> = numbers.into_iter().flatten().collect();
        let mut values = read_together(&numbers)?.into_iter();
        let loss_sum = values.next().unwrap_or(f64::NAN);
        let has_overflowed = flag.is_some() && values.next().is_some_and(|flag| flag > 0.0);
        let gradient_norm = values.next().map(f64::sqrt);
        let not_finite = match loss_sum.is_finite() || self.is_ignored {
            false => Some(NotFiniteWhat::Loss),
            true => has_overflowed.then_some(NotFiniteWhat::Gradient),
        };
        self.found = Found { loss_sum, gradient_norm, not_finite };
        Ok(not_finite.is_some())
    }
}

/// All elements of float tensors, one after the other; the device is waited for once. A simulated
/// one assumes 0.
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
