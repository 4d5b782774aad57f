//! Formats of quantised weights.

/// The format of a quantised weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuantFormat {
    /// 8 bits and an f32 for each row: `w = code · scale / 127`.
    Int8Rows,
    /// 4 bits for one of 16 quantiles of the normal distribution, with a scale for each 64
    /// elements. Blocks continue from one row to the next.
    Nf4 {
        /// True if the scales are in 8 bits, with one f32 for 256 scales: 4.127 bits for each
        /// element instead of 4.5.
        double: bool,
    },
    /// A format of GGUF: blocks of 32 elements of 8 bits with one scale of f16. The length of a row
    /// must be a multiple of 32.
    Q8_0,
    /// A format of GGUF: blocks of 32 elements of 4 bits with one scale of f16. The length of a row
    /// must be a multiple of 32.
    Q4_0,
}
