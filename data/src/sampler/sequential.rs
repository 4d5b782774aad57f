//! The order of the dataset.

use crate::sampler::order::{EpochKey, Order, Sampler};

/// Visits the samples in the order of the dataset in every epoch, for evaluation.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sequential;

impl Sampler for Sequential {
    fn order(&self, _key: EpochKey, _len: usize) -> Box<dyn Order> {
        Box::new(Identity)
    }
}

struct Identity;

impl Order for Identity {
    fn sample(&self, position: usize) -> usize {
        position
    }
}
