//! Rules of reductions at the places that elements are sent to.

use lowtide_tensor::{Axis, DType, Existing, ScatterReduction, Tensor};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::index::{corner, of_source};
use crate::rules::{reuse, when};
use crate::var::Var;

/// Where elements are sent: an index for each of them, along one axis.
struct Sent<'a> {
    axis: usize,
    index: &'a Tensor,
    existing: Existing,
}

impl Sent<'_> {
    /// For each element that is sent, what stands at its place.
    fn at_places(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.gather(self.axis, self.index)?)
    }

    /// `x` with 0 where an element of the forward direction did not take part.
    fn of_existing(&self, x: Tensor) -> Result<Tensor> {
        if self.existing == Existing::Included {
            return Ok(x);
        }
        let (axis, index) = (self.axis, self.index);
        let zero = Tensor::zeros(x.device(), [], x.dtype())?.expand(*index.shape())?;
        let in_place = |x: &mut Tensor| x.scatter_(axis, index, &zero);
        reuse(x, in_place, |x| x.scatter(axis, index, &zero))
    }

    /// How many elements each place has got, itself counted where it took part, but at least 1.
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

/// The gradients through the largest or the smallest: those that are equal to it share dy.
fn of_extreme(
    dy: &Tensor,
    [x, source, y]: [&Tensor; 3],
    sent: &Sent<'_>,
    needs: Needs,
) -> Result<[Option<Tensor>; 2]> {
    let dtype = dy.dtype();
    let is_y = sent.of_existing(x.eq(y)?.to_dtype(DType::I64)?)?;
    let is_there = source.eq(&sent.at_places(y)?)?;
    let count = is_y.scatter_add(sent.axis, sent.index, &is_there.to_dtype(DType::I64)?)?;
    let share = dy.div(&count.to_dtype(dtype)?)?;
    let ds =
        when(needs.input(1), || Ok(sent.at_places(&share)?.mul(&is_there.to_dtype(dtype)?)?))?;
    let dx = when(needs.input(0), || {
        let mut dx = share;
        // What nothing arrives at stays as it is, and so does its gradient.
        let kept = if sent.existing == Existing::Included {
            is_y
        } else {
            x.eq(y)?.to_dtype(DType::I64)?
        };
        dx.mul_(&kept.to_dtype(dtype)?)?;
        sent.of_existing(dx)
    })?;
    Ok([dx, ds])
}

/// The gradients through the product y: dy times the product of all others.
///
/// That is `y / s` where s is not 0. Where exactly one is 0, its gradient is the product with 1 in
/// its place, and where several are, all are 0.
fn of_product(
    dy: &Tensor,
    [x, source, y]: [&Tensor; 3],
    sent: &Sent<'_>,
    needs: Needs,
) -> Result<[Option<Tensor>; 2]> {
    let ds = when(needs.input(1), || {
        let zero = source.eq_scalar(0.0)?;
        let none = Tensor::zeros(dy.device(), *y.shape(), DType::I64)?;
        let count = none.scatter_add(sent.axis, sent.index, &zero.to_dtype(DType::I64)?)?;
        let count = sent.at_places(&count)?;
        let single = count.eq_scalar(1.0)?.logical_and(&zero)?;
        let without = sent.product(x, &source.masked_fill(&single, 1.0)?)?;
        let mut ds = sent.at_places(&dy.mul(y)?)?;
        ds.div_(&source.masked_fill(&zero, 1.0)?)?;
        ds.masked_copy_(&single, &sent.at_places(&dy.mul(&without)?)?)?;
        ds.masked_fill_(&count.gt_scalar(1.0)?, 0.0)?;
        Ok(ds)
    })?;
    let dx = when(needs.input(0), || {
        let nonzero = x.masked_fill(&x.eq_scalar(0.0)?, 1.0)?;
        let mut dx = sent.product(&nonzero, source)?;
        dx.div_(&nonzero)?;
        dx.mul_(dy)?;
        sent.of_existing(dx)
    })?;
    Ok([dx, ds])
}

/// The reduction of `source` in `x`; `index` has a place for each element of the source's corner.
#[track_caller]
fn reduced(
    op: &'static str,
    [x, source]: [Var; 2],
    (axis, index): (usize, Tensor),
    (reduction, existing): (ScatterReduction, Existing),
    forward: impl FnOnce(&Tensor, &Tensor) -> lowtide_tensor::TensorResult<Tensor>,
) -> Result<Var> {
    use ScatterReduction as R;
    Var::apply(op, [x, source], |[x, source], save| {
        let (source_shape, y) = (*source.shape(), forward(&x, &source)?);
        let saved_index = save.keep(&index);
        let needs_values = matches!(reduction, R::Prod | R::Amax | R::Amin);
        let saved = needs_values.then(|| [&x, &source, &y].map(|tensor| save.keep(tensor)));
        let rule = move |dy: Tensor, needs: Needs| {
            let index = saved_index.unpack()?;
            let sent = Sent { axis, index: &index, existing };
            let [dx, ds] = if let Some([x, source, y]) = saved {
                let (x, source, y) = (x.unpack()?, source.unpack()?, y.unpack()?);
                let values = [&x, &corner(&source, *index.shape())?, &y];
                match reduction {
                    R::Prod => of_product(&dy, values, &sent, needs)?,
                    _ => of_extreme(&dy, values, &sent, needs)?,
                }
            } else {
                // dx = dy and dsource = dy from the places, for a mean over the number of elements
                let share = match reduction {
                    R::Mean => dy.div(&sent.counts(&dy)?)?,
                    _ => dy,
                };
                let ds = when(needs.input(1), || sent.at_places(&share))?;
                [when(needs.input(0), || sent.of_existing(share))?, ds]
            };
            Ok(vec![dx, ds.map(|ds| of_source(ds, source_shape)).transpose()?])
        };
        Ok((y, rule))
    })
}

impl Var {
    /// `self` with the reduction of what `source` sends to each place; see
    /// [`Tensor::scatter_reduce`]. Equal largest or smallest ones share the gradient.
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
        let at = (axis, index.clone());
        reduced("scatter_reduce", [self, source], at, (reduction, existing), |x, source| {
            x.scatter_reduce(axis, index, source, reduction, existing)
        })
    }

    /// `self` with the reduction of the slices of `source` at the positions `index` along `axis`;
    /// see [`Tensor::index_reduce`]. Equal largest or smallest ones share the gradient.
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
        // Without the shapes that the operation checks, there is nothing to spread.
        let spread = (index.shape().len() == 1 && source.shape().len() > axis)
            .then(|| {
                let mut dims = vec![1; source.shape().len()];
                dims[axis] = index.element_count();
                index.reshape(&dims[..])?.expand(*source.shape())
            })
            .and_then(std::result::Result::ok);
        let at = (axis, spread.unwrap_or_else(|| index.clone()));
        reduced("index_reduce", [self, source], at, (reduction, existing), forward)
    }
}
