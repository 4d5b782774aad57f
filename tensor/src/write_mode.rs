//! Whether a product overwrites its result or is added to it.

/// What becomes of the values that y holds before y = or += a · b.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WriteMode {
    /// They are overwritten, and never read.
    Overwrite,
    /// The product is added to them: a bias, or a gradient so far.
    Accumulate,
}
