//! Formats of quantised weights.

/// The format of a quantised weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuantFormat {
    /// 8 bits and an f32 for each row: `w = code · scale / 127`.
    Int8Rows,
    /// 4 bits from 16 quantiles of the normal distribution, with a scale for each 64 elements,
    /// counted through the rows.
    Nf4 {
        /// True if the scales are in 8 bits themselves, 256 of them with one f32: 4.127 bits for
        /// each element in all instead of 4.5.
        double: bool,
    },
    /// A format of GGUF: 32 elements in 8 bits, with an f16. Rows are multiples of 32.
    Q8_0,
    /// A format of GGUF: 32 elements in 4 bits, with an f16. Rows are multiples of 32.
    Q4_0,
}
