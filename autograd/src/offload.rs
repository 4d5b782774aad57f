//! The choice of the saved tensors that are moved to another device's memory, and of that device.

use lowtide_tensor::{Device, Tensor};

/// Options for moving the saved tensors of a segment to another device's memory.
///
/// A tensor moves as soon as only the record holds it. A tensor that is held elsewhere as well (a
/// leaf, a parameter, a batch, a value that is still used) stays, because moving it would free
/// nothing. Frozen tensors and tensors that are not contiguous stay too.
#[derive(Clone, Debug, PartialEq)]
pub struct Offload {
    /// The device whose memory the tensors wait in.
    pub host: Device,
    /// Size of the smallest tensor that moves.
    pub size_bytes_min: usize,
    /// Number of tensors that are brought back ahead of the one that backward needs.
    pub prefetch_count: usize,
}

impl Offload {
    /// Moves tensors of 1 KiB and more to `host`, and brings none back early.
    pub fn to(host: &Device) -> Self {
        Offload { host: host.clone(), size_bytes_min: 1 << 10, prefetch_count: 0 }
    }

    /// True if `tensor` is large enough to move.
    pub(crate) fn takes(&self, tensor: &Tensor) -> bool {
        tensor.size_bytes() >= self.size_bytes_min
    }
}
