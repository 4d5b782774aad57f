//! A training on disk: checkpoints, and the room that is set aside for them.

pub(crate) mod checkpoint;
pub(crate) mod checkpoint_folder;
pub(crate) mod fingerprint;
pub(crate) mod new_file;
pub(crate) mod reserve;
pub(crate) mod snapshot;
pub(crate) mod state_hash;
pub(crate) mod trained_state;
