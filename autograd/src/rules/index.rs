//! Rules of the operations that take and place elements by index. Indices have type i64 and no
//! gradient. The rules save nothing but the indices.

use lowtide_tensor::{Axis, DType, Shape, Tensor, TensorError};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::{placed, reuse, unbroadcast, when};
use crate::var::Var;

/// The leading corner of `x` with the given shape.
pub(super) fn corner(x: &Tensor, shape: Shape) -> lowtide_tensor::TensorResult<Tensor> {
    (0..shape.len()).try_fold(x.clone(), |part, axis| part.narrow(axis, 0, shape[axis]))
}

/// The gradient of a source of shape `source` whose leading corner was used: `dy` there, 0
/// elsewhere.
pub(super) fn source_gradient(dy: Tensor, source: Shape) -> Result<Tensor> {
    let shape = *dy.shape();
    if shape == source { Ok(dy) } else { placed(&dy, source, |dx| corner(dx, shape)) }
}

/// A mask of `index` that is true where a later index along `axis` names the same place of a tensor
/// of `shape`.
fn is_overwritten(index: &Tensor, axis: usize, shape: Shape) -> Result<Tensor> {
    let (device, len) = (index.device(), index.shape()[axis]);
    let mut dims = vec![1; shape.len()];
    dims[axis] = len;
    let own = Tensor::arange(device, 0.0..len as f64, 1.0, DType::I64)?.reshape(&dims[..])?;
    let own = own.expand(*index.shape())?;
    // Elements that are not written here are never read.
    let mut winners = Tensor::empty(device, shape, DType::I64)?;
    winners.scatter_(axis, index, &own)?;
    Ok(winners.gather(axis, index)?.ne(&own)?)
}

/// A tensor of shape `y` with the elements of `dy` in order where `mask` is true, 0 elsewhere.
fn spread_over(mask: &Tensor, y: Shape, dy: &Tensor) -> Result<Tensor> {
    if dy.element_count() == 0 {
        return Ok(Tensor::zeros(dy.device(), y, dy.dtype())?);
    }
    let mask = mask.expand(y)?;
    // The index into dy for each element. Elements where the mask is false may have any index.
    let mut places = mask.reshape([y.element_count()])?.cumsum(0)?;
    places.add_scalar_(-1.0)?;
    places.maximum_scalar_(0.0)?;
    let mut dx = dy.index_select(0, &places)?.reshape(y)?;
    dx.masked_fill_(&mask.logical_not()?, 0.0)?;
    Ok(dx)
}

#[track_caller]
fn selected(
    x: Var,
    mask: &Tensor,
    forward: impl FnOnce(&Tensor) -> lowtide_tensor::TensorResult<Tensor>,
) -> Result<Var> {
    Var::apply("masked_select", [x], |[x], save| {
        let (x_shape, y) = (*x.shape(), forward(&x)?);
        let saved = save.keep(mask);
        // dx = the elements of dy in order where the mask is true, 0 elsewhere
        let rule = move |dy: Tensor, _: Needs| {
            let mask = saved.unpack()?;
            let whole = x_shape.broadcast(mask.shape()).expect("forward broadcast both");
            Ok(vec![Some(unbroadcast(&spread_over(&mask, whole, &dy)?, x_shape)?)])
        };
        Ok((y, rule))
    })
}

impl Var {
    /// `y[i, j, k] = self[i, index[i, j, k], k]` for axis 1; see [`Tensor::gather`].
    #[track_caller]
    pub fn gather(self, axis: impl Into<Axis>, index: &Tensor) -> Result<Var> {
        let axis = self.axis("gather", axis)?;
        Var::apply("gather", [self], |[x], save| {
            let (x_shape, y) = (*x.shape(), x.gather(axis, index)?);
            let saved = save.keep(index);
            // dx[i, index[i, j, k], k] += dy[i, j, k]
            let rule = move |dy: Tensor, _: Needs| {
                let dx = Tensor::zeros(dy.device(), x_shape, dy.dtype())?;
                let (index, narrow) = (saved.unpack()?, is_half(&dy));
                let add = |mut dx: Tensor| dx.scatter_add_(axis, &index, &dy).map(|()| dx);
                let dx = if narrow { dx.scatter_add(axis, &index, &dy)? } else { add(dx)? };
                Ok(vec![Some(dx)])
            };
            Ok((y, rule))
        })
    }

    /// The positions `index` along `axis`; see [`Tensor::index_select`].
    #[track_caller]
    pub fn index_select(self, axis: impl Into<Axis>, index: &Tensor) -> Result<Var> {
        let axis = self.axis("index_select", axis)?;
        Var::apply("index_select", [self], |[x], save| {
            let (x_shape, y) = (*x.shape(), x.index_select(axis, index)?);
            let saved = save.keep(index);
            // dx[i, index[j], k] += dy[i, j, k]
            let rule = move |dy: Tensor, _: Needs| {
                let dx = Tensor::zeros(dy.device(), x_shape, dy.dtype())?;
                let (index, narrow) = (saved.unpack()?, is_half(&dy));
                let add = |mut dx: Tensor| dx.index_add_(axis, &index, &dy).map(|()| dx);
                let dx = if narrow { dx.index_add(axis, &index, &dy)? } else { add(dx)? };
                Ok(vec![Some(dx)])
            };
            Ok((y, rule))
        })
    }

    /// `self` with `source` at the places of `index`; see [`Tensor::scatter`]. Elements that a
    /// later index overwrites have gradient 0.
    #[track_caller]
    pub fn scatter(self, axis: impl Into<Axis>, index: &Tensor, source: Var) -> Result<Var> {
        let axis = self.axis("scatter", axis)?;
        Var::apply("scatter", [self, source], |[x, source], save| {
            let source_shape = *source.shape();
            let put = |x| {
                let in_place = |x: &mut Tensor| x.scatter_(axis, index, &source);
                reuse(x, in_place, |x| x.scatter(axis, index, &source))
            };
            let (y, saved) = (put(x)?, save.keep(index));
            // dx = dy, but 0 at the places; dsource = dy at the places, 0 where overwritten
            let rule = move |dy: Tensor, needs: Needs| {
                let index = saved.unpack()?;
                let ds = when(needs.input(1), || {
                    let mut ds = dy.gather(axis, &index)?;
                    ds.masked_fill_(&is_overwritten(&index, axis, *dy.shape())?, 0.0)?;
                    source_gradient(ds, source_shape)
                })?;
                let dx = when(needs.input(0), || {
                    let zero = Tensor::zeros(dy.device(), [], dy.dtype())?;
                    let zero = zero.expand(*index.shape())?;
                    let in_place = |dy: &mut Tensor| dy.scatter_(axis, &index, &zero);
                    reuse(dy, in_place, |dy| dy.scatter(axis, &index, &zero))
                })?;
                Ok(vec![dx, ds])
            };
            Ok((y, rule))
        })
    }

    /// `self` with `source` added at the places of `index`; see [`Tensor::scatter_add`].
    #[track_caller]
    pub fn scatter_add(self, axis: impl Into<Axis>, index: &Tensor, source: Var) -> Result<Var> {
        let axis = self.axis("scatter_add", axis)?;
        Var::apply("scatter_add", [self, source], |[x, source], save| {
            let (source_shape, y) = (*source.shape(), x.scatter_add(axis, index, &source)?);
            let saved = save.keep(index);
            // dx = dy, dsource = dy at the places
            let rule = move |dy: Tensor, needs: Needs| {
                let ds = when(needs.input(1), || {
                    source_gradient(dy.gather(axis, &saved.unpack()?)?, source_shape)
                })?;
                Ok(vec![needs.input(0).then_some(dy), ds])
            };
            Ok((y, rule))
        })
    }

    /// `self` with the slices of `source` added at the positions `index` along `axis`; see
    /// [`Tensor::index_add`].
    #[track_caller]
    pub fn index_add(self, axis: impl Into<Axis>, index: &Tensor, source: Var) -> Result<Var> {
        let axis = self.axis("index_add", axis)?;
        Var::apply("index_add", [self, source], |[x, source], save| {
            let (y, saved) = (x.index_add(axis, index, &source)?, save.keep(index));
            // dx = dy, dsource = the slices of dy at these positions
            let rule = move |dy: Tensor, needs: Needs| {
                let ds = when(needs.input(1), || Ok(dy.index_select(axis, &saved.unpack()?)?))?;
                Ok(vec![needs.input(0).then_some(dy), ds])
            };
            Ok((y, rule))
        })
    }

    /// `self` with its slices at the positions `index` along `axis` replaced by the slices of
    /// `source`; see [`Tensor::index_copy`]. Slices that a later index overwrites have gradient 0.
    #[track_caller]
    pub fn index_copy(self, axis: impl Into<Axis>, index: &Tensor, source: Var) -> Result<Var> {
        let axis = self.axis("index_copy", axis)?;
        Var::apply("index_copy", [self, source], |[x, source], save| {
            let source_shape = *source.shape();
            let in_place = |x: &mut Tensor| x.index_copy_(axis, index, &source);
            let y = reuse(x, in_place, |x| x.index_copy(axis, index, &source))?;
            let saved = save.keep(index);
            // dx = dy, but 0 at these positions; dsource = dy at them, 0 where overwritten
            let rule = move |dy: Tensor, needs: Needs| {
                let index = saved.unpack()?;
                let ds = when(needs.input(1), || {
                    let lost = is_overwritten(&index, 0, Shape::new(&[dy.shape()[axis]]))?;
                    let mut dims = vec![1; source_shape.len()];
                    dims[axis] = source_shape[axis];
                    let mut ds = dy.index_select(axis, &index)?;
                    ds.masked_fill_(&lost.reshape(&dims[..])?, 0.0)?;
                    Ok(ds)
                })?;
                let dx = when(needs.input(0), || {
                    let zero = Tensor::zeros(dy.device(), [], dy.dtype())?.expand(source_shape)?;
                    let in_place = |dy: &mut Tensor| dy.index_copy_(axis, &index, &zero);
                    reuse(dy, in_place, |dy| dy.index_copy(axis, &index, &zero))
                })?;
                Ok(vec![dx, ds])
            };
            Ok((y, rule))
        })
    }

    /// `self` with `value` at the positions `index` along `axis`; see [`Tensor::index_fill`].
    #[track_caller]
    pub fn index_fill(self, axis: impl Into<Axis>, index: &Tensor, value: f64) -> Result<Var> {
        let axis = self.axis("index_fill", axis)?;
        Var::apply("index_fill", [self], |[x], save| {
            let in_place = |x: &mut Tensor| x.index_fill_(axis, index, value);
            let y = reuse(x, in_place, |x| x.index_fill(axis, index, value))?;
            let saved = save.keep(index);
            // dx = dy, but 0 at these positions
            let rule = move |dy: Tensor, _: Needs| {
                let index = saved.unpack()?;
                let in_place = |dy: &mut Tensor| dy.index_fill_(axis, &index, 0.0);
                Ok(vec![Some(reuse(dy, in_place, |dy| dy.index_fill(axis, &index, 0.0))?)])
            };
            Ok((y, rule))
        })
    }

    /// [`Var::gather`] that broadcasts its operands along all dimensions but `axis`; see
    /// [`Tensor::take_along_dim`].
    #[track_caller]
    pub fn take_along_dim(self, index: &Tensor, axis: impl Into<Axis>) -> Result<Var> {
        let op = "take_along_dim";
        let axis = self.axis(op, axis)?;
        let (left, right) = (*self.shape(), *index.shape());
        let mismatch = TensorError::Shape { op, left, right };
        if left.len() != right.len() {
            return Err(mismatch.into());
        }
        let with_len = |shape: Shape, len: usize| {
            let mut dims = shape.to_vec();
            dims[axis] = len;
            Shape::new(&dims)
        };
        let outer = with_len(left, 1).broadcast(&with_len(right, 1)).ok_or(mismatch)?;
        let index = index.expand(with_len(outer, right[axis]))?;
        self.expand(with_len(outer, left[axis]))?.gather(axis, &index)
    }

    /// `self` with the elements of `source` in order where `mask` is true; see
    /// [`Tensor::masked_scatter`].
    #[track_caller]
    pub fn masked_scatter(self, mask: &Tensor, source: Var) -> Result<Var> {
        Var::apply("masked_scatter", [self, source], |[x, source], save| {
            let (shapes, y) = ([*x.shape(), *source.shape()], x.masked_scatter(mask, &source)?);
            let saved = save.keep(mask);
            // dx = dy where the mask is false; dsource = the elements of dy where it is true, in
            // order
            let rule = move |dy: Tensor, needs: Needs| {
                let mask = saved.unpack()?;
                let ds =
                    when(needs.input(1), || Ok(dy.masked_scatter_backward(&mask, shapes[1])?))?;
                let dx = when(needs.input(0), || {
                    let in_place = |dy: &mut Tensor| dy.masked_fill_(&mask, 0.0);
                    let dx = reuse(dy, in_place, |dy| dy.masked_fill(&mask, 0.0))?;
                    unbroadcast(&dx, shapes[0])
                })?;
                Ok(vec![dx, ds])
            };
            Ok((y, rule))
        })
    }

    /// The elements where `mask` is true, both broadcast; see [`Tensor::masked_select`].
    #[track_caller]
    pub fn masked_select(self, mask: &Tensor) -> Result<Var> {
        selected(self, mask, |x| x.masked_select(mask))
    }

    /// [`Var::masked_select`] that assumes `assumed_len` elements on simulated devices; see
    /// [`Tensor::masked_select_assuming`].
    #[track_caller]
    pub fn masked_select_assuming(self, mask: &Tensor, assumed_len: usize) -> Result<Var> {
        selected(self, mask, |x| x.masked_select_assuming(mask, assumed_len))
    }
}

/// True for half types, whose sums need f32. The operations that return a new tensor sum in f32.
fn is_half(x: &Tensor) -> bool {
    matches!(x.dtype(), DType::F16 | DType::BF16)
}
