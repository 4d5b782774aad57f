//! The order in which an epoch visits the samples.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// Decides the order of an epoch, as a function of its arguments alone.
pub trait Sampler: Send + Sync {
    /// Rearranges `order`, which arrives as `0..len`, into the indexes to visit in turn.
    ///
    /// A sampler may repeat an index and leave others out; every index it leaves must be below
    /// `order.len()`. It is called once per epoch, and again when an epoch is resumed: equal
    /// arguments must give equal orders.
    fn arrange(&self, seed: u64, epoch: u64, order: &mut [usize]);
}

/// Visits the samples in the order of the dataset, in every epoch: for evaluation.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sequential;

impl Sampler for Sequential {
    fn arrange(&self, _seed: u64, _epoch: u64, _order: &mut [usize]) {}
}

/// Visits every sample once, in an order that differs from epoch to epoch: for training.
///
/// A Fisher-Yates shuffle on the ChaCha8 stream whose key is made of seed and epoch. Nothing of
/// it depends on the platform or on the version of a library, so an old run can be resumed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shuffled;

impl Sampler for Shuffled {
    fn arrange(&self, seed: u64, epoch: u64, order: &mut [usize]) {
        let mut stream = ChaCha8Rng::from_seed(key(seed, epoch));
        for last in (1..order.len()).rev() {
            let chosen = below(last as u64 + 1, || stream.next_u64());
            order.swap(last, chosen as usize);
        }
    }
}

/// Seed and epoch fill half of the key; the other half keeps these streams apart from any other
/// use of the same seed.
fn key(seed: u64, epoch: u64) -> [u8; 32] {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&epoch.to_le_bytes());
    key[16..].copy_from_slice(b"lowtide::shuffle");
    key
}

/// A number below `bound`, each with the same probability: multiply and reject, after
/// D. Lemire, "Fast Random Integer Generation in an Interval", ACM TOMACS 29(1), 2019.
fn below(bound: u64, mut draw: impl FnMut() -> u64) -> u64 {
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
