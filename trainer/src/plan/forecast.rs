//! The forecast of a run, from its rehearsal.

use lowtide_allocator::{Category, ModuleShare, Statistics};
use lowtide_autograd::Coupling;
use lowtide_tensor::{Assumption, Device};
use serde::{Deserialize, Serialize};

/// The forecast of a run, from its rehearsal.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// The peak of reserved bytes: exact.
    pub peak_bytes: usize,
    /// The peak of reserved bytes of [`Options::offload`](crate::Options::offload): exact; 0 for
    /// a plan that does not offload.
    pub offloaded_peak_bytes: usize,
    /// The peak of each category. Categories reach their peaks at different moments.
    pub category_peaks: Vec<(Category, usize)>,
    /// The live blocks by module at the moment of highest use, most bytes first. Exact, unless the
    /// rehearsal had more events than the allocator's history holds.
    pub modules_at_peak: Vec<ModuleShare>,
    /// Simulated seconds of all events, by the [rates](lowtide_tensor::SimSpec::rates) of the
    /// device. Nominal rates only serve to compare plans.
    pub seconds: f64,
    /// Simulated seconds of the longest step; 0 if no step was rehearsed.
    pub step_seconds: f64,
    /// Simulated seconds of the forward and the backward pass of one micro-batch in this stage of a
    /// [pipeline](crate::Parallelism::Pipeline), in the last step.
    pub stage_seconds: Option<[f64; 2]>,
    /// Bytes that ranks sum within the passes of the longest step; 0 unless they share the
    /// [features](crate::Parallelism::TensorParallel) of the model.
    pub summed_bytes: usize,
    /// Bytes of parameters that ranks gather within the passes of the longest step; 0 unless they
    /// have [parts](crate::Parallelism::Zero3) of parameters.
    pub gathered_bytes: usize,
    /// The module that couples the samples of a batch, if any. Such a batch is never split.
    pub coupling: Option<Coupling>,
    /// Each step and evaluation that was rehearsed, in order.
    pub events: Vec<RehearsedEvent>,
    /// Values that the code assumed, because a simulated device computes no values.
    pub assumptions: Vec<Assumption>,
}

/// The effect of one step or evaluation of a rehearsal on the device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RehearsedEvent {
    /// True for an evaluation, false for a step.
    pub is_evaluation: bool,
    /// Samples of the batch.
    pub samples: usize,
    /// Number of allocations. Micro-batches that only repeat others are left out.
    pub allocations: u64,
    /// The peak of reserved bytes up to the end of the event.
    pub peak_bytes: usize,
    /// The [hash](lowtide_allocator::CachingAllocator::layout_hash) of the blocks that are live
    /// after the event.
    #[serde(with = "hexadecimal")]
    pub layout_hash: u64,
}

/// Serialises a hash as text, because not every reader of JSON has numbers of 64 bits.
mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(hash: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{hash:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        u64::from_str_radix(&String::deserialize(from)?, 16).map_err(D::Error::custom)
    }
}

impl Forecast {
    /// A forecast of memory and time alone, from the device of a rehearsal.
    pub(crate) fn new(statistics: &Statistics, device: &Device) -> Self {
        let peak_of = |category| (category, statistics.by_category[category].peak_bytes);
        Forecast {
            peak_bytes: statistics.reserved.peak_bytes,
            offloaded_peak_bytes: 0,
            category_peaks: Category::ALL.map(peak_of).to_vec(),
            modules_at_peak: device.allocator().capture().modules_at_peak(0),
            seconds: device.simulated_seconds(),
            step_seconds: 0.0,
            stage_seconds: None,
            summed_bytes: 0,
            gathered_bytes: 0,
            coupling: None,
            events: Vec::new(),
            assumptions: device.assumptions(),
        }
    }
}
