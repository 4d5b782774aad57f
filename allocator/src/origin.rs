//! Origins of requests: the module of the model, and the line that a request counts for.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::panic::Location;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Largest number of paths of a process. A block keeps its path in 22 bits; 0 means no path.
const PATHS_MAX: usize = (1 << ModulePath::BITS) - 1;

/// The path of a module inside of its model, such as `blocks.3.attention`.
///
/// A path is a number that stands for the text, the same number in all threads, so that a block can
/// keep it. A process can have 4 million paths; a new path beyond them counts as the module around
/// it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ModulePath(NonZeroU32);

impl ModulePath {
    /// The model itself.
    pub const ROOT: ModulePath = ModulePath(NonZeroU32::MIN);

    /// Number of bits of the number.
    pub(crate) const BITS: u32 = 22;

    /// The module with this path: names with dots between them; the model itself for `""`.
    pub fn new(path: &str) -> ModulePath {
        table().intern(path).unwrap_or(ModulePath::ROOT)
    }

    /// The module `name` inside this module.
    #[must_use]
    pub fn join(self, name: &str) -> ModulePath {
        let mut table = table();
        if let Some(&known) = table.entry(self).children.get(name) {
            return known;
        }
        let parent = table.entry(self).path;
        let path = if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") };
        let Some(child) = table.intern(&path) else { return self };
        table.entries[self.index()].children.insert(name.to_owned(), child);
        child
    }

    /// The names with dots between them; `""` for the model itself.
    pub fn path(self) -> &'static str {
        table().entry(self).path
    }

    /// The module that owns a parameter. The last part of `name` is the parameter itself.
    pub fn of_parameter(name: &str) -> ModulePath {
        ModulePath::new(name.rsplit_once('.').map_or("", |(module, _)| module))
    }

    fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    /// A number below `1 << BITS`, 0 for no module.
    #[inline]
    pub(crate) fn to_bits(module: Option<ModulePath>) -> u32 {
        module.map_or(0, |module| module.0.get())
    }

    /// The module of a number from [`to_bits`](Self::to_bits).
    #[inline]
    pub(crate) fn from_bits(bits: u32) -> Option<ModulePath> {
        NonZeroU32::new(bits).map(ModulePath)
    }
}

/// The path, `(root)` for the model itself.
impl fmt::Display for ModulePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path() {
            "" => f.pad("(root)"),
            path => f.pad(path),
        }
    }
}

impl fmt::Debug for ModulePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModulePath({self})")
    }
}

/// Every path that the process has named. Paths are never forgotten: blocks keep only the number.
struct Table {
    entries: Vec<Entry>,
    by_path: BTreeMap<&'static str, ModulePath>,
}

struct Entry {
    path: &'static str,
    /// Children by their last name, so that entering a module builds no text.
    children: BTreeMap<String, ModulePath>,
}

static TABLE: Mutex<Table> = Mutex::new(Table { entries: Vec::new(), by_path: BTreeMap::new() });

fn table() -> MutexGuard<'static, Table> {
    let mut table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    if table.entries.is_empty() {
        table.intern("");
    }
    table
}

impl Table {
    fn entry(&self, module: ModulePath) -> &Entry {
        &self.entries[module.index()]
    }

    /// The number of a path; `None` for a new path in a full table.
    fn intern(&mut self, path: &str) -> Option<ModulePath> {
        if let Some(&known) = self.by_path.get(path) {
            return Some(known);
        }
        let number = u32::try_from(self.entries.len() + 1).ok()?;
        if number as usize > PATHS_MAX {
            return None;
        }
        let module = ModulePath(NonZeroU32::new(number)?);
        let path: &'static str = Box::leak(path.into());
        self.entries.push(Entry { path, children: BTreeMap::new() });
        self.by_path.insert(path, module);
        Some(module)
    }
}

/// The origin of requests of a thread.
///
/// The origin belongs to the thread, not to an allocator: a model may use several allocators, and
/// allocations of a loader's own thread belong to no module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The module that runs; `None` outside of every model.
    pub module: Option<ModulePath>,
    /// The line to record in place of the line that calls the allocator.
    pub site: Option<&'static Location<'static>>,
}

thread_local! {
    static CURRENT: Cell<Origin> = const { Cell::new(Origin { module: None, site: None }) };
}

impl Origin {
    /// The origin of the next request of this thread.
    #[inline]
    pub fn current() -> Origin {
        CURRENT.get()
    }

    /// Makes this origin the current one until the scope is dropped.
    #[inline]
    pub fn enter(self) -> OriginScope {
        OriginScope { previous: CURRENT.replace(self), _on_this_thread: PhantomData }
    }
}

/// A guard that sets the [`Origin`] of the thread's requests. Its drop restores the origin before.
#[must_use = "the origin ends with the scope"]
#[derive(Debug)]
pub struct OriginScope {
    previous: Origin,
    _on_this_thread: PhantomData<*const ()>,
}

impl Drop for OriginScope {
    fn drop(&mut self) {
        CURRENT.set(self.previous);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_number_however_it_is_reached() {
        let block = ModulePath::ROOT.join("blocks").join("3").join("attention");
        assert_eq!(block, ModulePath::new("blocks.3.attention"));
        assert_eq!(block, ModulePath::ROOT.join("blocks.3").join("attention"));
        assert_eq!(block, ModulePath::of_parameter("blocks.3.attention.weight"));
        assert_eq!(ModulePath::of_parameter("weight"), ModulePath::ROOT);
        assert_eq!(block.to_string(), "blocks.3.attention");
        assert_eq!((ModulePath::ROOT.path(), ModulePath::ROOT.to_string()), ("", "(root)".into()));
        assert_eq!(ModulePath::from_bits(ModulePath::to_bits(Some(block))), Some(block));
        assert_eq!(ModulePath::from_bits(ModulePath::to_bits(None)), None);
    }
}
