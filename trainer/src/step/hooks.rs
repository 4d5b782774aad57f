//! Calls that a step makes while it runs.

use lowtide_allocator::Promise;
use lowtide_tensor::Device;

use crate::error::Result;

/// Calls that a step makes while it runs. By default each of them does nothing.
pub(crate) trait StepHooks {
    /// Called when a phase begins: `forward`, `backward` or `optimizer`.
    fn on_phase(&mut self, _phase: &'static str) {}

    /// Called once the passes of all turns are enqueued, before the host waits for the last one.
    ///
    /// # Errors
    /// An error ends the attempt.
    fn on_enqueued(&mut self) -> Result<()> {
        Ok(())
    }

    /// Promises the memory for a fused update, before its first parameter is written.
    ///
    /// # Errors
    /// `OutOfMemory`.
    fn promise(&mut self, _device: &Device) -> Result<Option<Promise>> {
        Ok(None)
    }

    /// True if micro-batches that only repeat the memory of others are left out.
    fn skips_repeated(&self) -> bool {
        false
    }

    /// Adds simulated seconds that the passes on this device do not contain: of micro-batches that
    /// were left out, and of waiting for other stages.
    fn add_skipped_seconds(&mut self, _seconds: f64) {}
}
