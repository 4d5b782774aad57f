//! Sums over ranks of tensors and of gradients.

use std::fmt::Debug;
use std::sync::Arc;

use lowtide_autograd::{Needs, Var};
use lowtide_tensor::Tensor;

use crate::error::{NnError, Result};

/// An all-reduce that sums over ranks.
pub trait Sum: Debug + Send + Sync {
    /// Replaces x, which is contiguous, by the sum of x over the ranks. All ranks call this in the
    /// same order and with the same shapes.
    ///
    /// # Errors
    /// Errors of the communication.
    fn sum(&self, x: &mut Tensor) -> Result<()>;
}

/// Replaces y by the sum of y over the ranks. No other operation may have used y.
pub(super) fn sum_in_place(sum: &dyn Sum, y: &Var) -> Result<()> {
    sum.sum(&mut y.value().clone())
}

/// x, with a gradient that is summed over the ranks. Each rank computes a part of the gradient.
pub(crate) fn with_summed_gradient(sum: &Arc<dyn Sum>, x: Var) -> Result<Var> {
    let sum = Arc::clone(sum);
    let rule = move |dy: Tensor, _: Needs| {
        let mut dy = if dy.is_reusable() { dy.contiguous()? } else { dy.copied()? };
        sum.sum(&mut dy).map_err(NnError::into_autograd)?;
        Ok(vec![Some(dy)])
    };
    Ok(Var::apply("summed_gradient", [x], |[x], _| Ok((x, rule)))?)
}
