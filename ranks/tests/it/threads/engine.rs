//! The engine under test: ranks that are threads.

pub(crate) use lowtide_ranks::threads as ranks;
