//! One folder per operation: shapes, checks and the launch in `mod.rs`, loops in `cpu.rs`.

pub(crate) mod adaptive_max_pool2d;
pub(crate) mod attention;
pub(crate) mod avg_pool2d;
pub(crate) mod batch_norm;
mod cat;
mod compaction;
pub(crate) mod conv2d;
pub(crate) mod cross_entropy;
pub(crate) mod dropout;
pub(crate) mod elementwise;
pub(crate) mod finite;
mod indexing;
pub(crate) mod matmul;
pub(crate) mod max_pool2d;
pub(crate) mod norm;
pub(crate) mod pair_loss;
mod random;
pub(crate) mod rearrange;
mod reduce;
mod scan;
mod sequence;
mod softmax;
pub(crate) mod sort;
mod triangle;
pub(crate) mod update;
pub(crate) mod upsample2d;
pub(crate) mod windows;
