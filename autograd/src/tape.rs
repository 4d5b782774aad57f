//! The record of a pass: one node per operation, walked from the last to the first.

use std::panic::Location;

use lowtide_tensor::Tensor;

use crate::{Attempt, LeafId, Result};

/// Which of an operation's inputs need a gradient, in the order they were given.
#[derive(Clone, Copy, Debug)]
pub struct Needs(u64);

impl Needs {
    /// Whether input `index` needs a gradient.
    pub fn input(self, index: usize) -> bool {
        self.0 >> index & 1 == 1
    }
}

/// The gradient of each input of an operation, `None` where none is needed.
pub type InputGradients = Vec<Option<Tensor>>;

/// The derivative of one operation. Closures of this signature are rules.
pub trait Rule {
    /// The gradients of the inputs for `dy`, the gradient of the output. The rule is consumed,
    /// so what it saved is freed before the walk goes on.
    ///
    /// # Errors
    /// Those of the tensor operations; `Modified` for a saved tensor that was written.
    fn backward(self: Box<Self>, dy: Tensor, needs: Needs) -> Result<InputGradients>;
}

impl<F: FnOnce(Tensor, Needs) -> Result<InputGradients>> Rule for F {
    fn backward(self: Box<Self>, dy: Tensor, needs: Needs) -> Result<InputGradients> {
        self(dy, needs)
    }
}

/// The place of an operation in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeId(usize);

enum Node {
    Leaf(LeafId),
    Op { rule: Box<dyn Rule>, inputs: Vec<Option<NodeId>>, site: Site },
}

#[derive(Default)]
pub(crate) struct Tape {
    nodes: Vec<Node>,
}

impl Tape {
    pub(crate) fn leaf(&mut self, leaf: LeafId) -> NodeId {
        self.push(Node::Leaf(leaf))
    }

    pub(crate) fn op(
        &mut self,
        site: Site,
        rule: Box<dyn Rule>,
        inputs: Vec<Option<NodeId>>,
    ) -> NodeId {
        self.push(Node::Op { rule, inputs, site })
    }

    fn push(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        NodeId(self.nodes.len() - 1)
    }

    /// Walks back from `output`, whose gradient is `seed`, and adds what arrives at leaves to
    /// `attempt`. Every node is dropped as it is passed, with all that it saved.
    pub(crate) fn backward(
        mut self,
        output: NodeId,
        seed: Tensor,
        attempt: &Attempt,
    ) -> Result<()> {
        self.nodes.truncate(output.0 + 1);
        let mut gradients: Vec<Option<Tensor>> = vec![None; self.nodes.len()];
        gradients[output.0] = Some(seed);
        while let Some(node) = self.nodes.pop() {
            let Some(dy) = gradients.pop().flatten() else { continue };
            match node {
                Node::Leaf(leaf) => attempt.accumulate(leaf, dy)?,
                Node::Op { rule, inputs, site } => {
                    let bits =
                        inputs.iter().enumerate().map(|(i, id)| u64::from(id.is_some()) << i);
                    let needs = Needs(bits.sum());
                    let input_gradients =
                        rule.backward(dy, needs).map_err(|error| error.saved_by(site))?;
                    assert_eq!(input_gradients.len(), inputs.len(), "one gradient per input");
                    for (input, dx) in inputs.into_iter().zip(input_gradients) {
                        let Some(NodeId(index)) = input else { continue };
                        let dx = dx.expect("a rule gives every gradient that is needed");
                        match &self.nodes[index] {
                            Node::Leaf(leaf) => attempt.accumulate(*leaf, dx)?,
                            Node::Op { .. } => add_to(&mut gradients[index], dx)?,
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

/// Adds `dx` to what has arrived so far, in place where nobody else sees it.
fn add_to(slot: &mut Option<Tensor>, dx: Tensor) -> Result<()> {
    *slot = Some(match slot.take() {
        None => dx,
        Some(mut sum) if sum.is_reusable() => {
            sum.add_(&dx)?;
            sum
        }
        Some(sum) => sum.add(&dx)?,
    });
    Ok(())
}

/// Where an operation was called, for errors.
pub(crate) type Site = &'static Location<'static>;
