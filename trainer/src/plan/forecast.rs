//! The facts that a rehearsal showed.

use lowtide_allocator::{Category, ModuleShare, Statistics};
use lowtide_autograd::Coupling;
use lowtide_tensor::{Assumption, Device};
use serde::{Deserialize, Serialize};

/// The facts that a rehearsal showed.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// The peak of reserved bytes: exact.
    pub peak_bytes: usize,
    /// The peak of reserved bytes of [`Options::offload`](crate::Options::offload): exact; 0 for
    /// a plan that does not offload.
    pub offloaded_peak_bytes: usize,
    /// The peak of each category, at whatever moment it was reached.
    pub category_peaks: Vec<(Category, usize)>,
    /// The live blocks by module at the moment when the most was in use, most bytes first: exact,
    /// unless the rehearsal was longer than the allocator's history.
    pub modules_at_peak: Vec<ModuleShare>,
    /// Time of all events by the [rates](lowtide_tensor::SimSpec::rates) of the device; where they
    /// are nominal, good for comparing plans only.
    pub seconds: f64,
    /// Time of the longest step; 0 where there is none.
    pub step_seconds: f64,
    /// Time of one micro-batch in this stage of a
    /// [pipeline](crate::Parallelism::Pipeline), forwards and backwards, of the last step.
    pub stage_seconds: Option<[f64; 2]>,
    /// Bytes that ranks add up within the passes of the longest step, where they share the
    /// [features](crate::Parallelism::TensorParallel) of the model.
    pub summed_bytes: usize,
    /// Bytes of the parameters that ranks put together within the passes of the longest step, where
    /// they have [parts](crate::Parallelism::Zero3) of them.
    pub gathered_bytes: usize,
    /// Where the samples of a batch are coupled: such a batch is never split.
    pub coupling: Option<Coupling>,
    /// Each step and evaluation that was rehearsed, in order.
    pub events: Vec<RehearsedEvent>,
    /// Values that the code went on with in place of computed ones.
    pub assumptions: Vec<Assumption>,
}

/// The effect of one step or evaluation of a rehearsal on the device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RehearsedEvent {
    /// Whether it is an evaluation.
    pub is_evaluation: bool,
    /// Samples of its batch.
    pub samples: usize,
    /// Allocations that it made; parts of a batch that only repeat others are left out.
    pub allocations: u64,
    /// The peak of reserved bytes up to its end.
    pub peak_bytes: usize,
    /// The [hash](lowtide_allocator::CachingAllocator::layout_hash) of the blocks that are live
    /// after it.
    #[serde(with = "hexadecimal")]
    pub layout_hash: u64,
}

/// Text, because not every reader of JSON has numbers of 64 bits.
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
