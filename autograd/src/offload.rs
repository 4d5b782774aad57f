//! Where the saved tensors of a segment wait, if not on their device.

use lowtide_tensor::{Device, Tensor};

/// Where the saved tensors of a segment go, and which.
///
/// A tensor moves as soon as nothing but the record holds it. One that is held elsewhere as well
/// (a leaf, a parameter, a batch, a value that is still used) stays, because moving it would free
/// nothing; so does a frozen one and one that is not contiguous.
#[derive(Clone, Debug, PartialEq)]
pub struct Offload {
    /// The device whose memory they wait in.
    pub host: Device,
    /// Smaller tensors stay.
    pub size_bytes_min: usize,
    /// How many tensors are brought back ahead of the one that backward needs.
    pub prefetch_count: usize,
}

impl Offload {
    /// To `host`, from 1 KiB on, without bringing anything back early.
    pub fn to(host: &Device) -> Self {
        Offload { host: host.clone(), size_bytes_min: 1 << 10, prefetch_count: 0 }
    }

    /// Whether `tensor` is large enough.
    pub(crate) fn takes(&self, tensor: &Tensor) -> bool {
        tensor.size_bytes() >= self.size_bytes_min
    }
}
