//! The one look at what a step has computed, before any of it is written.

use std::collections::BTreeSet;

use lowtide_amp::ScaledGradients;
use lowtide_autograd::{Gradients, LeafId};
use lowtide_ranks::{Collectives, RanksError};
use lowtide_tensor::{DType, Device, Tensor, TensorResult, scale_and_check_finite, squared_norm};

use crate::agreement::Ranks;
use crate::error::{Result, TrainError};
use crate::not_finite::NotFiniteWhat;

/// Loss and gradients of a turn, read together so that the device is waited for once.
pub(crate) struct Reading<'a> {
    pub(crate) device: &'a Device,
    /// One f64 without dimensions.
    pub(crate) loss_sum: &'a Tensor,
    pub(crate) gradients: &'a mut Gradients,
    /// Gradients that other ranks have as well, which count their length.
    pub(crate) of_others: BTreeSet<LeafId>,
    /// Whether the loss may be infinite or NaN.
    pub(crate) is_ignored: bool,
    /// Whether the length of the gradients is asked for.
    pub(crate) wants_norm: bool,
    /// Those that have the other parts of the gradients, if these are divided, or other gradients.
    pub(crate) ranks: Ranks<'a>,
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
        let flag = lowtide_amp::unscale(self.device, self.gradients, inverse_scale);
        self.read(flag.map(Some).map_err(TrainError::from))
    }
}

impl Reading<'_> {
    /// Looks at gradients that are not scaled.
    pub(crate) fn look(&mut self) -> Result<bool> {
        let flag = scale_and_check_finite(self.device, self.gradients.iter_mut(), 1.0);
        self.read(flag.map(Some).map_err(TrainError::from))
    }

    /// Takes the gradients as they are.
    pub(crate) fn look_away(&mut self) -> Result<()> {
        self.read(Ok(None)).map(drop)
    }

    /// The sum of the losses; `flag`, or 0 without one; the sum of the squares of the gradients, or
    /// 0 where it is not asked for. The device is waited for once.
    fn own_numbers(&self, flag: Option<&Tensor>) -> Result<[f64; 3]> {
        let squares = match self.wants_norm {
            true => {
                let leaves = self.gradients.leaves().zip(self.gradients.iter());
                let own = leaves.filter(|(leaf, _)| !self.of_others.contains(leaf));
                Some(squared_norm(self.device, own.map(|(_, gradient)| gradient))?)
            }
            false => None,
        };
        let numbers = [Some(self.loss_sum), flag, squares.as_ref()];
        let numbers: Vec<&Tensor> = numbers.into_iter().flatten().collect();
        let mut values = read_together(&numbers)?.into_iter();
        let loss_sum = values.next().unwrap_or(f64::NAN);
        let flag = flag.and_then(|_| values.next());
        Ok([loss_sum, flag.unwrap_or(0.0), values.next().unwrap_or(0.0)])
    }

    /// Whether something may not be committed; `flag` is 1 where that is a gradient, else 0.
    fn read(&mut self, flag: Result<Option<Tensor>>) -> Result<bool> {
        let own = flag.and_then(|flag| self.own_numbers(flag.as_ref()));
        let [loss_sum, flag, squares] = match self.ranks {
            Some(ranks) => of_all(ranks, own)?,
            None => own?,
        };
        let has_overflowed = flag > 0.0;
        let gradient_norm = self.wants_norm.then(|| squares.sqrt());
        let not_finite = match loss_sum.is_finite() || self.is_ignored {
            false => Some(NotFiniteWhat::Loss),
            true => has_overflowed.then_some(NotFiniteWhat::Gradient),
        };
        self.found = Found { loss_sum, gradient_norm, not_finite };
        Ok(not_finite.is_some())
    }
}

/// What all ranks have found of their parts: the sum of the losses, which they have in common, and
/// the sums of the flags and of the squares.
///
/// # Errors
/// The own one; `Ranks` for that of another rank.
fn of_all(ranks: &dyn Collectives, own: Result<[f64; 3]>) -> Result<[f64; 3]> {
    let words = match &own {
        Ok(numbers) => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
        Err(error) => error.one_line().into_bytes(),
    };
    let mark = [u8::from(own.is_ok())];
    let said = ranks.exchange(&[&mark[..], &words].concat())?;
    let [loss_sum, ..] = own?;
    let mut sums = [loss_sum, 0.0, 0.0];
    for (rank, said) in said.iter().enumerate() {
        let Some(words) = said.strip_prefix(&[1]) else {
            let reason = String::from_utf8_lossy(said.get(1..).unwrap_or_default()).into_owned();
            return Err(RanksError::Refused { rank, reason }.into());
        };
        let numbers = words.chunks_exact(8).map(|word| word.try_into().expect("eight bytes"));
        let numbers = numbers.map(f64::from_le_bytes);
        sums.iter_mut().zip(numbers).skip(1).for_each(|(sum, number)| *sum += number);
    }
    Ok(sums)
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
