//! Rehearsals: the real training code on a simulated device, to know its peak before it runs.

use lowtide_allocator::{Category, ModuleShare, Statistics};
use lowtide_amp::LossScaler;
use lowtide_autograd::Coupling;
use lowtide_data::BatchView;
use lowtide_nn::optim::Stateful;
use lowtide_tensor::{Assumption, Device, RandomKey, TensorError};
use serde::{Deserialize, Serialize};

use crate::error::{Result, TrainError};
use crate::options::Options;
use crate::parallel::division::{Division, Observed};
use crate::plan::knobs::Knobs;
use crate::plan::packed_lengths::is_packed;
use crate::run::evaluation::with_averages;
use crate::run::upcoming::bytes_ahead;
use crate::step::Step;
use crate::step::hooks::StepHooks;
use crate::step::summation::Summation;
use crate::task::Task;

/// What is to be rehearsed, in the order in which a run does it.
#[derive(Clone, Copy)]
pub(crate) enum PlannedEvent<'a> {
    /// A training step on this batch.
    Step(BatchView<'a>),
    /// The evaluation of this batch.
    Evaluate(BatchView<'a>),
}

/// What a rehearsal showed.
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
    /// The same of the longest step; 0 where there is none.
    pub step_seconds: f64,
    /// In a [pipeline](crate::Zero::Blocks) the same of one micro-batch in this stage, forwards and
    /// backwards, of the last step.
    pub stage_seconds: Option<[f64; 2]>,
    /// Bytes that ranks add up within the passes of the longest step, where they share the
    /// [features](crate::Zero::Features) of the model.
    pub summed_bytes: usize,
    /// Bytes of the parameters that ranks put together within the passes of the longest step, where
    /// they have [parts](crate::Zero::Parameters) of them.
    pub gathered_bytes: usize,
    /// Where the samples of a batch are coupled: such a batch is never split.
    pub coupling: Option<Coupling>,
    /// Each step and evaluation that was rehearsed, in order.
    pub events: Vec<RehearsedEvent>,
    /// Values that the code went on with in place of computed ones.
    pub assumptions: Vec<Assumption>,
}

/// What one step or evaluation of a rehearsal did to the device's memory.
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

/// The hooks of a rehearsed step: micro-batches that only repeat others are left out.
#[derive(Default)]
struct RehearsalHooks {
    skipped_seconds: f64,
}

impl StepHooks for RehearsalHooks {
    fn skips_repeated(&self) -> bool {
        true
    }

    fn add_skipped_seconds(&mut self, seconds: f64) {
        self.skipped_seconds += seconds;
    }
}

/// The actors: what a run consists of beside its data.
pub(crate) struct RunInputs<'a, T, O> {
    pub(crate) device: &'a Device,
    pub(crate) task: &'a T,
    pub(crate) optimizer: &'a O,
    pub(crate) scaler: &'a LossScaler,
    pub(crate) options: &'a Options,
    /// What is held all the while beside the model, in [`Category::Other`].
    pub(crate) held_bytes: usize,
    /// Whether the next batch is copied to the device during a step, if there is room for it.
    pub(crate) copies_ahead: bool,
    pub(crate) division: &'a dyn Division<T>,
    /// Samples that are evaluated at once; as many as are trained at once if that is not said.
    pub(crate) evaluation_batch: Option<usize>,
}

impl<'a, T, O> RunInputs<'a, T, O> {
    /// The same with another optimizer.
    pub(crate) fn with_optimizer<P>(&self, optimizer: &'a P) -> RunInputs<'a, T, P> {
        let &RunInputs { device, task, scaler, options, held_bytes, copies_ahead, .. } = self;
        let &RunInputs { division, evaluation_batch, .. } = self;
        RunInputs {
            device,
            task,
            optimizer,
            scaler,
            options,
            held_bytes,
            copies_ahead,
            division,
            evaluation_batch,
        }
    }
}

impl<T, O> Clone for RunInputs<'_, T, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, O> Copy for RunInputs<'_, T, O> {}

impl<T: Task + Clone, O: Stateful + Clone> RunInputs<'_, T, O> {
    /// Runs `events` with `knobs` on a simulated copy of the device as it is now, cache dropped,
    /// without a limit on its memory. The peak is what a run needs: with that much capacity it
    /// passes, with one byte less it does not (see the allocator's laws). Of the parts of a batch
    /// the first two and the last are run.
    ///
    /// # Errors
    /// What the real code would meet beside lack of memory.
    pub(crate) fn rehearse(&self, events: &[PlannedEvent<'_>], knobs: Knobs) -> Result<Forecast> {
        self.rehearse_beside(0, events, knobs)
    }

    /// [`Self::rehearse`] beside memory that batches are copied ahead to.
    ///
    /// # Errors
    /// Those of [`Self::rehearse`].
    pub(crate) fn rehearse_beside(
        &self,
        copy_ahead_bytes: usize,
        events: &[PlannedEvent<'_>],
        knobs: Knobs,
    ) -> Result<Forecast> {
        let device = self.device.simulate();
        let host = self.options.offload.as_ref().filter(|_| knobs.offloaded_blocks > 0);
        let host = host.map(Device::simulate);
        for allocator in [&device].into_iter().chain(&host).map(Device::allocator) {
            allocator.set_capacity(usize::MAX);
            allocator.trim();
            allocator.reset_peaks();
        }
        let allocator = device.allocator();
        let (mut task, mut optimizer) = (self.task.clone(), self.optimizer.clone());
        let mut elsewhere = None;
        task.parameters().visit_tensors(&mut |name, tensor| match tensor.simulated_copy(&device) {
            Some(simulated) => *tensor = simulated,
            None => _ = elsewhere.get_or_insert_with(|| (name.to_owned(), tensor.clone())),
        });
        if let Some((name, tensor)) = elsewhere {
            return Err(self.elsewhere(&name, &format!("{:?}", tensor.device())));
        }
        let mut is_elsewhere = false;
        optimizer.visit_state(&mut |tensor| match tensor.simulated_copy(&device) {
            Some(simulated) => *tensor = simulated,
            None => is_elsewhere = true,
        });
        if is_elsewhere {
            return Err(self.elsewhere("the state of the optimizer", "another device"));
        }
        let held = allocator.charge(Category::Other, self.held_bytes);
        let _held = held.map_err(TensorError::from)?;
        let _ahead = match copy_ahead_bytes {
            0 => None,
            bytes => device.copy_ahead(bytes)?,
        };
        let mut scaler = self.scaler.clone();
        let options = Options { offload: host.clone(), ..self.options.clone() };
        let division = self.division.rehearsed(task.parameters())?;
        let mut hooks = RehearsalHooks::default();
        let (mut coupling, mut step_seconds) = (None, 0.0_f64);
        let (mut summed_bytes, mut gathered_bytes) = (0, 0);
        let mut rehearsed = Vec::with_capacity(events.len());
        for event in events {
            let allocations_before = allocator.request_count();
            match event {
                PlannedEvent::Step(batch) => {
                    let begin_seconds = device.simulated_seconds() + hooks.skipped_seconds;
                    let before = division.observed();
                    let step = Step {
                        device: &device,
                        task: &mut task,
                        optimizer: &mut optimizer,
                        scaler: &mut scaler,
                        number: 1,
                        key: RandomKey::new(0),
                        options: &options,
                        division: &*division,
                        hooks: &mut hooks,
                    };
                    let outcome = step.run(batch, knobs)?;
                    coupling = coupling.or(outcome.coupling);
                    let end_seconds = device.simulated_seconds() + hooks.skipped_seconds;
                    step_seconds = step_seconds.max(end_seconds - begin_seconds);
                    let [summed, gathered] =
                        self.of_whole_step(before, division.observed(), batch, knobs);
                    summed_bytes = summed_bytes.max(summed);
                    gathered_bytes = gathered_bytes.max(gathered);
                }
                PlannedEvent::Evaluate(batch) => {
                    let part = self.evaluation_batch.unwrap_or(knobs.micro_batch);
                    with_averages(&mut task, &mut optimizer, |task| {
                        division.evaluation().score(task, &device, batch, part)
                    })?;
                }
            }
            let (PlannedEvent::Step(batch) | PlannedEvent::Evaluate(batch)) = event;
            rehearsed.push(RehearsedEvent {
                is_evaluation: matches!(event, PlannedEvent::Evaluate(_)),
                samples: batch.len(),
                allocations: allocator.request_count() - allocations_before,
                peak_bytes: allocator.statistics().reserved.peak_bytes,
                layout_hash: allocator.layout_hash(),
            });
        }
        let forecast = Forecast::new(&allocator.statistics(), &device);
        let peak_of = |host: &Device| host.allocator().statistics().reserved.peak_bytes;
        Ok(Forecast {
            offloaded_peak_bytes: host.as_ref().map_or(0, peak_of),
            coupling,
            seconds: forecast.seconds + hooks.skipped_seconds,
            step_seconds,
            stage_seconds: division.observed().stage_seconds,
            summed_bytes,
            gathered_bytes,
            events: rehearsed,
            ..forecast
        })
    }

    /// Bytes that ranks add up, and put together, within the passes of a whole step. Where
    /// micro-batches are alike, a rehearsal runs the first two and the last: the sums are as large
    /// as there are samples, and each micro-batch puts the same parameters together.
    fn of_whole_step(
        &self,
        before: Observed,
        after: Observed,
        batch: &BatchView<'_>,
        knobs: Knobs,
    ) -> [usize; 2] {
        let summed = after.summed_bytes - before.summed_bytes;
        let gathered = after.gathered_bytes - before.gathered_bytes;
        let len = batch.len();
        let part = knobs.micro_batch.clamp(1, len.max(1));
        let count = len.div_ceil(part);
        let runs_all = Summation::of(self.options) != Summation::Sequential || is_packed(batch);
        if count <= 3 || runs_all {
            return [summed, gathered];
        }
        let samples = 2 * part + (len - (count - 1) * part);
        [summed / samples * len, gathered / 3 * count]
    }

    fn elsewhere(&self, name: &str, found: &str) -> TrainError {
        let problem = format!(
            "is on {found}, the trainer computes on {:?}; a clone of a device's handle is the same \
             device, a second handle from `Device::cpu` is another one",
            self.device
        );
        TrainError::Setting { place: name.to_owned(), problem }
    }
}

/// Bytes for a part of a batch that comes after another one of `events`.
pub(crate) fn bytes_ahead_of(events: &[PlannedEvent<'_>], micro_batch: usize) -> usize {
    let steps = events.iter().filter_map(|event| match event {
        PlannedEvent::Step(batch) => Some(batch),
        PlannedEvent::Evaluate(_) => None,
    });
    let next = steps.skip(1).map(|batch| bytes_ahead(batch, batch.len().min(micro_batch)));
    next.max().unwrap_or(0)
}

impl Forecast {
    fn new(statistics: &Statistics, device: &Device) -> Self {
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
