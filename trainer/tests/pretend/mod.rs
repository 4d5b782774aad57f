//! The driver of every test that runs on a device.

use lowtide_allocator::cuda::pretend::TestDriver;
use lowtide_tensor::cuda::pretend::test_driver;

pub(crate) const DRIVER: TestDriver<'_> =
    test_driver(env!("CARGO_MANIFEST_DIR"), env!("CARGO_TARGET_TMPDIR"));
