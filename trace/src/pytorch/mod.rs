//! Snapshots of PyTorch: read, replayed address for address, and written.

pub(crate) mod export;
pub(crate) mod file;
pub(crate) mod frames;
mod import;
pub(crate) mod memory;
pub mod pickle;
pub(crate) mod replay;
pub(crate) mod settings;
pub(crate) mod snapshot;
