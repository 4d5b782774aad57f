//! Gradients that leave the attempt as soon as they are complete.

use std::collections::{BTreeMap, BTreeSet};

use lowtide_tensor::Tensor;

use crate::attempt::{Attempt, LeafId};
use crate::error::Result;

/// The caller's function that receives each complete gradient.
pub(crate) type Take<'a> = dyn FnMut(LeafId, Tensor) -> Result<()> + 'a;

/// The receiver of a walk's gradients, and the node at which each gradient is complete.
pub(crate) struct Taking<'a> {
    take: &'a mut Take<'a>,
    /// The leaves that only this walk still adds to; all leaves if absent.
    own: Option<BTreeSet<LeafId>>,
    /// Leaves by the first node that adds to their gradient. The walk reaches this node last.
    by_first_node: BTreeMap<usize, Vec<LeafId>>,
}

impl<'a> Taking<'a> {
    pub(crate) fn new(take: &'a mut Take<'a>) -> Self {
        Taking { take, own: None, by_first_node: BTreeMap::new() }
    }

    /// Finds the first node of each leaf. `uses` are the nodes that add to leaves, in order.
    pub(crate) fn index_uses(&mut self, uses: impl Iterator<Item = (usize, LeafId)>) {
        let mut seen = BTreeSet::new();
        for (node, leaf) in uses {
            if seen.insert(leaf) {
                self.by_first_node.entry(node).or_default().push(leaf);
            }
        }
    }

    /// The receiver for the walk through the segment at `node`, for leaves that no earlier node
    /// adds to.
    pub(crate) fn for_segment(&mut self, node: usize) -> Taking<'_> {
        let complete = self.by_first_node.get(&node).into_iter().flatten().copied();
        let own = complete.filter(|leaf| self.is_own(leaf)).collect();
        Taking { take: &mut *self.take, own: Some(own), by_first_node: BTreeMap::new() }
    }

    fn is_own(&self, leaf: &LeafId) -> bool {
        self.own.as_ref().is_none_or(|own| own.contains(leaf))
    }

    /// Gives away the gradients that no node before `end` adds to.
    pub(crate) fn take_complete(&mut self, end: usize, attempt: &Attempt) -> Result<()> {
        while let Some(entry) = self.by_first_node.last_entry() {
            if *entry.key() < end {
                break;
            }
            for leaf in entry.remove() {
                if self.is_own(&leaf)
                    && let Some(gradient) = attempt.take_gradient(leaf)
                {
                    (self.take)(leaf, gradient)?;
                }
            }
        }
        Ok(())
    }
}
