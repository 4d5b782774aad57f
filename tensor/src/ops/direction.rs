//! The two halves of an operation that are launched as one kernel type.

/// The direction of a kernel: it computes an operation or its gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}
