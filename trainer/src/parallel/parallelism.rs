//! The ways in which several ranks train one model.

use serde::{Deserialize, Serialize};

/// A way in which several ranks train one model. The first four share the samples of every batch
/// (ZeRO, Rajbhandari et al. 2020), the others share the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Parallelism {
    /// Nothing but the samples is divided: each rank updates everything.
    #[default]
    #[serde(rename = "off")]
    DataParallel,
    /// Each rank has a part of the optimizer's states: it updates a part of every parameter, which
    /// the others then copy. The bits are the same; half as many bytes are sent again.
    #[serde(rename = "states")]
    Zero1,
    /// Each rank has a part of the optimizer's states and of the gradients: each gradient is summed
    /// over the ranks as soon as it is complete, and a rank keeps its part. All ranks split their
    /// batches alike, and the sum of gradients is that of each micro-batch in turn; with
    /// [deterministic shards](crate::MicroBatches::Shards), gradients are divided once they are
    /// summed.
    #[serde(rename = "gradients")]
    Zero2,
    /// Each rank has a part of the optimizer's states, of the gradients and of the parameters,
    /// frozen ones too: a parameter is whole only from its use in forward to its last one in
    /// backward, and in blocks that are recomputed only while they run. All ranks take the same
    /// parts of batches and of evaluations at the same time.
    #[serde(rename = "parameters")]
    Zero3,
    /// Each rank has a run of the model's blocks, a stage of a pipeline (GPipe, Huang et al. 2019),
    /// and all samples of every batch, which goes through the stages in micro-batches.
    /// The model is cut between its [`Segment`](lowtide_nn::Segment)s, such that the stage that
    /// takes longest takes as little time as can be. A step has the bits of one rank that splits
    /// its batches so, but for parameters that are trained in several stages, such as an embedding
    /// that is the output layer too, and for clipping: these sums are taken in another order.
    #[serde(rename = "blocks")]
    Pipeline,
    /// Each rank has some of the attention heads, the hidden features and the vocabulary of a model
    /// (Megatron-LM, Shoeybi et al. 2019), and all samples of every batch. What ranks make of their
    /// own is added up within each block, twice forwards and twice backwards. Norms, and whatever
    /// has fewer heads than there are ranks, each rank has as a whole; so are the tables and the
    /// output layers of models other than decoders of text. All ranks take the same parts of
    /// batches and of evaluations at the same time. Sums are taken in another order than one rank
    /// takes them, and for their own heads ranks draw other numbers.
    #[serde(rename = "features")]
    TensorParallel,
}

impl Parallelism {
    /// The ways in which ranks share the samples of a batch, the one that divides least first.
    pub const OF_SHARED_BATCHES: [Parallelism; 4] =
        [Parallelism::DataParallel, Parallelism::Zero1, Parallelism::Zero2, Parallelism::Zero3];

    /// True if ranks share the samples of a batch, not the model.
    pub fn shares_batches(self) -> bool {
        Self::OF_SHARED_BATCHES.contains(&self)
    }

    /// True if each of several ranks has only a part of the model.
    pub fn divides_model(self) -> bool {
        match self {
            Parallelism::DataParallel | Parallelism::Zero1 | Parallelism::Zero2 => false,
            Parallelism::Zero3 | Parallelism::Pipeline | Parallelism::TensorParallel => true,
        }
    }

    /// The parts of a training that are divided, in words, if any are.
    pub fn divided(self) -> Option<&'static str> {
        match self {
            Parallelism::DataParallel => None,
            Parallelism::Zero1 => Some("the optimizer's states"),
            Parallelism::Zero2 => Some("the optimizer's states and gradients"),
            Parallelism::Zero3 => Some("the optimizer's states, gradients and parameters"),
            Parallelism::Pipeline => Some("the model's blocks"),
            Parallelism::TensorParallel => {
                Some("the model's heads, hidden features and vocabulary")
            }
        }
    }
}
