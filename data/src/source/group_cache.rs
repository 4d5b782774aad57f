//! A cache of decoded row groups.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Decoded row groups, most recently used first.
pub(super) struct GroupCache<G> {
    size_bytes_max: usize,
    groups: Mutex<VecDeque<CachedGroup<G>>>,
}

struct CachedGroup<G> {
    /// Index of the row group.
    group: usize,
    /// Number of decoded bytes.
    size_bytes: usize,
    /// `None` until the group is decoded.
    content: Arc<Mutex<Option<Arc<G>>>>,
}

impl<G> GroupCache<G> {
    pub(super) fn new(size_bytes_max: usize) -> Self {
        Self { size_bytes_max, groups: Mutex::default() }
    }

    /// Visits the memory of the full cache, for a file whose row groups have the sizes
    /// `groups_bytes`.
    pub(super) fn visit(
        &self,
        visit: &mut dyn FnMut(*const u8, usize),
        groups_bytes: impl Iterator<Item = usize>,
    ) {
        let fold = |(sum, largest): (usize, usize), bytes: usize| {
            (sum.saturating_add(bytes), largest.max(bytes))
        };
        let (sum, largest) = groups_bytes.fold((0, 0), fold);
        visit(std::ptr::from_ref(self).cast(), sum.min(self.size_bytes_max.max(largest)));
    }

    /// The row group `group`, which has `size_bytes` when it is decoded. Only the first thread that
    /// asks for a group decodes it, and the others wait. Different groups are decoded in parallel.
    pub(super) fn get<E>(
        &self,
        group: usize,
        size_bytes: usize,
        decode: impl FnOnce() -> Result<G, E>,
    ) -> Result<Arc<G>, E> {
        let content = self.touch(group, size_bytes);
        let mut content = content.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(decoded) = &*content {
            return Ok(Arc::clone(decoded));
        }
        let decoded = Arc::new(decode()?);
        *content = Some(Arc::clone(&decoded));
        Ok(decoded)
    }

    /// Moves a group to the front and drops the last groups while the cache is too large.
    fn touch(&self, group: usize, size_bytes: usize) -> Arc<Mutex<Option<Arc<G>>>> {
        let mut groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        let found = groups.iter().position(|cached| cached.group == group);
        let cached = found.and_then(|at| groups.remove(at));
        let new = || CachedGroup { group, size_bytes, content: Arc::default() };
        let cached = cached.unwrap_or_else(new);
        let content = Arc::clone(&cached.content);
        groups.push_front(cached);
        let total_bytes = |groups: &VecDeque<CachedGroup<G>>| {
            groups.iter().fold(0_usize, |sum, cached| sum.saturating_add(cached.size_bytes))
        };
        while groups.len() > 1 && total_bytes(&groups) > self.size_bytes_max {
            groups.pop_back();
        }
        content
    }
}
