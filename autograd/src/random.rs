//! Which random numbers an operation gets: a function of the module's path and of how often that
//! path has drawn in this pass.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use lowtide_allocator::{ModulePath, Origin};
use lowtide_tensor::RandomKey;

/// Where a pass is, and how much it has drawn. Clones are snapshots.
#[derive(Clone)]
pub(crate) struct Draws {
    module: Cell<ModulePath>,
    /// Draws so far, by path; shared until one of the snapshots draws.
    counts: RefCell<Rc<BTreeMap<&'static str, u64>>>,
}

impl Draws {
    /// The key of the next draw at this path.
    pub(crate) fn next(&self, key: RandomKey) -> RandomKey {
        let path = self.module.get().path();
        let mut counts = self.counts.borrow_mut();
        let count = Rc::make_mut(&mut *counts).entry(path).or_default();
        let nth = *count;
        *count += 1;
        key.op(path).op(&nth.to_string())
    }

    /// Goes on where `other` is.
    pub(crate) fn go_on_from(&self, other: &Draws) {
        *self.counts.borrow_mut() = Rc::clone(&other.counts.borrow());
    }

    /// Runs `inside` in the module `name` of this one; memory that it asks for counts for it.
    pub(crate) fn within<R>(&self, name: &str, inside: impl FnOnce() -> R) -> R {
        /// Leaves the module again, also when `inside` panics.
        struct Back<'a>(&'a Cell<ModulePath>, ModulePath);
        impl Drop for Back<'_> {
            fn drop(&mut self) {
                self.0.set(self.1);
            }
        }
        let module = self.module.get().join(name);
        let _back = Back(&self.module, self.module.replace(module));
        let _origin = Origin { module: Some(module), site: None }.enter();
        inside()
    }

    pub(crate) fn module(&self) -> ModulePath {
        self.module.get()
    }
}

impl Default for Draws {
    fn default() -> Self {
        Draws { module: Cell::new(ModulePath::ROOT), counts: RefCell::default() }
    }
}
