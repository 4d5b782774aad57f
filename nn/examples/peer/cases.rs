//! Single operations at the shapes of the CNNs and the GPT, forward and backward.
//!
//! The "loss" of an operation is the mean magnitude of its first result: equal losses show equal
//! work.

use super::measure::Workload;

/// An operation: its name, the part of it that runs, and its sizes.
pub(crate) struct Op {
    pub(crate) workload: Workload,
    pub(crate) part: Part,
    pub(crate) dims: &'static [usize],
}

#[derive(Clone, Copy)]
pub(crate) enum Part {
    /// Sizes of a convolution 3x3 with padding 1: `[B, I, side, O]`.
    Conv,
    ConvToInput,
    ConvToWeight,
    /// Sizes of a max pool 2x2: `[B, C, side]`.
    MaxPool,
    MaxPoolBackward,
    /// Sizes of rows: `[N, C]`.
    LayerNorm,
    LayerNormBackward,
    Gelu,
    GeluBackward,
    /// Sizes of causal attention: `[B, heads, T, D]`.
    Attention,
    AttentionBackward,
}

const fn op(name: &'static str, steps: usize, part: Part, dims: &'static [usize]) -> Op {
    Op { workload: Workload { name, batch: dims[0], steps, giga: None }, part, dims }
}

const CONV_3_16: &[usize] = &[128, 3, 32, 16];
const CONV_3_32: &[usize] = &[64, 3, 64, 32];
const CONV_32_64: &[usize] = &[64, 32, 32, 64];
const CONV_64_128: &[usize] = &[64, 64, 16, 128];
const POOLED: &[usize] = &[64, 32, 64];
pub(crate) const ROWS: &[usize] = &[2048, 128];
pub(crate) const WIDE_ROWS: &[usize] = &[2048, 512];
pub(crate) const HEADS: &[usize] = &[16, 4, 128, 32];

static OPS: [Op; 18] = [
    op("w6-conv-3-16", 100, Part::Conv, CONV_3_16),
    op("w6-conv-3-16-to-weight", 100, Part::ConvToWeight, CONV_3_16),
    op("w6-conv-3-32", 40, Part::Conv, CONV_3_32),
    op("w6-conv-3-32-to-weight", 40, Part::ConvToWeight, CONV_3_32),
    op("w6-conv-32-64", 40, Part::Conv, CONV_32_64),
    op("w6-conv-32-64-to-input", 40, Part::ConvToInput, CONV_32_64),
    op("w6-conv-32-64-to-weight", 40, Part::ConvToWeight, CONV_32_64),
    op("w6-conv-64-128", 40, Part::Conv, CONV_64_128),
    op("w6-conv-64-128-to-input", 40, Part::ConvToInput, CONV_64_128),
    op("w6-conv-64-128-to-weight", 40, Part::ConvToWeight, CONV_64_128),
    op("w6-max-pool", 100, Part::MaxPool, POOLED),
    op("w6-max-pool-backward", 100, Part::MaxPoolBackward, POOLED),
    op("w6-layer-norm", 400, Part::LayerNorm, ROWS),
    op("w6-layer-norm-backward", 400, Part::LayerNormBackward, ROWS),
    op("w6-gelu", 200, Part::Gelu, WIDE_ROWS),
    op("w6-gelu-backward", 200, Part::GeluBackward, WIDE_ROWS),
    op("w6-attention", 200, Part::Attention, HEADS),
    op("w6-attention-backward", 200, Part::AttentionBackward, HEADS),
];

/// The names of all operations.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    OPS.iter().map(|op| op.workload.name)
}

/// The operation of this name.
pub(crate) fn find(name: &str) -> Option<&'static Op> {
    OPS.iter().find(|op| op.workload.name == name)
}
