//! What a plan may choose.

use std::fmt;

use lowtide_autograd::SavedPolicy;
use lowtide_nn::Parameters;
use serde::{Deserialize, Serialize};

/// What a plan chooses, and a step runs with.
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
    /// Whether each parameter is updated as soon as its gradient is complete, which then is gone
    /// before the next one is there. The same bits. Where gradients are looked at before anything
    /// is written ([`Options::non_finite`](crate::Options::non_finite), clipping, a loss scale),
    /// the last part of a batch is computed twice.
    #[serde(default)]
    pub fused_update: bool,
}

/// How much of a step is computed twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recomputed {
    pub(crate) cheap: bool,
    pub(crate) blocks: usize,
}

impl Recomputed {
    pub(crate) const NOTHING: Recomputed = Recomputed { cheap: false, blocks: 0 };
    pub(crate) const CHEAP: Recomputed = Recomputed { cheap: true, blocks: 0 };

    /// What is cheap, and so many blocks.
    pub(crate) fn blocks(blocks: usize) -> Recomputed {
        Recomputed { cheap: true, blocks }
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
        let recomputed = self.recomputed();
        match (&recomputed[..], self.fused_update) {
            ("", false) => Ok(()),
            ("", true) => write!(f, " with a fused update"),
            (_, false) => write!(f, " with {recomputed} recomputed"),
            (_, true) => write!(f, " with {recomputed} recomputed and a fused update"),
        }
    }

    /// What is recomputed, if anything is.
    pub(crate) fn recomputed(&self) -> String {
        let blocks = match self.recomputed_blocks {
            0 => String::new(),
            1 => "one block".to_owned(),
            count => format!("{count} blocks"),
        };
        match (self.cheap_recomputed, &blocks[..]) {
            (false, _) => blocks,
            (true, "") => "cheap results".to_owned(),
            (true, _) => format!("cheap results and {blocks}"),
        }
    }

    /// The same with as much recomputed.
    pub(crate) fn recomputing(self, Recomputed { cheap, blocks }: Recomputed) -> Knobs {
        Knobs { cheap_recomputed: cheap, recomputed_blocks: blocks, ..self }
    }

    /// Whether these are no slower than others: parts as large, no more recomputed, no update
    /// fused that is not there too.
    pub(crate) fn is_at_least(&self, other: &Knobs) -> bool {
        self.micro_batch >= other.micro_batch
            && self.cheap_recomputed <= other.cheap_recomputed
            && self.recomputed_blocks <= other.recomputed_blocks
            && self.fused_update <= other.fused_update
    }
}

/// Blocks that a plan may recompute: those without a policy of their own.
pub(crate) fn block_count(model: &mut dyn Parameters) -> usize {
    let mut count = 0;
    model.visit_policies(&mut |policy| count += usize::from(policy.is_none()));
    count
}

/// Lets the first `count` of these blocks be recomputed; which ones, for [`keep`].
pub(crate) fn recompute(model: &mut dyn Parameters, count: usize) -> Vec<usize> {
    let (mut index, mut chosen) = (0, Vec::with_capacity(count));
    model.visit_policies(&mut |policy| {
        if policy.is_none() && chosen.len() < count {
            *policy = Some(SavedPolicy::Recompute);
            chosen.push(index);
        }
        index += 1;
    });
    chosen
}

/// Takes back what [`recompute`] did.
pub(crate) fn keep(model: &mut dyn Parameters, recomputed: &[usize]) {
    let mut index = 0;
    model.visit_policies(&mut |policy| {
        if recomputed.binary_search(&index).is_ok() {
            *policy = None;
        }
        index += 1;
    });
}
