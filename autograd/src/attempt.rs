//! The gradients and buffer updates of one attempt at a training step. Dropping the attempt is the
//! rollback.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use lowtide_tensor::{DType, Tensor};

use crate::cast::Casts;
use crate::error::{AutogradError, LeafFault, Result, Site};
use crate::meta::TensorMeta;

/// The identity of a value that gradients are collected for, such as a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeafId(u64);

impl LeafId {
    /// An identity that no other leaf of this process has. Identities compare in the order of
    /// creation.
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
    /// An identity that no other buffer of this process has. Identities compare in the order of
    /// creation.
    #[expect(clippy::new_without_default, reason = "every call gives another value")]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        BufferId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The number of a pass within its attempt. The segments of a pass share its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PassNumber(u64);

/// The gradients and buffer updates that the passes of one step share.
///
/// An attempt is a cheap handle. When the last handle is dropped, the gradients and updates are
/// freed, and nothing else has changed.
#[derive(Clone, Debug, Default)]
pub struct Attempt(Rc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    gradients: RefCell<Gradients>,
    /// The shape and type of each leaf in this step.
    leaves: RefCell<BTreeMap<LeafId, TensorMeta>>,
    /// The pass that computed a gradient of a half type, while only that pass has contributed.
    half_from: RefCell<BTreeMap<LeafId, PassNumber>>,
    passes: Cell<u64>,
    buffers: RefCell<BufferUpdates>,
    /// The casts of leaves, which trials share.
    casts: Rc<RefCell<Casts>>,
    /// Present in a trial: the attempt whose sums the trial continues.
    base: Option<Attempt>,
}

impl Attempt {
    /// An attempt with no gradients yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A new attempt that continues from the sums and buffer updates of this one without changing
    /// them. Only leaves that its own passes add to have a gradient in the new attempt.
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

    /// The leaves that passes of this attempt have used so far, in the order in which the leaves
    /// were made. The loss decides which leaves get a gradient.
    pub fn leaves(&self) -> Vec<LeafId> {
        self.0.leaves.borrow().keys().copied().collect()
    }

    /// The number of a new pass.
    pub(crate) fn next_pass(&self) -> PassNumber {
        self.0.passes.set(self.0.passes.get() + 1);
        PassNumber(self.0.passes.get())
    }

    /// `Ok` unless `leaf` had another shape or type earlier in this step: broadcasting would add
    /// the gradients of both.
    pub(crate) fn check_leaf(&self, leaf: LeafId, value: &Tensor, site: Site) -> Result<()> {
        let second = TensorMeta::of(value);
        let first = *self.0.leaves.borrow_mut().entry(leaf).or_insert(second);
        let fault = LeafFault::Changed { first, second };
        if first == second { Ok(()) } else { Err(AutogradError::Leaf { op: "leaf", site, fault }) }
    }

    /// The value of `leaf` converted to `dtype`.
    #[track_caller]
    pub(crate) fn cast_leaf(&self, leaf: LeafId, value: &Tensor, dtype: DType) -> Result<Tensor> {
        self.0.casts.borrow_mut().get(leaf, value, dtype)
    }

    /// Declares that no further forward pass will follow in this step. Under a
    /// [`CastPolicy`](crate::CastPolicy) each leaf is converted once in a step; from this call on
    /// a conversion is freed as soon as backward does not need it any more.
    pub fn end_casts(&self) {
        self.0.casts.borrow_mut().close();
    }

    /// Takes the gradients out. Passes that are still running begin new sums. The buffer updates
    /// stay with the other handles.
    pub fn into_gradients(self) -> Gradients {
        self.0.leaves.take();
        self.0.casts.take();
        self.0.gradients.take()
    }

    /// Takes the gradients and the buffer updates out. Passes that are still running begin new sums
    /// and updates.
    pub fn into_parts(self) -> (Gradients, BufferUpdates) {
        self.0.leaves.take();
        self.0.casts.take();
        (self.0.gradients.take(), self.0.buffers.take())
    }

    /// Takes the buffer updates out. Passes that are still running begin new updates.
    pub fn take_buffer_updates(&self) -> BufferUpdates {
        self.0.buffers.take()
    }

    /// The updated value of `buffer`, if a pass has updated it.
    pub fn buffer(&self, buffer: BufferId) -> Option<Tensor> {
        self.0.buffers.borrow().get(buffer).cloned()
    }

    /// Replaces the update of `buffer`.
    pub(crate) fn update_buffer(&self, buffer: BufferId, value: Tensor) {
        self.0.buffers.borrow_mut().0.insert(buffer, value);
    }

    /// The sum of the gradients of `leaf` so far.
    pub fn gradient(&self, leaf: LeafId) -> Option<Tensor> {
        self.0.gradients.borrow().get(leaf).cloned()
    }

    /// Takes the gradient of `leaf` out. A later pass begins a new sum.
    pub fn take_gradient(&self, leaf: LeafId) -> Option<Tensor> {
        self.0.half_from.borrow_mut().remove(&leaf);
        self.0.gradients.borrow_mut().remove(leaf)
    }

    /// The number of leaves that have a gradient.
    pub fn len(&self) -> usize {
        self.0.gradients.borrow().len()
    }

    /// True if no leaf has a gradient.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds `gradient` to the sum of `leaf`. The first gradient is moved in; later gradients are
    /// added in place and freed. A sum of one pass keeps a half type; a gradient from a second pass
    /// turns the sum into f32, because small contributions would be rounded away.
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
            // From the second pass on the sum is f32.
            Some(_) if is_half => gradient.to_dtype(DType::F32)?,
            _ => gradient,
        };
        // Later contributions are added in place, so the sum may not share its storage.
        let mut owned = if gradient.is_reusable() { gradient } else { gradient.copied()? };
        match before {
            // Addition is commutative to the bit.
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

    /// Replaces the gradient of `leaf` by one that was computed elsewhere.
    pub fn insert(&mut self, leaf: LeafId, gradient: Tensor) {
        self.0.insert(leaf, gradient);
    }

    /// Adds the gradients of other samples. A leaf that has a gradient only in `others` gets that
    /// one.
    ///
    /// # Errors
    /// `OutOfMemory` of a device; `Shape`, `DType` for gradients of other parameters.
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

    /// True if no leaf has a gradient.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The new values of buffers. The last pass that updated a buffer counts.
#[derive(Debug, Default)]
pub struct BufferUpdates(BTreeMap<BufferId, Tensor>);

impl BufferUpdates {
    /// The new value of `buffer`, if a pass updated it.
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

    /// True if no buffer was updated.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
