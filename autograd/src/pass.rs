//! Everything that a forward pass may touch beside the parameters.

use std::cell::RefCell;
use std::panic::Location;
use std::rc::Rc;

use lowtide_allocator::Category;
use lowtide_tensor::{RandomKey, Tensor};

use crate::tape::{NodeId, Site, Tape};
use crate::{Attempt, AutogradError, LeafId, Result, Rule, Var};

/// One walk through a model: whether it records, whether it trains, its random key, and the
/// [`Attempt`] that its gradients go to. A cheap shared handle that stays on its thread.
#[derive(Clone)]
pub struct Pass(Rc<Inner>);

struct Inner {
    training: bool,
    key: RandomKey,
    /// Absent where nothing is recorded; the inside is taken by `backward`, so that a value that
    /// outlives it holds no gradients.
    recording: Option<RefCell<Option<Recording>>>,
}

struct Recording {
    attempt: Attempt,
    tape: Tape,
}

impl Pass {
    /// Records, in training mode; gradients are added to `attempt`.
    pub fn train(key: RandomKey, attempt: &Attempt) -> Self {
        let recording = Recording { attempt: attempt.clone(), tape: Tape::default() };
        let recording = Some(RefCell::new(Some(recording)));
        Pass(Rc::new(Inner { training: true, key, recording }))
    }

    /// Keeps nothing, in evaluation mode.
    pub fn eval() -> Self {
        Pass(Rc::new(Inner { training: false, key: RandomKey::new(0), recording: None }))
    }

    /// Keeps nothing, in training mode: what `train` computes, without gradients.
    pub fn no_grad(key: RandomKey) -> Self {
        Pass(Rc::new(Inner { training: true, key, recording: None }))
    }

    /// Whether modules should behave as in training.
    pub fn is_training(&self) -> bool {
        self.0.training
    }

    /// The key that random operations of this pass derive theirs from.
    pub fn key(&self) -> RandomKey {
        self.0.key
    }

    /// A value that needs no gradient.
    pub fn constant(&self, value: Tensor) -> Var {
        Var::new(value, None, self.clone())
    }

    /// A value whose gradient is collected under `leaf`.
    ///
    /// # Errors
    /// `Consumed` after backward.
    #[track_caller]
    pub fn leaf(&self, leaf: LeafId, value: &Tensor) -> Result<Var> {
        let node = self.on_tape("leaf", |tape| tape.leaf(leaf))?;
        Ok(Var::new(value.clone(), node, self.clone()))
    }

    /// Walks back from `loss`, seeded with 1: adds d loss / d leaf to the attempt for each leaf
    /// and consumes the record. The pass's values cannot be used in operations afterwards.
    ///
    /// # Errors
    /// `Passes` for a loss of another pass, `NotScalar`, `NoGraph`, `Consumed`, and whatever a
    /// rule meets.
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
        let (op, site) = ("backward", Location::caller());
        if !loss.pass().is(self) {
            return Err(AutogradError::Passes { op, site });
        }
        let (value, node) = loss.into_parts();
        if value.element_count() != 1 {
            return Err(AutogradError::NotScalar { shape: *value.shape() });
        }
        let recording = self.0.recording.as_ref().ok_or(AutogradError::NoGraph)?;
        let node = node.ok_or(AutogradError::NoGraph)?;
        let consumed = AutogradError::Consumed { op, site };
        let Recording { attempt, tape } = recording.take().ok_or(consumed)?;
        let _scope = value.device().category(Category::Gradient);
        let seed = Tensor::full(value.device(), *value.shape(), value.dtype(), seed)?;
        drop(value);
        tape.backward(node, seed, &attempt)
    }

    /// Records `rule` for an operation on `inputs`, if one of them leads to a leaf.
    pub(crate) fn record(
        &self,
        op: &'static str,
        site: Site,
        inputs: Vec<Option<NodeId>>,
        rule: impl Rule + 'static,
    ) -> Result<Option<NodeId>> {
        let Some(recording) = &self.0.recording else { return Ok(None) };
        let mut recording = recording.borrow_mut();
        let recording = recording.as_mut().ok_or(AutogradError::Consumed { op, site })?;
        let leads_to_leaf = inputs.iter().any(Option::is_some);
        Ok(leads_to_leaf.then(|| recording.tape.op(site, Box::new(rule), inputs)))
    }

    #[track_caller]
    fn on_tape(
        &self,
        op: &'static str,
        push: impl FnOnce(&mut Tape) -> NodeId,
    ) -> Result<Option<NodeId>> {
        let Some(recording) = &self.0.recording else { return Ok(None) };
        let consumed = AutogradError::Consumed { op, site: Location::caller() };
        let mut recording = recording.borrow_mut();
        Ok(Some(push(&mut recording.as_mut().ok_or(consumed)?.tape)))
    }

    pub(crate) fn is(&self, other: &Pass) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}
