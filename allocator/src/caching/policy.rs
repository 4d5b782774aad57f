//! The choice of placement rules.

use crate::torch::TorchSettings;

/// By which rules blocks are placed.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "one for each allocator")]
pub enum Policy {
    /// This crate's own: one range, best fit, whole free pages stitched together. Needs the least
    /// memory. For everything but comparisons.
    #[default]
    Pages,
    /// PyTorch's, for comparing a program with what PyTorch would have done. It takes up to a
    /// seventh more memory on recorded traces and more time for each request; expandable segments
    /// are not used live.
    Torch(TorchSettings),
}
