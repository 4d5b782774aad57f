//! The `lowtide` command as a user at a shell sees it: exit codes, output and files.

mod calibrate;
mod calls;
mod cuda;
mod data;
mod disk;
mod distill;
mod eval;
mod faults;
#[cfg(target_os = "linux")]
mod group;
mod json;
mod kills;
mod limits;
mod memory;
mod mistakes;
mod output;
mod place;
mod plan_file;
mod preference;
#[cfg(feature = "pretend")]
#[path = "../../../trainer/tests/pretend/mod.rs"]
mod pretend;
mod pretrained;
mod process;
mod publish;
mod ranks;
mod recipes;
mod replay;
mod resume;
mod shrink;
mod tensorboard;
mod trace_files;
mod train;
