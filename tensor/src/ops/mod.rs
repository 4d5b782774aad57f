//! One folder per operation: shapes, checks and the launch in `mod.rs`, loops in `cpu.rs`.

pub(crate) mod adam;
pub(crate) mod attention;
pub(crate) mod conv2d;
pub(crate) mod cross_entropy;
pub(crate) mod elementwise;
pub(crate) mod finite;
pub(crate) mod matmul;
pub(crate) mod max_pool2d;
mod random;
mod reduce;
mod sequence;
pub(crate) mod sgd;
