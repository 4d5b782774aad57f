//! Taking gradients out of an attempt as soon as they are complete.

use std::collections::{BTreeMap, BTreeSet};

use lowtide_tensor::Tensor;

use crate::attempt::{Attempt, LeafId};
use crate::error::Result;

/// Is given each gradient that is complete.
pub(crate) type Take<'a> = dyn FnMut(LeafId, Tensor) -> Result<()> + 'a;

/// Who takes the gradients of a walk, and when which of them is complete.
pub(crate) struct Taking<'a> {
    take: &'a mut Take<'a>,
    /// The leaves that nothing outside of the walk adds to any more; all of them if absent.
    among: Option<BTreeSet<LeafId>>,
    /// By the first node that adds to them, which the walk comes to last.
    by_first_node: BTreeMap<usize, Vec<LeafId>>,
}

impl<'a> Taking<'a> {
    pub(crate) fn new(take: &'a mut Take<'a>) -> Self {
        Taking { take, among: None, by_first_node: BTreeMap::new() }
    }

    /// Looks where the leaves of a tape are: the nodes that add to each, in order.
    pub(crate) fn look_through(&mut self, uses: impl Iterator<Item = (usize, LeafId)>) {
        let mut seen = BTreeSet::new();
        for (node, leaf) in uses {
            if seen.insert(leaf) {
                self.by_first_node.entry(node).or_default().push(leaf);
            }
        }
    }

    /// For the walk through the segment at `node`: what only that adds to.
    pub(crate) fn inside(&mut self, node: usize) -> Taking<'_> {
        let own = self.by_first_node.get(&node).into_iter().flatten().copied();
        let among = own.filter(|leaf| self.among.as_ref().is_none_or(|among| among.contains(leaf)));
        let among = Some(among.collect());
        Taking { take: &mut *self.take, among, by_first_node: BTreeMap::new() }
    }

    /// Gives away what no node before `end` adds to.
    pub(crate) fn passed(&mut self, end: usize, attempt: &Attempt) -> Result<()> {
        while let Some(entry) = self.by_first_node.last_entry() {
            if *entry.key() < end {
                break;
            }
            for leaf in entry.remove() {
                if self.among.as_ref().is_some_and(|among| !among.contains(&leaf)) {
                    continue;
                }
                if let Some(gradient) = attempt.take_gradient(leaf) {
                    (self.take)(leaf, gradient)?;
                }
            }
        }
        Ok(())
    }
}
