//! Models of which a rank runs some blocks: the stages of a pipeline (Huang et al. 2019).
//!
//! A model runs its blocks by [`run_blocks`](crate::run_blocks), or has each of them in a
//! [`Segment`](crate::Segment): it can be cut between these blocks. A stage runs the whole code of
//! a model. Code before its first block is computed with [stand-ins](keep_own) of parameters, for
//! its shapes alone; then the block gets the value that the stage before has sent. After the
//! stage's last block an error leaves the code.

mod keep_own;
pub(crate) mod run;

pub use keep_own::keep_own;
pub use run::{Cuts, Section, StageEnd, Survey, run_stage, survey, survey_cuts};
