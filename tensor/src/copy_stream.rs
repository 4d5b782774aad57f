//! The stream of copies between host and device, and the placement of copies ahead in their block.

use lowtide_allocator::Stream;

/// The stream of copies from and to the host, on an NVIDIA device and on a simulated one. Kernels
/// run on the default stream.
pub(crate) const COPIES: Stream = Stream::new(1).expect("there are 64");

/// Alignment of the parts in a block of copies ahead.
const ALIGNMENT_BYTES: usize = 256;

/// Bytes that a part of this size takes in a block of copies ahead.
pub(crate) fn room_bytes(size_bytes: usize) -> usize {
    size_bytes.next_multiple_of(ALIGNMENT_BYTES)
}
