//! Memory at the peak by module of the model.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::ModuleBytes;
use super::count::LIST_LEN_MAX;
use crate::lifetimes::Life;
use crate::recording::Recording;

/// Blocks and bytes by module, most bytes first; empty if no block has a module.
pub(super) fn by_module(recording: &Recording, lives: &[&Life]) -> Vec<ModuleBytes> {
    let mut by_module: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for life in lives {
        let site = life.site.and_then(|site| recording.sites.get(site as usize));
        let module = site.map_or("", |site| site.module.as_str());
        let (blocks, bytes) = by_module.entry(module).or_default();
        *blocks += 1;
        *bytes = bytes.saturating_add(life.size_bytes);
    }
    if by_module.keys().all(|module| module.is_empty()) {
        return Vec::new();
    }
    let share = |(module, (blocks, bytes)): (&str, (u64, u64))| ModuleBytes {
        module: module.to_owned(),
        blocks,
        bytes,
    };
    let mut shares: Vec<ModuleBytes> = by_module.into_iter().map(share).collect();
    shares.sort_by_key(|share| Reverse(share.bytes));
    shares.truncate(LIST_LEN_MAX);
    shares
}
