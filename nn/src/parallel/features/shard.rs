//! The shard of a parameter on one of several ranks.

use std::ops::Range;

use lowtide_tensor::{Shape, Tensor};

use crate::error::Result;

/// Positions of units along a dimension. Each run holds positions of every unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Runs {
    pub(super) axis: usize,
    /// The first position of each run, and the number of positions of a unit in the run.
    pub(super) runs: Vec<(usize, usize)>,
}

/// The shard of a parameter on one of several ranks, as positions along a dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    pub(super) shape: Shape,
    pub(super) units: usize,
    pub(super) runs: Runs,
    pub(super) rank: (usize, usize),
}

impl Shard {
    /// The shape of the whole parameter.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The shard of rank `index`, copied from the whole parameter.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn of(&self, whole: &Tensor, index: usize) -> Result<Tensor> {
        let places = self.places(index);
        let views = places.map(|place| whole.narrow(self.runs.axis, place.start, place.len()));
        let views: Vec<Tensor> = views.collect::<std::result::Result<_, _>>()?;
        match &views[..] {
            [view] => Ok(view.copied()?),
            _ => Ok(Tensor::cat(&views.iter().collect::<Vec<_>>(), self.runs.axis as isize)?),
        }
    }

    /// Writes the shard of rank `index` to its positions in `whole`.
    ///
    /// # Errors
    /// Errors of a copy on the device.
    pub fn put(&self, whole: &Tensor, index: usize, own: &Tensor) -> Result<()> {
        let (axis, mut first) = (self.runs.axis, 0);
        for place in self.places(index) {
            let own = own.narrow(axis, first, place.len())?;
            whole.narrow(axis, place.start, place.len())?.copy_(&own)?;
            first += place.len();
        }
        Ok(())
    }

    /// The shard of this rank, copied from the whole parameter.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn own_of(&self, whole: &Tensor) -> Result<Tensor> {
        self.of(whole, self.rank.0)
    }

    /// The shape of the shard of rank `index`.
    pub fn shape_of(&self, index: usize) -> Shape {
        let mut shape = self.shape.to_vec();
        shape[self.runs.axis] = self.places(index).map(|place| place.len()).sum();
        Shape::from(&shape[..])
    }

    fn places(&self, index: usize) -> impl Iterator<Item = Range<usize>> {
        let Range { start, end } = units_of((index, self.rank.1), self.units);
        self.runs.runs.iter().map(move |(first, width)| first + start * width..first + end * width)
    }
}

/// The units of one of several ranks. If the ranks do not divide the units, the first ranks get one
/// unit more.
pub(super) fn units_of((index, count): (usize, usize), units: usize) -> Range<usize> {
    let start_of = |rank: usize| units / count * rank + rank.min(units % count);
    start_of(index)..start_of(index + 1)
}
