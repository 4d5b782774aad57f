//! Rules: the derivative of one operation, with what it saved.

use lowtide_tensor::Tensor;

use crate::attempt::LeafId;
use crate::error::Result;
use crate::taking::Taking;

/// Which of an operation's inputs need a gradient, in the order they were given.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    bits: u64,
    leaves: bool,
}

/// Inputs from this one on share one answer.
const LAST_BIT: usize = u64::BITS as usize - 1;

impl Needs {
    pub(crate) fn new(inputs: impl Iterator<Item = bool>) -> Self {
        let bit = |(index, needed)| u64::from(needed) << LAST_BIT.min(index);
        Needs { bits: inputs.enumerate().map(bit).fold(0, |all, bit| all | bit), leaves: true }
    }

    /// Whether gradients of leaves are collected in this walk.
    pub(crate) fn with_leaves(self, leaves: bool) -> Self {
        Needs { leaves, ..self }
    }

    pub(crate) fn leaves(self) -> bool {
        self.leaves
    }

    /// Whether input `index` needs a gradient. From the 64th on the answer is for all of them
    /// together; a gradient that is not needed is dropped.
    pub fn input(self, index: usize) -> bool {
        self.bits >> LAST_BIT.min(index) & 1 == 1
    }
}

/// The gradient of each input of an operation, `None` where none is needed.
pub type InputGradients = Vec<Option<Tensor>>;

/// The derivative of an operation with one output. Closures of this signature are rules.
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

/// The derivative of an operation with several outputs. Closures of this signature are such
/// rules.
pub trait RuleMany {
    /// The gradients of the inputs for `dys`, the gradients of the outputs: `None` for an output
    /// that the loss does not depend on. A needed gradient that stays `None` is zero.
    ///
    /// # Errors
    /// Those of [`Rule::backward`].
    fn backward(self: Box<Self>, dys: Vec<Option<Tensor>>, needs: Needs) -> Result<InputGradients>;
}

impl<F: FnOnce(Vec<Option<Tensor>>, Needs) -> Result<InputGradients>> RuleMany for F {
    fn backward(self: Box<Self>, dys: Vec<Option<Tensor>>, needs: Needs) -> Result<InputGradients> {
        self(dys, needs)
    }
}

/// Where the gradient of a segment's input goes.
pub(crate) enum Slot {
    Unneeded,
    /// Into the attempt.
    Leaf(LeafId),
    /// On top of what has arrived from later operations.
    Sum(Option<Tensor>),
    /// Where that of an earlier input goes, which is the same value.
    Same(usize),
}

/// Operations that were not recorded one by one.
pub(crate) trait SegmentRule {
    /// The leaves that it uses beside its inputs.
    fn leaves(&self) -> Vec<LeafId>;

    /// The sums of `inputs` after this segment; only those that were [`Slot::Sum`].
    fn backward(
        self: Box<Self>,
        dys: Vec<Option<Tensor>>,
        inputs: Vec<Slot>,
        needs: Needs,
        taking: Option<Taking<'_>>,
    ) -> Result<Vec<Option<Tensor>>>;
}

pub(crate) enum AnyRule {
    One(Box<dyn Rule>),
    /// With the number of outputs; so for segments.
    Many(Box<dyn RuleMany>, usize),
    Segment(Box<dyn SegmentRule>, usize),
}

impl AnyRule {
    pub(crate) fn output_count(&self) -> usize {
        match self {
            AnyRule::One(_) => 1,
            AnyRule::Many(_, count) | AnyRule::Segment(_, count) => *count,
        }
    }
}
