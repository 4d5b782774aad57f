//! Elements set to 0 at random in training.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::Dropout;

use crate::error::Result;

/// Sets elements of x to 0 with this probability in training, and scales the others up. The mask is
/// a function of the pass's key, the module's path and the sample's place in the logical batch.
///
/// # Shapes
/// `x: [N, ..] → [N, ..]`
pub(crate) fn dropout(pass: &Pass, x: Var, probability: f64) -> Result<Var> {
    if !pass.is_training() || probability == 0.0 {
        return Ok(x);
    }
    let sample: usize = x.shape().iter().skip(1).product();
    let first = pass.first_sample() * sample as u64;
    let key = pass.draw();
    Ok(x.dropout(Dropout { probability, key, first })?)
}
