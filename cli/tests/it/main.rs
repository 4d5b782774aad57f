//! Laws of recipes, of runs and of their reports, one module per subject.

#[allow(dead_code, reason = "the trainer's tests use the rest")]
#[path = "../../../trainer/tests/it/common.rs"]
mod common;
mod counting;
mod every_model;
mod features;
mod fronts;
#[path = "../../../trainer/tests/cuda/losses.rs"]
mod losses;
mod pipeline;
mod precision;
mod pretrained;
mod recipe;
mod report;
mod run_dir;
mod sent;
mod small_recipes;
mod timeline;
