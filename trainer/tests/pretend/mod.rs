//! The driver of every test that runs on a device.

use lowtide_allocator::cuda::pretend::TestDriver;

pub(crate) const DRIVER: TestDriver<'_> =
    TestDriver::of_tensors(env!("CARGO_MANIFEST_DIR"), env!("CARGO_TARGET_TMPDIR"));
