//! What `cargo xtask` does, as a library so that `tests/it` can reach it.
//!
//! Eight commands: [`mod@test`] runs every check in sections and ends with one line of counts,
//! [`tidy`] reads the tracked files and reports what breaks the house rules, [`kernels`] compiles
//! what runs on CUDA devices and says what it needs, [`gpu_bundle`] makes a folder that runs on a
//! machine with such a device, [`mod@bench`] turns criterion's files into one Markdown report and
//! [`peers`] compares operations with PyTorch's, [`parity`] makes the tests' reference values anew,
//! [`scoreboard`] runs other libraries' suites, [`data`] brings data sets out of packages.
//! Policy is in pure functions over text; processes are started only in [`test::run`],
//! [`bench::run`], [`peers::run`], [`kernels::run`], [`gpu_bundle::run`], [`parity::run`],
//! [`scoreboard::run`], [`data::run`] and [`workspace`].

#![forbid(unsafe_code)]

pub mod bench;
pub mod data;
pub mod gpu_bundle;
pub mod kernels;
pub mod needs;
pub mod parity;
pub mod peers;
mod python;
pub mod scoreboard;
pub mod tally;
pub mod test;
pub mod tidy;
pub mod workspace;
