//! The laws of `cargo xtask`: the counts of tests, the findings of each tidy check, the text of
//! reports.

mod bench;
#[cfg(unix)]
mod command;
mod gpu_bundle;
mod house;
mod kernels;
mod markdown;
mod parity;
mod peers;
mod plan;
mod quiet;
mod source;
mod tally;
mod tidy;
mod tree;
mod workspace;
