//! The kinds of parallelism: how several ranks train one model.

use serde::{Deserialize, Serialize};

/// A kind of parallelism, by which several ranks train one model. With the first four, ranks share
/// the samples of every batch (ZeRO, Rajbhandari et al. 2020); with the others, ranks share the
/// model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Parallelism {
    /// Only the samples are divided: each rank updates all parameters.
    #[default]
    #[serde(rename = "off")]
    DataParallel,
    /// Each rank has a part of the optimizer's states. It updates this part of every parameter, and
    /// the other ranks copy the result. The bits are those of data parallelism; half as many bytes
    /// are sent in addition.
    #[serde(rename = "states")]
    Zero1,
    /// Each rank has a part of the optimizer's states and of the gradients. Each gradient is summed
    /// over the ranks as soon as it is complete, and each rank keeps its part of the sum. All ranks
    /// split their batches alike, and the parts are summed over one micro-batch after the other.
    /// With [deterministic shards](crate::MicroBatches::Shards), gradients are divided after the
    /// sum.
    #[serde(rename = "gradients")]
    Zero2,
    /// Each rank has a part of the optimizer's states, of the gradients and of the parameters,
    /// frozen ones too. A parameter is whole only between its first use in forward and its last use
    /// in backward. In recomputed blocks, parameters are whole only while a block runs. All ranks
    /// use the same parts of batches and of evaluations at the same time.
    #[serde(rename = "parameters")]
    Zero3,
    /// Each rank has a stage of a pipeline, a run of the model's blocks (GPipe, Huang et al. 2019).
    /// All ranks have all samples of every batch, which goes through the stages in micro-batches.
    /// The model is cut between its [`Segment`](lowtide_nn::Segment)s so that the slowest stage is
    /// as fast as possible. A step has the bits of one rank with the same micro-batches, with two
    /// exceptions whose sums have another order: clipping, and parameters that several stages
    /// train, such as an embedding that is also the output layer.
    #[serde(rename = "blocks")]
    Pipeline,
    /// Each rank has some of the attention heads, the hidden features and the vocabulary of a model
    /// (Megatron-LM, Shoeybi et al. 2019), and all samples of every batch. Partial results of the
    /// ranks are summed within each block, twice forwards and twice backwards. Each rank has the
    /// whole of the norms and of layers with fewer heads than ranks. Only decoders of text share
    /// their tables and output layers. All ranks use the same parts of batches and of evaluations
    /// at the same time. Compared with one rank, the order of sums differs, and ranks draw other
    /// random numbers for their heads.
    #[serde(rename = "features")]
    TensorParallel,
}

impl Parallelism {
    /// Kinds of parallelism in which ranks share the samples of a batch, from the least to the most
    /// divided state.
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

    /// The divided parts of a training, in words; `None` if nothing is divided.
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
