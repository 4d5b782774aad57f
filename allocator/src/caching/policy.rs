//! The choice of placement rules.

use crate::torch::TorchSettings;

/// The rules that place blocks.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "one for each allocator")]
pub enum Policy {
    /// Rules of this crate: one range, best fit, whole free pages stitched together. They need the
    /// least memory. Choose them for everything but comparisons.
    #[default]
    Pages,
    /// PyTorch's rules, for comparing a program with PyTorch. They take up to a seventh more memory
    /// on recorded traces, and more time for each request; expandable segments are not used live.
    Torch(TorchSettings),
}
