//! The record of a pass: one node per operation, walked from the last node to the first.

use std::collections::{BTreeMap, BTreeSet};

use lowtide_allocator::Origin;
use lowtide_tensor::Tensor;

use crate::anomaly::{self, Phase};
use crate::attempt::{Attempt, LeafId, PassNumber};
use crate::error::{AutogradError, Result, RuleFault, Site};
use crate::meta::TensorMeta;
use crate::rule::{AnyRule, Needs, SegmentRule, Slot};
use crate::taking::Taking;

/// The output of a node that a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Edge {
    pub(crate) node: usize,
    pub(crate) output: usize,
}

/// A function that sees a gradient during backward and may replace it.
pub(crate) type Hook = Box<dyn FnOnce(Tensor) -> Result<Tensor>>;

struct Node {
    /// The module and line that recorded the node. Memory of the node's rule counts for this
    /// origin.
    origin: Origin,
    kind: Kind,
}

enum Kind {
    /// A value from outside without a leaf. The caller can ask for its gradient.
    Source,
    Leaf(LeafId),
    Op(Op),
}

pub(crate) struct Op {
    pub(crate) name: &'static str,
    pub(crate) site: Site,
    pub(crate) rule: AnyRule,
    pub(crate) inputs: Vec<Option<Edge>>,
    /// The shape and type that the gradient of each input must have. Empty for segments, which
    /// check their gradients themselves.
    pub(crate) input_metas: Vec<TensorMeta>,
}

#[derive(Default)]
pub(crate) struct Tape {
    nodes: Vec<Node>,
    hooks: BTreeMap<Edge, Vec<Hook>>,
}

impl Tape {
    pub(crate) fn leaf(&mut self, leaf: LeafId) -> Edge {
        self.push(Kind::Leaf(leaf))
    }

    pub(crate) fn source(&mut self) -> Edge {
        self.push(Kind::Source)
    }

    pub(crate) fn op(&mut self, op: Op) -> Edge {
        self.push(Kind::Op(op))
    }

    fn push(&mut self, kind: Kind) -> Edge {
        self.nodes.push(Node { origin: Origin::current(), kind });
        Edge { node: self.nodes.len() - 1, output: 0 }
    }

    pub(crate) fn hook(&mut self, edge: Edge, hook: Hook) {
        self.hooks.entry(edge).or_default().push(hook);
    }

    /// The leaves that each node adds to, in the order of the nodes.
    fn leaf_uses(&self) -> impl Iterator<Item = (usize, LeafId)> {
        self.nodes.iter().enumerate().flat_map(|(index, node)| {
            let leaves = match &node.kind {
                Kind::Leaf(leaf) => vec![*leaf],
                Kind::Op(Op { rule: AnyRule::Segment { rule, .. }, .. }) => rule.leaves(),
                Kind::Op(_) | Kind::Source => Vec::new(),
            };
            leaves.into_iter().map(move |leaf| (index, leaf))
        })
    }

    /// The leaves and the [`Kind::Source`] nodes that `edge` depends on.
    pub(crate) fn ancestors(&self, edge: Edge) -> Ancestors {
        let mut ancestors = Ancestors::default();
        let (mut seen, mut ahead) = (BTreeSet::from([edge.node]), vec![edge.node]);
        while let Some(index) = ahead.pop() {
            match &self.nodes[index].kind {
                Kind::Source => _ = ancestors.sources.insert(index),
                Kind::Leaf(leaf) => _ = ancestors.leaves.insert(*leaf),
                Kind::Op(op) => {
                    if let AnyRule::Segment { rule, .. } = &op.rule {
                        ancestors.leaves.extend(rule.leaves());
                    }
                    let inputs = op.inputs.iter().flatten().map(|edge| edge.node);
                    ahead.extend(inputs.filter(|&node| seen.insert(node)));
                }
            }
        }
        ancestors
    }

    /// For each node, true if it depends on a wanted value.
    fn needed(&self, wanted: &[Edge]) -> Vec<bool> {
        let mut needed = vec![false; self.nodes.len()];
        wanted.iter().for_each(|edge| needed[edge.node] = true);
        for (index, node) in self.nodes.iter().enumerate() {
            let Kind::Op(op) = &node.kind else { continue };
            let leads = op.inputs.iter().flatten().any(|edge| needed[edge.node]);
            needed[index] |= leads;
        }
        needed
    }
}

/// The beginnings of a value on a tape.
#[derive(Default)]
pub(crate) struct Ancestors {
    pub(crate) leaves: BTreeSet<LeafId>,
    /// Indices of [`Kind::Source`] nodes.
    pub(crate) sources: BTreeSet<usize>,
}

/// One backward walk over a tape. Only gradients in flight take memory, so the memory of the walk
/// is in proportion to the width of the graph, not to its length.
pub(crate) struct Walk<'a, 't> {
    tape: Tape,
    /// Absent if the gradients of leaves are not collected.
    attempt: Option<(&'a Attempt, PassNumber)>,
    /// Present if only some gradients are wanted. For each node, true if the node depends on a
    /// wanted value.
    needed: Option<Vec<bool>>,
    pending: BTreeMap<Edge, Tensor>,
    wanted: BTreeMap<Edge, Option<Tensor>>,
    looks_for_anomalies: bool,
    /// Present if gradients leave the attempt as soon as they are complete.
    taking: Option<Taking<'t>>,
}

impl<'a, 't> Walk<'a, 't> {
    /// A walk that adds the gradients of leaves to `attempt` and keeps the gradients of `wanted`.
    /// Without an attempt the walk visits only nodes that lead to `wanted`.
    pub(crate) fn new(
        tape: Tape,
        attempt: Option<(&'a Attempt, PassNumber)>,
        wanted: impl IntoIterator<Item = Edge>,
    ) -> Self {
        let wanted: BTreeMap<Edge, Option<Tensor>> =
            wanted.into_iter().map(|edge| (edge, None)).collect();
        let edges: Vec<Edge> = wanted.keys().copied().collect();
        let needed = attempt.is_none().then(|| tape.needed(&edges));
        let pending = BTreeMap::new();
        let (looks_for_anomalies, taking) = (false, None);
        Walk { tape, attempt, needed, pending, wanted, looks_for_anomalies, taking }
    }

    /// Gives the gradients of leaves to `taking` as soon as they are complete.
    pub(crate) fn taking(mut self, taking: Option<Taking<'t>>) -> Self {
        self.taking = taking;
        if let Some(taking) = &mut self.taking {
            taking.index_uses(self.tape.leaf_uses());
        }
        self
    }

    /// Makes a gradient that is not finite an error that names the operation, if the flag is true.
    pub(crate) fn looking_for_anomalies(self, looks_for_anomalies: bool) -> Self {
        Walk { looks_for_anomalies, ..self }
    }

    /// Adds `dy` to the gradient of `edge`, in place if nothing else holds the sum.
    pub(crate) fn add(&mut self, edge: Edge, dy: Tensor) -> Result<()> {
        let sum = match self.pending.remove(&edge) {
            None => dy,
            Some(mut sum) if sum.is_reusable() => {
                sum.add_(&dy)?;
                sum
            }
            Some(sum) => sum.add(&dy)?,
        };
        self.pending.insert(edge, sum);
        Ok(())
    }

    /// Walks to the first node and returns the gradients of the wanted values. Each node is dropped
    /// with its saved tensors as soon as the walk has passed it.
    pub(crate) fn run(mut self) -> Result<BTreeMap<Edge, Option<Tensor>>> {
        while let Some((&Edge { node: index, .. }, _)) = self.pending.last_key_value() {
            self.take_complete(index + 1)?;
            self.tape.nodes.truncate(index + 1);
            let node = self.tape.nodes.pop().expect("gradients belong to nodes");
            let _origin = node.origin.enter();
            let output_count = match &node.kind {
                Kind::Op(op) => op.rule.output_count(),
                Kind::Leaf(_) | Kind::Source => 1,
            };
            let mut dys = Vec::with_capacity(output_count);
            for output in 0..output_count {
                dys.push(self.whole_gradient(Edge { node: index, output })?);
            }
            match node.kind {
                Kind::Source => {}
                Kind::Leaf(leaf) => {
                    if let (Some((attempt, pass)), Some(dy)) = (self.attempt, dys.pop().flatten()) {
                        attempt.accumulate(pass, leaf, dy)?;
                    }
                }
                Kind::Op(op) => self.op(index, op, dys)?,
            }
        }
        self.take_complete(0)?;
        Ok(self.wanted)
    }

    /// Gives away the gradients of leaves that no node before `end` adds to.
    fn take_complete(&mut self, end: usize) -> Result<()> {
        match (&mut self.taking, self.attempt) {
            (Some(taking), Some((attempt, _))) => taking.take_complete(end, attempt),
            _ => Ok(()),
        }
    }

    /// Takes the gradient of `edge` out and runs its hooks. A wanted gradient is kept as well.
    fn whole_gradient(&mut self, edge: Edge) -> Result<Option<Tensor>> {
        let Some(mut dy) = self.pending.remove(&edge) else { return Ok(None) };
        for hook in self.tape.hooks.remove(&edge).unwrap_or_default() {
            let meta = TensorMeta::of(&dy);
            dy = hook(dy)?;
            meta.check("gradient hook", &dy)?;
        }
        if let Some(slot) = self.wanted.get_mut(&edge) {
            *slot = Some(dy.clone());
        }
        Ok(Some(dy))
    }

    fn op(&mut self, node: usize, op: Op, dys: Vec<Option<Tensor>>) -> Result<()> {
        let Op { name, site, rule, inputs, input_metas } = op;
        let needs = Needs::new(inputs.iter().map(|input| self.needs(*input)));
        let needs = needs.with_leaves(self.attempt.is_some());
        let strict = matches!(rule, AnyRule::One(_));
        let gradients = match rule {
            AnyRule::One(rule) => match dys.into_iter().next().flatten() {
                Some(dy) => rule.backward(dy, needs)?,
                None => return Ok(()),
            },
            AnyRule::Many { rule, .. } => rule.backward(dys, needs)?,
            AnyRule::Segment { rule, .. } => return self.segment(node, rule, dys, &inputs, needs),
        };
        let wrong = |fault| AutogradError::Rule { op: name, site, fault };
        if gradients.len() != inputs.len() {
            let (found, expected) = (gradients.len(), inputs.len());
            return Err(wrong(RuleFault::Count { found, expected }));
        }
        // All gradients are checked before the first one is added.
        for (index, (&input, dx)) in inputs.iter().zip(&gradients).enumerate() {
            match dx {
                _ if !self.needs(input) => {}
                Some(dx) => check_gradient(index, dx, input_metas[index]).map_err(wrong)?,
                None if strict => return Err(wrong(RuleFault::Missing { input: index })),
                None => {}
            }
        }
        for (input, dx) in inputs.into_iter().zip(gradients) {
            let (Some(edge), Some(dx)) = (input.filter(|_| self.needs(input)), dx) else {
                continue;
            };
            if self.looks_for_anomalies {
                anomaly::check(name, site, Phase::Backward, &dx)?;
            }
            self.contribute(edge, dx)?;
        }
        Ok(())
    }

    /// Walks through a recomputed segment. The segment continues the sums that its inputs have so
    /// far, as its operations would have done one by one: the additions keep their order and the
    /// results their bits.
    fn segment(
        &mut self,
        node: usize,
        rule: Box<dyn SegmentRule>,
        dys: Vec<Option<Tensor>>,
        inputs: &[Option<Edge>],
        needs: Needs,
    ) -> Result<()> {
        let mut slots = Vec::with_capacity(inputs.len());
        for (index, input) in inputs.iter().enumerate() {
            slots.push(match input.filter(|_| self.needs(*input)) {
                None => Slot::Unneeded,
                Some(_) if inputs[..index].contains(input) => {
                    let first = inputs.iter().position(|other| other == input);
                    Slot::Same(first.expect("the slice holds the input"))
                }
                Some(edge) => match self.direct_leaf(edge) {
                    Some(leaf) => Slot::Leaf(leaf),
                    None => Slot::Sum(self.pending.remove(&edge)),
                },
            });
        }
        let taking = self.taking.as_mut().map(|taking| taking.for_segment(node));
        let sums = rule.backward(dys, slots, needs, taking)?;
        for (input, sum) in inputs.iter().zip(sums) {
            if let (Some(edge), Some(sum)) = (input, sum) {
                self.pending.insert(*edge, sum);
            }
        }
        Ok(())
    }

    fn needs(&self, input: Option<Edge>) -> bool {
        let needed = |edge: Edge| self.needed.as_ref().is_none_or(|needed| needed[edge.node]);
        input.is_some_and(needed)
    }

    /// The leaf at `edge`, if contributions may go straight to the attempt: no hook and no caller
    /// needs the whole gradient.
    fn direct_leaf(&self, edge: Edge) -> Option<LeafId> {
        let Kind::Leaf(leaf) = &self.tape.nodes[edge.node].kind else { return None };
        let stops = self.wanted.contains_key(&edge) || self.tape.hooks.contains_key(&edge);
        (!stops && self.attempt.is_some()).then_some(*leaf)
    }

    fn contribute(&mut self, edge: Edge, dx: Tensor) -> Result<()> {
        match (self.direct_leaf(edge), self.attempt) {
            (Some(leaf), Some((attempt, pass))) => attempt.accumulate(pass, leaf, dx),
            _ => self.add(edge, dx),
        }
    }
}

/// `Ok` if a rule's gradient `dx` of input number `input` has the shape and type of that input.
fn check_gradient(input: usize, dx: &Tensor, expected: TensorMeta) -> Result<(), RuleFault> {
    let found = TensorMeta::of(dx);
    if found.shape != expected.shape {
        return Err(RuleFault::Shape { input, found: found.shape, expected: expected.shape });
    }
    if found.dtype != expected.dtype {
        return Err(RuleFault::DType { input, found: found.dtype, expected: expected.dtype });
    }
    Ok(())
}
