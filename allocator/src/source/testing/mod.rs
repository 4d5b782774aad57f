//! Adaptors for tests: a source that fails, that shares its device, that writes down its calls.

pub(crate) mod co_tenant;
pub(crate) mod fault;
pub(crate) mod recording;
