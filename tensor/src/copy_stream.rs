//! The stream of copies between host and device, and how copies ahead lie in their block.

use lowtide_allocator::Stream;

/// The stream on which an NVIDIA device, or a simulated one, copies from and to the host; kernels
/// run on the default one.
pub(crate) const COPIES: Stream = Stream::new(1).expect("there are 64");

/// The unit in which parts of a block begin that is copied to ahead.
const ALIGNMENT_BYTES: usize = 256;

/// Bytes that a part of this size takes of a block that is copied to ahead.
pub(crate) fn room_bytes(size_bytes: usize) -> usize {
    size_bytes.next_multiple_of(ALIGNMENT_BYTES)
}
