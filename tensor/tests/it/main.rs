//! Laws of the tensors, checked against naive twins and reference values.

mod accuracy;
mod attention;
mod common;
mod convert;
mod elementwise;
mod errors;
mod fixtures;
mod golden;
mod inventory;
mod kernel;
mod laws;
mod loss;
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
mod views;
mod windows;
