//! Backward passes from a scalar loss, or from several outputs of any shape.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::Location;

use lowtide_allocator::Category;
use lowtide_tensor::Tensor;

use crate::attempt::{Attempt, LeafId};
use crate::error::{AutogradError, Result, Site};
use crate::meta::TensorMeta;
use crate::pass::{Mode, Pass};
use crate::taking::Taking;
use crate::tape::{Edge, Tape, Walk};
use crate::var::Var;

/// The values that a value depends on: see [`Pass::dependencies`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dependencies {
    /// Leaves, such as parameters.
    pub leaves: BTreeSet<LeafId>,
    /// Indices into the inputs of [`Pass::dependencies`].
    pub inputs: BTreeSet<usize>,
}

impl Pass {
    /// Adds d loss / d leaf to the attempt for each leaf, and consumes the record. Operations on
    /// values of this pass fail afterwards.
    ///
    /// # Errors
    /// `Passes` for a loss of another pass, `NotScalar`, `NoGraph`, `Consumed`, `NonFinite` with
    /// [`Pass::with_anomaly_detection`], and errors of the rules.
    #[track_caller]
    pub fn backward(&self, loss: Var) -> Result<()> {
        self.backward_seeded(loss, 1.0)
    }

    /// [`Pass::backward`] of `seed · loss`.
    ///
    /// # Errors
    /// As for [`Pass::backward`].
    #[track_caller]
    pub fn backward_seeded(&self, loss: Var, seed: f64) -> Result<()> {
        self.backward_with(loss, seed, None)
    }

    /// [`Pass::backward_seeded`] that gives each gradient to `take` as soon as it is complete, so
    /// that only some gradients exist at a time.
    ///
    /// A gradient is complete when this pass will not add to it any more. The gradient includes the
    /// contributions of earlier passes of the attempt, and is taken out of the attempt. No
    /// operation reads the leaf any more, so `take` may write the leaf.
    ///
    /// # Errors
    /// As for [`Pass::backward`]; errors of `take`.
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

    /// Adds `Σ seed · d output / d leaf`, summed over all outputs, to the attempt for each leaf,
    /// and consumes the record. Outputs may have any shape; each comes with its seed.
    ///
    /// # Errors
    /// `Shape` and `DType` for a seed that differs from its output; else as for [`Pass::backward`].
    #[track_caller]
    pub fn backward_from(&self, outputs: Vec<(Var, Tensor)>) -> Result<()> {
        let site = Location::caller();
        let seeds = self.seeds(outputs, site)?;
        let (tape, attempt) = self.take_record(site)?;
        let _origin = self.origin(site).enter();
        self.run(self.walk(tape, attempt.as_ref(), []), seeds).map(drop)
    }

    /// The gradient `Σ seed · d output / d input`, summed over all `outputs`, for each of `inputs`;
    /// `None` for an input that no output depends on. Inputs may be any values of this pass. Leaves
    /// get no gradients. The call consumes the record.
    ///
    /// # Errors
    /// As for [`Pass::backward_from`].
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

    /// The leaves and the `inputs` that `value` depends on. `inputs` are values made by
    /// [`Pass::input`]. The record stays.
    ///
    /// # Errors
    /// `Passes` for a value of another pass, `Consumed` after backward.
    #[track_caller]
    pub fn dependencies(&self, value: &Var, inputs: &[Var]) -> Result<Dependencies> {
        let site = Location::caller();
        self.check_own(value, site)?;
        self.check_open("dependencies", site)?;
        let (Mode::Record(tape), Some(edge)) = (&self.0.mode, value.node()) else {
            return Ok(Dependencies::default());
        };
        let tape = tape.borrow();
        let ancestors = tape.as_ref().expect("the pass is open").ancestors(edge);
        let is_ancestor =
            |input: &Var| input.node().is_some_and(|edge| ancestors.sources.contains(&edge.node));
        let inputs = inputs.iter().enumerate().filter(|(_, input)| is_ancestor(input));
        let inputs = inputs.map(|(index, _)| index).collect();
        Ok(Dependencies { leaves: ancestors.leaves, inputs })
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

    /// The checked seeds of the outputs that depend on a leaf; an error if there are none.
    fn seeds(&self, outputs: Vec<(Var, Tensor)>, site: Site) -> Result<Vec<(Edge, Tensor)>> {
        let mut seeds = Vec::with_capacity(outputs.len());
        for (output, seed) in outputs {
            self.check_own(&output, site)?;
            TensorMeta::of(output.value()).check("backward", &seed)?;
            seeds.extend(output.node().map(|edge| (edge, seed)));
        }
        if seeds.is_empty() { Err(AutogradError::NoGraph) } else { Ok(seeds) }
    }

    fn check_own(&self, var: &Var, site: Site) -> Result<()> {
        let op = "backward";
        if var.pass().is(self) { Ok(()) } else { Err(AutogradError::Passes { op, site }) }
    }

    /// Takes the record and the attempt out of the pass, so that values that outlive backward keep
    /// neither alive.
    pub(crate) fn take_record(&self, site: Site) -> Result<(Tape, Option<Attempt>)> {
        let Mode::Record(tape) = &self.0.mode else { return Err(AutogradError::NoGraph) };
        let tape = tape.take().ok_or(AutogradError::Consumed { op: "backward", site })?;
        self.0.stores.borrow().iter().for_each(|store| store.close());
        Ok((tape, self.0.attempt.take()))
    }
}
