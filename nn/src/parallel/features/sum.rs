//! Sums over ranks, in the forward pass and of gradients.

use std::fmt::Debug;
use std::sync::Arc;

use lowtide_autograd::{Needs, Var};
use lowtide_tensor::Tensor;

use crate::error::{NnError, Result};

/// A sum over ranks.
pub trait Sum: Debug + Send + Sync {
    /// Replaces x, which is contiguous, by its sum over the ranks. All ranks call it in the same
    /// order, with the same shapes.
    ///
    /// # Errors
    /// Errors of the communication.
    fn sum(&self, x: &mut Tensor) -> Result<()>;
}

/// Replaces y, which no other operation has seen, by its sum over the ranks.
pub(super) fn sum_in_place(sum: &dyn Sum, y: &Var) -> Result<()> {
    sum.sum(&mut y.value().clone())
}

/// x, with a gradient that is summed over the ranks, of which each computes a part.
pub(crate) fn with_summed_gradient(sum: &Arc<dyn Sum>, x: Var) -> Result<Var> {
    let sum = Arc::clone(sum);
    let rule = move |dy: Tensor, _: Needs| {
        let mut dy = if dy.is_reusable() { dy.contiguous()? } else { dy.copied()? };
        sum.sum(&mut dy).map_err(NnError::into_autograd)?;
        Ok(vec![Some(dy)])
    };
    Ok(Var::apply("summed_gradient", [x], |[x], _| Ok((x, rule)))?)
}
