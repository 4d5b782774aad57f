//! The seam for mixed precision: which type an operation runs in.

use lowtide_tensor::DType;

/// Decides, operation by operation, what type its inputs are converted to.
pub trait CastPolicy {
    /// The type that the float inputs of `op` are converted to before it runs, or `None` to leave
    /// them alone. `inputs` are their types in order; those that are no floats stay as they are.
    fn dtype(&self, op: &str, inputs: &[DType]) -> Option<DType>;
}
