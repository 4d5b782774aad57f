//! The ways in which several ranks train one model.

use serde::{Deserialize, Serialize};

/// What each of several ranks keeps only a part of (ZeRO, Rajbhandari et al. 2020).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Zero {
    /// Nothing: each rank updates everything.
    #[default]
    Off,
    /// The states of the optimizer (ZeRO-1): each rank updates a part of every parameter, which the
    /// others then copy. The same bits; half as many bytes are sent again.
    States,
    /// Those, and gradients (ZeRO-2): each is summed over the ranks as soon as it is complete, and
    /// a rank keeps its part. All ranks split their batches alike, and the sum of gradients is that
    /// of each micro-batch in turn; with [leaves](crate::MicroBatches::Leaves), gradients are
    /// divided once they are summed.
    Gradients,
    /// Those, and parameters (ZeRO-3), frozen ones too: a parameter is whole only from its use in
    /// forward to its last one in backward, and in blocks that are recomputed only while they run.
    /// All ranks take the same parts of batches and of evaluations at the same time.
    Parameters,
    /// The model by its blocks: each rank has a run of them, a stage of a pipeline (GPipe, Huang et
    /// al. 2019), and all samples of every batch, which goes through the stages in micro-batches.
    /// The model is cut between its [`Segment`](lowtide_nn::Segment)s, such that the stage that
    /// takes longest takes as little time as can be. A step has the bits of one rank that splits
    /// its batches so, but for parameters that are trained in several stages, such as an embedding
    /// that is the output layer too, and for clipping: these sums are taken in another order.
    Blocks,
    /// The attention heads, the hidden features and the vocabulary of a model (tensor parallelism,
    /// Megatron-LM, Shoeybi et al. 2019): each rank has some of them, and all samples of every
    /// batch. What ranks make of their own is added up within each block, twice forwards and twice
    /// backwards. Norms, and whatever has fewer heads than there are ranks, each rank has as a
    /// whole; so are the tables and the output layers of models other than decoders of text. All
    /// ranks take the same parts of batches and of evaluations at the same time. Sums are taken in
    /// another order than one rank takes them, and for their own heads ranks draw other numbers.
    Features,
}

impl Zero {
    /// All in which ranks share the samples of a batch, the one that divides least first.
    pub const ALL: [Zero; 4] = [Zero::Off, Zero::States, Zero::Gradients, Zero::Parameters];

    /// What is divided, in words, if anything is.
    pub fn divided(self) -> Option<&'static str> {
        match self {
            Zero::Off => None,
            Zero::States => Some("the optimizer's states"),
            Zero::Gradients => Some("the optimizer's states and gradients"),
            Zero::Parameters => Some("the optimizer's states, gradients and parameters"),
            Zero::Blocks => Some("the model's blocks"),
            Zero::Features => Some("the model's heads, hidden features and vocabulary"),
        }
    }
}
