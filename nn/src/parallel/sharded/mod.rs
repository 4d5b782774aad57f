//! Parameters that are divided among ranks and are whole only while they are used (ZeRO-3,
//! Rajbhandari et al. 2020).

mod divide;
pub(crate) mod gather;

pub use divide::{divide, set_gather};
pub use gather::Gather;
