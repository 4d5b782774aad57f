//! Rules of the operations that address elements by several indices together, or by one index into
//! all elements. Indices have type i64 and no gradient. The rules save nothing but the indices.

use lowtide_tensor::{Arrival, DType, Shape, Tensor, TensorResult};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::{reuse, unbroadcast, when};
use crate::saved::{Saved, Saver};
use crate::var::Var;

/// The way in which indices address elements.
#[derive(Clone, Copy, PartialEq)]
enum Addressing {
    /// One index for each of the leading dimensions.
    Leading,
    /// One index into all elements in row-major order.
    Flat,
}

/// The addressed places of a tensor.
struct Places {
    addressing: Addressing,
    indices: Vec<Tensor>,
}

/// Places that a rule keeps.
struct SavedPlaces {
    addressing: Addressing,
    indices: Vec<Saved>,
}

impl SavedPlaces {
    fn unpack(self) -> Result<Places> {
        let indices = self.indices.into_iter().map(Saved::unpack).collect::<Result<_>>()?;
        Ok(Places { addressing: self.addressing, indices })
    }
}

impl Places {
    fn leading(indices: &[&Tensor]) -> Self {
        let indices = indices.iter().map(|&index| index.clone()).collect();
        Places { addressing: Addressing::Leading, indices }
    }

    fn flat(index: &Tensor) -> Self {
        Places { addressing: Addressing::Flat, indices: vec![index.clone()] }
    }

    fn save(&self, save: &Saver) -> SavedPlaces {
        let indices = self.indices.iter().map(|index| save.keep(index)).collect();
        SavedPlaces { addressing: self.addressing, indices }
    }

    fn indices(&self) -> Vec<&Tensor> {
        self.indices.iter().collect()
    }

    /// The elements at the places.
    #[track_caller]
    fn take(&self, x: &Tensor) -> TensorResult<Tensor> {
        match self.addressing {
            Addressing::Leading => x.index(&self.indices()),
            Addressing::Flat => x.take(&self.indices[0]),
        }
    }

    #[track_caller]
    fn put_(&self, x: &mut Tensor, source: &Tensor, arrival: Arrival) -> TensorResult<()> {
        match self.addressing {
            Addressing::Leading => x.index_put_(&self.indices(), source, arrival),
            Addressing::Flat => x.put_(&self.indices[0], source, arrival),
        }
    }

    #[track_caller]
    fn put(&self, x: &Tensor, source: &Tensor, arrival: Arrival) -> TensorResult<Tensor> {
        match self.addressing {
            Addressing::Leading => x.index_put(&self.indices(), source, arrival),
            Addressing::Flat => x.put(&self.indices[0], source, arrival),
        }
    }

    /// A tensor of shape `x` with the elements of `dy` summed at their places. Half types are
    /// summed in f32, as in the operations that return a new tensor.
    fn sums(&self, dy: &Tensor, x: Shape) -> Result<Tensor> {
        let mut dx = Tensor::zeros(dy.device(), x, dy.dtype())?;
        if dy.dtype().computed() != dy.dtype() {
            return Ok(self.put(&dx, dy, Arrival::Add)?);
        }
        self.put_(&mut dx, dy, Arrival::Add)?;
        Ok(dx)
    }

    /// A mask of the places in a tensor of shape `x` that is true where a later place is the same.
    /// `part` is the shape of the elements at the places; dimensions that no index addresses have
    /// length 1 in the mask.
    fn is_overwritten(&self, x: Shape, part: Shape) -> Result<Tensor> {
        let device = self.indices[0].device();
        let named = match self.addressing {
            Addressing::Leading => self.indices.len(),
            Addressing::Flat => x.len(),
        };
        let row_rank = x.len() - named;
        let own_shape = Shape::new(&part[..part.len() - row_rank]);
        let count = own_shape.element_count();
        let own = Tensor::arange(device, 0.0..count as f64, 1.0, DType::I64)?.reshape(own_shape)?;
        // Elements that are not written here are never read.
        let mut winners = Tensor::empty(device, &x[..named], DType::I64)?;
        self.put_(&mut winners, &own, Arrival::Replace)?;
        let lost = self.take(&winners)?.ne(&own)?;
        Ok(lost.reshape(&[&own_shape[..], &vec![1; row_rank]].concat()[..])?)
    }
}

/// The elements of `x` at the places.
#[track_caller]
fn take_at(op: &'static str, x: Var, places: &Places) -> Result<Var> {
    Var::apply(op, [x], |[x], save| {
        let (x_shape, y, saved) = (*x.shape(), places.take(&x)?, places.save(save));
        // dx at each place = the sum of dy over the elements taken from there
        let rule = move |dy: Tensor, _: Needs| Ok(vec![Some(saved.unpack()?.sums(&dy, x_shape)?)]);
        Ok((y, rule))
    })
}

/// `x` with `source` put at the places, or added there.
#[track_caller]
fn put_at(
    op: &'static str,
    [x, source]: [Var; 2],
    places: &Places,
    arrival: Arrival,
) -> Result<Var> {
    Var::apply(op, [x, source], |[x, source], save| {
        let (source_shape, saved) = (*source.shape(), places.save(save));
        let y = match arrival {
            Arrival::Add => places.put(&x, &source, arrival)?,
            Arrival::Replace => {
                reuse(x, |x| places.put_(x, &source, arrival), |x| places.put(x, &source, arrival))?
            }
        };
        // dx = dy, but 0 at the places if they are replaced; dsource = dy at the places, 0 where
        // overwritten
        let rule = move |dy: Tensor, needs: Needs| {
            let places = saved.unpack()?;
            let ds = when(needs.input(1), || {
                let mut ds = places.take(&dy)?;
                if arrival == Arrival::Replace {
                    ds.masked_fill_(&places.is_overwritten(*dy.shape(), *ds.shape())?, 0.0)?;
                }
                unbroadcast(&ds, source_shape)
            })?;
            let dx = when(needs.input(0), || {
                if arrival == Arrival::Add {
                    return Ok(dy);
                }
                let mut zero = Tensor::zeros(dy.device(), [], dy.dtype())?;
                if places.addressing == Addressing::Flat {
                    zero = zero.expand(*places.indices[0].shape())?;
                }
                reuse(dy, |dy| places.put_(dy, &zero, arrival), |dy| places.put(dy, &zero, arrival))
            })?;
            Ok(vec![dx, ds])
        };
        Ok((y, rule))
    })
}

impl Var {
    /// `y[b, ..] = self[indices[0][b], indices[1][b], .., ..]`; see [`Tensor::index`].
    #[track_caller]
    pub fn index(self, indices: &[&Tensor]) -> Result<Var> {
        take_at("index", self, &Places::leading(indices))
    }

    /// `self` with `values` put at the places of the indices, or added there; see
    /// [`Tensor::index_put`]. Values that a later index overwrites have gradient 0.
    #[track_caller]
    pub fn index_put(self, indices: &[&Tensor], values: Var, arrival: Arrival) -> Result<Var> {
        put_at("index_put", [self, values], &Places::leading(indices), arrival)
    }

    /// The elements at `index`, which counts all elements in row-major order; see [`Tensor::take`].
    #[track_caller]
    pub fn take(self, index: &Tensor) -> Result<Var> {
        take_at("take", self, &Places::flat(index))
    }

    /// `self` with `source` put at `index`, or added there; see [`Tensor::put`]. The index counts
    /// all elements in row-major order. Elements that a later index overwrites have gradient 0.
    #[track_caller]
    pub fn put(self, index: &Tensor, source: Var, arrival: Arrival) -> Result<Var> {
        put_at("put", [self, source], &Places::flat(index), arrival)
    }
}
