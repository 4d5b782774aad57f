//! Recipes on an NVIDIA device, for which the pretend driver may stand in.

#[allow(dead_code, reason = "the trainer's tests use the rest")]
#[path = "../../../trainer/tests/cuda/gpu.rs"]
mod gpu;
#[path = "../../../trainer/tests/cuda/losses.rs"]
mod losses;
#[path = "../../../trainer/tests/pretend/mod.rs"]
mod pretend;
mod recipes;
#[path = "../it/small_recipes.rs"]
mod small_recipes;
