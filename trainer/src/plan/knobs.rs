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
    /// Number of samples that a pass takes at once. Gradients of a batch are summed over its
    /// micro-batches. The numbers stay the same up to the order of float additions.
    pub micro_batch: usize,
    /// True if cheap results (norms, activation functions, casts and similar) are dropped, and
    /// computed again when backward needs them. The bits stay the same; the cost is a little time.
    #[serde(default)]
    pub cheap_recomputed: bool,
    /// Number of recomputed blocks of the model ([`Segment`](lowtide_nn::Segment)), counted from
    /// the first. Such a block keeps only its input for backward and computes the rest again. The
    /// bits stay the same.
    #[serde(default)]
    pub recomputed_blocks: usize,
    /// Number of recomputed blocks in a group. A group is recomputed at once from the input of its
    /// first block. Larger groups keep fewer inputs, and need more memory at a time in backward. 0
    /// means 1. The bits stay the same.
    #[serde(default)]
    pub blocks_at_once: usize,
    /// Number of blocks, counted from the first, that offload tensors to
    /// [`Options::offload`](crate::Options::offload) until backward. A recomputed block offloads
    /// its input; any other block offloads all its saved tensors. The bits stay the same; the cost
    /// is two copies.
    #[serde(default)]
    pub offloaded_blocks: usize,
    /// True if each parameter is updated as soon as its gradient is complete. The gradient is freed
    /// before the next one exists. The bits stay the same. If gradients must be checked before the
    /// update ([`Options::non_finite`](crate::Options::non_finite), clipping, a loss scale), the
    /// last micro-batch is computed twice.
    #[serde(default)]
    pub fused_update: bool,
}

/// Ways to keep less on the device for backward.
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

    /// Recomputes groups of `at_once` blocks.
    pub(crate) fn at_once(self, at_once: usize) -> Thrift {
        Thrift { at_once, ..self }
    }

    /// Offloads this number of blocks.
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
    /// Writes the measures beside splitting, such as recomputation, if there are any.
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

    /// The recomputed results, in words; empty if nothing is recomputed.
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

    /// True if these knobs are no slower than `other`: the micro-batch is at least as large, no
    /// more is recomputed or offloaded, and the update is fused only if that of `other` is.
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

/// Number of blocks in the range that a plan may recompute or offload: the blocks without a policy
/// of their own.
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

/// Sets the policies of `knobs` on the blocks of the range that have no policy. `host` is the
/// device to offload to. Returns the indices of changed blocks, for [`reset_policies`].
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

/// Removes the policies that [`set_policies`] set.
pub(crate) fn reset_policies(model: &mut dyn Parameters, chosen: &[usize]) {
    let mut index = 0;
    model.visit_policies(&mut |policy| {
        if chosen.binary_search(&index).is_ok() {
            *policy = None;
        }
        index += 1;
    });
}
