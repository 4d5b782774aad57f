//! The random numbers of one sample or one batch in one epoch.

use crate::sampler::rng::below;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// Random numbers for one use, such as an augmentation. The numbers depend only on the loader's
/// seed, the epoch, the sample or batch, and the purpose, not on the number of workers or on a
/// resume.
///
/// The seed, the epoch, the index and the purpose are the key of a ChaCha8 stream, which
/// [`SampleSlot::draws`](crate::SampleSlot::draws) and
/// [`BatchSlot::draws`](crate::BatchSlot::draws) return.
#[derive(Debug, Clone)]
pub struct Draws(ChaCha8Rng);

impl Draws {
    pub(crate) fn new(seed: u64, epoch: u64, index: u64, purpose: u64) -> Self {
        let mut key = [0; 32];
        for (bytes, number) in key.chunks_exact_mut(8).zip([seed, epoch, index, purpose]) {
            bytes.copy_from_slice(&number.to_le_bytes());
        }
        Self(ChaCha8Rng::from_seed(key))
    }

    /// A uniform number of 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A uniform number from [0, 1), a multiple of 2^-53.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A uniform number between `low` and `high`.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// A uniform whole number below `bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "no number is below 0");
        below(bound as u64, || self.bits()) as usize
    }

    /// True with the given probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }
}
