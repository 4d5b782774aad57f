//! JSON of bytes by category and by module, and of the ledger of a failed allocation.

use lowtide_allocator::{Category, ModuleShare, OutOfMemory};
use serde_json::{Map, Value, json};

/// The ledger of a failed allocation, with the field names of [`OutOfMemory`].
pub fn ledger_json(ledger: &OutOfMemory) -> Value {
    let by_category = ledger.by_category.iter().map(|(category, &bytes)| (category, bytes));
    json!({
        "requested_bytes": ledger.requested_bytes,
        "missing_bytes": ledger.missing_bytes,
        "largest_free_bytes": ledger.largest_free_bytes,
        "outside_bytes": ledger.outside_bytes,
        "refused_call": ledger.refused_call,
        "capacity_bytes": ledger.capacity_bytes,
        "reserved_bytes": ledger.reserved_bytes,
        "allocated_bytes": ledger.allocated_bytes,
        "charged_bytes": ledger.charged_bytes,
        "cached_bytes": ledger.cached_bytes,
        "bytes_by_category": categories_json(by_category),
        "category": ledger.category.to_string(),
        "site": ledger.site.to_string(),
        "module": ledger.module.map(|module| module.to_string()),
        "bytes_by_module": modules_json(&ledger.by_module),
        "request_index": ledger.request_index,
        "tried": ledger.tried.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "injected": ledger.injected,
    })
}

/// A list of modules, most bytes first.
pub fn modules_json(shares: &[ModuleShare]) -> Value {
    let share = |share: &ModuleShare| {
        let ModuleShare { blocks, bytes, .. } = share;
        json!({ "module": share.name(), "blocks": blocks, "bytes": bytes })
    };
    shares.iter().map(share).collect()
}

/// An object with a key for each category.
pub fn categories_json(bytes: impl IntoIterator<Item = (Category, usize)>) -> Value {
    let members = bytes.into_iter().map(|(category, bytes)| (category.to_string(), bytes.into()));
    Value::Object(members.collect::<Map<String, Value>>())
}
