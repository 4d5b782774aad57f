//! Which random numbers an operation gets: a function of the module's path and of how often that
//! path has drawn in this pass.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use lowtide_tensor::RandomKey;

/// Where a pass is, and how much it has drawn. Clones are snapshots.
#[derive(Clone, Default)]
pub(crate) struct Draws {
    path: RefCell<String>,
    /// Draws so far, by path; shared until one of the snapshots draws.
    counts: RefCell<Rc<BTreeMap<String, u64>>>,
}

impl Draws {
    /// The key of the next draw at this path.
    pub(crate) fn next(&self, key: RandomKey) -> RandomKey {
        let path = self.path.borrow();
        let mut counts = self.counts.borrow_mut();
        let count = Rc::make_mut(&mut *counts).entry(path.clone()).or_default();
        let nth = *count;
        *count += 1;
        key.op(&path).op(&nth.to_string())
    }

    /// Goes on where `other` is.
    pub(crate) fn go_on_from(&self, other: &Draws) {
        *self.counts.borrow_mut() = Rc::clone(&other.counts.borrow());
    }

    /// Runs `inside` with `name` at the end of the path.
    pub(crate) fn within<R>(&self, name: &str, inside: impl FnOnce() -> R) -> R {
        /// Shortens the path again, also when `inside` panics.
        struct Back<'a>(&'a RefCell<String>, usize);
        impl Drop for Back<'_> {
            fn drop(&mut self) {
                self.0.borrow_mut().truncate(self.1);
            }
        }
        let _back = Back(&self.path, self.path.borrow().len());
        {
            let mut path = self.path.borrow_mut();
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(name);
        }
        inside()
    }

    pub(crate) fn path(&self) -> String {
        self.path.borrow().clone()
    }
}
