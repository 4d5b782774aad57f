//! Segments of a pass: their saved tensors are kept, recomputed, or offloaded.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::Location;
use std::rc::Rc;

use lowtide_allocator::{Category, Origin};
use lowtide_tensor::{Shape, Tensor, TensorError};

use crate::attempt::{Attempt, LeafId};
use crate::error::{AutogradError, Result, Site};
use crate::journal::{Journal, Replay};
use crate::meta::TensorMeta;
use crate::offload::Offload;
use crate::pass::{Inner, Mode, Pass, Settings};
use crate::random::Draws;
use crate::recipe::Recipes;
use crate::rule::{AnyRule, Needs, SegmentRule, Slot};
use crate::saved::Saved;
use crate::store::Store;
use crate::taking::Taking;
use crate::tape::{Edge, Op, Tape};
use crate::var::Var;

/// The treatment of the tensors that a segment saves for backward. Results have the same bits under
/// every policy.
#[derive(Clone, Debug, PartialEq)]
pub enum SavedPolicy {
    /// Saved tensors stay: no extra work, most memory.
    Keep,
    /// Only the segment's inputs stay, and backward recomputes the rest. Costs a second forward.
    Recompute,
    /// Saved tensors wait in another device's memory. Costs two copies.
    Offload(Offload),
    /// As [`SavedPolicy::Recompute`], and the segment's inputs wait in another device's memory.
    RecomputeFrom(Offload),
    /// As [`SavedPolicy::Recompute`], in one segment with the previous block. For models that run
    /// their blocks in groups. Fewer inputs stay, and backward needs more memory at a time.
    RecomputeWithPrevious,
}

/// The function of a segment. The function reads only its inputs, leaves, its pass, and captured
/// tensors that nothing writes between the runs, so that a second run gives the same results.
type Function = dyn Fn(&Pass, Vec<Var>) -> Result<Vec<Var>>;

impl Pass {
    /// Runs `segment` on `inputs` under `policy`. The segment may use only its arguments: the pass
    /// and the values.
    ///
    /// # Errors
    /// `Passes` for a value of another pass; errors of `segment`.
    #[track_caller]
    pub fn segment_many(
        &self,
        policy: &SavedPolicy,
        inputs: Vec<Var>,
        segment: impl Fn(&Pass, Vec<Var>) -> Result<Vec<Var>> + 'static,
    ) -> Result<Vec<Var>> {
        let (store, recomputes) = match policy {
            SavedPolicy::Recompute | SavedPolicy::RecomputeWithPrevious => {
                return self.checkpoint_many(inputs, segment);
            }
            SavedPolicy::Keep => (None, false),
            SavedPolicy::Offload(options) => (Some(self.store(options)), false),
            SavedPolicy::RecomputeFrom(options) => (Some(self.store(options)), true),
        };
        let enclosing = Enclosing { pass: self, store: self.0.store.replace(store) };
        let outputs = if recomputes {
            self.checkpoint_many(inputs, segment)?
        } else {
            segment(self, inputs)?
        };
        self.evict_saved()?;
        drop(enclosing);
        Ok(outputs)
    }

    /// [`Pass::segment_many`] with one input and one output.
    ///
    /// # Errors
    /// As for [`Pass::segment_many`].
    #[track_caller]
    pub fn segment(
        &self,
        policy: &SavedPolicy,
        input: Var,
        segment: impl Fn(&Pass, Var) -> Result<Var> + 'static,
    ) -> Result<Var> {
        self.segment_many(policy, vec![input], single(segment)).map(only)
    }

    /// Runs `segment` on `inputs` and keeps only the inputs. Backward runs the segment again, with
    /// the same random numbers and without updating buffers twice. Segments nest.
    ///
    /// # Errors
    /// As for [`Pass::segment_many`]. Backward reports `Shape` if the second run gives other shapes
    /// than the first, and `Modified` if an input or a leaf was written in between.
    #[track_caller]
    pub fn checkpoint_many(
        &self,
        inputs: Vec<Var>,
        segment: impl Fn(&Pass, Vec<Var>) -> Result<Vec<Var>> + 'static,
    ) -> Result<Vec<Var>> {
        self.checkpoint_boxed(inputs, Box::new(segment))
    }

    /// [`Pass::checkpoint_many`] with one input and one output.
    ///
    /// # Errors
    /// As for [`Pass::checkpoint_many`].
    #[track_caller]
    pub fn checkpoint(
        &self,
        input: Var,
        segment: impl Fn(&Pass, Var) -> Result<Var> + 'static,
    ) -> Result<Var> {
        self.checkpoint_many(vec![input], single(segment)).map(only)
    }

    #[track_caller]
    fn checkpoint_boxed(&self, inputs: Vec<Var>, function: Box<Function>) -> Result<Vec<Var>> {
        let (name, site) = ("checkpoint", Location::caller());
        self.check_open(name, site)?;
        if inputs.iter().any(|input| !input.pass().is(self)) {
            return Err(AutogradError::Passes { op: name, site });
        }
        if !matches!(self.0.mode, Mode::Record(_)) || !self.is_recording() {
            return function(self, inputs);
        }
        let edges: Vec<Option<Edge>> = inputs.iter().map(Var::node).collect();
        // The segment may read leaves, so it saves even if no input needs a gradient.
        let saver = self.saver(name, site, &[Some(Edge { node: 0, output: 0 })]);
        let journal = Rc::new(RefCell::new(Journal::default()));
        let rerun = Recomputation {
            function,
            inputs: inputs.iter().map(|input| saver.keep(input.value())).collect(),
            outputs: Vec::new(),
            settings: self.0.settings.borrow().clone(),
            attempt: self.0.attempt.borrow().clone(),
            draws: self.0.draws.clone(),
            journal: Rc::clone(&journal),
            site,
        };
        let shadow = self.shadow(journal);
        let inside = inputs.into_iter().map(|input| {
            let (value, node) = input.into_parts();
            Var::new(value, node, shadow.clone())
        });
        let outputs = (rerun.function)(&shadow, inside.collect())?;
        if outputs.iter().any(|output| !output.pass().is(&shadow)) {
            return Err(AutogradError::Passes { op: name, site });
        }
        rerun.journal.borrow_mut().end_first_run();
        self.0.draws.continue_from(&shadow.0.draws);
        self.record_segment(rerun, edges, outputs)
    }

    /// Records the segment if a gradient can flow through it, and returns its outputs as values of
    /// this pass.
    fn record_segment(
        &self,
        rerun: Recomputation,
        inputs: Vec<Option<Edge>>,
        outputs: Vec<Var>,
    ) -> Result<Vec<Var>> {
        let mut node = None;
        if outputs.iter().any(Var::needs_gradient) {
            let metas = outputs.iter().map(|output| TensorMeta::of(output.value())).collect();
            let rerun = Recomputation { outputs: metas, ..rerun };
            let (name, site) = ("checkpoint", rerun.site);
            let rule = AnyRule::Segment { rule: Box::new(rerun), output_count: outputs.len() };
            let _origin = self.origin(site).enter();
            node = self.record(Op { name, site, rule, inputs, input_metas: Vec::new() })?;
        }
        let own = |(output, var): (usize, Var)| {
            let (value, inside) = var.into_parts();
            let edge = inside.and(node).map(|edge| Edge { output, ..edge });
            Var::new(value, edge, self.clone())
        };
        let outputs = outputs.into_iter().enumerate().map(own).collect();
        self.evict_saved()?;
        Ok(outputs)
    }

    /// A pass with the settings of this pass. Records no operations, and notes reads in `journal`.
    fn shadow(&self, journal: Rc<RefCell<Journal>>) -> Pass {
        Pass(Rc::new(Inner {
            mode: Mode::Shadow,
            settings: RefCell::new(self.0.settings.borrow().clone()),
            attempt: self.0.attempt.clone(),
            draws: self.0.draws.clone(),
            paused: Cell::new(0),
            journal: Some(journal),
            replay: self.0.replay.clone(),
            store: RefCell::default(),
            stores: RefCell::default(),
        }))
    }

    /// The store of this pass for `options`, made at the first call.
    fn store(&self, options: &Offload) -> Rc<Store> {
        let mut stores = self.0.stores.borrow_mut();
        let is_this = |store: &&Rc<Store>| store.offload.as_ref() == Some(options);
        if let Some(store) = stores.iter().find(is_this) {
            return Rc::clone(store);
        }
        let recipes = self.recomputes_cheap().then(Recipes::default);
        stores.push(Store::new(Some(options.clone()), recipes));
        Rc::clone(&stores[stores.len() - 1])
    }
}

/// Gives the pass back the store of the enclosing segment, also after an error.
struct Enclosing<'a> {
    pass: &'a Pass,
    store: Option<Rc<Store>>,
}

impl Drop for Enclosing<'_> {
    fn drop(&mut self) {
        self.pass.0.store.replace(self.store.take());
    }
}

fn single(
    segment: impl Fn(&Pass, Var) -> Result<Var> + 'static,
) -> impl Fn(&Pass, Vec<Var>) -> Result<Vec<Var>> + 'static {
    move |pass, inputs| Ok(vec![segment(pass, only(inputs))?])
}

fn only(vars: Vec<Var>) -> Var {
    vars.into_iter().next().expect("one in, one out")
}

/// The rule of a segment that runs a second time in backward. It holds no pass, because the record
/// of the pass holds it.
struct Recomputation {
    function: Box<Function>,
    inputs: Vec<Saved>,
    outputs: Vec<TensorMeta>,
    settings: Settings,
    attempt: Option<Attempt>,
    /// The draws at the start of the segment.
    draws: Draws,
    journal: Rc<RefCell<Journal>>,
    site: Site,
}

impl SegmentRule for Recomputation {
    fn leaves(&self) -> Vec<LeafId> {
        self.journal.borrow().leaves()
    }

    fn backward(
        self: Box<Self>,
        dys: Vec<Option<Tensor>>,
        slots: Vec<Slot>,
        needs: Needs,
        taking: Option<Taking<'_>>,
    ) -> Result<Vec<Option<Tensor>>> {
        let Some(device) = dys.iter().flatten().next().map(|dy| dy.device().clone()) else {
            return Ok(Vec::new());
        };
        let replay = Rc::new(Replay::new(self.journal, self.site));
        let pass = Pass(Rc::new(Inner {
            mode: Mode::Record(RefCell::new(Some(Tape::default()))),
            settings: RefCell::new(self.settings),
            attempt: RefCell::new(self.attempt.filter(|_| needs.leaves())),
            draws: self.draws,
            paused: Cell::new(0),
            journal: None,
            replay: Some(Rc::clone(&replay)),
            store: RefCell::default(),
            stores: RefCell::default(),
        }));
        pass.open_store();
        let (mut sums, mut vars) = (BTreeMap::new(), Vec::<Var>::with_capacity(slots.len()));
        for (slot, saved) in slots.into_iter().zip(self.inputs) {
            let value = saved.unpack()?;
            let node = match slot {
                Slot::Unneeded => None,
                Slot::Same(index) => vars[index].node(),
                Slot::Leaf(leaf) => pass.on_tape("leaf", |tape| tape.leaf(leaf))?,
                Slot::Sum(sum) => {
                    let edge = pass.on_tape("input", Tape::source)?;
                    sums.extend(edge.map(|edge| (edge, (vars.len(), sum))));
                    edge
                }
            };
            vars.push(Var::new(value, node, pass.clone()));
        }
        let input_count = vars.len();
        let outputs = {
            let _scope = device.category(Category::Activation);
            let module = Some(pass.0.draws.module());
            let _origin = Origin { module, site: None }.enter();
            let outputs = (self.function)(&pass, vars);
            replay.check_others()?;
            outputs?
        };
        let seeds = seeds(outputs, &self.outputs, dys)?;

        let places: BTreeMap<Edge, usize> =
            sums.iter().map(|(&edge, &(index, _))| (edge, index)).collect();
        let (tape, attempt) = pass.take_record(self.site)?;
        let walk = pass.walk(tape, attempt.as_ref(), places.keys().copied());
        let mut walk = walk.taking(taking);
        for (edge, (_, sum)) in sums {
            sum.map_or(Ok(()), |sum| walk.add(edge, sum))?;
        }
        seeds.into_iter().try_for_each(|(edge, dy)| walk.add(edge, dy))?;
        let mut totals = vec![None; input_count];
        for (edge, total) in walk.run()? {
            totals[places[&edge]] = total;
        }
        Ok(totals)
    }
}

/// The outputs of the second run that have a gradient; an error if their number, shapes or types
/// differ from the first run.
fn seeds(
    outputs: Vec<Var>,
    expected: &[TensorMeta],
    dys: Vec<Option<Tensor>>,
) -> Result<Vec<(Edge, Tensor)>> {
    let op = "checkpoint";
    if outputs.len() != expected.len() {
        let (left, right) = (Shape::new(&[outputs.len()]), Shape::new(&[expected.len()]));
        return Err(TensorError::Shape { op, left, right }.into());
    }
    let mut seeds = Vec::new();
    for ((output, expected), dy) in outputs.into_iter().zip(expected).zip(dys) {
        expected.check(op, output.value())?;
        if let (Some(edge), Some(dy)) = (output.node(), dy) {
            seeds.push((edge, dy));
        }
    }
    Ok(seeds)
}
