//! Rules of places that several indices name together, or one index into all elements. Indices are
//! of type i64 and have no gradient; they are all that is saved.

use lowtide_tensor::{Arrival, DType, Shape, Tensor};

use crate::error::Result;
use crate::rule::Needs;
use crate::rules::{reuse, unbroadcast, when};
use crate::saved::{Saved, Saver};
use crate::var::Var;

type Forward<T> = lowtide_tensor::TensorResult<T>;

/// What the indices of an operation count through.
#[derive(Clone, Copy, PartialEq)]
enum Through {
    /// A dimension each, from the first one on.
    Leading,
    /// All elements, in row-major order.
    All,
}

/// Places of a tensor by their indices.
struct Places(Through, Vec<Tensor>);

/// Places that a rule has kept.
struct SavedPlaces(Through, Vec<Saved>);

impl SavedPlaces {
    fn unpack(self) -> Result<Places> {
        Ok(Places(self.0, self.1.into_iter().map(Saved::unpack).collect::<Result<_>>()?))
    }
}

impl Places {
    fn new(through: Through, indices: &[&Tensor]) -> Self {
        Places(through, indices.iter().map(|&index| index.clone()).collect())
    }

    fn save(&self, save: &Saver) -> SavedPlaces {
        SavedPlaces(self.0, self.1.iter().map(|index| save.keep(index)).collect())
    }

    fn indices(&self) -> Vec<&Tensor> {
        self.1.iter().collect()
    }

    /// What stands there.
    #[track_caller]
    fn of(&self, x: &Tensor) -> Forward<Tensor> {
        match self.0 {
            Through::Leading => x.index(&self.indices()),
            Through::All => x.take(&self.1[0]),
        }
    }

    #[track_caller]
    fn put_(&self, x: &mut Tensor, source: &Tensor, arrival: Arrival) -> Forward<()> {
        match self.0 {
            Through::Leading => x.index_put_(&self.indices(), source, arrival),
            Through::All => x.put_(&self.1[0], source, arrival),
        }
    }

    #[track_caller]
    fn put(&self, x: &Tensor, source: &Tensor, arrival: Arrival) -> Forward<Tensor> {
        match self.0 {
            Through::Leading => x.index_put(&self.indices(), source, arrival),
            Through::All => x.put(&self.1[0], source, arrival),
        }
    }

    /// The sum of what is sent to each place of a tensor of shape `x`; half types are added up in
    /// f32, for which the operations that copy have room.
    fn sums(&self, dy: &Tensor, x: Shape) -> Result<Tensor> {
        let mut dx = Tensor::zeros(dy.device(), x, dy.dtype())?;
        if dy.dtype().computed() != dy.dtype() {
            return Ok(self.put(&dx, dy, Arrival::Add)?);
        }
        self.put_(&mut dx, dy, Arrival::Add)?;
        Ok(dx)
    }

    /// Where a later place of those in a tensor of shape `x` is the same one; with dimensions of
    /// length 1 for what `part`, all that they hold, has beside them.
    fn is_overwritten(&self, x: Shape, part: Shape) -> Result<Tensor> {
        let device = self.1[0].device();
        let named = if self.0 == Through::All { x.len() } else { self.1.len() };
        let row_rank = x.len() - named;
        let own_shape = Shape::new(&part[..part.len() - row_rank]);
        let count = own_shape.element_count();
        let own = Tensor::arange(device, 0.0..count as f64, 1.0, DType::I64)?.reshape(own_shape)?;
        // Only what is written here is read again.
        let mut winners = Tensor::empty(device, &x[..named], DType::I64)?;
        self.put_(&mut winners, &own, Arrival::Replace)?;
        let lost = self.of(&winners)?.ne(&own)?;
        Ok(lost.reshape(&[&own_shape[..], &vec![1; row_rank]].concat()[..])?)
    }
}

/// Takes what the places hold.
#[track_caller]
fn taken(op: &'static str, x: Var, places: &Places) -> Result<Var> {
    Var::apply(op, [x], |[x], save| {
        let (x_shape, y, saved) = (*x.shape(), places.of(&x)?, places.save(save));
        // dx at each place = the sum of dy that was taken from there
        let rule = move |dy: Tensor, _: Needs| Ok(vec![Some(saved.unpack()?.sums(&dy, x_shape)?)]);
        Ok((y, rule))
    })
}

/// Sends a source to the places.
#[track_caller]
fn sent(op: &'static str, [x, source]: [Var; 2], places: &Places, arrival: Arrival) -> Result<Var> {
    Var::apply(op, [x, source], |[x, source], save| {
        let (source_shape, saved) = (*source.shape(), places.save(save));
        let y = match arrival {
            Arrival::Add => places.put(&x, &source, arrival)?,
            Arrival::Replace => {
                reuse(x, |x| places.put_(x, &source, arrival), |x| places.put(x, &source, arrival))?
            }
        };
        // dx = dy, but 0 at the places where something was replaced; dsource = dy from the places,
        // 0 where overwritten
        let rule = move |dy: Tensor, needs: Needs| {
            let places = saved.unpack()?;
            let ds = when(needs.input(1), || {
                let mut ds = places.of(&dy)?;
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
                if places.0 == Through::All {
                    zero = zero.expand(*places.1[0].shape())?;
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
        taken("index", self, &Places::new(Through::Leading, indices))
    }

    /// `self` with `values` at the places of the indices, or added there; see
    /// [`Tensor::index_put`]. What a later index overwrites has gradient 0.
    #[track_caller]
    pub fn index_put(self, indices: &[&Tensor], values: Var, arrival: Arrival) -> Result<Var> {
        let places = Places::new(Through::Leading, indices);
        sent("index_put", [self, values], &places, arrival)
    }

    /// The elements at these places of all in row-major order; see [`Tensor::take`].
    #[track_caller]
    pub fn take(self, index: &Tensor) -> Result<Var> {
        taken("take", self, &Places::new(Through::All, &[index]))
    }

    /// `self` with `source` at these places of all in row-major order, or added there; see
    /// [`Tensor::put`]. What a later index overwrites has gradient 0.
    #[track_caller]
    pub fn put(self, index: &Tensor, source: Var, arrival: Arrival) -> Result<Var> {
        sent("put", [self, source], &Places::new(Through::All, &[index]), arrival)
    }
}
