//! Walking a pass back, from one number or from any values.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::Location;

use lowtide_allocator::Category;
use lowtide_tensor::Tensor;

use crate::attempt::{Attempt, LeafId};
use crate::error::{AutogradError, Result};
use crate::pass::{Mode, Pass};
use crate::taking::Taking;
use crate::tape::{Edge, Site, Tape, Walk, check_like};
use crate::var::Var;

impl Pass {
    /// Walks back from `loss`, seeded with 1: adds d loss / d leaf to the attempt for each leaf
    /// and consumes the record. The pass's values cannot be used in operations afterwards.
    ///
    /// # Errors
    /// `Passes` for a loss of another pass, `NotScalar`, `NoGraph`, `Consumed`, `NonFinite` in a
    /// pass that looks for it, and whatever a rule meets.
    #[track_caller]
    pub fn backward(&self, loss: Var) -> Result<()> {
        self.backward_seeded(loss, 1.0)
    }

    /// [`Pass::backward`] of `seed · loss`.
    ///
    /// # Errors
    /// Those of [`Pass::backward`].
    #[track_caller]
    pub fn backward_seeded(&self, loss: Var, seed: f64) -> Result<()> {
        self.backward_with(loss, seed, None)
    }

    /// [`Pass::backward_seeded`] that takes the gradient of each leaf of this pass out of the
    /// attempt, with what earlier passes have added to it, and gives it to `take` as soon as
    /// nothing will be added to it any more and no operation will read the leaf: of all gradients
    /// only some are there at a time, and `take` may write the leaf.
    ///
    /// # Errors
    /// Those of [`Pass::backward`], and of `take`.
    #[track_caller]
    pub fn backward_taking(
        &self,
        loss: Var,
        seed: f64,
        mut take: impl FnMut(LeafId, Tensor) -> Result<()>,
    ) -> Result<()> {
        self.backward_with(loss, seed, Some(Taking::new(&mut take)))
    }

    #[track_caller]
    fn backward_with(&self, loss: Var, seed: f64, taking: Option<Taking<'_>>) -> Result<()> {
        let site = Location::caller();
        self.check_own(&loss, site)?;
        if loss.value().element_count() != 1 {
            return Err(AutogradError::NotScalar { shape: *loss.shape() });
        }
        let (value, node) = loss.into_parts();
        let edge = node.ok_or(AutogradError::NoGraph)?;
        let (tape, attempt) = self.take_record(site)?;
        if let Some(anomalies) = self.anomalies() {
            anomalies.check_loss(site, &value)?;
        }
        let _scope = value.device().category(Category::Gradient);
        let _origin = self.origin(site).enter();
        let seed = Tensor::full(value.device(), *value.shape(), value.dtype(), seed)?;
        drop(value);
        let mut walk = self.walk(tape, attempt.as_ref(), []).taking(taking);
        walk.add(edge, seed)?;
        walk.run().map(drop)
    }

    /// Walks back from several values of any shape at once: adds `Σ seed · d output / d leaf` over
    /// all of them to the attempt, and consumes the record.
    ///
    /// # Errors
    /// `Shape` and `DType` for a seed that is not as its output, and those of [`Pass::backward`].
    #[track_caller]
    pub fn backward_from(&self, outputs: Vec<(Var, Tensor)>) -> Result<()> {
        let site = Location::caller();
        let seeds = self.seeds(outputs, site)?;
        let (tape, attempt) = self.take_record(site)?;
        let _origin = self.origin(site).enter();
        self.run(self.walk(tape, attempt.as_ref(), []), seeds).map(drop)
    }

    /// `Σ seed · d output / d input` over all `outputs`, for each of `inputs`, which may be any
    /// values of this pass; `None` for one without influence. Leaves get nothing: only what is
    /// asked for is computed. Consumes the record.
    ///
    /// # Errors
    /// Those of [`Pass::backward_from`].
    #[track_caller]
    pub fn gradients(
        &self,
        outputs: Vec<(Var, Tensor)>,
        inputs: &[Var],
    ) -> Result<Vec<Option<Tensor>>> {
        let site = Location::caller();
        inputs.iter().try_for_each(|input| self.check_own(input, site))?;
        let seeds = self.seeds(outputs, site)?;
        let (tape, _) = self.take_record(site)?;
        let edges: Vec<Option<Edge>> = inputs.iter().map(Var::node).collect();
        let walk = self.walk(tape, None, edges.iter().flatten().copied());
        let _origin = self.origin(site).enter();
        let found = self.run(walk, seeds)?;
        let gradient = |edge: Option<Edge>| edge.and_then(|edge| found.get(&edge)?.clone());
        Ok(edges.into_iter().map(gradient).collect())
    }

    /// The leaves that `value` depends on, and by index those of `inputs` that it does, which
    /// [`Pass::input`] made. The record stays.
    ///
    /// # Errors
    /// `Passes` for a value of another pass, `Consumed` after backward.
    #[track_caller]
    pub fn origins(
        &self,
        value: &Var,
        inputs: &[Var],
    ) -> Result<(BTreeSet<LeafId>, BTreeSet<usize>)> {
        let site = Location::caller();
        self.check_own(value, site)?;
        self.check_open("origins", site)?;
        let (Mode::Record(tape), Some(edge)) = (&self.0.mode, value.node()) else {
            return Ok(Default::default());
        };
        let tape = tape.borrow();
        let (leaves, sources) = tape.as_ref().expect("it is open").origins(edge);
        let is_source = |input: &Var| input.node().is_some_and(|edge| sources.contains(&edge.node));
        let inputs = inputs.iter().enumerate().filter(|(_, input)| is_source(input));
        Ok((leaves, inputs.map(|(index, _)| index).collect()))
    }

    /// A walk with this pass's settings.
    pub(crate) fn walk<'a, 't>(
        &self,
        tape: Tape,
        attempt: Option<&'a Attempt>,
        wanted: impl IntoIterator<Item = Edge>,
    ) -> Walk<'a, 't> {
        let walk = Walk::new(tape, attempt.map(|attempt| (attempt, self.number())), wanted);
        walk.looking_for_anomalies(self.anomalies().is_some())
    }

    fn run(
        &self,
        mut walk: Walk<'_, '_>,
        seeds: Vec<(Edge, Tensor)>,
    ) -> Result<BTreeMap<Edge, Option<Tensor>>> {
        let device = seeds[0].1.device().clone();
        let _scope = device.category(Category::Gradient);
        for (edge, seed) in seeds {
            walk.add(edge, seed)?;
        }
        walk.run()
    }

    /// The outputs that lead to a leaf, with their checked seeds; at least one.
    fn seeds(&self, outputs: Vec<(Var, Tensor)>, site: Site) -> Result<Vec<(Edge, Tensor)>> {
        let mut seeds = Vec::with_capacity(outputs.len());
        for (output, seed) in outputs {
            self.check_own(&output, site)?;
            check_like("backward", &seed, *output.shape(), output.value().dtype())?;
            seeds.extend(output.node().map(|edge| (edge, seed)));
        }
        if seeds.is_empty() { Err(AutogradError::NoGraph) } else { Ok(seeds) }
    }

    fn check_own(&self, var: &Var, site: Site) -> Result<()> {
        let op = "backward";
        if var.pass().is(self) { Ok(()) } else { Err(AutogradError::Passes { op, site }) }
    }

    /// The record and the attempt, so that a value that outlives backward holds neither.
    pub(crate) fn take_record(&self, site: Site) -> Result<(Tape, Option<Attempt>)> {
        let Mode::Record(tape) = &self.0.mode else { return Err(AutogradError::NoGraph) };
        let tape = tape.take().ok_or(AutogradError::Consumed { op: "backward", site })?;
        self.0.stores.borrow().iter().for_each(|store| store.close());
        Ok((tape, self.0.attempt.take()))
    }
}
