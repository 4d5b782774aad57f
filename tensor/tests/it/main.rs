//! Laws of the tensors, checked against naive twins and reference values.

mod accuracy;
mod common;
mod convert;
mod elementwise;
mod errors;
mod fixtures;
mod golden;
mod indexing;
mod inventory;
mod kernel;
mod laws;
mod loss;
mod moves;
mod naive;
mod npy;
mod optimizers;
mod print;
mod products;
mod random;
mod reduce;
mod sequence;
mod simulation;
mod storage;
mod update;
mod views;
mod windows;
