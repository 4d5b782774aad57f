//! A new order in each epoch, from a table.

use crate::error::DataError;
use crate::sampler::stream::{shuffle, stream};
use crate::sampler::{EpochKey, Order, Sampler};

/// Visits every sample once, in an order that differs from epoch to epoch: for training.
///
/// A Fisher-Yates shuffle on the ChaCha8 stream whose key is made of seed and epoch. Nothing of
/// it depends on the platform or on the version of a library, so an old run can be resumed. An
/// epoch holds a table of 4 bytes per sample, or 8 from 2^32 samples on; [`Permuted`] has none.
///
/// [`Permuted`]: crate::Permuted
#[derive(Debug, Clone, Copy, Default)]
pub struct Shuffled;

impl Shuffled {
    /// Shuffles anything by the same stream: `0..len` become the indexes in the order of the epoch.
    pub fn arrange<T>(self, seed: u64, epoch: u64, items: &mut [T]) {
        let key = EpochKey { seed, epoch, batch_size: 1 };
        shuffle(items, &mut stream(key, b"lowtide::shuffle"));
    }
}

impl Sampler for Shuffled {
    /// # Errors
    /// [`DataError::InvalidOption`] for more samples than a table has room for, as a damaged file
    /// may claim to have.
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

/// Indexes in half the memory.
struct Narrow(Vec<u32>);

impl Order for Narrow {
    fn sample(&self, position: usize) -> usize {
        self.0[position] as usize
    }
}
