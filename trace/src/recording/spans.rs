//! Disjoint address ranges, each with an owner.

use std::collections::BTreeMap;

/// Ranges by first address, with end and owner.
#[derive(Clone, Debug)]
pub(crate) struct Spans<T>(BTreeMap<u64, (u64, T)>);

impl<T> Default for Spans<T> {
    fn default() -> Self {
        Spans(BTreeMap::new())
    }
}

impl<T: Copy + PartialEq> Spans<T> {
    /// Adds a range, unless it is empty or overlaps another one. Returns true if it was added.
    #[must_use]
    pub(crate) fn insert(&mut self, address: u64, end: u64, owner: T) -> bool {
        let is_free = address < end && !self.overlaps(address, end);
        if is_free {
            self.0.insert(address, (end, owner));
        }
        is_free
    }

    pub(crate) fn overlaps(&self, address: u64, end: u64) -> bool {
        self.0.range(..end).next_back().is_some_and(|(_, &(before, _))| before > address)
    }

    /// Merges the range that begins at `address` with ranges of the same owner that touch it.
    pub(crate) fn merge_around(&mut self, address: u64) {
        let Some(&(end, owner)) = self.0.get(&address) else { return };
        if let Some(&(next_end, next_owner)) = self.0.get(&end)
            && next_owner == owner
        {
            self.0.remove(&end);
            self.0.insert(address, (next_end, owner));
        }
        let end = self.0[&address].0;
        if let Some((_, before)) = self.0.range_mut(..address).next_back()
            && *before == (address, owner)
        {
            before.0 = end;
            self.0.remove(&address);
        }
    }

    /// Removes a part of one range, and returns the owner; `None` if no range contains the whole
    /// part.
    pub(crate) fn cut(&mut self, address: u64, end: u64) -> Option<T> {
        let (first, last, owner) = self.around(address).filter(|&(_, last, _)| end <= last)?;
        if end <= address {
            return None;
        }
        self.0.remove(&first);
        if first < address {
            self.0.insert(first, (address, owner));
        }
        if end < last {
            self.0.insert(end, (last, owner));
        }
        Some(owner)
    }

    /// The range that contains `address`: start, end and owner.
    pub(crate) fn around(&self, address: u64) -> Option<(u64, u64, T)> {
        self.last_from(address).filter(|&(_, end, _)| address < end)
    }

    /// The last range that begins at or before `address`.
    pub(crate) fn last_from(&self, address: u64) -> Option<(u64, u64, T)> {
        self.0.range(..=address).next_back().map(|(&first, &(end, owner))| (first, end, owner))
    }

    /// The first range that begins at or behind `address`.
    pub(crate) fn first_from(&self, address: u64) -> Option<(u64, u64, T)> {
        self.0.range(address..).next().map(|(&first, &(end, owner))| (first, end, owner))
    }

    /// The end of the range that begins at `address`.
    pub(crate) fn end_of(&self, address: u64) -> Option<u64> {
        self.0.get(&address).map(|&(end, _)| end)
    }

    /// Ranges by address: start, end and owner.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64, T)> + '_ {
        self.0.iter().map(|(&address, &(end, owner))| (address, end, owner))
    }
}
