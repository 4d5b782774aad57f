//! Linear layers that ranks share: the units of a rank, and the sums over ranks.

use std::ops::Range;
use std::sync::Arc;

use lowtide_autograd::{Pass, Var};

use crate::error::Result;
use crate::parallel::features::sum::{Sum, sum_in_place, with_summed_gradient};
use crate::parallel::features::vocabulary::VocabularyShare;

/// The part of a shared linear layer on this rank.
#[derive(Clone, Debug)]
pub(crate) enum LayerShare {
    /// The layer ends a branch. This rank has some units of the branch.
    End(BranchShare),
    /// The layer is an output layer. This rank has some rows of the weight.
    Rows(VocabularyShare),
}

#[derive(Clone, Debug)]
pub(crate) struct BranchShare {
    pub(super) sum: Arc<dyn Sum>,
    pub(super) units: Range<usize>,
    /// Module path that random numbers for the own units depend on.
    pub(super) path: String,
}

impl BranchShare {
    /// The output of the last layer. Sums `y`, the output for the own units, over the ranks in
    /// place, and adds the bias. No other operation may have used `y`.
    pub(crate) fn end(&self, y: Var, bias: Option<Var>) -> Result<Var> {
        sum_in_place(&*self.sum, &y)?;
        let Some(bias) = bias else { return Ok(y) };
        let dtype = y.value().dtype();
        Ok(y.add(if bias.value().dtype() == dtype { bias } else { bias.to_dtype(dtype)? })?)
    }

    /// The input of all units. The gradient of x is summed over the ranks.
    pub(crate) fn input(&self, x: Var) -> Result<Var> {
        with_summed_gradient(&self.sum, x)
    }

    /// The part of x for the units of this rank.
    pub(crate) fn own_units(&self, x: Var, axis: usize) -> Result<Var> {
        Ok(x.narrow(axis as isize, self.units.start, self.units.len())?)
    }

    /// Runs a function that draws random numbers for the units of this rank. Every rank draws other
    /// numbers.
    pub(crate) fn within<T>(&self, pass: &Pass, run: impl FnOnce() -> T) -> T {
        if self.units.start == 0 { run() } else { pass.within(&self.path, run) }
    }
}
