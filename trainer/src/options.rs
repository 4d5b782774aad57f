//! Choices that a trainer leaves open.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use lowtide_amp::LossScaler;
use lowtide_ranks::Collectives;
use lowtide_tensor::Device;
use serde::{Deserialize, Serialize};

use crate::parallel::parallelism::Parallelism;
use crate::precision::Precision;

/// Choices that a [`Trainer`](crate::Trainer) leaves open.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seed of everything random in a step.
    pub seed: u64,
    /// Gradients longer than this together are shortened to it, before the update.
    pub clip_norm: Option<f64>,
    /// Whether the length of the gradient is computed and told to observers where it is not
    /// clipped, too. It takes a pass over the gradients.
    pub gradient_norm: bool,
    /// Whether checkpoints are to be written while the run goes on, from a copy of the training
    /// that counts in the plan and in the budget for as long as a run takes. Where the copy does
    /// not fit beside the largest micro-batch, there is none, and the run waits for each
    /// checkpoint.
    pub background_checkpoints: bool,
    /// The types that a step computes in.
    pub precision: Precision,
    /// Dynamic loss scaling; if absent, what [`Options::precision`] needs: a scaler of PyTorch's
    /// defaults for f16, none for bf16 and f32.
    pub scaler: Option<LossScaler>,
    /// Whether the plan and the recovery may split batches.
    pub micro_batches: MicroBatches,
    /// How long a plan that does not fit, a step or an evaluation that ran out of memory waits for
    /// memory to come back, before it is run in another way or given up.
    pub wait: Duration,
    /// The fate of a step whose loss or gradients are not finite.
    pub non_finite: NonFinite,
    /// A device whose memory, up to its capacity, plans may use for tensors that blocks keep for
    /// backward: the processor's, for a training on an NVIDIA device. This memory is used beside
    /// the memory of the device that trains.
    pub offload: Option<Device>,
    /// The ranks that train the model together. Each rank has a device of its own, its share of
    /// every batch, as [`Sharded::in_blocks`](lowtide_data::Sharded::in_blocks) gives it, and the
    /// same seed. The update is that of all samples; running statistics are the means of all ranks.
    /// Two ranks that take their shares in one part each, without coupled samples, have the bits of
    /// one rank that splits the batch in two. With [`MicroBatches::Shards`] any number of ranks
    /// that is a power of two has the bits of one. Ranks have to wait longer for each other than
    /// [`Options::wait`]. Each rank evaluates its share of the batches, and has the score of all;
    /// each observes and saves for itself. Updates are not fused.
    pub ranks: Option<Arc<dyn Collectives>>,
    /// The way in which the ranks train together. Where the ranks divide the state of the training,
    /// a checkpoint or a hash on one rank takes all ranks: every other rank has to go on with its
    /// run, or to [leave](crate::Trainer::leave) after it.
    pub parallelism: Parallelism,
}

/// The fate of a step whose loss or gradients are infinite or NaN. Where losses are scaled, a
/// gradient that overflows is skipped in any case, as often in a row as the scaler allows: 50.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NonFinite {
    /// The run ends with [`TrainError::NotFinite`](crate::TrainError::NotFinite); nothing of the
    /// step is written.
    #[default]
    Stop,
    /// The step is left out, at most this number of times in a row.
    Skip(u64),
    /// Nothing is looked at, as in PyTorch: the model may be lost without a word.
    Ignore,
}

/// Whether batches may be split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MicroBatches {
    /// Split where memory asks for it: the same numbers up to the order of float additions.
    #[default]
    AsNeeded,
    /// Never split: the same bits, or an error.
    Never,
    /// Always split into deterministic shards of this many samples, the exact mode of
    /// [`Options::ranks`]: a training has the same bits on 1, 2, 4 or 8 ranks. The shards of a
    /// batch are the leaves of a tree, which halves the batch until one shard is left. Gradients
    /// are summed along the tree. The ranks are the upper part of the tree; each rank has one more
    /// set of gradients than its own part is deep. Buffers such as running statistics move once a
    /// step: each becomes the mean of the values that the shards make of the value before the step.
    /// Evaluations are split into parts of the same size. A batch is made of whole shards, an equal
    /// number for each rank.
    Shards(NonZeroUsize),
}

impl Default for Options {
    fn default() -> Self {
        Options {
            seed: 0,
            clip_norm: None,
            gradient_norm: false,
            background_checkpoints: false,
            precision: Precision::F32,
            scaler: None,
            micro_batches: MicroBatches::AsNeeded,
            wait: Duration::ZERO,
            non_finite: NonFinite::Stop,
            offload: None,
            ranks: None,
            parallelism: Parallelism::DataParallel,
        }
    }
}
