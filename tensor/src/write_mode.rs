//! Whether a product overwrites its result or is added to it.

/// What becomes of the values that y holds before y = or += a · b.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(not(feature = "cuda"), allow(unreachable_pub, reason = "the CUDA gate shows it"))]
pub enum WriteMode {
    /// They are overwritten, and never read.
    Overwrite,
    /// The product is added to them: a bias, or a gradient so far.
    Accumulate,
}
