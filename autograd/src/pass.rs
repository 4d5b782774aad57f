//! A forward pass: everything that a model may touch beside its parameters and inputs.

use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::rc::Rc;

use lowtide_allocator::Origin;
use lowtide_tensor::{DType, Device, IntoShape, RandomKey, Tensor};

use crate::anomaly::{Anomalies, Anomaly};
use crate::attempt::{Attempt, BufferId, LeafId, PassNumber};
use crate::cast::{self, CastPolicy};
use crate::coupling::Coupling;
use crate::error::{AutogradError, LeafFault, Result, Site};
use crate::foreign::{DeviceWatch, Foreign, Role};
use crate::journal::{Journal, Replay};
use crate::random::Draws;
use crate::recipe::Recipes;
use crate::rule::Needs;
use crate::saved::Saver;
use crate::store::Store;
use crate::tape::{Edge, Hook, Op, Tape};
use crate::turn::Turn;
use crate::var::Var;

/// One forward pass through a model.
///
/// A pass knows whether it records operations for backward, whether the model trains or evaluates,
/// its random key, and the [`Attempt`] that collects its gradients and buffer updates. It is a
/// cheap shared handle that stays on its thread.
#[derive(Clone)]
pub struct Pass(pub(crate) Rc<Inner>);

pub(crate) struct Inner {
    pub(crate) mode: Mode,
    pub(crate) settings: RefCell<Settings>,
    /// Absent if nothing is collected. `backward` takes the attempt together with the tape.
    pub(crate) attempt: RefCell<Option<Attempt>>,
    pub(crate) draws: Draws,
    /// Number of sections without gradients around this point.
    pub(crate) paused: Cell<usize>,
    /// Present in the first run of a segment: its reads, for the recomputation.
    pub(crate) journal: Option<Rc<RefCell<Journal>>>,
    /// Present in a recomputation: the reads of the first run.
    pub(crate) replay: Option<Rc<Replay>>,
    /// The store for tensors saved at this point; absent if they stay on the device.
    pub(crate) store: RefCell<Option<Rc<Store>>>,
    /// All stores of this pass.
    pub(crate) stores: RefCell<Vec<Rc<Store>>>,
}

/// The trace that operations leave in a pass.
pub(crate) enum Mode {
    /// Operations are not recorded.
    Silent,
    /// Operations are not recorded, but values still have a flag for the need of a gradient: the
    /// first run of a segment that backward recomputes.
    Shadow,
    /// Operations are recorded on the tape. `backward` takes the tape, so that values that outlive
    /// backward do not keep it alive.
    Record(RefCell<Option<Tape>>),
}

/// The settings that a recomputation shares with the pass that it repeats.
#[derive(Clone)]
pub(crate) struct Settings {
    training: bool,
    key: RandomKey,
    first_sample: u64,
    anomalies: Option<Rc<Anomalies>>,
    casts: Option<Rc<dyn CastPolicy>>,
    recomputes_cheap: bool,
    /// Present if the pass looks for tensors of other devices.
    device_watch: Option<DeviceWatch>,
    /// The first call that coupled samples. Segments share it with their pass.
    coupling: Rc<RefCell<Option<Coupling>>>,
    /// The number of this pass in its attempt.
    number: PassNumber,
    /// Present if only one of several models is trained.
    turn: Option<Turn>,
}

/// The edge of every value that needs a gradient in [`Mode::Shadow`].
const SHADOW: Edge = Edge { node: 0, output: 0 };

impl Pass {
    /// A pass that records, in training mode. Gradients and buffer updates are added to `attempt`.
    pub fn train(key: RandomKey, attempt: &Attempt) -> Self {
        let tape = RefCell::new(Some(Tape::default()));
        let settings = Settings { number: attempt.next_pass(), ..Settings::training(key) };
        Self::new(Mode::Record(tape), settings, Some(attempt.clone()))
    }

    /// A pass that keeps nothing, in evaluation mode.
    pub fn eval() -> Self {
        let settings = Settings { training: false, ..Settings::training(RandomKey::new(0)) };
        Self::new(Mode::Silent, settings, None)
    }

    /// A pass that keeps nothing, in training mode. Values equal those of [`Pass::train`]; there
    /// are no gradients and no buffer updates.
    pub fn no_grad(key: RandomKey) -> Self {
        Self::new(Mode::Silent, Settings::training(key), None)
    }

    /// [`Pass::no_grad`] that adds its buffer updates to `attempt`, to estimate running statistics
    /// again.
    pub fn buffers_only(key: RandomKey, attempt: &Attempt) -> Self {
        Self::new(Mode::Silent, Settings::training(key), Some(attempt.clone()))
    }

    fn new(mode: Mode, settings: Settings, attempt: Option<Attempt>) -> Self {
        Pass(Rc::new(Inner {
            mode,
            settings: RefCell::new(settings),
            attempt: RefCell::new(attempt),
            draws: Draws::default(),
            paused: Cell::new(0),
            journal: None,
            replay: None,
            store: RefCell::default(),
            stores: RefCell::default(),
        }))
    }

    /// This pass, in which `policy` chooses the type of each operation from here on.
    #[must_use]
    pub fn with_casts(self, policy: impl CastPolicy + 'static) -> Self {
        self.0.settings.borrow_mut().casts = Some(Rc::new(policy));
        self
    }

    /// This pass, which drops results that are cheap to recompute from here on.
    ///
    /// The results of normalisations, activation functions and the like are dropped as soon as only
    /// the record holds them. Backward recomputes them from tensors that it keeps anyway, with the
    /// same bits and for little time. Segments under
    /// [`SavedPolicy::Keep`](crate::SavedPolicy::Keep) keep their results.
    #[must_use]
    pub fn with_cheap_recomputed(self) -> Self {
        self.0.settings.borrow_mut().recomputes_cheap = true;
        self.open_store();
        self
    }

    /// This pass, which looks for values that are not finite from here on.
    ///
    /// [`Pass::anomaly`] names the first operation whose result was not finite. Backward stops with
    /// `NonFinite` at the first operation whose gradient is not. The search is slow, because it
    /// reads every result on the host.
    #[must_use]
    pub fn with_anomaly_detection(self) -> Self {
        self.0.settings.borrow_mut().anomalies = Some(Rc::default());
        self
    }

    /// This pass, which looks for tensors that are not on `device` from here on. [`Pass::foreign`]
    /// names the first one. An operation that mixes devices fails all the same.
    #[must_use]
    pub fn with_device(self, device: &Device) -> Self {
        self.0.settings.borrow_mut().device_watch = Some(DeviceWatch::new(device));
        self
    }

    /// This pass as the part of a logical batch that begins with sample `index`.
    #[must_use]
    pub fn with_first_sample(self, index: u64) -> Self {
        self.0.settings.borrow_mut().first_sample = index;
        self
    }

    /// The index of this pass's first sample in the logical batch. Random operations count samples
    /// from this index, so that splitting a batch does not change their numbers.
    pub fn first_sample(&self) -> u64 {
        self.0.settings.borrow().first_sample
    }

    /// This pass, which trains only the model of `turn` from here on. The leaves of other models
    /// are constants.
    #[must_use]
    pub fn with_turn(self, turn: Turn) -> Self {
        self.0.settings.borrow_mut().turn = Some(turn);
        self
    }

    /// The turn that this pass belongs to, if several models are trained one after the other.
    pub fn turn(&self) -> Option<Turn> {
        self.0.settings.borrow().turn.clone()
    }

    /// True if modules should behave as in training.
    pub fn is_training(&self) -> bool {
        self.0.settings.borrow().training
    }

    /// True if backward is recomputing a segment. Random numbers and buffers are equal to the first
    /// run's. Other side effects of a module should not happen a second time.
    pub fn is_recomputing(&self) -> bool {
        self.0.replay.is_some()
    }

    /// True if operations are recorded at this point.
    pub fn is_recording(&self) -> bool {
        !matches!(self.0.mode, Mode::Silent) && self.0.paused.get() == 0
    }

    /// The first operation whose result was not finite, with [`Pass::with_anomaly_detection`]. A
    /// NaN takes precedence over an earlier infinity, because infinities are often intended.
    pub fn anomaly(&self) -> Option<Anomaly> {
        self.0.settings.borrow().anomalies.as_ref().and_then(|anomalies| anomalies.first())
    }

    /// The first tensor given to this pass that was on another device than the one of
    /// [`Pass::with_device`].
    pub fn foreign(&self) -> Option<Foreign> {
        self.0.settings.borrow().device_watch.as_ref().and_then(DeviceWatch::first)
    }

    /// Declares that results from here on depend on several samples of the batch together, so that
    /// a part of a batch gives other results than the whole. [`Var::batch_norm`] calls this; a loss
    /// that compares samples must call it.
    #[track_caller]
    pub fn couple_samples(&self) {
        // Taken outside of the closure: inside, the caller would be this line.
        let site = Location::caller();
        let here = || Coupling { path: self.path(), site };
        self.0.settings.borrow().coupling.borrow_mut().get_or_insert_with(here);
    }

    /// The first call that coupled samples, if any.
    pub fn coupling(&self) -> Option<Coupling> {
        self.0.settings.borrow().coupling.borrow().clone()
    }

    #[track_caller]
    fn check_device(&self, role: Role, value: &Tensor) {
        if let Some(watch) = &self.0.settings.borrow().device_watch {
            watch.check(role, value, || self.path(), Location::caller());
        }
    }

    pub(crate) fn number(&self) -> PassNumber {
        self.0.settings.borrow().number
    }

    pub(crate) fn anomalies(&self) -> Option<Rc<Anomalies>> {
        self.0.settings.borrow().anomalies.clone()
    }

    /// The type that the inputs of `op` are converted to.
    pub(crate) fn cast(&self, op: &'static str, inputs: &[Var]) -> Option<DType> {
        let casts = self.0.settings.borrow().casts.clone()?;
        let dtypes: Vec<DType> = inputs.iter().map(|input| input.value().dtype()).collect();
        casts.dtype(op, &dtypes)
    }

    /// The value of `leaf` converted to `dtype`. Calls in one step return one tensor.
    #[track_caller]
    pub(crate) fn cast_leaf(&self, leaf: LeafId, value: &Tensor, dtype: DType) -> Result<Tensor> {
        match &*self.0.attempt.borrow() {
            Some(attempt) => attempt.cast_leaf(leaf, value, dtype),
            None => cast::convert(value, dtype),
        }
    }

    /// The key of the whole pass. [`Pass::draw`] derives a key for each operation.
    pub fn key(&self) -> RandomKey {
        self.0.settings.borrow().key
    }

    /// The key of the next random operation: a function of this pass's key, the module path, and
    /// the number of earlier draws at that path. A recomputation gets the keys of the first run.
    pub fn draw(&self) -> RandomKey {
        self.0.draws.next(self.key())
    }

    /// Standard normal numbers in f32. The first dimension counts samples. The numbers of a sample
    /// depend on the key of this draw and on the sample's index in the logical batch, not on how
    /// the batch is split.
    ///
    /// # Errors
    /// `OutOfMemory`; `NoKernel` of the device.
    #[track_caller]
    pub fn normal(&self, device: &Device, shape: impl IntoShape) -> Result<Tensor> {
        let key = self.draw();
        let numbers = Tensor::empty(device, shape, DType::F32)?;
        for row in 0..numbers.shape().first().copied().unwrap_or(0) {
            let sample = self.first_sample() + row as u64;
            numbers.narrow(0, row, 1)?.normal_(key.op(&sample.to_string()), 0.0, 1.0)?;
        }
        Ok(numbers)
    }

    /// Runs `inside` as the submodule `name`. Its random numbers do not depend on the draws of
    /// other modules, and its memory counts for the submodule.
    pub fn within<R>(&self, name: &str, inside: impl FnOnce() -> R) -> R {
        self.0.draws.within(name, inside)
    }

    /// The path of the module that runs, such as `layers.0`.
    pub fn path(&self) -> String {
        self.0.draws.module().path().to_owned()
    }

    /// The origin of memory that is allocated here on behalf of the line `site`.
    pub(crate) fn origin(&self, site: Site) -> Origin {
        Origin { module: Some(self.0.draws.module()), site: Some(site) }
    }

    /// Runs `section` without recording. Its values need no gradient.
    pub fn without_gradients<R>(&self, section: impl FnOnce() -> R) -> R {
        /// Ends the section, also when it panics.
        struct End<'a>(&'a Cell<usize>);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.set(self.0.get() - 1);
            }
        }
        self.0.paused.set(self.0.paused.get() + 1);
        let _end = End(&self.0.paused);
        section()
    }

    /// A value that needs no gradient. A segment may capture the tensor; backward reports
    /// `Modified` if the tensor was written between the runs of the segment.
    #[track_caller]
    pub fn constant(&self, value: Tensor) -> Var {
        self.check_device(Role::Value, &value);
        self.note_use(&value);
        Var::new(value, None, self.clone())
    }

    /// A value whose gradient is collected under `leaf`, unless the pass belongs to the [`Turn`] of
    /// another model.
    ///
    /// # Errors
    /// `Consumed` after backward. `Leaf` for integers, and for a value of another shape or type
    /// than `leaf` had earlier in this step. `Modified` in a recomputation, if the value was
    /// written since the first run.
    #[track_caller]
    pub fn leaf(&self, leaf: LeafId, value: &Tensor) -> Result<Var> {
        self.check_device(Role::Parameter, value);
        if self.0.settings.borrow().turn.as_ref().is_some_and(|turn| !turn.has(leaf)) {
            self.note_use(value);
            return Ok(Var::new(value.clone(), None, self.clone()).of_leaf(leaf));
        }
        let node = self.on_tape("leaf", |tape| tape.leaf(leaf))?;
        check_float("leaf", value, Location::caller())?;
        if let (true, Some(attempt)) = (self.is_recording(), &*self.0.attempt.borrow()) {
            attempt.check_leaf(leaf, value, Location::caller())?;
        }
        if let Some(replay) = &self.0.replay {
            replay.check_leaf(leaf, value)?;
        }
        if let Some(journal) = &self.0.journal {
            journal.borrow_mut().note_leaf(leaf, value);
        }
        Ok(Var::new(value.clone(), node, self.clone()).of_leaf(leaf))
    }

    /// A value without a leaf, whose gradient [`Pass::gradients`] can return.
    ///
    /// # Errors
    /// `Consumed` after backward, `Leaf` for integers.
    #[track_caller]
    pub fn input(&self, value: Tensor) -> Result<Var> {
        self.check_device(Role::Value, &value);
        let node = self.on_tape("input", Tape::source)?;
        check_float("input", &value, Location::caller())?;
        self.note_use(&value);
        Ok(Var::new(value, node, self.clone()))
    }

    /// The value of `buffer` in this attempt: the latest update, or `stored` if there is none.
    #[track_caller]
    pub fn buffer(&self, buffer: BufferId, stored: &Tensor) -> Tensor {
        self.check_device(Role::Buffer, stored);
        let replayed = self.0.replay.as_ref().and_then(|replay| replay.next_buffer());
        let attempt = self.0.attempt.borrow();
        let current = || attempt.as_ref().and_then(|attempt| attempt.buffer(buffer));
        let value = replayed.or_else(current).unwrap_or_else(|| stored.clone());
        if let Some(journal) = &self.0.journal {
            journal.borrow_mut().note_buffer(&value);
        }
        value
    }

    /// Sets the value that `buffer` gets when the attempt is committed. The last update counts.
    /// Does nothing in a recomputation and in passes without an attempt.
    pub fn update_buffer(&self, buffer: BufferId, value: Tensor) {
        if let (false, Some(attempt)) = (self.is_recomputing(), &*self.0.attempt.borrow()) {
            attempt.update_buffer(buffer, value);
        }
    }

    /// `Ok` unless backward has consumed the pass.
    pub(crate) fn check_open(&self, op: &'static str, site: Site) -> Result<()> {
        match &self.0.mode {
            Mode::Record(tape) if tape.borrow().is_none() => {
                Err(AutogradError::Consumed { op, site })
            }
            _ => Ok(()),
        }
    }

    /// The saver for an operation whose inputs come from `nodes`.
    pub(crate) fn saver(&self, op: &'static str, site: Site, nodes: &[Option<Edge>]) -> Saver {
        let is_recorded = matches!(self.0.mode, Mode::Record(_)) && self.is_recording();
        let is_needed = is_recorded && nodes.iter().any(Option::is_some);
        let needs = is_needed.then(|| Needs::new(nodes.iter().map(Option::is_some)));
        Saver::new(self.clone(), op, site, needs)
    }

    /// Notes that an operation uses `value`, if this pass runs a segment.
    pub(crate) fn note_use(&self, value: &Tensor) {
        if let Some(replay) = &self.0.replay {
            replay.use_other(value);
        }
        if let Some(journal) = &self.0.journal {
            journal.borrow_mut().note_other(value);
        }
    }

    /// Records an operation and returns its node; `None` if this pass is not recording.
    pub(crate) fn record(&self, op: Op) -> Result<Option<Edge>> {
        if !self.is_recording() {
            return Ok(None);
        }
        let Mode::Record(tape) = &self.0.mode else { return Ok(Some(SHADOW)) };
        let consumed = AutogradError::Consumed { op: op.name, site: op.site };
        let node = tape.borrow_mut().as_mut().ok_or(consumed)?.op(op);
        Ok(Some(node))
    }

    pub(crate) fn hook(&self, edge: Edge, hook: Hook, site: Site) -> Result<()> {
        let Mode::Record(tape) = &self.0.mode else { return Ok(()) };
        let consumed = AutogradError::Consumed { op: "on_gradient", site };
        tape.borrow_mut().as_mut().ok_or(consumed)?.hook(edge, hook);
        Ok(())
    }

    /// Checks the results of an operation for anomalies, if this pass looks for them.
    pub(crate) fn note(&self, op: &'static str, site: Site, values: &[Tensor]) -> Result<()> {
        let Some(anomalies) = self.anomalies() else { return Ok(()) };
        values.iter().try_for_each(|value| anomalies.note(op, site, value))
    }

    pub(crate) fn recomputes_cheap(&self) -> bool {
        self.0.settings.borrow().recomputes_cheap
    }

    /// Opens the store for saved tensors outside of segments, if the pass drops cheap results.
    pub(crate) fn open_store(&self) {
        if self.recomputes_cheap() {
            let store = Store::new(None, Some(Recipes::default()));
            self.0.stores.borrow_mut().push(Rc::clone(&store));
            self.0.store.replace(Some(store));
        }
    }

    /// Evicts the saved tensors of the current store that only the record holds by now.
    #[track_caller]
    pub(crate) fn evict_saved(&self) -> Result<()> {
        self.0.store.borrow().as_ref().map_or(Ok(()), |store| store.evict())
    }

    #[track_caller]
    pub(crate) fn on_tape(
        &self,
        op: &'static str,
        push: impl FnOnce(&mut Tape) -> Edge,
    ) -> Result<Option<Edge>> {
        let site = Location::caller();
        self.check_open(op, site)?;
        if !self.is_recording() {
            return Ok(None);
        }
        let Mode::Record(tape) = &self.0.mode else { return Ok(Some(SHADOW)) };
        let _origin = self.origin(site).enter();
        Ok(tape.borrow_mut().as_mut().map(push))
    }

    pub(crate) fn is(&self, other: &Pass) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

/// `Ok` if `value` can have a gradient.
fn check_float(op: &'static str, value: &Tensor, site: Site) -> Result<()> {
    let dtype = value.dtype();
    let fault = LeafFault::Integers { dtype };
    if dtype.is_float() { Ok(()) } else { Err(AutogradError::Leaf { op, site, fault }) }
}

impl Settings {
    /// Training mode with no options set.
    fn training(key: RandomKey) -> Self {
        Settings {
            training: true,
            key,
            first_sample: 0,
            anomalies: None,
            casts: None,
            recomputes_cheap: false,
            device_watch: None,
            coupling: Rc::default(),
            number: PassNumber::default(),
            turn: None,
        }
    }
}
