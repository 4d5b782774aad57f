//! Laws of the tensors, checked against naive twins and reference values.

mod common;
mod elementwise;
mod errors;
mod fixtures;
mod inventory;
mod kernel;
mod laws;
mod loss;
mod naive;
mod optimizers;
mod products;
mod random;
mod reduce;
mod simulation;
mod storage;
mod views;
mod windows;
