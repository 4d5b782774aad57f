//! Pipeline stages: each rank runs some blocks of a model (Huang et al. 2019).
//!
//! A model runs its blocks by [`run_blocks`](crate::run_blocks), or has each block in a
//! [`Segment`](crate::Segment). A model can be cut between these blocks. A stage runs the code of
//! the whole model. Code before its first block runs with [stand-ins](keep_own) of parameters, and
//! only the shapes count; then the first block gets the value from the previous stage. After the
//! last block of the stage, an error ends the code.

mod keep_own;
pub(crate) mod run;

pub use keep_own::keep_own;
pub use run::{Cuts, Section, StageEnd, Survey, run_stage, survey, survey_cuts};
