//! A new random order in each epoch, from a table.

use crate::error::DataError;
use crate::sampler::order::{EpochKey, Order, Sampler};
use crate::sampler::rng::{epoch_rng, shuffle};

/// Visits every sample once, in a new random order in each epoch, for training.
///
/// The order is a Fisher-Yates shuffle on the ChaCha8 stream with the key (seed, epoch). The order
/// depends on neither platform nor library version, so an old run can be resumed. An epoch holds a
/// table of 4 bytes per sample, or 8 from 2^32 samples on; [`Permuted`] needs no table.
///
/// [`Permuted`]: crate::Permuted
#[derive(Debug, Clone, Copy, Default)]
pub struct Shuffled;

impl Shuffled {
    /// Shuffles `items` as an epoch shuffles its samples.
    pub fn arrange<T>(self, seed: u64, epoch: u64, items: &mut [T]) {
        let key = EpochKey { seed, epoch, batch_size: 1 };
        shuffle(items, &mut epoch_rng(key, b"lowtide::shuffle"));
    }
}

impl Sampler for Shuffled {
    /// # Errors
    /// [`DataError::InvalidOption`] if the table does not fit in memory. A damaged file may claim
    /// to have that many samples.
    fn samples_per_epoch(&self, len: usize) -> Result<usize, DataError> {
        let room = match u32::try_from(len) {
            Ok(_) => Vec::<u32>::new().try_reserve_exact(len),
            Err(_) => Vec::<usize>::new().try_reserve_exact(len),
        };
        let refused = |_| DataError::InvalidOption { option: "samples", value: len };
        room.map(|()| len).map_err(refused)
    }

    fn order(&self, key: EpochKey, len: usize) -> Box<dyn Order> {
        let EpochKey { seed, epoch, .. } = key;
        match u32::try_from(len) {
            Ok(len) => {
                let mut table: Vec<u32> = (0..len).collect();
                self.arrange(seed, epoch, &mut table);
                Box::new(Narrow(table))
            }
            Err(_) => {
                let mut table: Vec<usize> = (0..len).collect();
                self.arrange(seed, epoch, &mut table);
                Box::new(table)
            }
        }
    }
}

/// A table of 4-byte indices.
struct Narrow(Vec<u32>);

impl Order for Narrow {
    fn sample(&self, position: usize) -> usize {
        self.0[position] as usize
    }
}
