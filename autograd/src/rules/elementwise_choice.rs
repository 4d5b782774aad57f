//! Rules of the operations that choose between values. They save masks of one byte per element.

use lowtide_tensor::Tensor;

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::{from_input, times, unbroadcast, unpack, when, when_recorded};
use crate::var::Var;

/// The operation `choose(x)`, whose gradient is dy where `mask(x)` is true, else 0.
#[track_caller]
fn passes_where(
    op: &'static str,
    x: Var,
    choose: impl FnOnce(&Tensor) -> lowtide_tensor::TensorResult<Tensor>,
    mask: impl FnOnce(&Tensor) -> lowtide_tensor::TensorResult<Tensor>,
) -> Result<Var> {
    Var::apply(op, [x], |[x], save| {
        let y = choose(&x)?;
        let saved = when_recorded(save, || mask(&x)?.logical_not())?;
        let rule =
            move |dy: Tensor, _: Needs| Ok(vec![Some(dy.masked_fill(&unpack(saved)?, 0.0)?)]);
        Ok((y, rule))
    })
}

type Comparison = fn(&Tensor, &Tensor) -> lowtide_tensor::TensorResult<Tensor>;

/// The larger or the smaller of two values. The `tests` are true where `a` and where `b` may be
/// chosen: both where the values are equal, neither where one is NaN.
#[track_caller]
pub(super) fn either(
    op: &'static str,
    inputs: [Var; 2],
    choose: impl FnOnce(&Tensor, &Tensor) -> lowtide_tensor::TensorResult<Tensor>,
    tests: [Comparison; 2],
) -> Result<Var> {
    Var::apply(op, inputs, |[a, b], save| {
        let (a_shape, b_shape, y) = (*a.shape(), *b.shape(), choose(&a, &b)?);
        let [is_a, is_b] = tests.map(|test| when_recorded(save, || test(&a, &b)));
        let (is_a, is_b) = (is_a?, is_b?);
        // da = 0 where only b is chosen, dy / 2 where both are equal, dy where a is chosen or one
        // is NaN, as in PyTorch; db likewise
        let rule = move |dy: Tensor, needs: Needs| {
            let (is_a, is_b) = (unpack(is_a)?, unpack(is_b)?);
            let equal = is_a.logical_and(&is_b)?;
            let half = equal.where_cond(&dy.mul_scalar(0.5)?, &dy)?;
            let part = |is_other: &Tensor, shape| {
                let only_other = is_other.logical_xor(&equal)?;
                unbroadcast(&half.masked_fill(&only_other, 0.0)?, shape)
            };
            let da = when(needs.input(0), || part(&is_b, a_shape))?;
            let db = when(needs.input(1), || part(&is_a, b_shape))?;
            Ok(vec![da, db])
        };
        Ok((y, rule))
    })
}

impl Var {
    /// `|self|`; the gradient at 0 is 0.
    #[track_caller]
    pub fn abs(self) -> Result<Var> {
        // dx = dy · sign x
        from_input("abs", self, Tensor::abs, |dy, x| times(dy, &x.sign()?))
    }

    /// `min(max(self, low), high)`. Either limit may be infinite. The gradient at a limit is 0, as
    /// in PyTorch 2.15.
    #[track_caller]
    pub fn clamp(self, low: f64, high: f64) -> Result<Var> {
        // dx = dy where low < x < high, else 0
        passes_where(
            "clamp",
            self,
            |x| x.clamp(low, high),
            |x| x.gt_scalar(low)?.logical_and(&x.lt_scalar(high)?),
        )
    }

    /// The larger of `self` and `value`, with the gradient of [`Var::clamp`].
    #[track_caller]
    pub fn maximum_scalar(self, value: f64) -> Result<Var> {
        // dx = dy where x > value, else 0
        let op = "maximum_scalar";
        passes_where(op, self, |x| x.maximum_scalar(value), |x| x.gt_scalar(value))
    }

    /// The smaller of `self` and `value`, with the gradient of [`Var::clamp`].
    #[track_caller]
    pub fn minimum_scalar(self, value: f64) -> Result<Var> {
        // dx = dy where x < value, else 0
        let op = "minimum_scalar";
        passes_where(op, self, |x| x.minimum_scalar(value), |x| x.lt_scalar(value))
    }

    /// The larger of `self` and `other`, broadcast. Equal values share the gradient; if one is NaN,
    /// both get the whole gradient.
    #[track_caller]
    pub fn maximum(self, other: Var) -> Result<Var> {
        either("maximum", [self, other], Tensor::maximum, [Tensor::ge, Tensor::le])
    }

    /// The smaller of `self` and `other`, broadcast, with the gradients of [`Var::maximum`].
    #[track_caller]
    pub fn minimum(self, other: Var) -> Result<Var> {
        either("minimum", [self, other], Tensor::minimum, [Tensor::le, Tensor::ge])
    }

    /// `self` where `mask` is true and `other` elsewhere, all three broadcast; see
    /// [`Tensor::where_cond`].
    #[track_caller]
    pub fn where_cond(self, mask: &Tensor, other: Var) -> Result<Var> {
        Var::apply("where_cond", [self, other], |[a, b], save| {
            let (a_shape, b_shape, y) = (*a.shape(), *b.shape(), mask.where_cond(&a, &b)?);
            let saved = save.keep(mask);
            // da = dy where the mask is true, else 0; db = dy where it is false, else 0
            let rule = move |dy: Tensor, needs: Needs| {
                let mask = saved.unpack()?;
                let da = when(needs.input(0), || {
                    unbroadcast(&dy.masked_fill(&mask.logical_not()?, 0.0)?, a_shape)
                })?;
                let db =
                    when(needs.input(1), || unbroadcast(&dy.masked_fill(&mask, 0.0)?, b_shape))?;
                Ok(vec![da, db])
            };
            Ok((y, rule))
        })
    }

    /// `value` where `mask` is true, `self` elsewhere; see [`Tensor::masked_fill`].
    #[track_caller]
    pub fn masked_fill(self, mask: &Tensor, value: f64) -> Result<Var> {
        Var::apply("masked_fill", [self], |[x], save| {
            let (x_shape, y) = (*x.shape(), x.masked_fill(mask, value)?);
            let saved = save.keep(mask);
            // dx = dy where the mask is false, else 0
            let rule = move |dy: Tensor, _: Needs| {
                let dy = dy.masked_fill(&saved.unpack()?, 0.0)?;
                Ok(vec![Some(unbroadcast(&dy, x_shape)?)])
            };
            Ok((y, rule))
        })
    }
}
