//! States of an update in 8 bits: blocks of codes, each with its own scale.
//!
//! Block-wise dynamic quantisation of Dettmers, Lewis, Shleifer and Zettlemoyer 2022, "8-bit
//! optimizers via block-wise quantization": a value is `scale · map[code]`. The scale is the
//! block's largest magnitude. The map has seven decades, each with twice as many values as the
//! decade below.

use std::sync::LazyLock;

/// Values that share a scale.
pub(super) const BLOCK_LEN: usize = 256;
/// The codes of a block, then its scale as a little-endian f32.
pub(super) const BLOCK_BYTES: usize = BLOCK_LEN + size_of::<f32>();
const DECADES: usize = 7;

/// The range of a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StateRange {
    /// Values of both signs, such as a mean.
    #[default]
    Signed,
    /// Values of at least 0, such as a mean square: the bit of the sign adds precision.
    Positive,
}

/// The 256 values of the codes in ascending order, and the midpoints between neighbours.
pub(super) struct CodeMap {
    values: [f32; 256],
    /// `middles[i]` is halfway between the values `i` and `i + 1`.
    middles: [f32; 255],
    /// Number of codes in the smallest decade. Each further decade has twice as many.
    first_count: usize,
    /// The code of 0.
    zero: usize,
}

impl CodeMap {
    pub(super) fn of(range: StateRange) -> &'static CodeMap {
        static SIGNED: LazyLock<CodeMap> = LazyLock::new(|| CodeMap::new(StateRange::Signed));
        static POSITIVE: LazyLock<CodeMap> = LazyLock::new(|| CodeMap::new(StateRange::Positive));
        match range {
            StateRange::Signed => &SIGNED,
            StateRange::Positive => &POSITIVE,
        }
    }

    fn new(range: StateRange) -> Self {
        let first_count = match range {
            StateRange::Signed => 1,
            StateRange::Positive => 2,
        };
        // 0, 1, and the midpoints of the equal parts of each decade.
        let mut all = vec![0.0, 1.0];
        for decade in 0..DECADES {
            let (count, top) =
                (first_count << decade, 10f64.powi(decade as i32 + 1 - DECADES as i32));
            let middles = (0..count).map(|part| 0.1 + 0.9 * (part as f64 + 0.5) / count as f64);
            let middles: Vec<f64> = middles.map(|middle| middle * top).collect();
            if range == StateRange::Signed {
                all.extend(middles.iter().map(|middle| -middle));
            }
            all.extend(middles);
        }
        all.sort_by(f64::total_cmp);
        let values: Vec<f32> = all.iter().map(|&value| value as f32).collect();
        let values: [f32; 256] = values.try_into().expect("127 or 254 middles, 0 and 1");
        CodeMap {
            values,
            middles: std::array::from_fn(|i| f32::midpoint(values[i], values[i + 1])),
            first_count,
            zero: values.iter().position(|&value| value == 0.0).expect("0 is a value"),
        }
    }

    /// The code of the value nearest to `x`, from -1 to 1. NaN has the code of 0.
    ///
    /// Arithmetic finds the part of the decade. Then the neighbours decide, because the border
    /// between two decades is not halfway between their values.
    fn code(&self, x: f32) -> u8 {
        let size = x.abs();
        let mut decade = 0;
        let mut top = 1e-6_f32;
        for _ in 1..DECADES {
            let is_above = size >= top;
            decade += usize::from(is_above);
            top *= if is_above { 10.0 } else { 1.0 };
        }
        let count = self.first_count << decade;
        let part = ((size / top - 0.1) / 0.9 * count as f32).max(0.0) as usize;
        // The decades below have first_count · (2^decade - 1) codes, and 0 has one code.
        let rank = 1 + (count - self.first_count) + part.min(count - 1);
        let guess = if x < 0.0 { self.zero - rank } else { self.zero + rank };
        let up = usize::from(guess < 255 && x > self.middles[guess.min(254)]);
        let down = usize::from(guess > 0 && x <= self.middles[guess.max(1) - 1]);
        if x.is_nan() { self.zero as u8 } else { (guess + up - down) as u8 }
    }

    /// Writes the block's values to `to`, which may be shorter than a block.
    pub(super) fn load(&self, block: &[u8], to: &mut [f32]) {
        let (codes, scale) = block.split_at(BLOCK_LEN);
        let scale = f32::from_le_bytes(scale.try_into().expect("a scale ends the block"));
        for (to, &code) in to.iter_mut().zip(codes) {
            *to = scale * self.values[usize::from(code)];
        }
    }

    /// Sets the block to the values in `from`. The rest of the block becomes 0.
    pub(super) fn store(&self, from: &[f32], block: &mut [u8]) {
        let (codes, scale_bytes) = block.split_at_mut(BLOCK_LEN);
        let mut scale = 0.0_f32;
        for x in from {
            scale = scale.max(x.abs());
        }
        // With an infinity, the whole block becomes NaN. A NaN becomes 0 and does not affect its
        // neighbours.
        let factor = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        codes.fill(self.zero as u8);
        for (code, &x) in codes.iter_mut().zip(from) {
            *code = self.code((x * factor).clamp(-1.0, 1.0));
        }
        scale_bytes.copy_from_slice(&scale.to_le_bytes());
    }
}

#[cfg(feature = "testing")]
pub(crate) mod testing {
    //! Codes of 8 bits, for the tests of this crate.

    use super::{CodeMap, StateRange};

    /// Values that share a scale.
    pub const BLOCK_LEN: usize = super::BLOCK_LEN;
    /// The bytes of a block.
    pub const BLOCK_BYTES: usize = super::BLOCK_BYTES;

    /// The codes of a range.
    pub struct Codes(&'static CodeMap);

    impl Codes {
        /// The codes of values in this range.
        pub fn of(range: StateRange) -> Codes {
            Codes(CodeMap::of(range))
        }

        /// The value of each code.
        pub fn values(&self) -> &[f32; 256] {
            &self.0.values
        }

        /// The places halfway between neighbouring values.
        pub fn middles(&self) -> &[f32; 255] {
            &self.0.middles
        }

        /// The code of 0.
        pub fn zero(&self) -> usize {
            self.0.zero
        }

        /// The code of the value nearest to `x`.
        pub fn code(&self, x: f32) -> u8 {
            self.0.code(x)
        }

        /// Writes the values of a block.
        pub fn load(&self, block: &[u8], to: &mut [f32]) {
            self.0.load(block, to);
        }

        /// Makes `from` the values of a block.
        pub fn store(&self, from: &[f32], block: &mut [u8]) {
            self.0.store(from, block);
        }
    }
}
