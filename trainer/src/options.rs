//! Options of a trainer.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use lowtide_amp::LossScaler;
use lowtide_ranks::Collectives;
use lowtide_tensor::Device;
use serde::{Deserialize, Serialize};

use crate::parallel::parallelism::Parallelism;
use crate::precision::Precision;

/// Options of a [`Trainer`](crate::Trainer).
#[derive(Clone, Debug)]
pub struct Options {
    /// Seed of all random numbers in a step.
    pub seed: u64,
    /// Largest length of all gradients taken as one vector. Longer gradients are scaled down to
    /// this length before the update.
    pub clip_norm: Option<f64>,
    /// True if observers get the length of the gradient even without clipping, at the cost of a
    /// pass over the gradients.
    pub gradient_norm: bool,
    /// True if checkpoints are written while the run goes on, from a copy of the training. The copy
    /// counts in the plan and in the budget during the whole run. If the copy does not fit beside
    /// the largest micro-batch, there is no copy and the run waits for each checkpoint.
    pub background_checkpoints: bool,
    /// The number types that a step computes in.
    pub precision: Precision,
    /// The loss scaler. If absent, [`Options::precision`] decides: f16 gets a scaler with PyTorch's
    /// defaults, bf16 and f32 get none.
    pub scaler: Option<LossScaler>,
    /// Permission of the plan and of recovery to split batches.
    pub micro_batches: MicroBatches,
    /// Time to wait for memory to become free, when a plan does not fit or when a step or an
    /// evaluation ran out of memory. After that another plan is tried, or the run ends. If absent,
    /// nothing waits for memory that others have; work that failed although the allocator had room
    /// is tried again as it is for up to 10 seconds of pauses.
    pub wait: Option<Duration>,
    /// The fate of a step whose loss or gradients are not finite.
    pub non_finite: NonFinite,
    /// A second device for tensors that blocks save for backward, such as the processor for a
    /// training on an NVIDIA device. A plan may use its memory up to its capacity, in addition to
    /// the memory of the training device.
    pub offload: Option<Device>,
    /// The ranks that train the model together. Each rank has its own device, the same seed, and
    /// its share of every batch, as [`Sharded::in_blocks`](lowtide_data::Sharded::in_blocks) gives
    /// it. Updates use the gradients of all samples; running statistics are the means over all
    /// ranks. Without coupled samples, two ranks that compute their shares whole give the same bits
    /// as one rank that splits the batch in two. With [`MicroBatches::Shards`], any power of two of
    /// ranks gives the bits of one rank. The timeout of the ranks has to be longer than
    /// [`Options::wait`]. Each rank evaluates its share of the batches and gets the total score;
    /// each rank runs its own observers and saves for itself. Updates are not fused.
    pub ranks: Option<Arc<dyn Collectives>>,
    /// The kind of parallelism. If the ranks divide the state of the training, a checkpoint or a
    /// hash on one rank needs all ranks: every other rank has to go on with its run, or to
    /// [leave](crate::Trainer::leave) after its last run.
    pub parallelism: Parallelism,
}

/// The fate of a step whose loss or gradients are infinite or NaN. With loss scaling, a step whose
/// scaled gradients overflow is always skipped, at most 50 times in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NonFinite {
    /// The run ends with [`TrainError::NotFinite`](crate::TrainError::NotFinite); nothing of the
    /// step is written.
    #[default]
    Stop,
    /// The step is skipped, at most this number of times in a row.
    Skip(u64),
    /// Losses and gradients are not checked, as in PyTorch. The model may be lost without an error.
    Ignore,
}

/// Permission to split batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MicroBatches {
    /// Split if memory requires it. The numbers stay the same up to the order of float additions.
    #[default]
    AsNeeded,
    /// Never split. The bits stay the same, or the run ends with an error.
    Never,
    /// Always split into deterministic shards of this number of samples: a training then has the
    /// same bits on 1, 2, 4 or 8 [ranks](Options::ranks). The shards of a batch are the leaves of a
    /// tree that halves the batch until one shard is left. Gradients are summed along the tree. The
    /// ranks form the upper levels of the tree. A rank holds one set of gradients more than its own
    /// part of the tree has levels. Buffers such as running statistics change once a step: each
    /// shard starts from the value before the step, and the new value is the mean over the shards.
    /// Evaluations are split into parts of the same size. A batch consists of whole shards, an
    /// equal number for each rank.
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
            wait: None,
            non_finite: NonFinite::Stop,
            offload: None,
            ranks: None,
            parallelism: Parallelism::DataParallel,
        }
    }
}
