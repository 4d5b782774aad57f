//! Random draws of classes by their weights.

use crate::dtype::DType;
use crate::error::{Result, TensorError};
use crate::layout::Shape;
use crate::ops::search::Side;
use crate::ops::sort::SortOrder;
use crate::random::RandomKey;
use crate::tensor::Tensor;

/// The availability of a class after it is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Draw {
    /// The class cannot be drawn again: PyTorch's default.
    #[default]
    Distinct,
    /// The class can be drawn again, `replacement=True`.
    Replaced,
}

/// The largest fraction of the sum of all weights for a draw: just below 1.
const BELOW_ONE: f64 = 1.0 - f64::EPSILON;

impl Tensor {
    /// Draws `count` classes of each row, with probabilities proportional to the weights, as i64;
    /// `torch.multinomial`. Weights need not add up to 1.
    ///
    /// Distinct classes are the ones with the largest `w / e`, for exponential numbers e: the order
    /// of the keys of Efraimidis and Spirakis, "Weighted random sampling with a reservoir" (2006).
    /// Distinct draws take classes of weight 0 after all others. Weights are not checked: the
    /// result of a row with a negative weight, with NaN or without a positive weight is undefined.
    ///
    /// # Shapes
    /// `[.., V] → [.., count]`
    ///
    /// # Errors
    /// `Shape` for a tensor without dimensions or rows without classes, `Index` for more distinct
    /// classes than there are, `DType` unless float, `OutOfMemory`.
    #[track_caller]
    pub fn multinomial(&self, key: RandomKey, count: usize, draw: Draw) -> Result<Tensor> {
        let op = "multinomial";
        self.check_any_float(op)?;
        let Some((&classes, rows)) = self.shape().split_last().filter(|(len, _)| **len > 0) else {
            return Err(TensorError::Shape { op, left: *self.shape(), right: Shape::new(&[1]) });
        };
        if draw == Draw::Distinct {
            if count > classes {
                return Err(TensorError::index(op, count, classes));
            }
            let mut race = Tensor::empty(self.device(), *self.shape(), DType::F64)?;
            race.uniform_(key, 0.0, 1.0)?;
            // Exponential numbers above 0: ln(1 - u) / -1 with the middle of the interval of u.
            race.neg_()?;
            race.add_scalar_(1.0 - f64::from(f32::EPSILON) / 4.0)?;
            race.log_()?;
            race.neg_()?;
            let scores = self.to_dtype(DType::F64)?.div(&race)?;
            return Ok(scores.topk(count, -1, SortOrder::Descending)?.1);
        }
        let sums = self.to_dtype(DType::F64)?.cumsum(-1)?.contiguous()?;
        let total = sums.narrow(-1, classes - 1, 1)?;
        let shape = [rows, &[count]].concat();
        let mut places = Tensor::empty(self.device(), &shape[..], DType::F64)?;
        places.uniform_(key, 0.0, 1.0)?;
        places.minimum_scalar_(BELOW_ONE)?;
        places.mul_(&total)?;
        // A product may round up to the sum, which would leave no class.
        let most = total.mul_scalar(BELOW_ONE)?;
        sums.searchsorted(&places.minimum(&most)?, Side::Right)
    }
}
