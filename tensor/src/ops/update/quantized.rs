//! States of an update in 8 bits: blocks of codes, each block with a scale of its own.
//!
//! Block-wise dynamic quantisation of Dettmers, Lewis, Shleifer and Zettlemoyer 2022, "8-bit
//! optimizers via block-wise quantization": a value is `scale · map[code]`, where the scale is the
//! block's largest magnitude and the map has seven decades, each twice as fine as the one below.

use std::sync::LazyLock;

/// Values that share a scale.
pub(super) const BLOCK_LEN: usize = 256;
/// The codes of a block, then its scale as a little-endian f32.
pub(super) const BLOCK_BYTES: usize = BLOCK_LEN + size_of::<f32>();
const DECADES: usize = 7;

/// The values that a state can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StateRange {
    /// Both signs, as a mean has.
    #[default]
    Signed,
    /// 0 and above, as a mean square has: the sign's bit goes to precision.
    Positive,
}

/// The 256 values of a code, rising, and the places between them.
pub(super) struct CodeMap {
    values: [f32; 256],
    /// `middles[i]` is halfway between the values `i` and `i + 1`.
    middles: [f32; 255],
    /// Codes in the smallest decade; each next one has twice as many.
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
        // 0, 1, and the middles of the equal parts that each decade is cut in.
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

    /// The code of the value nearest to `x`, from -1 to 1; NaN has that of 0.
    ///
    /// Arithmetic finds the part of the decade; its neighbours decide, because two decades do not
    /// meet halfway between their values.
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
        // The decades below have first_count · (2^decade - 1) codes; 0 is one.
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

    /// Makes `from` the block's values; what the block has more of becomes 0.
    pub(super) fn store(&self, from: &[f32], block: &mut [u8]) {
        let (codes, scale_bytes) = block.split_at_mut(BLOCK_LEN);
        let mut scale = 0.0_f32;
        for x in from {
            scale = scale.max(x.abs());
        }
        // An infinity makes the whole block NaN; a NaN becomes 0 and leaves its neighbours alone.
        let factor = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        codes.fill(self.zero as u8);
        for (code, &x) in codes.iter_mut().zip(from) {
            *code = self.code((x * factor).clamp(-1.0, 1.0));
        }
        scale_bytes.copy_from_slice(&scale.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RANGES: [StateRange; 2] = [StateRange::Signed, StateRange::Positive];

    #[test]
    fn maps_are_rising_and_have_the_ends() {
        for range in RANGES {
            let CodeMap { values, zero, .. } = CodeMap::of(range);
            assert!(values.is_sorted_by(|a, b| a < b));
            assert_eq!((values[255], values[*zero]), (1.0, 0.0));
            let negatives = if range == StateRange::Signed { 127 } else { 0 };
            assert_eq!(*zero, negatives);
            // The paper's values next to 1: the middle of the last part of the top decade.
            let parts = if range == StateRange::Signed { 64.0 } else { 128.0 };
            assert!((values[254] - (1.0 - 0.45 / parts)).abs() < 1e-6);
        }
    }

    fn nearest_error(map: &CodeMap, x: f32) -> f32 {
        map.values.iter().map(|value| (value - x).abs()).fold(f32::INFINITY, f32::min)
    }

    proptest! {
        #[test]
        fn code_is_that_of_the_nearest_value(
            x in -1.0f32..=1.0,
            power in 0..9i32,
            near in 0..255usize,
        ) {
            for range in RANGES {
                let map = CodeMap::of(range);
                let small = x * 10f32.powi(-power);
                let close = map.middles[near] * (1.0 + x * 1e-5);
                for x in [x, small, close, map.values[near]] {
                    let x = if range == StateRange::Positive { x.abs() } else { x };
                    let error = (map.values[usize::from(map.code(x))] - x).abs();
                    // Halfway between two, rounding decides.
                    let rounding = 2.0 * f32::EPSILON * x.abs();
                    prop_assert!(error <= nearest_error(map, x) + rounding, "{x} {range:?}");
                }
            }
        }

        #[test]
        fn block_keeps_its_largest_and_forgets_little(
            values in prop::collection::vec(-1e3f32..1e3, 1..=BLOCK_LEN),
        ) {
            let map = CodeMap::of(StateRange::Signed);
            let mut block = [7; BLOCK_BYTES];
            map.store(&values, &mut block);
            let mut found = [9.0; BLOCK_LEN];
            map.load(&block, &mut found);
            let largest = values.iter().fold(0.0_f32, |scale, x| scale.max(x.abs()));
            for (found, x) in found.iter().zip(&values) {
                if x.abs() == largest && *x > 0.0 {
                    prop_assert_eq!(found, x);
                }
                // Half of the widest part, 0.9 / 64; below -1 there is no code for the end.
                prop_assert!((found - x).abs() <= largest * 0.0071, "{found} {x}");
            }
            prop_assert!(found[values.len()..].iter().all(|&x| x == 0.0));
        }
    }

    #[test]
    fn zeros_infinities_and_nan_have_their_places() {
        let map = CodeMap::of(StateRange::Signed);
        let cycle = |values: &[f32]| {
            let (mut block, mut found) = ([0; BLOCK_BYTES], vec![5.0; values.len()]);
            map.load(&block, &mut found);
            assert!(found.iter().all(|&x| x == 0.0), "fresh memory is a block of zeros");
            map.store(values, &mut block);
            map.load(&block, &mut found);
            found
        };
        assert_eq!(cycle(&[0.0, -0.0]), [0.0, 0.0]);
        assert_eq!(cycle(&[1e-30, 0.0]), [1e-30, 0.0]);
        let with_nan = cycle(&[f32::NAN, 2.0]);
        assert_eq!(with_nan, [0.0, 2.0]);
    }
}
