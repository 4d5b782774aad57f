//! Rules of the operations that join tensors, repeat them and move their elements.

use lowtide_tensor::{Axis, PadMode, RANK_MAX, Tensor, TensorError};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::{reuse, when};
use crate::var::Var;

/// [`Var::apply_to`] that returns `Index` if there are no inputs.
#[track_caller]
fn apply_to_any<R: crate::rule::Rule + 'static>(
    op: &'static str,
    inputs: Vec<Var>,
    forward: impl FnOnce(&[&Tensor]) -> Result<(Tensor, R)>,
) -> Result<Var> {
    if inputs.is_empty() {
        return Err(TensorError::Index { op, index: 0, len: 0 }.into());
    }
    Var::apply_to(op, inputs, |values, _| forward(&values.iter().collect::<Vec<_>>()))
}

/// A repetition of the positions along a dimension.
#[derive(Clone, Copy)]
enum Copies {
    /// Repeats the whole dimension: `a b a b`.
    Tiled { count: usize },
    /// Repeats each position: `a a b b`.
    Interleaved { count: usize },
}

/// `dy` summed over the copies of the `len` positions along `axis`.
fn sum_of_copies(dy: &Tensor, axis: usize, len: usize, copies: Copies) -> Result<Tensor> {
    let dims = dy.shape().to_vec();
    let (before, after) = (dims[..axis].iter().product(), dims[axis + 1..].iter().product());
    let summed = match copies {
        Copies::Tiled { count } => dy.reshape([before, count, len, after])?.sum(&[1])?,
        Copies::Interleaved { count } => dy.reshape([before, len, count, after])?.sum(&[2])?,
    };
    Ok(summed.reshape(&[&dims[..axis], &[len], &dims[axis + 1..]].concat()[..])?)
}

impl Var {
    /// The values joined along `axis`; see [`Tensor::cat`].
    #[track_caller]
    pub fn cat(inputs: Vec<Var>, axis: impl Into<Axis>) -> Result<Var> {
        apply_to_any("cat", inputs, |inputs| {
            let axis = axis.into().index("cat", inputs[0].shape().len())?;
            let y = Tensor::cat(inputs, axis)?;
            let lens: Vec<usize> = inputs.iter().map(|x| x.shape()[axis]).collect();
            // dx of each input = its part of dy
            let rule = move |dy: Tensor, needs: Needs| {
                let mut start = 0;
                let part = |(index, &len): (usize, &usize)| {
                    start += len;
                    when(needs.input(index), || Ok(dy.narrow(axis, start - len, len)?))
                };
                lens.iter().enumerate().map(part).collect()
            };
            Ok((y, rule))
        })
    }

    /// The values joined along a new dimension with index `axis`; see [`Tensor::stack`].
    #[track_caller]
    pub fn stack(inputs: Vec<Var>, axis: impl Into<Axis>) -> Result<Var> {
        apply_to_any("stack", inputs, |inputs| {
            let axis = axis.into().index("stack", inputs[0].shape().len() + 1)?;
            let (count, y) = (inputs.len(), Tensor::stack(inputs, axis)?);
            // dx of each input = its slice of dy
            let rule = move |dy: Tensor, needs: Needs| {
                let slice = |at| when(needs.input(at), || Ok(dy.select(axis, at)?));
                (0..count).map(slice).collect()
            };
            Ok((y, rule))
        })
    }

    /// `times[k]` copies along each of the last dimensions; see [`Tensor::repeat`].
    #[track_caller]
    pub fn repeat(self, times: &[usize]) -> Result<Var> {
        let times = times.to_vec();
        Var::apply("repeat", [self], |[x], _| {
            let (x_shape, y) = (*x.shape(), x.repeat(&times)?);
            // dx = the sum of dy over the copies
            let rule = move |dy: Tensor, _: Needs| {
                let rank = dy.shape().len();
                let (added, untouched) = (rank - x_shape.len(), rank - times.len());
                let repeated = (untouched..).zip(&times).filter(|(_, copies)| **copies != 1);
                let len = |axis: usize| if axis < added { 1 } else { x_shape[axis - added] };
                if rank + repeated.clone().count() > RANK_MAX {
                    let mut dx = dy;
                    for (axis, &count) in repeated {
                        dx = sum_of_copies(&dx, axis, len(axis), Copies::Tiled { count })?;
                    }
                    return Ok(vec![Some(dx.reshape(x_shape)?)]);
                }
                // One sum over all copies, so that half types are rounded once.
                let (mut dims, mut axes) = (dy.shape().to_vec(), Vec::new());
                for (before, (axis, &copies)) in repeated.enumerate() {
                    axes.push(axis + before);
                    dims[axis + before] = len(axis);
                    dims.insert(axis + before, copies);
                }
                let dx = if axes.is_empty() { dy } else { dy.reshape(&dims[..])?.sum(&axes)? };
                Ok(vec![Some(dx.reshape(x_shape)?)])
            };
            Ok((y, rule))
        })
    }

    /// Each position along `axis` repeated `times` times in a row; see
    /// [`Tensor::repeat_interleave`].
    #[track_caller]
    pub fn repeat_interleave(self, axis: impl Into<Axis>, times: usize) -> Result<Var> {
        let axis = self.axis("repeat_interleave", axis)?;
        Var::apply("repeat_interleave", [self], |[x], _| {
            let y = x.repeat_interleave(axis, times)?;
            let len = x.shape()[axis];
            // dx = the sum of dy over the copies
            let rule = move |dy: Tensor, _: Needs| {
                let copies = Copies::Interleaved { count: times };
                Ok(vec![Some(sum_of_copies(&dy, axis, len, copies)?)])
            };
            Ok((y, rule))
        })
    }

    /// Padding around the last dimensions; see [`Tensor::pad`].
    #[track_caller]
    pub fn pad(self, padding: &[[usize; 2]], mode: PadMode) -> Result<Var> {
        let padding = padding.to_vec();
        Var::apply("pad", [self], |[x], _| {
            let (x_shape, y) = (*x.shape(), x.pad(&padding, mode)?);
            // dx[p] = the sum of dy over all positions that show x[p]
            let rule = move |dy: Tensor, _: Needs| {
                Ok(vec![Some(dy.pad_backward(x_shape, &padding, mode)?)])
            };
            Ok((y, rule))
        })
    }

    /// The positions along `axes` in reverse order; see [`Tensor::flip`].
    #[track_caller]
    pub fn flip(self, axes: &[impl Into<Axis> + Copy]) -> Result<Var> {
        let axes = &self.axes("flip", axes)?;
        let axes = axes.to_vec();
        Var::apply("flip", [self], |[x], _| {
            let y = x.flip(&axes)?;
            // dx = dy flipped back
            Ok((y, move |dy: Tensor, _: Needs| Ok(vec![Some(dy.flip(&axes)?)])))
        })
    }

    /// The positions along `axis` shifted cyclically; see [`Tensor::roll`].
    #[track_caller]
    pub fn roll(self, axis: impl Into<Axis>, shift: isize) -> Result<Var> {
        let axis = self.axis("roll", axis)?;
        Var::apply("roll", [self], |[x], _| {
            let y = x.roll(axis, shift)?;
            // The shift is reduced to the length first: the smallest isize cannot be negated.
            let len = isize::try_from(x.shape()[axis]).unwrap_or(isize::MAX).max(1);
            // dx = dy shifted back
            let rule = move |dy: Tensor, _: Needs| Ok(vec![Some(dy.roll(axis, -(shift % len))?)]);
            Ok((y, rule))
        })
    }

    /// The upper triangles of the matrices: 0 below the given diagonal; see [`Tensor::triu`].
    #[track_caller]
    pub fn triu(self, diagonal: isize) -> Result<Var> {
        Var::apply("triu", [self], |[x], _| {
            let upper = move |x| reuse(x, |x| x.triu_(diagonal), |x| x.triu(diagonal));
            // dx = dy above and on the diagonal, else 0
            Ok((upper(x)?, move |dy: Tensor, _: Needs| Ok(vec![Some(upper(dy)?)])))
        })
    }

    /// The lower triangles of the matrices: 0 above the given diagonal; see [`Tensor::tril`].
    #[track_caller]
    pub fn tril(self, diagonal: isize) -> Result<Var> {
        Var::apply("tril", [self], |[x], _| {
            let lower = move |x| reuse(x, |x| x.tril_(diagonal), |x| x.tril(diagonal));
            // dx = dy below and on the diagonal, else 0
            Ok((lower(x)?, move |dy: Tensor, _: Needs| Ok(vec![Some(lower(dy)?)])))
        })
    }
}
