#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod bench;
pub mod data;
pub mod gpu_bundle;
pub mod house;
pub mod kernels;
pub mod parity;
pub mod peers;
mod python;
pub mod scoreboard;
pub mod tally;
pub mod test;
pub mod tidy;
pub mod tree;
pub mod workspace;
