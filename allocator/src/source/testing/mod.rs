//! Adaptors for tests: one fails, one shares its device, one records its calls.

pub(crate) mod co_tenant;
pub(crate) mod fault;
pub(crate) mod recording;
