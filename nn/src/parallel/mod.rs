//! Models that several ranks share; a trainer divides the models. A model must run its blocks by
//! [`run_blocks`](crate::run_blocks), and must show the layers that can be shared
//! ([`Node::Shared`](crate::Node::Shared)).

pub(crate) mod features;
pub(crate) mod sharded;
pub(crate) mod stages;

pub use features::{Branch, Shared, VocabularyShare};
#[doc(hidden)]
pub use features::{Shard, Sum, set_sum, share_layers};
#[doc(hidden)]
pub use sharded::{Gather, divide, set_gather};
#[doc(hidden)]
pub use stages::{Cuts, Section, StageEnd, Survey, keep_own, run_stage, survey, survey_cuts};
