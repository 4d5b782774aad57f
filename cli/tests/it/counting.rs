//! A rank whose calls are counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lowtide_ranks::{Collectives, Rank, Result};
use lowtide_tensor::Tensor;

/// Counts the bytes of tensors that a rank sums with all others, and of tensors that it gives to
/// one.
pub(crate) struct Counting {
    ranks: Arc<dyn Collectives>,
    summed_bytes: AtomicUsize,
    given_bytes: AtomicUsize,
}

impl Counting {
    pub(crate) fn new(ranks: Arc<dyn Collectives>) -> Self {
        Counting { ranks, summed_bytes: AtomicUsize::new(0), given_bytes: AtomicUsize::new(0) }
    }

    pub(crate) fn summed_bytes(&self) -> usize {
        self.summed_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn given_bytes(&self) -> usize {
        self.given_bytes.load(Ordering::Relaxed)
    }
}

impl Collectives for Counting {
    fn rank(&self) -> Rank {
        self.ranks.rank()
    }

    fn exchange(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.ranks.exchange(own)
    }

    fn all_reduce(&self, x: &mut Tensor) -> Result<()> {
        self.summed_bytes.fetch_add(x.size_bytes(), Ordering::Relaxed);
        self.ranks.all_reduce(x)
    }

    fn reduce_scatter(&self, from: &Tensor, to: &mut Tensor) -> Result<()> {
        self.ranks.reduce_scatter(from, to)
    }

    fn all_gather(&self, from: &Tensor, to: &mut Tensor) -> Result<()> {
        self.ranks.all_gather(from, to)
    }

    fn reduce_part(&self, x: &mut Tensor, part_len: usize) -> Result<()> {
        self.ranks.reduce_part(x, part_len)
    }

    fn gather_parts(&self, x: &mut Tensor, part_len: usize) -> Result<()> {
        self.ranks.gather_parts(x, part_len)
    }

    fn broadcast(&self, x: &mut Tensor, root: usize) -> Result<()> {
        self.ranks.broadcast(x, root)
    }

    fn trade(&self, give: Option<&Tensor>, take: Option<&mut Tensor>, other: usize) -> Result<()> {
        self.given_bytes.fetch_add(give.map_or(0, Tensor::size_bytes), Ordering::Relaxed);
        self.ranks.trade(give, take, other)
    }

    fn decline(&self, other: usize, reason: &str) -> Result<()> {
        self.ranks.decline(other, reason)
    }

    fn refuse(&self, reason: &str) -> Result<bool> {
        self.ranks.refuse(reason)
    }

    fn abort(&self, reason: &str) {
        self.ranks.abort(reason);
    }
}
