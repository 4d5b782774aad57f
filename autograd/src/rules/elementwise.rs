//! Rules of the elementwise operations; binary ones broadcast.

use lowtide_tensor::Tensor;

use crate::rules::{unbroadcast, when};
use crate::{Needs, Result, Var};

/// `change` on `x` itself if nobody else sees it, else what `fresh` makes of it.
fn reuse(
    mut x: Tensor,
    change: impl FnOnce(&mut Tensor) -> lowtide_tensor::Result<()>,
    fresh: impl FnOnce(&Tensor) -> lowtide_tensor::Result<Tensor>,
) -> Result<Tensor> {
    if x.is_reusable() {
        change(&mut x)?;
        return Ok(x);
    }
    Ok(fresh(&x)?)
}

#[expect(clippy::should_implement_trait, reason = "an operator could not return an error")]
impl Var {
    /// `self + other`, broadcast.
    ///
    /// # Errors
    /// Those of [`Tensor::add`] and [`Var::apply`]; so for all rules.
    #[track_caller]
    pub fn add(self, other: Var) -> Result<Var> {
        Var::apply("add", [self, other], |[a, b], _| {
            let (a_shape, b_shape) = (*a.shape(), *b.shape());
            let y = if a_shape.broadcast(&b_shape) == Some(a_shape) {
                reuse(a, |a| a.add_(&b), |a| a.add(&b))?
            } else {
                a.add(&b)?
            };
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
            // da = dy / b, db = -dy · y / b
            let rule = move |dy: Tensor, needs: Needs| {
                let (b, y) = (saved_b.unpack()?, saved_y.unpack()?);
                let mut quotient = dy.div(&b)?;
                let da = when(needs.input(0), || unbroadcast(&quotient, a_shape))?;
                let db = when(needs.input(1), || {
                    if da.as_ref().is_some_and(|da| da.shares_storage(&quotient)) {
                        quotient = quotient.mul(&y)?;
                    } else {
                        quotient.mul_(&y)?;
                    }
                    Ok(unbroadcast(&quotient, *b.shape())?.neg()?)
                })?;
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
        Var::apply("mul_scalar", [self], |[x], _| {
            let y = reuse(x, |x| x.mul_scalar_(value), |x| x.mul_scalar(value))?;
            // dx = value · dy
            let rule = move |dy: Tensor, _: Needs| {
                let dx = reuse(dy, |dy| dy.mul_scalar_(value), |dy| dy.mul_scalar(value))?;
                Ok(vec![Some(dx)])
            };
            Ok((y, rule))
        })
    }

    /// `e^self`.
    #[track_caller]
    pub fn exp(self) -> Result<Var> {
        Var::apply("exp", [self], |[x], save| {
            let y = x.exp()?;
            let saved_y = save.keep(&y);
            // dx = dy · y
            let rule = move |dy: Tensor, _: Needs| Ok(vec![Some(dy.mul(&saved_y.unpack()?)?)]);
            Ok((y, rule))
        })
    }

    /// The natural logarithm.
    #[track_caller]
    pub fn log(self) -> Result<Var> {
        Var::apply("log", [self], |[x], save| {
            let y = x.log()?;
            let saved_x = save.keep(&x);
            // dx = dy / x
            let rule = move |dy: Tensor, _: Needs| Ok(vec![Some(dy.div(&saved_x.unpack()?)?)]);
            Ok((y, rule))
        })
    }

    /// The square root.
    #[track_caller]
    pub fn sqrt(self) -> Result<Var> {
        Var::apply("sqrt", [self], |[x], save| {
            let y = x.sqrt()?;
            let saved_y = save.keep(&y);
            // dx = dy / (2 y)
            let rule = move |dy: Tensor, _: Needs| {
                let mut dx = dy.div(&saved_y.unpack()?)?;
                dx.mul_scalar_(0.5)?;
                Ok(vec![Some(dx)])
            };
            Ok((y, rule))
        })
    }

    /// `max(self, 0)`, in place if the buffer is free to reuse; `relu'(0) = 0`.
    #[track_caller]
    pub fn relu(self) -> Result<Var> {
        Var::apply("relu", [self], |[x], save| {
            let y = reuse(x, Tensor::relu_, Tensor::relu)?;
            let saved_y = save.keep(&y);
            // dx = dy where y > 0, else 0
            let rule = move |dy: Tensor, _: Needs| {
                let y = saved_y.unpack()?;
                let dx = reuse(dy, |dy| dy.relu_backward_(&y), |dy| dy.relu_backward(&y))?;
                Ok(vec![Some(dx)])
            };
            Ok((y, rule))
        })
    }
}
