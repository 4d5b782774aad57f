//! Guards: the category of allocations, a charge for memory of others, a seal.

use std::fmt;
use std::panic::Location;

use crate::caching::CachingAllocator;
use crate::category::Category;
use crate::error::AllocError;

/// A guard that sets the category of [`CachingAllocator::allocate`]. Its drop restores the category
/// before.
#[must_use = "the category ends with the scope"]
#[derive(Debug)]
pub struct CategoryScope {
    allocator: CachingAllocator,
    previous: Category,
}

impl CategoryScope {
    pub(crate) fn new(allocator: CachingAllocator, previous: Category) -> CategoryScope {
        CategoryScope { allocator, previous }
    }
}

impl Drop for CategoryScope {
    fn drop(&mut self) {
        self.allocator.replace_category(self.previous);
    }
}

/// A guard that makes every request fail. Freed blocks are still cached.
#[must_use = "the seal ends with the guard"]
#[derive(Debug)]
pub struct Seal {
    allocator: CachingAllocator,
}

impl Seal {
    pub(crate) fn new(allocator: CachingAllocator) -> Seal {
        allocator.core().lock().state.seals += 1;
        Seal { allocator }
    }
}

impl Drop for Seal {
    fn drop(&mut self) {
        self.allocator.core().lock().state.seals -= 1;
    }
}

/// Bytes that count against the budget without a block. Dropping the charge returns them.
#[must_use = "the charge ends with the guard"]
pub struct Charge {
    allocator: CachingAllocator,
    category: Category,
    size_bytes: usize,
    pub(crate) serial: u64,
    site: &'static Location<'static>,
}

impl Charge {
    pub(crate) fn new(
        allocator: CachingAllocator,
        category: Category,
        size_bytes: usize,
        serial: u64,
        site: &'static Location<'static>,
    ) -> Charge {
        Charge { allocator, category, size_bytes, serial, site }
    }

    /// Bytes charged now.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Category of the charged bytes.
    pub fn category(&self) -> Category {
        self.category
    }

    /// Grows the charge to `bytes`. A charge of this size or more stays unchanged.
    ///
    /// # Errors
    /// As [`CachingAllocator::charge`]; the charge is as before.
    #[track_caller]
    pub fn raise_to(&mut self, bytes: usize) -> Result<(), AllocError> {
        let growth_bytes = bytes.saturating_sub(self.size_bytes);
        if growth_bytes > 0 {
            let site = Location::caller();
            self.allocator.grow_charge(Some(self.serial), self.category, growth_bytes, site)?;
            self.size_bytes = bytes;
        }
        Ok(())
    }

    pub(crate) fn allocator(&self) -> &CachingAllocator {
        &self.allocator
    }

    pub(crate) fn site(&self) -> &'static Location<'static> {
        self.site
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.allocator.core().lock().discharge(self.serial, self.site);
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Charge")
            .field("category", &self.category)
            .field("size_bytes", &self.size_bytes)
            .finish_non_exhaustive()
    }
}
