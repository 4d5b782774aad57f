#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod command;
mod human;
mod json;
pub mod recipe;
pub mod report;
mod run_dir;
mod run_lock;
mod timeline;

pub use command::run;
pub use run_dir::{RunDir, Summary};
pub use timeline::{RecordedStep, Timeline};
