//! Saved tensors that leave their device until backward needs them. They wait in another device's
//! memory, or they are dropped and a recipe recomputes them.

use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::rc::{Rc, Weak};

use lowtide_allocator::Category;
use lowtide_tensor::{Device, Tensor};

use crate::error::{AutogradError, Result};
use crate::offload::Offload;
use crate::recipe::{KnownResult, Recipe, Recipes};

/// The saved tensors of one pass that one policy evicts.
pub(crate) struct Store {
    /// The destination of evicted tensors; `None` if only results with a recipe are evicted.
    pub(crate) offload: Option<Offload>,
    /// Present if results are dropped that are cheap to recompute.
    recipes: Option<RefCell<Recipes>>,
    /// Tensors on the device. They leave once nothing else holds them.
    resident: RefCell<Vec<Weak<StoredTensor>>>,
    /// Tensors on the host in the order of eviction. Backward needs them in the opposite order.
    on_host: RefCell<Vec<Weak<StoredTensor>>>,
}

/// One saved tensor of a store. Several rules may share it.
pub(crate) struct StoredTensor {
    residence: RefCell<Residence>,
    recipe: Option<Rc<Recipe>>,
    /// Index into [`Store::on_host`].
    order: Cell<usize>,
    store: Weak<Store>,
}

#[derive(Clone)]
enum Residence {
    /// The saved tensor itself, with its version at the time of saving.
    Device { tensor: Tensor, version: u64 },
    /// A copy on the host, to be brought back to `device` in `category`.
    Host { copy: Tensor, device: Device, category: Category },
    /// Nothing: the recipe recomputes the tensor.
    Dropped,
    /// The tensor brought back or recomputed, with its version since.
    Restored { tensor: Tensor, version: u64 },
}

impl Store {
    /// A store that moves tensors to `offload` and drops results that `recipes` can recompute.
    pub(crate) fn new(offload: Option<Offload>, recipes: Option<Recipes>) -> Rc<Self> {
        Rc::new(Store {
            offload,
            recipes: recipes.map(RefCell::new),
            resident: RefCell::default(),
            on_host: RefCell::default(),
        })
    }

    /// The entry of `tensor`; `None` for a tensor that always stays on the device.
    pub(crate) fn track(self: &Rc<Self>, tensor: &Tensor) -> Option<Rc<StoredTensor>> {
        let recipe = self.recipe(tensor);
        let is_offloaded = self.offload.as_ref().is_some_and(|offload| offload.takes(tensor));
        // Later recipes may start from the tensor.
        let is_source = self.drops_cheap() && tensor.category() != Category::Parameter;
        if !tensor.layout().is_contiguous() || !(recipe.is_some() || is_offloaded || is_source) {
            return None;
        }
        Some(self.find(tensor).unwrap_or_else(|| {
            let residence = Residence::Device { tensor: tensor.clone(), version: tensor.version() };
            let (residence, store) = (RefCell::new(residence), Rc::downgrade(self));
            let stored = Rc::new(StoredTensor { residence, recipe, order: Cell::new(0), store });
            self.resident.borrow_mut().push(Rc::downgrade(&stored));
            stored
        }))
    }

    /// The entry of `tensor`, if it is tracked and still on the device.
    pub(crate) fn find(&self, tensor: &Tensor) -> Option<Rc<StoredTensor>> {
        let resident = self.resident.borrow();
        resident.iter().filter_map(Weak::upgrade).find(|stored| stored.holds(tensor))
    }

    /// True if results are dropped that are cheap to recompute.
    pub(crate) fn drops_cheap(&self) -> bool {
        self.recipes.is_some()
    }

    /// The recipe of `tensor`, if it has one.
    pub(crate) fn recipe(&self, tensor: &Tensor) -> Option<Rc<Recipe>> {
        self.recipes.as_ref()?.borrow().of(tensor)
    }

    pub(crate) fn add_recipe(&self, known: KnownResult) {
        if let Some(recipes) = &self.recipes {
            recipes.borrow_mut().add(known);
        }
    }

    /// Frees the recipes of results that no rule has saved. Called when no operation will follow.
    pub(crate) fn close(&self) {
        self.recipes.as_ref().map(RefCell::take);
    }

    /// Evicts the tensors that only the record holds by now.
    ///
    /// # Errors
    /// `OutOfMemory` of the host.
    #[track_caller]
    pub(crate) fn evict(&self) -> Result<()> {
        let mut resident = self.resident.borrow_mut();
        let mut index = 0;
        while index < resident.len() {
            let Some(stored) = resident[index].upgrade() else {
                resident.remove(index);
                continue;
            };
            match stored.evict(self.offload.as_ref())? {
                Eviction::InUse => {
                    index += 1;
                    continue;
                }
                Eviction::Moved => {
                    let mut on_host = self.on_host.borrow_mut();
                    stored.order.set(on_host.len());
                    on_host.push(Rc::downgrade(&stored));
                }
                Eviction::Done => {}
            }
            resident.remove(index);
        }
        drop(resident);
        if let Some(recipes) = &self.recipes {
            recipes.borrow_mut().remove_dead();
        }
        Ok(())
    }

    /// Brings back the tensors that backward needs after the one at `order`.
    fn prefetch(&self, order: usize) -> Result<()> {
        let on_host = self.on_host.borrow();
        let before = on_host[..order].iter().rev().filter_map(Weak::upgrade);
        let count = self.offload.as_ref().map_or(0, |offload| offload.prefetch_count);
        before.take(count).try_for_each(|stored| stored.restore())
    }
}

/// The outcome of evicting one tensor.
enum Eviction {
    /// Something beside the record holds the tensor, or wrote it. Eviction is tried again later.
    InUse,
    /// The tensor is on the host now.
    Moved,
    /// The tensor was freed, to be recomputed, or it stays where it is: nothing is left to try.
    Done,
}

impl StoredTensor {
    /// True if this entry has the elements of `tensor` in the same order, on the device.
    fn holds(&self, tensor: &Tensor) -> bool {
        let Residence::Device { tensor: held, version } = &*self.residence.borrow() else {
            return false;
        };
        held.shares_storage(tensor)
            && held.layout().offset() == tensor.layout().offset()
            && held.element_count() == tensor.element_count()
            && held.dtype() == tensor.dtype()
            && *version == tensor.version()
    }

    /// Evicts the tensor if nothing else holds it.
    #[track_caller]
    fn evict(&self, offload: Option<&Offload>) -> Result<Eviction> {
        let mut residence = self.residence.borrow_mut();
        let Residence::Device { tensor, version } = &*residence else { return Ok(Eviction::Done) };
        if !tensor.is_reusable() || tensor.version() != *version {
            return Ok(Eviction::InUse);
        }
        if self.recipe.is_some() {
            *residence = Residence::Dropped;
            return Ok(Eviction::Done);
        }
        let Some(offload) = offload.filter(|offload| offload.takes(tensor)) else {
            return Ok(Eviction::Done);
        };
        let (device, category) = (tensor.device().clone(), tensor.category());
        // Both copies keep the tensor's origin, whichever operation moves them.
        let _origin = tensor.origin().enter();
        let copy = tensor.to_device(&offload.host, category)?;
        *residence = Residence::Host { copy, device, category };
        Ok(Eviction::Moved)
    }

    /// Brings the tensor back to its device, or recomputes it.
    #[track_caller]
    fn restore(&self) -> Result<()> {
        let mut residence = self.residence.borrow_mut();
        let tensor = match (&*residence, &self.recipe) {
            (Residence::Host { copy, device, category }, _) => {
                let _origin = copy.origin().enter();
                copy.to_device(device, *category)?
            }
            (Residence::Dropped, Some(recipe)) => recipe.run()?,
            _ => return Ok(()),
        };
        let version = tensor.version();
        *residence = Residence::Restored { tensor, version };
        Ok(())
    }

    /// The recipe that recomputes the tensor, if it has one.
    pub(crate) fn recipe(&self) -> Option<&Rc<Recipe>> {
        self.recipe.as_ref()
    }

    /// The tensor on its device, and the expected version if its storage is not the one that was
    /// saved. The last caller becomes the only owner of the tensor.
    #[track_caller]
    pub(crate) fn take(self: Rc<Self>) -> Result<(Tensor, Option<u64>)> {
        self.restore()?;
        if let Some(store) = self.store.upgrade() {
            store.prefetch(self.order.get())?;
        }
        let residence = match Rc::try_unwrap(self) {
            Ok(last) => last.residence.into_inner(),
            Err(shared) => shared.residence.borrow().clone(),
        };
        match residence {
            Residence::Device { tensor, .. } => Ok((tensor, None)),
            Residence::Restored { tensor, version } => Ok((tensor, Some(version))),
            Residence::Host { .. } | Residence::Dropped => {
                // `restore` has just replaced this state.
                let (op, site) = ("saved tensor", Location::caller());
                debug_assert!(false, "a tensor is still away");
                Err(AutogradError::Consumed { op, site })
            }
        }
    }
}
