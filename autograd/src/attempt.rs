//! What one attempt at a training step has brought together so far. Dropping it is the rollback.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use lowtide_tensor::{DType, Shape, Tensor};

use crate::cast::Casts;
use crate::error::{AutogradError, LeafFault, Result};
use crate::tape::Site;

/// The identity of a value that gradients are collected for, such as a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeafId(u64);

impl LeafId {
    /// An identity that no other leaf of this process has; later ones compare greater.
    #[expect(clippy::new_without_default, reason = "every call gives another value")]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        LeafId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The identity of a buffer that forward passes update, such as a running mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(u64);

impl BufferId {
    /// An identity that no other buffer of this process has; later ones compare greater.
    #[expect(clippy::new_without_default, reason = "every call gives another value")]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        BufferId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Which of an attempt's passes one is; its segments are part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PassNumber(u64);

/// The gradients and buffer updates that the passes of one step share. A cheap handle; when the
/// last one is dropped, they are gone and nothing else has changed.
#[derive(Clone, Debug, Default)]
pub struct Attempt(Rc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    gradients: RefCell<Gradients>,
    /// What each leaf was in this step.
    leaves: RefCell<BTreeMap<LeafId, (Shape, DType)>>,
    /// The pass that each gradient of a half type is from, as long as it is one.
    half_from: RefCell<BTreeMap<LeafId, PassNumber>>,
    passes: Cell<u64>,
    buffers: RefCell<BufferUpdates>,
    /// Shared with trials.
    casts: Rc<RefCell<Casts>>,
    /// Present in a trial: the attempt whose gradients it goes on from.
    base: Option<Attempt>,
}

impl Attempt {
    /// An attempt with no gradients yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// An attempt in which the next passes can be tried without changing this one: its gradients go
    /// on from the sums of this one, its buffers from the updates. Only leaves that it adds to have
    /// a gradient in it.
    #[must_use]
    pub fn trial(&self) -> Self {
        Attempt(Rc::new(Shared {
            leaves: RefCell::new(self.0.leaves.borrow().clone()),
            buffers: RefCell::new(BufferUpdates(self.0.buffers.borrow().0.clone())),
            casts: Rc::clone(&self.0.casts),
            base: Some(self.clone()),
            ..Shared::default()
        }))
    }

    /// The leaves that passes of this attempt have used so far, in the order in which they were
    /// made; whether they get a gradient depends on the loss.
    pub fn leaves(&self) -> Vec<LeafId> {
        self.0.leaves.borrow().keys().copied().collect()
    }

    /// The number of a new pass.
    pub(crate) fn next_pass(&self) -> PassNumber {
        self.0.passes.set(self.0.passes.get() + 1);
        PassNumber(self.0.passes.get())
    }

    /// `Ok` unless `leaf` had another shape or type before in this step: its gradients would be
    /// added by broadcasting.
    pub(crate) fn check_leaf(&self, leaf: LeafId, value: &Tensor, site: Site) -> Result<()> {
        let second = (*value.shape(), value.dtype());
        let first = *self.0.leaves.borrow_mut().entry(leaf).or_insert(second);
        let fault = LeafFault::Changed { first, second };
        if first == second { Ok(()) } else { Err(AutogradError::Leaf { op: "leaf", site, fault }) }
    }

    /// `value`, which is that of `leaf`, as `dtype`.
    #[track_caller]
    pub(crate) fn cast_leaf(&self, leaf: LeafId, value: &Tensor, dtype: DType) -> Result<Tensor> {
        self.0.casts.borrow_mut().get(leaf, value, dtype)
    }

    /// Says that no further pass forward will follow. Under a [`CastPolicy`](crate::CastPolicy)
    /// the leaves are converted once in a step; from here on a conversion is freed as soon as
    /// backward has no more use for it.
    pub fn end_casts(&self) {
        self.0.casts.borrow_mut().close();
    }

    /// Takes the gradients out; passes that still run start anew. The buffer updates stay with
    /// the other handles.
    pub fn into_gradients(self) -> Gradients {
        self.0.leaves.take();
        self.0.casts.take();
        self.0.gradients.take()
    }

    /// Takes both halves out; passes that still run start anew.
    pub fn into_parts(self) -> (Gradients, BufferUpdates) {
        self.0.leaves.take();
        self.0.casts.take();
        (self.0.gradients.take(), self.0.buffers.take())
    }

    /// Takes the buffer updates out; passes that still run start anew.
    pub fn take_buffer_updates(&self) -> BufferUpdates {
        self.0.buffers.take()
    }

    /// What the passes so far made of a buffer, if one of them wrote it.
    pub fn buffer(&self, buffer: BufferId) -> Option<Tensor> {
        self.0.buffers.borrow().get(buffer).cloned()
    }

    /// Replaces what is to become of a buffer.
    pub(crate) fn update_buffer(&self, buffer: BufferId, value: Tensor) {
        self.0.buffers.borrow_mut().0.insert(buffer, value);
    }

    /// The gradient of a leaf, as it is now.
    pub fn gradient(&self, leaf: LeafId) -> Option<Tensor> {
        self.0.gradients.borrow().get(leaf).cloned()
    }

    /// Takes the gradient of a leaf out: a later pass begins it anew.
    pub fn take_gradient(&self, leaf: LeafId) -> Option<Tensor> {
        self.0.half_from.borrow_mut().remove(&leaf);
        self.0.gradients.borrow_mut().remove(leaf)
    }

    /// The number of leaves that have a gradient.
    pub fn len(&self) -> usize {
        self.0.gradients.borrow().len()
    }

    /// Whether no leaf has a gradient.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds `gradient` to the leaf's sum: the first one is moved in, later ones are added in
    /// place and freed. A half type is what the gradient of one pass has; with a second pass the
    /// sum becomes f32, or small parts of it would be lost.
    pub(crate) fn accumulate(
        &self,
        pass: PassNumber,
        leaf: LeafId,
        gradient: Tensor,
    ) -> Result<()> {
        let mut gradients = self.0.gradients.borrow_mut();
        let is_half = matches!(gradient.dtype(), DType::F16 | DType::BF16);
        if let Some(sum) = gradients.0.get_mut(&leaf) {
            if !is_half || self.0.half_from.borrow().get(&leaf) == Some(&pass) {
                return Ok(sum.add_(&gradient)?);
            }
            let wide = gradient.to_dtype(DType::F32)?;
            drop(gradient);
            if sum.dtype() != DType::F32 {
                *sum = sum.to_dtype(DType::F32)?;
                self.0.half_from.borrow_mut().remove(&leaf);
            }
            return Ok(sum.add_(&wide)?);
        }
        let before = self.0.base.as_ref().and_then(|base| base.gradient(leaf));
        let gradient = match &before {
            // The sum is f32 from its second pass on.
            Some(_) if is_half => gradient.to_dtype(DType::F32)?,
            _ => gradient,
        };
        // A view, or one that something else still holds, would be written through later.
        let mut owned = if gradient.is_reusable() { gradient } else { gradient.copied()? };
        match before {
            // An addition has the same bits in either order.
            Some(before) if before.dtype() == owned.dtype() => owned.add_(&before)?,
            Some(before) => owned.add_(&before.to_dtype(owned.dtype())?)?,
            None if is_half => _ = self.0.half_from.borrow_mut().insert(leaf, pass),
            None => {}
        }
        gradients.0.insert(leaf, owned);
        Ok(())
    }
}

/// Gradients by leaf, contiguous and with storages of their own.
#[derive(Debug, Default)]
pub struct Gradients(BTreeMap<LeafId, Tensor>);

impl Gradients {
    /// The gradient of `leaf`, if the loss depends on it.
    pub fn get(&self, leaf: LeafId) -> Option<&Tensor> {
        self.0.get(&leaf)
    }

    /// Takes the gradient of `leaf` out.
    pub fn remove(&mut self, leaf: LeafId) -> Option<Tensor> {
        self.0.remove(&leaf)
    }

    /// Puts a gradient that was computed elsewhere in the place of what `leaf` has.
    pub fn insert(&mut self, leaf: LeafId, gradient: Tensor) {
        self.0.insert(leaf, gradient);
    }

    /// Adds those of other samples. What a leaf has only there is all that it gets.
    ///
    /// # Errors
    /// `OutOfMemory` of a device; `Shape`, `DType` for gradients of something else.
    pub fn add(&mut self, others: Gradients) -> Result<()> {
        for (leaf, gradient) in others.0 {
            match self.0.entry(leaf) {
                Entry::Occupied(own) => own.into_mut().add_(&gradient)?,
                Entry::Vacant(place) => _ = place.insert(gradient),
            }
        }
        Ok(())
    }

    /// All gradients, in the order in which their leaves were made.
    pub fn iter(&self) -> impl Iterator<Item = &Tensor> {
        self.0.values()
    }

    /// All gradients to change in place, in the order in which their leaves were made.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        self.0.values_mut()
    }

    /// The leaves that have a gradient, in the order in which they were made.
    pub fn leaves(&self) -> impl Iterator<Item = LeafId> {
        self.0.keys().copied()
    }

    /// The number of leaves that have a gradient.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no leaf has a gradient.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// New values of buffers, each the last one that a pass of the step gave.
#[derive(Debug, Default)]
pub struct BufferUpdates(BTreeMap<BufferId, Tensor>);

impl BufferUpdates {
    /// The new value of `buffer`, if a pass wrote it.
    pub fn get(&self, buffer: BufferId) -> Option<&Tensor> {
        self.0.get(&buffer)
    }

    /// Takes the new value of `buffer` out.
    pub fn remove(&mut self, buffer: BufferId) -> Option<Tensor> {
        self.0.remove(&buffer)
    }

    /// All new values, in the order in which their buffers were made.
    pub fn iter(&self) -> impl Iterator<Item = (BufferId, &Tensor)> {
        self.0.iter().map(|(&buffer, value)| (buffer, value))
    }

    /// The number of buffers that have a new value.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no buffer was written.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
