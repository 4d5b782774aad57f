//! Ranks with devices of their own.

use std::time::Duration;

use lowtide_ranks::Collectives;
use lowtide_tensor::Device;

use super::engine::ranks;
pub(crate) use super::values::*;

/// Largest number of ranks in a test.
pub(crate) const MOST: usize = 9;

/// Runs `work` on `count` ranks and returns the results by rank.
pub(crate) fn on_ranks<R: Send>(
    count: usize,
    timeout: Duration,
    work: impl Fn(Box<dyn Collectives>, Device) -> R + Sync,
) -> Vec<R> {
    let work = &work;
    std::thread::scope(|scope| {
        let ranks = ranks(count, timeout).into_iter();
        let handles: Vec<_> =
            ranks.map(|rank| scope.spawn(move || work(Box::new(rank), cpu()))).collect();
        handles.into_iter().map(|handle| handle.join().expect("no panic")).collect()
    })
}
