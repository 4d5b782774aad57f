//! Rules of elementwise arithmetic; binary operations broadcast.

use lowtide_tensor::Tensor;

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::{change, over, reuse, times, unbroadcast, when};
use crate::var::Var;

#[expect(clippy::should_implement_trait, reason = "an operator could not return an error")]
impl Var {
    /// `self + other`, broadcast.
    ///
    /// # Errors
    /// As for [`Tensor::add`] and [`Var::apply`]. Every operation of this type returns the errors
    /// of its tensor operation and of [`Var::apply`].
    #[track_caller]
    pub fn add(self, other: Var) -> Result<Var> {
        Var::apply("add", [self, other], |[a, b], save| {
            let (a_shape, b_shape) = (*a.shape(), *b.shape());
            let is_in_place = a_shape.broadcast(&b_shape) == Some(a_shape);
            let sum = move |a: Tensor, b: &Tensor| {
                if is_in_place { reuse(a, |a| a.add_(b), |a| a.add(b)) } else { Ok(a.add(b)?) }
            };
            let sources = [save.source(&a), save.source(&b)];
            let y = sum(a, &b)?;
            save.add_recipe(&y, sources, move |mut inputs| sum(inputs.remove(0), &inputs[0]));
            // da = dy, db = dy
            let rule = move |dy: Tensor, needs: Needs| {
                let da = when(needs.input(0), || unbroadcast(&dy, a_shape))?;
                let db = when(needs.input(1), || unbroadcast(&dy, b_shape))?;
                Ok(vec![da, db])
            };
            Ok((y, rule))
        })
    }

    /// `self - other`, broadcast.
    #[track_caller]
    pub fn sub(self, other: Var) -> Result<Var> {
        Var::apply("sub", [self, other], |[a, b], _| {
            let (a_shape, b_shape) = (*a.shape(), *b.shape());
            let y = a.sub(&b)?;
            // da = dy, db = -dy
            let rule = move |dy: Tensor, needs: Needs| {
                let da = when(needs.input(0), || unbroadcast(&dy, a_shape))?;
                let db = when(needs.input(1), || Ok(unbroadcast(&dy, b_shape)?.neg()?))?;
                Ok(vec![da, db])
            };
            Ok((y, rule))
        })
    }

    /// `self · other`, element by element, broadcast.
    #[track_caller]
    pub fn mul(self, other: Var) -> Result<Var> {
        Var::apply("mul", [self, other], |[a, b], save| {
            let y = a.mul(&b)?;
            let (saved_a, saved_b) = (save.keep(&a), save.keep(&b));
            let sources = [&a, &b].map(|x| save.source_kept(x));
            save.add_recipe(&y, sources, |inputs| Ok(inputs[0].mul(&inputs[1])?));
            // da = dy · b, db = dy · a
            let rule = move |dy: Tensor, needs: Needs| {
                let (a, b) = (saved_a.unpack()?, saved_b.unpack()?);
                let da = when(needs.input(0), || unbroadcast(&dy.mul(&b)?, *a.shape()))?;
                let db = when(needs.input(1), || unbroadcast(&dy.mul(&a)?, *b.shape()))?;
                Ok(vec![da, db])
            };
            Ok((y, rule))
        })
    }

    /// `self / other`, broadcast.
    #[track_caller]
    pub fn div(self, other: Var) -> Result<Var> {
        Var::apply("div", [self, other], |[a, b], save| {
            let (a_shape, y) = (*a.shape(), a.div(&b)?);
            let (saved_b, saved_y) = (save.keep(&b), save.keep(&y));
            // da = dy / b, db = -dy · (y / b). The other order, (dy / b) · y, would be NaN for the
            // smallest b and y = 0, because dy / b is infinite.
            let rule = move |dy: Tensor, needs: Needs| {
                let (b, y) = (saved_b.unpack()?, saved_y.unpack()?);
                let db = when(needs.input(1), || {
                    let slope = y.div(&b)?;
                    drop(y);
                    Ok(unbroadcast(&times(slope, &dy)?, *b.shape())?.neg()?)
                })?;
                let da = when(needs.input(0), || unbroadcast(&over(dy, &b)?, a_shape))?;
                Ok(vec![da, db])
            };
            Ok((y, rule))
        })
    }

    /// `-self`.
    #[track_caller]
    pub fn neg(self) -> Result<Var> {
        self.mul_scalar(-1.0)
    }

    /// `self + value`.
    #[track_caller]
    pub fn add_scalar(self, value: f64) -> Result<Var> {
        Var::apply("add_scalar", [self], |[x], _| {
            // dx = dy
            Ok((x.add_scalar(value)?, |dy: Tensor, _: Needs| Ok(vec![Some(dy)])))
        })
    }

    /// `self · value`.
    #[track_caller]
    pub fn mul_scalar(self, value: f64) -> Result<Var> {
        Var::apply("mul_scalar", [self], |[x], save| {
            let y = change(save, x, move |x| x.mul_scalar_(value), move |x| x.mul_scalar(value))?;
            // dx = value · dy
            let rule = move |dy: Tensor, _: Needs| {
                let dx = reuse(dy, |dy| dy.mul_scalar_(value), |dy| dy.mul_scalar(value))?;
                Ok(vec![Some(dx)])
            };
            Ok((y, rule))
        })
    }
}
