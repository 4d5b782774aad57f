//! Phases of a training step, read off the sites of a recording without categories.
//!
//! PyTorch's stacks show the phases. A block of the backward pass comes from a thread of the
//! autograd engine, which runs a node such as `MulBackward0`. A block of the optimizer comes from a
//! file or function with the optimizer's name. The rest of the program is forward passes and setup,
//! which look alike.

use std::fmt;

use crate::pytorch::frames::{is_backward, is_native};
use crate::recording::Site;

/// The phase of a training step that a block was allocated in, as far as its site shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// The program, outside of the backward pass and the optimizer.
    Forward,
    /// A node of the autograd graph, or the engine that runs it.
    Backward,
    /// The step of an optimizer.
    Optimizer,
    /// A block without a site, or a site of native code that runs in every phase.
    Unknown,
}

impl Phase {
    pub(super) const ALL: [Phase; 4] =
        [Phase::Forward, Phase::Backward, Phase::Optimizer, Phase::Unknown];

    /// The phase of the code at a site.
    pub(super) fn of(site: Option<&Site>) -> Phase {
        let Some(site) = site else { return Phase::Unknown };
        let Site { file, line, function, .. } = site;
        let is_optimizer = file.contains("torch/optim/")
            || file.ends_with("optimizer.py")
            || file.ends_with("optim.py");
        if is_backward(function) || function == "backward" {
            Phase::Backward
        } else if is_optimizer {
            Phase::Optimizer
        } else if *line > 0 && !is_native(file) {
            Phase::Forward
        } else {
            Phase::Unknown
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Phase::Forward => "forward, setup",
            Phase::Backward => "backward",
            Phase::Optimizer => "optimizer",
            Phase::Unknown => "unknown",
        })
    }
}

/// Blocks and bytes of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseShare {
    /// The phase of a step.
    pub phase: Phase,
    /// Number of live blocks of the phase.
    pub blocks: u64,
    /// Bytes of the blocks.
    pub bytes: u64,
}
