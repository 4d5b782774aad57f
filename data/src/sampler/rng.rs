//! The random numbers of one epoch for one purpose.

use crate::sampler::order::EpochKey;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// The ChaCha8 stream of an epoch. The key is the seed, the epoch and the name of the purpose, so
/// that different purposes of one seed have different streams.
pub(crate) fn epoch_rng(key: EpochKey, purpose: &[u8; 16]) -> ChaCha8Rng {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&key.seed.to_le_bytes());
    bytes[8..16].copy_from_slice(&key.epoch.to_le_bytes());
    bytes[16..].copy_from_slice(purpose);
    ChaCha8Rng::from_seed(bytes)
}

/// The Fisher-Yates shuffle.
pub(crate) fn shuffle<T>(items: &mut [T], rng: &mut impl Rng) {
    for last in (1..items.len()).rev() {
        let chosen = below(last as u64 + 1, || rng.next_u64());
        items.swap(last, chosen as usize);
    }
}

/// A uniform number below `bound`, by multiplication and rejection: D. Lemire, "Fast Random Integer
/// Generation in an Interval", ACM TOMACS 29(1), 2019.
pub(crate) fn below(bound: u64, mut draw: impl FnMut() -> u64) -> u64 {
    let rejected = bound.wrapping_neg() % bound;
    loop {
        let product = u128::from(draw()) * u128::from(bound);
        if product as u64 >= rejected {
            return (product >> 64) as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::below;

    #[test]
    fn draws_that_would_favour_a_number_are_rejected() {
        // 2^64 = 3 k + 1: the one surplus draw is 0, whose low product half is 0 < 1.
        let mut draws = [0, u64::MAX].into_iter();
        assert_eq!(below(3, || draws.next().unwrap()), 2);
        assert_eq!(draws.next(), None);
        // A power of two divides evenly and rejects nothing.
        assert_eq!(below(4, || 0), 0);
    }

    #[test]
    fn each_number_owns_an_equal_range_of_draws() {
        const THIRD: u64 = u64::MAX / 3;
        let at = |draw| below(3, || draw);
        assert_eq!([at(1), at(THIRD)], [0, 0]);
        assert_eq!([at(THIRD + 1), at(2 * THIRD)], [1, 1]);
        assert_eq!([at(2 * THIRD + 1), at(u64::MAX)], [2, 2]);
        assert_eq!(below(1, || u64::MAX), 0);
    }
}
