//! Results of products: overwritten, or added to.

/// The use of the values that y holds before y = or += a · b.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(
    not(any(feature = "cuda", feature = "testing")),
    allow(unreachable_pub, reason = "the CUDA gate shows it")
)]
pub enum WriteMode {
    /// They are overwritten, and never read.
    Overwrite,
    /// The product is added to them: a bias, or a gradient so far.
    Accumulate,
}
