//! Rules: the derivative of one operation, with the tensors that it saved.

use lowtide_tensor::Tensor;

use crate::attempt::LeafId;
use crate::error::Result;
use crate::taking::Taking;

/// The inputs of an operation that need a gradient, by their index.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    bits: u64,
    leaves: bool,
}

/// Index of the last bit, which all inputs from this index on share.
const LAST_BIT: usize = u64::BITS as usize - 1;

impl Needs {
    pub(crate) fn new(inputs: impl Iterator<Item = bool>) -> Self {
        let bit = |(index, needed)| u64::from(needed) << LAST_BIT.min(index);
        Needs { bits: inputs.enumerate().map(bit).fold(0, |all, bit| all | bit), leaves: true }
    }

    /// A copy for a backward pass that collects the gradients of leaves, or for one that does not.
    pub(crate) fn with_leaves(self, leaves: bool) -> Self {
        Needs { leaves, ..self }
    }

    pub(crate) fn leaves(self) -> bool {
        self.leaves
    }

    /// True if input `index` needs a gradient. From the 64th input on, all inputs share one answer.
    /// A gradient that is not needed is dropped.
    pub fn input(self, index: usize) -> bool {
        self.bits >> LAST_BIT.min(index) & 1 == 1
    }
}

/// The gradient of each input of an operation; `None` for an input that needs none.
pub type InputGradients = Vec<Option<Tensor>>;

/// The derivative of an operation with one output. Closures of this signature are rules.
pub trait Rule {
    /// The gradients of the inputs for `dy`, the gradient of the output. The call consumes the
    /// rule, so that its saved tensors are freed before the walk continues.
    ///
    /// # Errors
    /// Errors of the tensor operations; `Modified` for a saved tensor that was written.
    fn backward(self: Box<Self>, dy: Tensor, needs: Needs) -> Result<InputGradients>;
}

impl<F: FnOnce(Tensor, Needs) -> Result<InputGradients>> Rule for F {
    fn backward(self: Box<Self>, dy: Tensor, needs: Needs) -> Result<InputGradients> {
        self(dy, needs)
    }
}

/// The derivative of an operation with several outputs. Closures of this signature are rules.
pub trait RuleMany {
    /// The gradients of the inputs for `dys`, the gradients of the outputs. An output that the loss
    /// does not depend on has `None`. A needed gradient that is returned as `None` is zero.
    ///
    /// # Errors
    /// As for [`Rule::backward`].
    fn backward(self: Box<Self>, dys: Vec<Option<Tensor>>, needs: Needs) -> Result<InputGradients>;
}

impl<F: FnOnce(Vec<Option<Tensor>>, Needs) -> Result<InputGradients>> RuleMany for F {
    fn backward(self: Box<Self>, dys: Vec<Option<Tensor>>, needs: Needs) -> Result<InputGradients> {
        self(dys, needs)
    }
}

/// The destination of the gradient of a segment's input.
pub(crate) enum Slot {
    Unneeded,
    /// The sum of a leaf in the attempt.
    Leaf(LeafId),
    /// A new sum, which begins with the gradient that later operations have contributed.
    Sum(Option<Tensor>),
    /// The slot of an earlier input that is the same value.
    Same(usize),
}

/// The rule of a recomputed segment, whose operations are not on the tape.
pub(crate) trait SegmentRule {
    /// The leaves that the segment reads beside its inputs.
    fn leaves(&self) -> Vec<LeafId>;

    /// Adds the gradients of the segment to `inputs`. The result has the sum of each
    /// [`Slot::Sum`], and `None` for the other inputs.
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
    Many { rule: Box<dyn RuleMany>, output_count: usize },
    Segment { rule: Box<dyn SegmentRule>, output_count: usize },
}

impl AnyRule {
    pub(crate) fn output_count(&self) -> usize {
        match self {
            AnyRule::One(_) => 1,
            AnyRule::Many { output_count, .. } | AnyRule::Segment { output_count, .. } => {
                *output_count
            }
        }
    }
}
