//! The driver of every test that runs on a device.

use lowtide_allocator::cuda::pretend::{TestDriver, Watch};

const PAGE_BYTES: usize = 2 << 20;

pub(crate) const DRIVER: TestDriver<'_> = TestDriver {
    package: env!("CARGO_MANIFEST_DIR"),
    scratch: env!("CARGO_TARGET_TMPDIR"),
    kernels: &["../tensor/src"],
    // The tests of tensors watch the accesses.
    watch: Watch::Barriers,
    capacity_bytes: 64 << 20,
    page_bytes: PAGE_BYTES,
    context_bytes: PAGE_BYTES,
};
