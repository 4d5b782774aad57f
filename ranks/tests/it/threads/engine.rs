//! The engine.

pub(crate) use lowtide_ranks::threads as ranks;
