//! The parts of a model that ranks can share: branches and vocabularies.

use std::collections::BTreeMap;

use lowtide_autograd::LeafId;

use crate::layers::embedding::Embedding;
use crate::layers::linear::Linear;
use crate::module::Parameters;
use crate::parallel::features::shard::Runs;
use crate::parameter::Parameter;

/// A part of a model that several ranks can share.
pub enum Shared<'a> {
    /// Attention heads or hidden features.
    Branch(Branch<'a>),
    /// The rows of a table of tokens, and of a separate output layer.
    Vocabulary {
        /// The table of token vectors.
        table: &'a mut Embedding,
        /// The output layer; `None` if the table is the output layer.
        head: Option<&'a mut Linear>,
    },
}

/// A branch: layers that compute units, and the linear layer at the end, whose inputs are the
/// units. A unit is a head or a hidden feature.
pub struct Branch<'a> {
    pub(super) units: usize,
    /// Positions of the units in each parameter.
    pub(super) slices: BTreeMap<LeafId, Runs>,
    /// Parameters that all units use.
    pub(super) common: Vec<LeafId>,
    pub(super) end: &'a mut Linear,
    pub(super) resize: Option<Box<dyn FnMut(usize) + 'a>>,
    /// True if each layer has a weight of floats and no adapter.
    pub(super) is_plain: bool,
}

impl<'a> Branch<'a> {
    /// A branch of `units` units that ends in `end`. Each unit gives `width` inputs of `end`.
    pub fn new(units: usize, end: &'a mut Linear, width: usize) -> Self {
        let weight = (end.weight().id(), Runs { axis: 1, runs: vec![(0, width)] });
        let (slices, is_plain) = (BTreeMap::from([weight]), end.is_plain());
        Branch { units, slices, common: Vec::new(), end, resize: None, is_plain }
    }

    /// A branch of hidden features, which `layers` compute and `end` takes as inputs.
    pub fn hidden<'b>(layers: impl IntoIterator<Item = &'b Linear>, end: &'a mut Linear) -> Self {
        let units = end.weight().value().shape()[1];
        let branch = Branch::new(units, end, 1);
        layers.into_iter().fold(branch, |branch, layer| branch.made_by(layer, &[(0, 1)]))
    }

    /// Adds a layer that computes units. Its outputs consist of runs; each run has outputs of every
    /// unit. A run is given as its first output and the number of outputs of a unit.
    #[must_use]
    pub fn made_by(mut self, layer: &Linear, runs: &[(usize, usize)]) -> Self {
        self.is_plain &= layer.is_plain();
        self.with_rows(layer.weight(), runs).with_optional_rows(layer.bias(), runs)
    }

    /// Adds a parameter whose rows belong to units, in runs as in [`Branch::made_by`].
    #[must_use]
    pub fn with_rows(mut self, parameter: &Parameter, runs: &[(usize, usize)]) -> Self {
        self.is_plain &= parameter.quantized.is_none();
        self.slices.insert(parameter.id(), Runs { axis: 0, runs: runs.to_vec() });
        self
    }

    /// [`Branch::with_rows`] for a parameter that may be absent.
    #[must_use]
    pub fn with_optional_rows(
        self,
        parameter: Option<&Parameter>,
        runs: &[(usize, usize)],
    ) -> Self {
        match parameter {
            Some(parameter) => self.with_rows(parameter, runs),
            None => self,
        }
    }

    /// Adds parameters that all units use, such as the weight of a norm over each head.
    #[must_use]
    pub fn with_common(mut self, parameters: &mut dyn Parameters) -> Self {
        parameters.visit(&mut |_, parameter| self.common.push(parameter.id()));
        self
    }

    /// Adds a function that gets the number of units that this rank keeps.
    #[must_use]
    pub fn resizing(self, resize: impl FnMut(usize) + 'a) -> Self {
        Branch { resize: Some(Box::new(resize)), ..self }
    }

    /// Keeps the branch as a whole on every rank.
    #[must_use]
    pub fn whole(self) -> Self {
        Branch { is_plain: false, ..self }
    }
}

impl Shared<'_> {
    /// True if each of `count` ranks can get a part.
    pub(super) fn can_be_shared(&self, count: usize) -> bool {
        match self {
            Shared::Branch(branch) => branch.is_plain && branch.units >= count,
            Shared::Vocabulary { table, head } => {
                let is_plain = |head: &Linear| head.is_plain() && head.bias().is_none();
                let is_plain = head.as_deref().is_none_or(is_plain);
                is_plain && table.rows() >= count && table.weight().quantized.is_none()
            }
        }
    }
}
