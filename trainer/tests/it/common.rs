//! A small run for tests to vary: a few of the digits, a narrow network, one thread.

use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lowtide_autograd::{Attempt, Pass};
use lowtide_data::{
    Batch, BatchView, Digits, InMemory, Loader, LoaderOptions, Sequential, Shuffled, Subset,
};
use lowtide_nn::models::{SimpleCnn, SimpleCnnShape};
use lowtide_nn::optim::{Adam, AdamOptions, Sgd, SgdOptions, Stateful};
use lowtide_nn::{Loss, Parameters};
use lowtide_ranks::{Collectives, threads};
use lowtide_tensor::{CpuOptions, DType, Device, RandomKey, Tensor};
use lowtide_trainer::{
    Classification, DoesNotFit, Flow, Observer, Options, Plan, Result, Score, StepReport, Task,
    TrainError, Trainer, Training,
};

/// Optimizers that differ in memory: two state tensors per parameter, one, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Adam,
    Momentum,
    Plain,
}

/// True if tests may take minutes: `cargo xtask test --deep`.
pub(crate) fn is_deep() -> bool {
    std::env::var_os("PROPTEST_CASES").is_some()
}

pub(crate) const KINDS: [Kind; 3] = [Kind::Adam, Kind::Momentum, Kind::Plain];

impl Kind {
    /// A learning rate with which a few steps learn something.
    pub(crate) fn learning_rate(self) -> f64 {
        match self {
            Kind::Adam => 0.01,
            Kind::Momentum => 0.05,
            Kind::Plain => 0.3,
        }
    }

    pub(crate) fn build(self, learning_rate: f64) -> Box<dyn Stateful> {
        let sgd = |momentum| SgdOptions { momentum, ..SgdOptions::new(learning_rate) };
        let adam = AdamOptions { learning_rate, ..Default::default() };
        match self {
            Kind::Adam => Box::new(Adam::new(adam).expect("in range")),
            Kind::Momentum => Box::new(Sgd::new(sgd(0.9)).expect("in range")),
            Kind::Plain => Box::new(Sgd::new(sgd(0.0)).expect("in range")),
        }
    }
}

/// The settings of a run, except for the budget.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) channels: usize,
    pub(crate) train_len: usize,
    pub(crate) test_len: usize,
    pub(crate) batch_size: usize,
    pub(crate) drop_last: bool,
    pub(crate) workers: usize,
    pub(crate) threads: usize,
    pub(crate) seed: u64,
    pub(crate) epochs: u64,
    pub(crate) kind: Kind,
}

impl Default for Run {
    /// Two steps of 96 samples, whose halves and thirds differ in whole pages.
    fn default() -> Self {
        Run {
            channels: 16,
            train_len: 192,
            test_len: 50,
            batch_size: 96,
            drop_last: false,
            workers: 0,
            threads: 1,
            seed: 7,
            epochs: 1,
            kind: Kind::Adam,
        }
    }
}

pub(crate) type Cnn = Classification<SimpleCnn>;

/// A narrow network on the digits.
pub(crate) fn cnn(device: &Device, channels: usize, seed: u64) -> Cnn {
    let shape = SimpleCnnShape { image: [1, 8, 8], channels, classes: 10 };
    Classification::new(SimpleCnn::new(device, RandomKey::new(seed), shape).expect("memory"))
}

/// The digits, unpacked once for all tests.
pub(crate) fn digits() -> Digits {
    static DIGITS: OnceLock<Digits> = OnceLock::new();
    DIGITS.get_or_init(|| Digits::load().expect("embedded")).clone()
}

impl Run {
    pub(crate) fn device(&self, budget_bytes: Option<usize>) -> Device {
        Device::cpu(CpuOptions { budget_bytes, threads: Some(self.threads), ..Default::default() })
            .expect("address space")
    }

    pub(crate) fn loaders(&self) -> (Loader, Loader) {
        let &Run { train_len, test_len, batch_size, drop_last, workers, seed, .. } = self;
        let part = |from: usize, len: usize| {
            let indices: Vec<usize> = (from..from + len).collect();
            Subset::new(digits(), indices).expect("there are 1797")
        };
        let options = LoaderOptions { batch_size, drop_last, seed, workers, ..Default::default() };
        let train = Loader::with_sampler(part(0, train_len), Shuffled, options);
        let in_order = LoaderOptions { drop_last: false, workers: 0, ..options };
        let test = Loader::with_sampler(part(train_len, test_len), Sequential, in_order);
        (train.expect("valid options"), test.expect("valid options"))
    }

    pub(crate) fn trainer(&self, device: &Device) -> Trainer<Cnn, Box<dyn Stateful>> {
        self.trainer_with(device, Options::default())
    }

    pub(crate) fn trainer_with(
        &self,
        device: &Device,
        options: Options,
    ) -> Trainer<Cnn, Box<dyn Stateful>> {
        let task = cnn(device, self.channels, self.seed);
        let options = Options { seed: self.seed, ..options };
        let optimizer = self.kind.build(self.kind.learning_rate());
        Trainer::new(device, task, optimizer, options)
    }

    /// The plan within a budget, which may be too small even for the model.
    pub(crate) fn plan(&self, budget_bytes: Option<usize>) -> Result<Plan> {
        let (train, test) = self.loaders();
        let device = self.device(None);
        let mut trainer = self.trainer(&device);
        if let Some(budget_bytes) = budget_bytes {
            device.allocator().set_capacity(budget_bytes);
        }
        trainer.plan(&train, &test, self.epochs)
    }

    /// The smallest budget whose plan has this micro-batch.
    pub(crate) fn budget_for(&self, micro_batch: usize) -> usize {
        let mut plan = self.plan(None).expect("fits the machine");
        while plan.knobs.micro_batch > micro_batch {
            plan = self.plan(Some(plan.predicted_peak_bytes() - 1)).expect("still fits");
        }
        assert_eq!(plan.knobs.micro_batch, micro_batch, "no budget leads to this micro-batch");
        plan.predicted_peak_bytes()
    }

    pub(crate) fn fit(&self, budget_bytes: Option<usize>) -> Outcome {
        self.fit_with(budget_bytes, Options::default(), |_, _| {})
    }

    /// Trains, and calls `on_step` with the device after step 0 (before the first step) and after
    /// every step.
    pub(crate) fn fit_with(
        &self,
        budget_bytes: Option<usize>,
        options: Options,
        on_step: impl FnMut(&Device, u64),
    ) -> Outcome {
        let device = self.device(budget_bytes);
        let mut trainer = self.trainer_with(&device, options);
        let outcome = self.fit_trainer(&device, &mut trainer, on_step);
        outcome.unwrap_or_else(|error| panic!("{self:?} within {budget_bytes:?}: {error}"))
    }

    pub(crate) fn fit_trainer<T: Task + Clone, O: Stateful + Clone>(
        &self,
        device: &Device,
        trainer: &mut Trainer<T, O>,
        on_step: impl FnMut(&Device, u64),
    ) -> Result<Outcome> {
        let (train, test) = self.loaders();
        let plan = trainer.plan(&train, &test, self.epochs)?;
        let mut watch = Watch { device, on_step, reports: Vec::new() };
        (watch.on_step)(device, 0);
        let score = trainer.fit(&train, &test, self.epochs, &mut [&mut watch])?;
        Ok(Outcome {
            plan,
            reports: watch.reports,
            score,
            state_hash: trainer.state_hash()?,
            layout_hash: device.allocator().layout_hash(),
            measured_peak_bytes: device.allocator().statistics().reserved.peak_bytes,
            retried_steps: trainer.retried_steps(),
            micro_batch: trainer.micro_batch(),
        })
    }
}

/// Results of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) plan: Plan,
    pub(crate) reports: Vec<StepReport>,
    pub(crate) score: Score,
    pub(crate) state_hash: u64,
    pub(crate) layout_hash: u64,
    pub(crate) measured_peak_bytes: usize,
    pub(crate) retried_steps: u64,
    pub(crate) micro_batch: usize,
}

impl Outcome {
    pub(crate) fn losses(&self) -> Vec<f64> {
        self.reports.iter().map(|report| report.loss).collect()
    }
}

struct Watch<'a, F> {
    device: &'a Device,
    on_step: F,
    reports: Vec<StepReport>,
}

impl<F: FnMut(&Device, u64)> Observer for Watch<'_, F> {
    fn on_step(&mut self, report: &StepReport, _: &mut dyn Training) -> Result<Flow> {
        self.reports.push(report.clone());
        (self.on_step)(self.device, report.step);
        Ok(Flow::Continue)
    }
}

/// An action on the model and the device. A [`Probe`] runs it before each loss.
type Deed = Rc<dyn Fn(&mut Cnn, &Device) -> Result<()>>;

/// The digits' task with added actions.
#[derive(Clone)]
pub(crate) struct Probe {
    pub(crate) inner: Cnn,
    pub(crate) couples_samples: bool,
    /// A count of targets that replaces the true one.
    pub(crate) count: Option<f64>,
    /// Bytes that the score allocates besides the model's.
    pub(crate) score_bytes: usize,
    pub(crate) deed: Deed,
}

impl Probe {
    pub(crate) fn new(
        inner: Cnn,
        deed: impl Fn(&mut Cnn, &Device) -> Result<()> + 'static,
    ) -> Probe {
        Probe { inner, couples_samples: false, count: None, score_bytes: 0, deed: Rc::new(deed) }
    }
}

impl Task for Probe {
    fn parameters(&mut self) -> &mut dyn Parameters {
        self.inner.parameters()
    }

    fn count(&self, batch: &BatchView<'_>) -> Result<f64> {
        self.count.map_or_else(|| self.inner.count(batch), Ok)
    }

    fn loss(&self, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Loss> {
        (self.deed)(&mut self.inner.clone(), device)?;
        if self.couples_samples {
            pass.couple_samples();
        }
        self.inner.loss(pass, device, part)
    }

    fn score(&self, device: &Device, part: &BatchView<'_>) -> Result<Score> {
        let _scratch = Tensor::empty(device, [self.score_bytes], DType::U8)?;
        self.inner.score(device, part)
    }
}

/// The gradient of the mean loss from one pass over the whole batch, without a trainer.
pub(crate) fn naive_gradient(mut task: Cnn, device: &Device, batch: &Batch) -> Vec<f64> {
    let attempt = Attempt::new();
    let pass = Pass::train(RandomKey::new(0), &attempt);
    let loss = task.loss(&pass, device, &batch.view()).expect("memory");
    pass.backward(loss.mean().expect("memory")).expect("memory");
    let gradients = attempt.into_gradients();
    let mut all = Vec::new();
    task.parameters().visit(&mut |_, parameter| {
        let gradient = gradients.get(parameter.id()).expect("every parameter has one");
        all.extend(gradient.to_vec::<f32>().expect("f32").into_iter().map(f64::from));
    });
    all
}

pub(crate) fn first_batch(loader: &Loader) -> Batch {
    loader.epoch(0).next().expect("one").expect("readable")
}

/// Number of samples that a score counts as right.
pub(crate) fn hits(score: &Score) -> f64 {
    (score.accuracy() * score.count).round()
}

/// The values of all parameters in one list.
pub(crate) fn values(task: &mut impl Task) -> Vec<f32> {
    let mut values = Vec::new();
    task.parameters().visit(&mut |_, parameter| {
        values.extend(parameter.value().to_vec::<f32>().expect("readable"));
    });
    values
}

/// Number of writes of each parameter.
pub(crate) fn versions(task: &mut impl Task) -> Vec<u64> {
    let mut versions = Vec::new();
    task.parameters().visit(&mut |_, parameter| versions.push(parameter.value().version()));
    versions
}

pub(crate) fn does_not_fit<T>(result: Result<T>) -> DoesNotFit {
    match result.map(drop) {
        Err(TrainError::DoesNotFit(error)) => *error,
        other => panic!("{other:?} instead of an error that it does not fit"),
    }
}

/// Images of noise with the given labels, in order.
pub(crate) fn labelled(labels: &[i64], batch_size: usize) -> Loader {
    noise(labels, batch_size, 1.0)
}

/// Images of noise from 0 to `brightness` with the given labels, in order.
pub(crate) fn noise(labels: &[i64], batch_size: usize, brightness: f32) -> Loader {
    let pixels = labels.len() as u64 * 64;
    let key = RandomKey::new(3).op("images");
    let images: Vec<f32> = (0..pixels).map(|index| brightness * key.uniform(index)).collect();
    let data = InMemory::new(labels.len()).with("images", &[1, 8, 8], images);
    let data = data.and_then(|data| data.with("labels", &[], labels.to_vec())).expect("columns");
    let options = LoaderOptions { batch_size, ..Default::default() };
    Loader::with_sampler(data, Sequential, options).expect("valid options")
}

/// The unit roundoff of f32.
pub(crate) const U: f64 = f32::EPSILON as f64 / 2.0;

/// Largest difference between two sums of `len` rounded terms, relative to the sum of their
/// absolute values. Both errors grow like a random walk, `2 · √len · u`; 8 deviations are allowed
/// (N. J. Higham and T. Mary, "A new approach to probabilistic rounding error analysis", 2019).
pub(crate) fn reassociation(len: usize) -> f64 {
    8.0 * 2.0 * (len as f64).sqrt() * U
}

/// A time limit that is long enough on a busy machine.
pub(crate) const PATIENT: Duration = Duration::from_secs(120);

/// Runs `work` on `count` ranks. Returns the results by rank.
pub(crate) fn on_ranks<R: Send>(
    count: usize,
    work: impl Fn(Arc<dyn Collectives>) -> R + Sync,
) -> Vec<R> {
    let work = &work;
    std::thread::scope(|scope| {
        let ranks = threads(count, PATIENT).into_iter();
        let handles: Vec<_> = ranks.map(|rank| scope.spawn(move || work(Arc::new(rank)))).collect();
        handles.into_iter().map(|handle| handle.join().expect("no panic")).collect()
    })
}

/// Stops after a step. Saves first if a path is given.
pub(crate) struct Save<'a> {
    pub(crate) after: u64,
    pub(crate) path: Option<&'a Path>,
}

impl Observer for Save<'_> {
    fn on_step(&mut self, report: &StepReport, training: &mut dyn Training) -> Result<Flow> {
        if report.step == self.after
            && let Some(path) = self.path
        {
            training.snapshot()?.write(path)?;
        }
        Ok(if report.step == self.after { Flow::Stop } else { Flow::Continue })
    }
}

/// The path of a file error. The error's line must begin with this path.
pub(crate) fn path_of<T>(result: Result<T, TrainError>) -> std::path::PathBuf {
    match result.map(drop) {
        Err(TrainError::File { path, source }) => {
            let text = TrainError::File { path: path.clone(), source }.to_string();
            assert!(
                text.starts_with(&path.display().to_string()) && !text.contains('\n'),
                "{text}"
            );
            path
        }
        other => panic!("{other:?} instead of a file error"),
    }
}
