//! The random key of each draw: a function of the pass's key, of the module's path, and of the
//! number of earlier draws at that path in this pass.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use lowtide_allocator::{ModulePath, Origin};
use lowtide_tensor::RandomKey;

/// The module that a pass is in, and its draws so far. Clones are snapshots.
#[derive(Clone)]
pub(crate) struct Draws {
    module: Cell<ModulePath>,
    /// Number of draws by path. Snapshots share the map until one of them draws.
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

    /// Continues from the counts of `other`.
    pub(crate) fn continue_from(&self, other: &Draws) {
        *self.counts.borrow_mut() = Rc::clone(&other.counts.borrow());
    }

    /// Runs `inside` in the submodule `name`. Memory that `inside` allocates counts for that
    /// module.
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
