//! The largest stretch without a block at a moment, computed from the segments at the end.

use std::collections::BTreeMap;

use crate::lifetimes::Lives;
use crate::recording::EventKind;

/// The size of the largest hole. `None` if the events after the moment do not lead to the recorded
/// end.
pub(super) fn largest_hole_bytes(lives: &Lives, moment: usize) -> Option<u64> {
    let mut ranges = ranges_at(lives, moment)?;
    for life in lives.lives.iter().filter(|life| life.is_live_at(moment)) {
        match lives.recording.pieces.get(&life.id) {
            Some(pieces) => {
                for piece in pieces {
                    cut(&mut ranges, piece.address, piece.size_bytes)?;
                }
            }
            None => cut(&mut ranges, life.address, life.size_bytes)?,
        }
    }
    // PyTorch's segments stay apart even if they touch.
    if lives.recording.policy != "torch" {
        ranges = joined(&ranges);
    }
    Some(ranges.iter().map(|(from, to)| to - from).max().unwrap_or(0))
}

/// Reserved ranges at a moment, from their first address to their end. Starts with the ranges at
/// the end of the recording and undoes the events, the last one first.
fn ranges_at(lives: &Lives, moment: usize) -> Option<BTreeMap<u64, u64>> {
    let mut ranges = BTreeMap::new();
    for range in &lives.recording.end {
        ranges.insert(range.address, range.address.checked_add(range.size_bytes)?);
    }
    for event in lives.recording.events[moment..].iter().rev() {
        match event.kind {
            EventKind::Reserve => cut(&mut ranges, event.address, event.size_bytes)?,
            EventKind::Release => {
                let to = event.address.checked_add(event.size_bytes)?;
                let before = ranges.range(..to).next_back();
                if before.is_some_and(|(_, &end)| end > event.address) {
                    return None;
                }
                ranges.insert(event.address, to);
            }
            _ => {}
        }
    }
    Some(ranges)
}

/// Removes a range; `None` if `ranges` do not have all of it.
fn cut(ranges: &mut BTreeMap<u64, u64>, address: u64, size_bytes: u64) -> Option<()> {
    let to = address.checked_add(size_bytes)?;
    let mut at = address;
    while at < to {
        let (&from, &end) = ranges.range(..=at).next_back()?;
        if end <= at {
            return None;
        }
        ranges.remove(&from);
        if from < at {
            ranges.insert(from, at);
        }
        if end > to {
            ranges.insert(to, end);
        }
        at = end;
    }
    Some(())
}

fn joined(ranges: &BTreeMap<u64, u64>) -> BTreeMap<u64, u64> {
    let mut joined: BTreeMap<u64, u64> = BTreeMap::new();
    for (&from, &to) in ranges {
        match joined.last_entry() {
            Some(mut last) if *last.get() == from => *last.get_mut() = to,
            _ => drop(joined.insert(from, to)),
        }
    }
    joined
}
