//! The part of a parameter that one of several ranks has.

use std::ops::Range;

use lowtide_tensor::{Shape, Tensor};

use crate::error::Result;

/// Runs of positions along a dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Runs {
    pub(super) axis: usize,
    /// The first position of each run, and the positions that a unit has in it.
    pub(super) runs: Vec<(usize, usize)>,
}

/// The part of a parameter that one of several ranks has, as positions along a dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    pub(super) shape: Shape,
    pub(super) units: usize,
    pub(super) runs: Runs,
    pub(super) rank: (usize, usize),
}

impl Shard {
    /// The shape of the whole.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The part of rank `index` of a `whole` of this shape, in memory of its own.
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

    /// Writes the part of rank `index` to its places in `whole`.
    ///
    /// # Errors
    /// The errors of a device's copy.
    pub fn put(&self, whole: &Tensor, index: usize, own: &Tensor) -> Result<()> {
        let (axis, mut first) = (self.runs.axis, 0);
        for place in self.places(index) {
            let own = own.narrow(axis, first, place.len())?;
            whole.narrow(axis, place.start, place.len())?.copy_(&own)?;
            first += place.len();
        }
        Ok(())
    }

    /// The part of this rank of a whole.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn own_of(&self, whole: &Tensor) -> Result<Tensor> {
        self.of(whole, self.rank.0)
    }

    /// The shape of the part of rank `index`.
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

/// The units of one of several ranks. The first ranks have one more where the division leaves a
/// rest.
pub(super) fn units_of((index, count): (usize, usize), units: usize) -> Range<usize> {
    let start_of = |rank: usize| units / count * rank + rank.min(units % count);
    start_of(index)..start_of(index + 1)
}
