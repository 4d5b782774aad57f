//! Saved tensors that wait for backward in another device's memory.

use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::rc::{Rc, Weak};

use lowtide_allocator::Category;
use lowtide_tensor::{Device, Tensor};

use crate::error::{AutogradError, Result};

/// Where the saved tensors of a segment go, and which.
///
/// A tensor moves as soon as nothing but the record holds it. One that is held elsewhere as well
/// (a leaf, a parameter, a batch, a value that is still used) stays, because moving it would free
/// nothing; so does a frozen one and one that is not contiguous.
#[derive(Clone, Debug, PartialEq)]
pub struct Offload {
    /// The device whose memory they wait in.
    pub host: Device,
    /// Smaller tensors stay.
    pub size_bytes_min: usize,
    /// How many tensors are brought back ahead of the one that backward needs.
    pub prefetch_count: usize,
}

impl Offload {
    /// To `host`, from 1 KiB on, without bringing anything back early.
    pub fn to(host: &Device) -> Self {
        Offload { host: host.clone(), size_bytes_min: 1 << 10, prefetch_count: 0 }
    }
}

/// The tensors of one pass that went, or may go, to one place.
pub(crate) struct Store {
    pub(crate) options: Offload,
    /// Still on the device; they go when nothing else holds them.
    waiting: RefCell<Vec<Weak<Parked>>>,
    /// On the host, in the order in which they went; backward comes by in the opposite one.
    gone: RefCell<Vec<Weak<Parked>>>,
}

/// One tensor, which may be saved by several rules.
pub(crate) struct Parked {
    place: RefCell<Residence>,
    /// Place in the order of those that went.
    order: Cell<usize>,
    store: Weak<Store>,
}

enum Residence {
    /// As it was saved, with the version it had.
    Device { tensor: Tensor, version: u64 },
    /// A copy on the host; back to `device`, as `category`.
    Host { copy: Tensor, device: Device, category: Category },
    /// Brought back, with the version it has since.
    Back { tensor: Tensor, version: u64 },
}

impl Store {
    pub(crate) fn new(options: Offload) -> Rc<Self> {
        Rc::new(Store { options, waiting: RefCell::default(), gone: RefCell::default() })
    }

    /// The place of `tensor` here; `None` for one that always stays.
    pub(crate) fn park(self: &Rc<Self>, tensor: &Tensor) -> Option<Rc<Parked>> {
        if !tensor.layout().is_contiguous() || tensor.size_bytes() < self.options.size_bytes_min {
            return None;
        }
        let mut waiting = self.waiting.borrow_mut();
        waiting.retain(|parked| parked.strong_count() > 0);
        let same = waiting.iter().filter_map(Weak::upgrade).find(|parked| parked.holds(tensor));
        Some(same.unwrap_or_else(|| {
            let place = Residence::Device { tensor: tensor.clone(), version: tensor.version() };
            let (place, store) = (RefCell::new(place), Rc::downgrade(self));
            let parked = Rc::new(Parked { place, order: Cell::new(0), store });
            waiting.push(Rc::downgrade(&parked));
            parked
        }))
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
            if !parked.go(&self.options.host)? {
                index += 1;
                continue;
            }
            waiting.remove(index);
            let mut gone = self.gone.borrow_mut();
            parked.order.set(gone.len());
            gone.push(Rc::downgrade(&parked));
        }
        Ok(())
    }

    /// Brings back the tensors that backward needs after the one at `order`.
    fn prefetch(&self, order: usize) -> Result<()> {
        let gone = self.gone.borrow();
        let before = gone[..order].iter().rev().filter_map(Weak::upgrade);
        before.take(self.options.prefetch_count).try_for_each(|parked| parked.come_back())
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

    /// Moves the tensor to `host` if nothing else holds it; whether it is there now.
    #[track_caller]
    fn go(&self, host: &Device) -> Result<bool> {
        let mut place = self.place.borrow_mut();
        let Residence::Device { tensor, version } = &*place else { return Ok(true) };
        if !tensor.is_reusable() || tensor.version() != *version {
            return Ok(false);
        }
        let (device, category) = (tensor.device().clone(), tensor.category());
        // Both copies count for what the tensor counts for, whichever operation moves them.
        let _origin = tensor.origin().enter();
        let copy = tensor.to_device(host, category)?;
        *place = Residence::Host { copy, device, category };
        Ok(true)
    }

    #[track_caller]
    fn come_back(&self) -> Result<()> {
        let mut place = self.place.borrow_mut();
        if let Residence::Host { copy, device, category } = &*place {
            let _origin = copy.origin().enter();
            let tensor = copy.to_device(device, *category)?;
            let version = tensor.version();
            *place = Residence::Back { tensor, version };
        }
        Ok(())
    }

    /// The tensor on its device, and the version to compare with where it is another storage than
    /// the one that was saved.
    #[track_caller]
    pub(crate) fn bring_back(self: Rc<Self>) -> Result<(Tensor, Option<u64>)> {
        self.come_back()?;
        if let Some(store) = self.store.upgrade() {
            store.prefetch(self.order.get())?;
        }
        match &*self.place.borrow() {
            Residence::Device { tensor, .. } => Ok((tensor.clone(), None)),
            Residence::Back { tensor, version } => Ok((tensor.clone(), Some(*version))),
            Residence::Host { copy, .. } => {
                // `come_back` has just replaced this state.
                let (op, site) = ("offload", Location::caller());
                debug_assert!(false, "{copy:?} is still away");
                Err(AutogradError::Consumed { op, site })
            }
        }
    }
}
