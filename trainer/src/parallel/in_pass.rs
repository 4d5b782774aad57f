//! Collectives within passes, which all ranks have to call at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lowtide_nn::NnResult;
use lowtide_nn::parallel::{Gather, Sum};
use lowtide_ranks::Collectives;
use lowtide_tensor::Tensor;

use crate::parallel::vote::in_pass;

/// The collectives that a model calls within passes, with a count of the bytes of their tensors.
#[derive(Debug)]
pub(crate) struct PassCollectives {
    ranks: Arc<dyn Collectives>,
    summed_bytes: AtomicUsize,
    gathered_bytes: AtomicUsize,
}

impl PassCollectives {
    pub(crate) fn new(ranks: Arc<dyn Collectives>) -> Arc<Self> {
        let zero = || AtomicUsize::new(0);
        Arc::new(PassCollectives { ranks, summed_bytes: zero(), gathered_bytes: zero() })
    }

    /// Bytes that were summed so far.
    pub(crate) fn summed_bytes(&self) -> usize {
        self.summed_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of parameters that were gathered so far.
    pub(crate) fn gathered_bytes(&self) -> usize {
        self.gathered_bytes.load(Ordering::Relaxed)
    }
}

impl Sum for PassCollectives {
    fn sum(&self, x: &mut Tensor) -> NnResult<()> {
        self.summed_bytes.fetch_add(x.size_bytes(), Ordering::Relaxed);
        self.ranks.all_reduce(x).map_err(|error| in_pass(error).into())
    }
}

impl Gather for PassCollectives {
    fn gather(&self, whole: &mut Tensor, part_len: usize) -> NnResult<()> {
        self.gathered_bytes.fetch_add(whole.size_bytes(), Ordering::Relaxed);
        self.ranks.gather_parts(whole, part_len).map_err(|error| in_pass(error).into())
    }
}
