//! Rules of the views. The gradient goes through the inverse view.

use std::ops::Range;

use lowtide_tensor::{Axis, IntoShape, Tensor};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::placed;
use crate::var::Var;

impl Var {
    /// The elements in another shape; see [`Tensor::reshape`].
    #[track_caller]
    pub fn reshape(self, shape: impl IntoShape) -> Result<Var> {
        let shape = shape.into_shape("reshape")?;
        Var::apply("reshape", [self], |[x], _| {
            let x_shape = *x.shape();
            // dx = dy in the shape of x
            let rule = move |dy: Tensor, _: Needs| Ok(vec![Some(dy.reshape(x_shape)?)]);
            Ok((x.reshape(shape)?, rule))
        })
    }

    /// [`Var::reshape`] that never copies; see [`Tensor::view`].
    #[track_caller]
    pub fn view(self, shape: impl IntoShape) -> Result<Var> {
        let shape = shape.into_shape("view")?;
        Var::apply("view", [self], |[x], _| {
            let x_shape = *x.shape();
            // dx = dy in the shape of x
            let rule = move |dy: Tensor, _: Needs| Ok(vec![Some(dy.reshape(x_shape)?)]);
            Ok((x.view(shape)?, rule))
        })
    }

    /// Dimensions `axes` merged into one; see [`Tensor::flatten`].
    #[track_caller]
    pub fn flatten(self, axes: Range<usize>) -> Result<Var> {
        Var::apply("flatten", [self], |[x], _| {
            let x_shape = *x.shape();
            // dx = dy in the shape of x
            let rule = move |dy: Tensor, _: Needs| Ok(vec![Some(dy.reshape(x_shape)?)]);
            Ok((x.flatten(axes)?, rule))
        })
    }

    /// Dimensions `a` and `b` exchanged.
    #[track_caller]
    pub fn transpose(self, a: impl Into<Axis>, b: impl Into<Axis>) -> Result<Var> {
        let a = self.axis("transpose", a)?;
        let b = self.axis("transpose", b)?;
        Var::apply("transpose", [self], |[x], _| {
            // dx = dyᵀ
            let rule = move |dy: Tensor, _: Needs| Ok(vec![Some(dy.transpose(a, b)?)]);
            Ok((x.transpose(a, b)?, rule))
        })
    }

    /// The transpose of a matrix. A vector or a number is returned as it is.
    #[track_caller]
    pub fn t(self) -> Result<Var> {
        Var::apply("t", [self], |[x], _| {
            // dx = dyᵀ
            Ok((x.t()?, |dy: Tensor, _: Needs| Ok(vec![Some(dy.t()?)])))
        })
    }

    /// Dimension `from` moved to place `to`; the others keep their order.
    #[track_caller]
    pub fn movedim(self, from: impl Into<Axis>, to: impl Into<Axis>) -> Result<Var> {
        let from = self.axis("movedim", from)?;
        let to = self.axis("movedim", to)?;
        Var::apply("movedim", [self], |[x], _| {
            // dx = dy with the dimension moved back
            let rule = move |dy: Tensor, _: Needs| Ok(vec![Some(dy.movedim(to, from)?)]);
            Ok((x.movedim(from, to)?, rule))
        })
    }

    /// The dimensions in the order `axes`.
    #[track_caller]
    pub fn permute(self, axes: &[impl Into<Axis> + Copy]) -> Result<Var> {
        let axes = &self.axes("permute", axes)?;
        let axes = axes.to_vec();
        Var::apply("permute", [self], |[x], _| {
            let y = x.permute(&axes)?;
            // dx[axes[i]] = dy[i]: the inverse order
            let rule = move |dy: Tensor, _: Needs| {
                let mut inverse = vec![0; axes.len()];
                axes.iter().enumerate().for_each(|(to, &from)| inverse[from] = to);
                Ok(vec![Some(dy.permute(&inverse)?)])
            };
            Ok((y, rule))
        })
    }

    /// The `len` positions from `start` along `axis`.
    #[track_caller]
    pub fn narrow(self, axis: impl Into<Axis>, start: usize, len: usize) -> Result<Var> {
        let axis = self.axis("narrow", axis)?;
        Var::apply("narrow", [self], |[x], _| {
            let x_shape = *x.shape();
            // dx = dy inside the range, 0 outside
            let rule = move |dy: Tensor, _: Needs| {
                Ok(vec![Some(placed(&dy, x_shape, |dx| dx.narrow(axis, start, len))?)])
            };
            Ok((x.narrow(axis, start, len)?, rule))
        })
    }

    /// The slice at position `index` along `axis`, without that dimension.
    #[track_caller]
    pub fn select(self, axis: impl Into<Axis>, index: usize) -> Result<Var> {
        let axis = self.axis("select", axis)?;
        Var::apply("select", [self], |[x], _| {
            let (x_shape, y) = (*x.shape(), x.select(axis, index)?);
            // dx = dy at the position, 0 elsewhere
            let rule = move |dy: Tensor, _: Needs| {
                Ok(vec![Some(placed(&dy, x_shape, |dx| dx.select(axis, index))?)])
            };
            Ok((y, rule))
        })
    }

    /// A new dimension of length 1 with index `axis`.
    #[track_caller]
    pub fn unsqueeze(self, axis: impl Into<Axis>) -> Result<Var> {
        let axis = axis.into().index("unsqueeze", self.shape().len() + 1)?;
        Var::apply("unsqueeze", [self], |[x], _| {
            // dx = dy without the dimension
            let rule = move |dy: Tensor, _: Needs| Ok(vec![Some(dy.squeeze(axis)?)]);
            Ok((x.unsqueeze(axis)?, rule))
        })
    }

    /// Removes dimension `axis`, which must have length 1.
    #[track_caller]
    pub fn squeeze(self, axis: impl Into<Axis>) -> Result<Var> {
        let axis = self.axis("squeeze", axis)?;
        Var::apply("squeeze", [self], |[x], _| {
            // dx = dy with the dimension
            let rule = move |dy: Tensor, _: Needs| Ok(vec![Some(dy.unsqueeze(axis)?)]);
            Ok((x.squeeze(axis)?, rule))
        })
    }

    /// The elements in contiguous memory: a copy, unless they are contiguous already.
    #[track_caller]
    pub fn contiguous(self) -> Result<Var> {
        Var::apply("contiguous", [self], |[x], _| {
            // dx = dy
            Ok((x.contiguous()?, |dy: Tensor, _: Needs| Ok(vec![Some(dy)])))
        })
    }

    /// Dimensions of length 1 stretched to `shape`.
    #[track_caller]
    pub fn expand(self, shape: impl IntoShape) -> Result<Var> {
        let shape = shape.into_shape("expand")?;
        Var::apply("expand", [self], |[x], _| {
            let x_shape = *x.shape();
            // dx = dy summed over the stretched dimensions
            let rule = move |dy: Tensor, _: Needs| Ok(vec![Some(dy.sum_to(x_shape)?)]);
            Ok((x.expand(shape)?, rule))
        })
    }
}
