//! The laws of `cargo xtask`: what counts, what each tidy check rejects, what a report says.

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
