//! Saved tensors that leave their device until backward needs them: for another device's memory, or
//! for good, because a recipe makes them again.

use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::rc::{Rc, Weak};

use lowtide_allocator::Category;
use lowtide_tensor::{Device, Tensor};

use crate::error::{AutogradError, Result};
use crate::offload::Offload;
use crate::recipe::{Known, Recipe, Recipes};

/// The saved tensors of one pass that leave, or may leave, in one way.
pub(crate) struct Store {
    /// Where they go; `None` where only those go that have a recipe.
    pub(crate) offload: Option<Offload>,
    /// Present where results are dropped that are cheap to compute again.
    recipes: Option<RefCell<Recipes>>,
    /// Still on the device; they go when nothing else holds them.
    waiting: RefCell<Vec<Weak<Parked>>>,
    /// On the host, in the order in which they went; backward comes by in the opposite one.
    gone: RefCell<Vec<Weak<Parked>>>,
}

/// One tensor, which may be saved by several rules.
pub(crate) struct Parked {
    place: RefCell<Residence>,
    recipe: Option<Rc<Recipe>>,
    /// Place in the order of those that went.
    order: Cell<usize>,
    store: Weak<Store>,
}

#[derive(Clone)]
enum Residence {
    /// As it was saved, with the version it had.
    Device { tensor: Tensor, version: u64 },
    /// A copy on the host; back to `device`, as `category`.
    Host { copy: Tensor, device: Device, category: Category },
    /// Dropped; the recipe makes it again.
    Nowhere,
    /// Brought back, with the version it has since.
    Back { tensor: Tensor, version: u64 },
}

impl Store {
    pub(crate) fn new(offload: Option<Offload>, drops_cheap: bool) -> Rc<Self> {
        Rc::new(Store {
            offload,
            recipes: drops_cheap.then(RefCell::default),
            waiting: RefCell::default(),
            gone: RefCell::default(),
        })
    }

    /// The place of `tensor` here; `None` for one that always stays.
    pub(crate) fn park(self: &Rc<Self>, tensor: &Tensor) -> Option<Rc<Parked>> {
        let recipe = self.recipe(tensor);
        let is_offloaded = self.offload.as_ref().is_some_and(|offload| offload.takes(tensor));
        // Those are watched that a recipe may begin with.
        let is_source = self.drops_cheap() && tensor.category() != Category::Parameter;
        if !tensor.layout().is_contiguous() || !(recipe.is_some() || is_offloaded || is_source) {
            return None;
        }
        Some(self.kept(tensor).unwrap_or_else(|| {
            let place = Residence::Device { tensor: tensor.clone(), version: tensor.version() };
            let (place, store) = (RefCell::new(place), Rc::downgrade(self));
            let parked = Rc::new(Parked { place, recipe, order: Cell::new(0), store });
            self.waiting.borrow_mut().push(Rc::downgrade(&parked));
            parked
        }))
    }

    /// The place of `tensor` here, if it has one and something else holds it as well.
    pub(crate) fn kept(&self, tensor: &Tensor) -> Option<Rc<Parked>> {
        let waiting = self.waiting.borrow();
        waiting.iter().filter_map(Weak::upgrade).find(|parked| parked.holds(tensor))
    }

    /// Whether results are dropped that are cheap to compute again.
    pub(crate) fn drops_cheap(&self) -> bool {
        self.recipes.is_some()
    }

    /// How `tensor` is computed again, if that is known.
    pub(crate) fn recipe(&self, tensor: &Tensor) -> Option<Rc<Recipe>> {
        self.recipes.as_ref()?.borrow().of(tensor)
    }

    /// Adds a recipe.
    pub(crate) fn know(&self, known: Known) {
        if let Some(recipes) = &self.recipes {
            recipes.borrow_mut().add(known);
        }
    }

    /// Forgets the recipes of what is not saved: no operation will follow.
    pub(crate) fn close(&self) {
        self.recipes.as_ref().map(RefCell::take);
    }

    /// Moves what only the record holds by now.
    ///
    /// # Errors
    /// `OutOfMemory` of the host.
    #[track_caller]
    pub(crate) fn settle(&self) -> Result<()> {
        let mut waiting = self.waiting.borrow_mut();
        let mut index = 0;
        while index < waiting.len() {
            let Some(parked) = waiting[index].upgrade() else {
                waiting.remove(index);
                continue;
            };
            if !parked.go(self.offload.as_ref())? {
                index += 1;
                continue;
            }
            waiting.remove(index);
            if parked.is_on_host() {
                let mut gone = self.gone.borrow_mut();
                parked.order.set(gone.len());
                gone.push(Rc::downgrade(&parked));
            }
        }
        drop(waiting);
        if let Some(recipes) = &self.recipes {
            recipes.borrow_mut().tidy();
        }
        Ok(())
    }

    /// Brings back the tensors that backward needs after the one at `order`.
    fn prefetch(&self, order: usize) -> Result<()> {
        let gone = self.gone.borrow();
        let before = gone[..order].iter().rev().filter_map(Weak::upgrade);
        let count = self.offload.as_ref().map_or(0, |offload| offload.prefetch_count);
        before.take(count).try_for_each(|parked| parked.come_back())
    }
}

impl Parked {
    /// Whether this is where `tensor` waits: the same elements in the same order.
    fn holds(&self, tensor: &Tensor) -> bool {
        let Residence::Device { tensor: held, version } = &*self.place.borrow() else {
            return false;
        };
        held.shares_storage(tensor)
            && held.layout().offset() == tensor.layout().offset()
            && held.element_count() == tensor.element_count()
            && held.dtype() == tensor.dtype()
            && *version == tensor.version()
    }

    /// Lets the tensor go if nothing else holds it; whether that is settled now.
    #[track_caller]
    fn go(&self, offload: Option<&Offload>) -> Result<bool> {
        let mut place = self.place.borrow_mut();
        let Residence::Device { tensor, version } = &*place else { return Ok(true) };
        if !tensor.is_reusable() || tensor.version() != *version {
            return Ok(false);
        }
        if self.recipe.is_some() {
            *place = Residence::Nowhere;
        } else if let Some(offload) = offload.filter(|offload| offload.takes(tensor)) {
            let (device, category) = (tensor.device().clone(), tensor.category());
            // Both copies count for what the tensor counts for, whichever operation moves them.
            let _origin = tensor.origin().enter();
            let copy = tensor.to_device(&offload.host, category)?;
            *place = Residence::Host { copy, device, category };
        }
        Ok(true)
    }

    fn is_on_host(&self) -> bool {
        matches!(&*self.place.borrow(), Residence::Host { .. })
    }

    #[track_caller]
    fn come_back(&self) -> Result<()> {
        let mut place = self.place.borrow_mut();
        let tensor = match (&*place, &self.recipe) {
            (Residence::Host { copy, device, category }, _) => {
                let _origin = copy.origin().enter();
                copy.to_device(device, *category)?
            }
            (Residence::Nowhere, Some(recipe)) => recipe.run()?,
            _ => return Ok(()),
        };
        let version = tensor.version();
        *place = Residence::Back { tensor, version };
        Ok(())
    }

    /// How it is computed again, if it may be.
    pub(crate) fn recipe(&self) -> Option<&Rc<Recipe>> {
        self.recipe.as_ref()
    }

    /// The tensor on its device, and the version to compare with where it is another storage than
    /// the one that was saved. The last one to ask has the tensor for itself.
    #[track_caller]
    pub(crate) fn bring_back(self: Rc<Self>) -> Result<(Tensor, Option<u64>)> {
        self.come_back()?;
        if let Some(store) = self.store.upgrade() {
            store.prefetch(self.order.get())?;
        }
        let place = match Rc::try_unwrap(self) {
            Ok(last) => last.place.into_inner(),
            Err(shared) => shared.place.borrow().clone(),
        };
        match place {
            Residence::Device { tensor, .. } => Ok((tensor, None)),
            Residence::Back { tensor, version } => Ok((tensor, Some(version))),
            Residence::Host { .. } | Residence::Nowhere => {
                // `come_back` has just replaced this state.
                let (op, site) = ("saved tensor", Location::caller());
                debug_assert!(false, "a tensor is still away");
                Err(AutogradError::Consumed { op, site })
            }
        }
    }
}
