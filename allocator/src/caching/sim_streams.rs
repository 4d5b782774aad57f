//! Work of simulated streams on blocks.

use std::sync::{Arc, Weak};

use crate::caching::buffer::Buffer;
use crate::source::sim_streams::{EarlyReuse, SimStreams, UsedBlock};
use crate::stream::Stream;

impl SimStreams {
    /// Runs a kernel on `stream` that uses `buffers`.
    ///
    /// # Errors
    /// A buffer lies where work on an earlier block may still run.
    pub fn launch(&self, stream: Stream, buffers: &[&Buffer]) -> Result<(), EarlyReuse> {
        self.launch_on(stream, used_by(buffers))
    }

    /// Notes that the host reads or writes `buffers`.
    ///
    /// # Errors
    /// Work on the bytes may still run: the host has not waited for its stream.
    pub fn touch(&self, buffers: &[&Buffer]) -> Result<(), EarlyReuse> {
        self.touch_by_host(used_by(buffers))
    }
}

/// The blocks that a kernel uses. They are read before the clocks are locked, because an allocator
/// takes its own lock first and then the lock of the clocks.
fn used_by(buffers: &[&Buffer]) -> Vec<UsedBlock> {
    let used = |buffer: &&Buffer| {
        let shared = Arc::downgrade(buffer.allocator().shared());
        let owner: Weak<dyn Send + Sync> = shared;
        UsedBlock { serial: buffer.serial(), owner, pieces: buffer.pieces() }
    };
    buffers.iter().map(used).collect()
}
