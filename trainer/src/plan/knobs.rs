//! Knobs: the choices of a plan.

use std::fmt;
use std::ops::Range;

use lowtide_autograd::{Offload, SavedPolicy};
use lowtide_nn::Parameters;
use lowtide_tensor::Device;
use serde::{Deserialize, Serialize};

/// The choices of a plan, with which each step runs.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Knobs {
    /// Samples that are on the device at once; gradients of a batch are summed over its parts. The
    /// same numbers up to the order of float additions.
    pub micro_batch: usize,
    /// Whether results that are cheap to compute again, those of norms, activation functions, casts
    /// and the like, are dropped until backward needs them. The same bits, for little time.
    #[serde(default)]
    pub cheap_recomputed: bool,
    /// Blocks of the model ([`Segment`](lowtide_nn::Segment)), from the first on, of which only
    /// the inputs are kept for backward, which computes the rest again. The same bits.
    #[serde(default)]
    pub recomputed_blocks: usize,
    /// How many of these are recomputed at once, from the input of the first: fewer inputs are
    /// kept, and more is there at once in backward. 0 is 1. The same bits.
    #[serde(default)]
    pub blocks_at_once: usize,
    /// Blocks, from the first on, whose kept tensors wait in the memory of
    /// [`Options::offload`](crate::Options::offload): the inputs of those that are recomputed,
    /// everything that others save. The same bits, for two copies.
    #[serde(default)]
    pub offloaded_blocks: usize,
    /// Whether each parameter is updated as soon as its gradient is complete, which then is gone
    /// before the next one is there. The same bits. Where gradients are looked at before anything
    /// is written ([`Options::non_finite`](crate::Options::non_finite), clipping, a loss scale),
    /// the last part of a batch is computed twice.
    #[serde(default)]
    pub fused_update: bool,
}

/// What is done to keep less on the device for backward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Thrift {
    pub(crate) cheap: bool,
    pub(crate) blocks: usize,
    pub(crate) at_once: usize,
    pub(crate) offloaded: usize,
}

impl Thrift {
    pub(crate) const NONE: Thrift = Thrift { cheap: false, blocks: 0, at_once: 0, offloaded: 0 };
    pub(crate) const CHEAP: Thrift = Thrift { cheap: true, ..Thrift::NONE };

    /// Recomputes cheap results and `blocks` blocks.
    pub(crate) fn blocks(blocks: usize) -> Thrift {
        Thrift { blocks, ..Thrift::CHEAP }
    }

    /// Recomputes `at_once` of the blocks at once.
    pub(crate) fn at_once(self, at_once: usize) -> Thrift {
        Thrift { at_once, ..self }
    }

    /// Offloads `offloaded` blocks.
    pub(crate) fn offloading(self, offloaded: usize) -> Thrift {
        Thrift { offloaded, ..self }
    }
}

impl fmt::Display for Knobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "micro-batches of {}", self.micro_batch)?;
        self.fmt_means(f)
    }
}

impl Knobs {
    /// What is done beside splitting, if anything is.
    pub(crate) fn fmt_means(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut means = Vec::new();
        let recomputed = self.recomputed();
        if !recomputed.is_empty() {
            means.push(format!("{recomputed} recomputed"));
        }
        if self.offloaded_blocks > 0 {
            means.push(format!("{} offloaded", count_of(self.offloaded_blocks)));
        }
        if self.fused_update {
            means.push("a fused update".to_owned());
        }
        let Some(last) = means.pop() else { return Ok(()) };
        match &means[..] {
            [] => write!(f, " with {last}"),
            before => write!(f, " with {} and {last}", before.join(", ")),
        }
    }

    /// What is recomputed, if anything is.
    pub fn recomputed(&self) -> String {
        let blocks = match (self.recomputed_blocks, self.blocks_at_once) {
            (0, _) => String::new(),
            (count, 0 | 1) => count_of(count),
            (count, at_once) => format!("{count} blocks ({at_once} at once)"),
        };
        match (self.cheap_recomputed, &blocks[..]) {
            (false, _) => blocks,
            (true, "") => "cheap results".to_owned(),
            (true, _) => format!("cheap results and {blocks}"),
        }
    }

    /// Takes recomputation and offloading from `thrift`.
    pub(crate) fn keeping(self, thrift: Thrift) -> Knobs {
        Knobs {
            cheap_recomputed: thrift.cheap,
            recomputed_blocks: thrift.blocks,
            blocks_at_once: thrift.at_once,
            offloaded_blocks: thrift.offloaded,
            ..self
        }
    }

    /// Whether these are no slower than others: parts as large, no more recomputed or offloaded,
    /// no update fused that is not there too.
    pub(crate) fn is_at_least(&self, other: &Knobs) -> bool {
        self.micro_batch >= other.micro_batch
            && self.cheap_recomputed <= other.cheap_recomputed
            && self.recomputed_blocks <= other.recomputed_blocks
            && self.offloaded_blocks <= other.offloaded_blocks
            && self.fused_update <= other.fused_update
    }
}

/// A number of blocks, in words.
fn count_of(blocks: usize) -> String {
    match blocks {
        1 => "one block".to_owned(),
        count => format!("{count} blocks"),
    }
}

/// The number of blocks in the range that a plan may recompute or offload: the blocks without a
/// policy of their own.
pub(crate) fn block_count(model: &mut dyn Parameters, range: &Range<usize>) -> usize {
    let (mut index, mut count) = (0, 0);
    model.visit_policies(&mut |policy| {
        count += usize::from(policy.is_none() && range.contains(&index));
        index += 1;
    });
    count
}

/// The range of every block of a model.
pub(crate) const EVERY_BLOCK: Range<usize> = 0..usize::MAX;

/// Sets the policies that `knobs` ask for, with `host` as the device to offload to, on the blocks
/// of the range that have no policy. Returns the indices of changed blocks, for [`reset_policies`].
pub(crate) fn set_policies(
    model: &mut dyn Parameters,
    range: &Range<usize>,
    knobs: &Knobs,
    host: Option<&Device>,
) -> Vec<usize> {
    let policy_of = |block: usize| {
        let offload = host.map(Offload::to).filter(|_| block < knobs.offloaded_blocks);
        let is_first = block.is_multiple_of(knobs.blocks_at_once.max(1));
        match (block < knobs.recomputed_blocks, offload) {
            (true, _) if !is_first => Some(SavedPolicy::RecomputeWithPrevious),
            (true, Some(offload)) => Some(SavedPolicy::RecomputeFrom(offload)),
            (true, None) => Some(SavedPolicy::Recompute),
            (false, offload) => offload.map(SavedPolicy::Offload),
        }
    };
    let (mut index, mut block, mut chosen) = (0, 0, Vec::new());
    model.visit_policies(&mut |policy| {
        if policy.is_none() && range.contains(&index) {
            *policy = policy_of(block);
            chosen.extend(policy.is_some().then_some(index));
            block += 1;
        }
        index += 1;
    });
    chosen
}

/// Takes back what [`set_policies`] did.
pub(crate) fn reset_policies(model: &mut dyn Parameters, chosen: &[usize]) {
    let mut index = 0;
    model.visit_policies(&mut |policy| {
        if chosen.binary_search(&index).is_ok() {
            *policy = None;
        }
        index += 1;
    });
}
