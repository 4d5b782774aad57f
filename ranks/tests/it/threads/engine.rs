//! The engine.

use std::time::Duration;

pub(crate) use lowtide_ranks::ThreadRank as OneRank;

pub(crate) fn ranks(count: usize, timeout: Duration) -> Vec<OneRank> {
    lowtide_ranks::threads(count, timeout)
}
