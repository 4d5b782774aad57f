//! Linear layers that ranks share: sums, and their own units.

use std::ops::Range;
use std::sync::Arc;

use lowtide_autograd::{Pass, Var};

use crate::error::Result;
use crate::parallel::features::sum::{Sum, sum_in_place, with_summed_gradient};
use crate::parallel::features::vocabulary::VocabularyShare;

/// The part of this rank in a linear layer that ranks share.
#[derive(Clone, Debug)]
pub(crate) enum LayerShare {
    /// The layer ends a branch. This rank has some units of it.
    End(BranchShare),
    /// The layer is an output layer. This rank has some rows of it.
    Rows(VocabularyShare),
}

#[derive(Clone, Debug)]
pub(crate) struct BranchShare {
    pub(super) sum: Arc<dyn Sum>,
    pub(super) units: Range<usize>,
    /// The path of random numbers for the own units.
    pub(super) path: String,
}

impl BranchShare {
    /// The result of the last layer for all units, in place of `y`, its result for the own units,
    /// which nothing else has seen.
    pub(crate) fn end(&self, y: Var, bias: Option<Var>) -> Result<Var> {
        sum_in_place(&*self.sum, &y)?;
        let Some(bias) = bias else { return Ok(y) };
        let dtype = y.value().dtype();
        Ok(y.add(if bias.value().dtype() == dtype { bias } else { bias.to_dtype(dtype)? })?)
    }

    /// The input of all units. Its gradient is a sum over the ranks.
    pub(crate) fn input(&self, x: Var) -> Result<Var> {
        with_summed_gradient(&self.sum, x)
    }

    /// The part of x that belongs to the own units.
    pub(crate) fn own_units(&self, x: Var, axis: usize) -> Result<Var> {
        Ok(x.narrow(axis as isize, self.units.start, self.units.len())?)
    }

    /// Runs a function that draws random numbers for the own units: other numbers than those of
    /// other ranks.
    pub(crate) fn within<T>(&self, pass: &Pass, run: impl FnOnce() -> T) -> T {
        if self.units.start == 0 { run() } else { pass.within(&self.path, run) }
    }
}
