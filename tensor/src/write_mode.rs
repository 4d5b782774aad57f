//! Results of products: overwritten, or added to.

/// The treatment of the old values of y in y = or += a · b.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(
    not(any(feature = "cuda", feature = "testing")),
    allow(unreachable_pub, reason = "the CUDA gate shows it")
)]
pub enum WriteMode {
    /// The values are overwritten, and never read.
    Overwrite,
    /// The product is added to the values, such as a bias or a gradient so far.
    Accumulate,
}
