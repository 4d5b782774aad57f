//! Everything that a forward pass may touch beside the parameters.

use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::rc::Rc;

use lowtide_allocator::Origin;
use lowtide_tensor::{DType, Device, RandomKey, Shape, Tensor};

use crate::anomaly::{Anomalies, Anomaly};
use crate::attempt::{Attempt, BufferId, LeafId, PassNumber};
use crate::cast::{self, CastPolicy};
use crate::coupling::Coupling;
use crate::error::{AutogradError, LeafFault, Result};
use crate::foreign::{Border, Foreign, Role};
use crate::journal::{Journal, Replay};
use crate::random::Draws;
use crate::rule::{AnyRule, Needs};
use crate::saved::Saver;
use crate::store::Store;
use crate::tape::{Edge, Hook, Op, Site, Tape};
use crate::turn::Turn;
use crate::var::Var;

/// One walk through a model: whether it records, whether it trains, its random key, and the
/// [`Attempt`] that its gradients and buffer updates go to. A cheap shared handle that stays on
/// its thread.
#[derive(Clone)]
pub struct Pass(pub(crate) Rc<Inner>);

pub(crate) struct Inner {
    pub(crate) mode: Mode,
    pub(crate) settings: RefCell<Settings>,
    /// Absent where nothing is collected; taken by `backward` together with the tape.
    pub(crate) attempt: RefCell<Option<Attempt>>,
    pub(crate) draws: Draws,
    /// How many sections without gradients enclose this point.
    pub(crate) paused: Cell<usize>,
    /// What a segment reads, for its recomputation.
    pub(crate) journal: Option<Rc<RefCell<Journal>>>,
    /// Present in a recomputation: what the segment read the first time.
    pub(crate) replay: Option<Rc<Replay>>,
    /// Where saved tensors go at this point, if they do not stay.
    pub(crate) store: RefCell<Option<Rc<Store>>>,
    /// One for each place that saved tensors have gone to.
    pub(crate) stores: RefCell<Vec<Rc<Store>>>,
}

/// What an operation leaves behind.
pub(crate) enum Mode {
    Silent,
    /// No record, but values know whether they need gradients: the first run of a segment that
    /// will be recomputed.
    Shadow,
    /// The inside is taken by `backward`, so that a value that outlives it holds no gradients.
    Record(RefCell<Option<Tape>>),
}

/// What a recomputation has in common with the pass that it repeats.
#[derive(Clone)]
pub(crate) struct Settings {
    training: bool,
    key: RandomKey,
    first_sample: u64,
    anomalies: Option<Rc<Anomalies>>,
    casts: Option<Rc<dyn CastPolicy>>,
    recomputes_cheap: bool,
    /// Looks for tensors of other devices.
    border: Option<Border>,
    /// The first place where samples were coupled, also in a segment.
    coupling: Rc<RefCell<Option<Coupling>>>,
    /// Of this pass in its attempt.
    number: PassNumber,
    /// The model that is trained, if not all are.
    turn: Option<Turn>,
}

/// The edge that stands for any in a pass that keeps no tape.
const SHADOW: Edge = Edge { node: 0, output: 0 };

impl Pass {
    /// Records, in training mode; gradients and buffer updates are added to `attempt`.
    pub fn train(key: RandomKey, attempt: &Attempt) -> Self {
        let tape = RefCell::new(Some(Tape::default()));
        let settings = Settings { number: attempt.next_pass(), ..Settings::new(true, key) };
        Self::new(Mode::Record(tape), settings, Some(attempt.clone()))
    }

    /// Keeps nothing, in evaluation mode.
    pub fn eval() -> Self {
        Self::new(Mode::Silent, Settings::new(false, RandomKey::new(0)), None)
    }

    /// Keeps nothing, in training mode: what `train` computes, without gradients and without
    /// buffer updates.
    pub fn no_grad(key: RandomKey) -> Self {
        Self::new(Mode::Silent, Settings::new(true, key), None)
    }

    /// [`Pass::no_grad`] that adds its buffer updates to `attempt`: to estimate running statistics
    /// anew.
    pub fn buffers_only(key: RandomKey, attempt: &Attempt) -> Self {
        Self::new(Mode::Silent, Settings::new(true, key), Some(attempt.clone()))
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

    /// This pass with operations in the types that `policy` says, from here on.
    #[must_use]
    pub fn with_casts(self, policy: impl CastPolicy + 'static) -> Self {
        self.0.settings.borrow_mut().casts = Some(Rc::new(policy));
        self
    }

    /// This pass without the results that are cheap to compute again, from here on: those of
    /// normalisations, activation functions and the like are dropped as soon as only the record
    /// holds them, and backward computes them again from what it keeps anyway. The same bits, for
    /// little time. Not in a segment that says [`SavedPolicy::Keep`](crate::SavedPolicy::Keep).
    #[must_use]
    pub fn with_cheap_recomputed(self) -> Self {
        self.0.settings.borrow_mut().recomputes_cheap = true;
        self.open_store();
        self
    }

    /// This pass looking for values that are not finite, from here on: [`Pass::anomaly`] names the
    /// operation whose result first was, and backward stops with `NonFinite` at the operation
    /// whose gradient is. Reads every result on the host, so it is slow.
    #[must_use]
    pub fn with_anomaly_detection(self) -> Self {
        self.0.settings.borrow_mut().anomalies = Some(Rc::default());
        self
    }

    /// This pass on `device`, from here on: [`Pass::foreign`] names the first tensor that the pass
    /// got from another one. An operation that mixes devices fails all the same.
    #[must_use]
    pub fn with_device(self, device: &Device) -> Self {
        self.0.settings.borrow_mut().border = Some(Border::new(device));
        self
    }

    /// This pass over the samples of the logical batch from `index` on, where an earlier one has
    /// those before.
    #[must_use]
    pub fn with_first_sample(self, index: u64) -> Self {
        self.0.settings.borrow_mut().first_sample = index;
        self
    }

    /// The place of this pass's first sample in the logical batch. Random operations count from
    /// there, so that splitting the batch does not change their numbers.
    pub fn first_sample(&self) -> u64 {
        self.0.settings.borrow().first_sample
    }

    /// This pass in a turn of one of several models, from here on: the leaves of the others are
    /// constants.
    #[must_use]
    pub fn with_turn(self, turn: Turn) -> Self {
        self.0.settings.borrow_mut().turn = Some(turn);
        self
    }

    /// The turn that this pass is part of, where several models are trained in turn.
    pub fn turn(&self) -> Option<Turn> {
        self.0.settings.borrow().turn.clone()
    }

    /// Whether modules should behave as in training.
    pub fn is_training(&self) -> bool {
        self.0.settings.borrow().training
    }

    /// Whether this is a segment computed again for backward. Its random numbers and buffers are
    /// those of the first time; whatever else has an effect outside should not have it twice.
    pub fn is_recomputing(&self) -> bool {
        self.0.replay.is_some()
    }

    /// Whether operations are recorded at this point.
    pub fn is_recording(&self) -> bool {
        !matches!(self.0.mode, Mode::Silent) && self.0.paused.get() == 0
    }

    /// The first operation whose result was not finite though this pass was looking: one with a
    /// NaN before one with infinities, which are often meant.
    pub fn anomaly(&self) -> Option<Anomaly> {
        self.0.settings.borrow().anomalies.as_ref().and_then(|anomalies| anomalies.first())
    }

    /// The first tensor that this pass got from another device than the one it was
    /// [given](Pass::with_device).
    pub fn foreign(&self) -> Option<Foreign> {
        self.0.settings.borrow().border.as_ref().and_then(Border::first)
    }

    /// Says that results from here on depend on several samples of the batch together, so that a
    /// part of the batch gives others than the whole. [`Var::batch_norm`] says so itself; a loss
    /// that compares samples has to.
    #[track_caller]
    pub fn couple_samples(&self) {
        // In the closure it would be this line.
        let site = Location::caller();
        let here = || Coupling { path: self.path(), site };
        self.0.settings.borrow().coupling.borrow_mut().get_or_insert_with(here);
    }

    /// The first place where samples were coupled, if any.
    pub fn coupling(&self) -> Option<Coupling> {
        self.0.settings.borrow().coupling.borrow().clone()
    }

    #[track_caller]
    fn check_device(&self, role: Role, value: &Tensor) {
        if let Some(border) = &self.0.settings.borrow().border {
            border.check(role, value, || self.path(), Location::caller());
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

    /// `value`, which is that of `leaf`, as `dtype`; the same tensor each time in a step.
    #[track_caller]
    pub(crate) fn cast_leaf(&self, leaf: LeafId, value: &Tensor, dtype: DType) -> Result<Tensor> {
        match &*self.0.attempt.borrow() {
            Some(attempt) => attempt.cast_leaf(leaf, value, dtype),
            None => cast::convert(value, dtype),
        }
    }

    /// The key of the whole pass; [`Pass::draw`] makes one for each operation.
    pub fn key(&self) -> RandomKey {
        self.0.settings.borrow().key
    }

    /// The key of the next random operation: a function of this pass's key, of the path, and of
    /// how often that path has drawn. Recomputation gets the same ones.
    pub fn draw(&self) -> RandomKey {
        self.0.draws.next(self.key())
    }

    /// Numbers of the standard normal distribution, f32, where the first of the dimensions counts
    /// samples: a sample's numbers depend on the key of this draw and on its place in the logical
    /// batch, not on how the batch is split.
    ///
    /// # Errors
    /// `OutOfMemory`; `NoKernel` of the device.
    #[track_caller]
    pub fn normal(&self, device: &Device, shape: impl Into<Shape>) -> Result<Tensor> {
        let key = self.draw();
        let numbers = Tensor::empty(device, shape, DType::F32)?;
        for row in 0..numbers.shape().first().copied().unwrap_or(0) {
            let sample = self.first_sample() + row as u64;
            numbers.narrow(0, row, 1)?.normal_(key.op(&sample.to_string()), 0.0, 1.0)?;
        }
        Ok(numbers)
    }

    /// Runs `inside` as the submodule `name`, so that its random numbers do not depend on what
    /// other modules draw.
    pub fn within<R>(&self, name: &str, inside: impl FnOnce() -> R) -> R {
        self.0.draws.within(name, inside)
    }

    /// The names of the modules that this point is inside of, `layers.0`.
    pub fn path(&self) -> String {
        self.0.draws.module().path().to_owned()
    }

    /// What memory counts for that is asked for here, on behalf of the line `site`.
    pub(crate) fn origin(&self, site: Site) -> Origin {
        Origin { module: Some(self.0.draws.module()), site: Some(site) }
    }

    /// Runs `section` without recording: its values need no gradient.
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

    /// A value that needs no gradient. A segment may capture it, but the tensor must not be written
    /// between its runs: `Modified`.
    #[track_caller]
    pub fn constant(&self, value: Tensor) -> Var {
        self.check_device(Role::Value, &value);
        self.note_use(&value);
        Var::new(value, None, self.clone())
    }

    /// A value whose gradient is collected under `leaf`, unless this is another model's
    /// [`Turn`].
    ///
    /// # Errors
    /// `Consumed` after backward; `Leaf` for integers, and for a value of another shape or type
    /// than `leaf` had before in this step; `Modified` in a recomputation, when it was written
    /// meanwhile.
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

    /// A value that has no leaf, but whose gradient [`Pass::gradients`] can be asked for.
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

    /// A buffer as this attempt has it: what its passes made of it so far, or else `stored`.
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

    /// Makes `value` what is to become of a buffer when the attempt is committed; the last one
    /// counts. Without effect in a recomputation and in passes without an attempt.
    pub fn update_buffer(&self, buffer: BufferId, value: Tensor) {
        if let (false, Some(attempt)) = (self.is_recomputing(), &*self.0.attempt.borrow()) {
            attempt.update_buffer(buffer, value);
        }
    }

    /// `Ok` if operations are possible.
    pub(crate) fn check_open(&self, op: &'static str, site: Site) -> Result<()> {
        match &self.0.mode {
            Mode::Record(tape) if tape.borrow().is_none() => {
                Err(AutogradError::Consumed { op, site })
            }
            _ => Ok(()),
        }
    }

    /// What keeps tensors for an operation on inputs from `nodes`.
    pub(crate) fn saver(&self, op: &'static str, site: Site, nodes: &[Option<Edge>]) -> Saver {
        let recorded = matches!(self.0.mode, Mode::Record(_)) && self.is_recording();
        let is_needed = recorded && nodes.iter().any(Option::is_some);
        let needs = Needs::new(nodes.iter().map(Option::is_some));
        Saver::new(self.clone(), op, site, (is_needed, needs))
    }

    /// Notes that an operation uses `value`, if this pass is a run of a segment.
    pub(crate) fn note_use(&self, value: &Tensor) {
        if let Some(replay) = &self.0.replay {
            replay.use_other(value);
        }
        if let Some(journal) = &self.0.journal {
            journal.borrow_mut().note_other(value);
        }
    }

    /// Records an operation, if one of its inputs leads to a leaf; its node.
    pub(crate) fn record(
        &self,
        name: &'static str,
        site: Site,
        (inputs, likes): (Vec<Option<Edge>>, Vec<(Shape, DType)>),
        rule: AnyRule,
    ) -> Result<Option<Edge>> {
        if !inputs.iter().any(Option::is_some) {
            return Ok(None);
        }
        self.record_always(Op { name, site, rule, inputs, likes })
    }

    /// Records an operation.
    pub(crate) fn record_always(&self, op: Op) -> Result<Option<Edge>> {
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

    /// Looks at the results of an operation, if this pass does.
    pub(crate) fn note(&self, op: &'static str, site: Site, values: &[Tensor]) -> Result<()> {
        let Some(anomalies) = self.anomalies() else { return Ok(()) };
        values.iter().try_for_each(|value| anomalies.note(op, site, value))
    }

    pub(crate) fn recomputes_cheap(&self) -> bool {
        self.0.settings.borrow().recomputes_cheap
    }

    /// What saved tensors leave by outside of segments.
    pub(crate) fn open_store(&self) {
        if self.recomputes_cheap() {
            let store = Store::new(None, true);
            self.0.stores.borrow_mut().push(Rc::clone(&store));
            self.0.store.replace(Some(store));
        }
    }

    /// Moves saved tensors that have become the record's alone.
    #[track_caller]
    pub(crate) fn settle(&self) -> Result<()> {
        self.0.store.borrow().as_ref().map_or(Ok(()), |store| store.settle())
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
    fn new(training: bool, key: RandomKey) -> Self {
        let number = PassNumber::default();
        let (anomalies, casts, border, coupling) = (None, None, None, Rc::default());
        let turn = None;
        Settings {
            training,
            key,
            first_sample: 0,
            anomalies,
            casts,
            recomputes_cheap: false,
            border,
            coupling,
            number,
            turn,
        }
    }
}
