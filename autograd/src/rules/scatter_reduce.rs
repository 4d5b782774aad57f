//! Rules of scattered reductions: elements of a source are reduced into the places of their
//! indices.

use lowtide_tensor::{Axis, DType, Existing, ScatterReduction, Tensor};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::index::{corner, source_gradient};
use crate::rules::{reuse, when};
use crate::var::Var;

/// The destination of each source element: an index along one axis.
struct Scatter<'a> {
    axis: usize,
    index: &'a Tensor,
    existing: Existing,
}

impl Scatter<'_> {
    /// For each source element, the element of `x` at its place.
    fn at_places(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.gather(self.axis, self.index)?)
    }

    /// `x` with 0 at the places where source elements replaced the existing element.
    fn without_replaced(&self, x: Tensor) -> Result<Tensor> {
        if self.existing == Existing::Included {
            return Ok(x);
        }
        let (axis, index) = (self.axis, self.index);
        let zero = Tensor::zeros(x.device(), [], x.dtype())?.expand(*index.shape())?;
        let in_place = |x: &mut Tensor| x.scatter_(axis, index, &zero);
        reuse(x, in_place, |x| x.scatter(axis, index, &zero))
    }

    /// The number of elements reduced into each place, including the existing element if it takes
    /// part; at least 1.
    fn counts(&self, like: &Tensor) -> Result<Tensor> {
        let device = like.device();
        let own = if self.existing == Existing::Included { 1.0 } else { 0.0 };
        let mut counts = Tensor::full(device, *like.shape(), DType::I64, own)?;
        let one = Tensor::ones(device, [], DType::I64)?.expand(*self.index.shape())?;
        counts.scatter_add_(self.axis, self.index, &one)?;
        counts.maximum_scalar_(1.0)?;
        Ok(counts.to_dtype(like.dtype())?)
    }

    fn product(&self, x: &Tensor, source: &Tensor) -> Result<Tensor> {
        let (axis, index) = (self.axis, self.index);
        Ok(x.scatter_reduce(axis, index, source, ScatterReduction::Prod, self.existing)?)
    }
}

/// The gradients of the largest or smallest element y. Elements equal to y share dy.
fn extreme_gradients(
    dy: &Tensor,
    [x, source, y]: [&Tensor; 3],
    scatter: &Scatter<'_>,
    needs: Needs,
) -> Result<[Option<Tensor>; 2]> {
    let dtype = dy.dtype();
    let is_y = scatter.without_replaced(x.eq(y)?.to_dtype(DType::I64)?)?;
    let is_chosen = source.eq(&scatter.at_places(y)?)?;
    let count = is_y.scatter_add(scatter.axis, scatter.index, &is_chosen.to_dtype(DType::I64)?)?;
    let share = dy.div(&count.to_dtype(dtype)?)?;
    let ds = when(needs.input(1), || {
        Ok(scatter.at_places(&share)?.mul(&is_chosen.to_dtype(dtype)?)?)
    })?;
    let dx = when(needs.input(0), || {
        let mut dx = share;
        // A place that no source element reaches keeps its value, and its gradient is dy.
        let kept = match scatter.existing {
            Existing::Included => is_y,
            Existing::Replaced => x.eq(y)?.to_dtype(DType::I64)?,
        };
        dx.mul_(&kept.to_dtype(dtype)?)?;
        scatter.without_replaced(dx)
    })?;
    Ok([dx, ds])
}

/// The gradients of the product y: dy times the product of all other factors.
///
/// For a factor s that is not 0, the product of the others is `y / s`. If exactly one factor is 0,
/// its gradient is dy times the product with 1 in its place. If several are 0, all gradients are 0.
fn product_gradients(
    dy: &Tensor,
    [x, source, y]: [&Tensor; 3],
    scatter: &Scatter<'_>,
    needs: Needs,
) -> Result<[Option<Tensor>; 2]> {
    let ds = when(needs.input(1), || {
        let zero = source.eq_scalar(0.0)?;
        let none = Tensor::zeros(dy.device(), *y.shape(), DType::I64)?;
        let count = none.scatter_add(scatter.axis, scatter.index, &zero.to_dtype(DType::I64)?)?;
        let count = scatter.at_places(&count)?;
        let single = count.eq_scalar(1.0)?.logical_and(&zero)?;
        let without = scatter.product(x, &source.masked_fill(&single, 1.0)?)?;
        let mut ds = scatter.at_places(&dy.mul(y)?)?;
        ds.div_(&source.masked_fill(&zero, 1.0)?)?;
        ds.masked_copy_(&single, &scatter.at_places(&dy.mul(&without)?)?)?;
        ds.masked_fill_(&count.gt_scalar(1.0)?, 0.0)?;
        Ok(ds)
    })?;
    let dx = when(needs.input(0), || {
        let nonzero = x.masked_fill(&x.eq_scalar(0.0)?, 1.0)?;
        let mut dx = scatter.product(&nonzero, source)?;
        dx.div_(&nonzero)?;
        dx.mul_(dy)?;
        scatter.without_replaced(dx)
    })?;
    Ok([dx, ds])
}

/// A scattered reduction as recorded.
struct Reduction {
    op: &'static str,
    axis: usize,
    /// The place of each element in the source's leading corner.
    index: Tensor,
    reduction: ScatterReduction,
    existing: Existing,
}

/// The reduction of `source` into `x`.
#[track_caller]
fn reduced(
    call: Reduction,
    [x, source]: [Var; 2],
    forward: impl FnOnce(&Tensor, &Tensor) -> lowtide_tensor::TensorResult<Tensor>,
) -> Result<Var> {
    use ScatterReduction as R;
    let Reduction { op, axis, index, reduction, existing } = call;
    Var::apply(op, [x, source], |[x, source], save| {
        let (source_shape, y) = (*source.shape(), forward(&x, &source)?);
        let saved_index = save.keep(&index);
        let needs_values = matches!(reduction, R::Prod | R::Amax | R::Amin);
        let saved = needs_values.then(|| [&x, &source, &y].map(|tensor| save.keep(tensor)));
        let rule = move |dy: Tensor, needs: Needs| {
            let index = saved_index.unpack()?;
            let scatter = Scatter { axis, index: &index, existing };
            let [dx, ds] = if let Some([x, source, y]) = saved {
                let (x, source, y) = (x.unpack()?, source.unpack()?, y.unpack()?);
                let values = [&x, &corner(&source, *index.shape())?, &y];
                match reduction {
                    R::Prod => product_gradients(&dy, values, &scatter, needs)?,
                    _ => extreme_gradients(&dy, values, &scatter, needs)?,
                }
            } else {
                // dx = dy and dsource = dy at the places; for a mean, both over the count
                let share = match reduction {
                    R::Mean => dy.div(&scatter.counts(&dy)?)?,
                    _ => dy,
                };
                let ds = when(needs.input(1), || scatter.at_places(&share))?;
                [when(needs.input(0), || scatter.without_replaced(share))?, ds]
            };
            Ok(vec![dx, ds.map(|ds| source_gradient(ds, source_shape)).transpose()?])
        };
        Ok((y, rule))
    })
}

impl Var {
    /// `self` with the elements of `source` reduced into the places of `index`; see
    /// [`Tensor::scatter_reduce`]. Equal extremes share the gradient.
    #[track_caller]
    pub fn scatter_reduce(
        self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: Var,
        reduction: ScatterReduction,
        existing: Existing,
    ) -> Result<Var> {
        let axis = self.axis("scatter_reduce", axis)?;
        let op = "scatter_reduce";
        let call = Reduction { op, axis, index: index.clone(), reduction, existing };
        reduced(call, [self, source], |x, source| {
            x.scatter_reduce(axis, index, source, reduction, existing)
        })
    }

    /// `self` with the slices of `source` reduced into the positions `index` along `axis`; see
    /// [`Tensor::index_reduce`]. Equal extremes share the gradient.
    #[track_caller]
    pub fn index_reduce(
        self,
        axis: impl Into<Axis>,
        index: &Tensor,
        source: Var,
        reduction: ScatterReduction,
        existing: Existing,
    ) -> Result<Var> {
        let axis = self.axis("index_reduce", axis)?;
        let forward =
            |x: &Tensor, source: &Tensor| x.index_reduce(axis, index, source, reduction, existing);
        // Wrong shapes are not spread: `forward` returns their error.
        let spread = (index.shape().len() == 1 && source.shape().len() > axis)
            .then(|| {
                let mut dims = vec![1; source.shape().len()];
                dims[axis] = index.element_count();
                index.reshape(&dims[..])?.expand(*source.shape())
            })
            .and_then(std::result::Result::ok);
        let places = spread.unwrap_or_else(|| index.clone());
        let call = Reduction { op: "index_reduce", axis, index: places, reduction, existing };
        reduced(call, [self, source], forward)
    }
}
