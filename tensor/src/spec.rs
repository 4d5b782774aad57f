//! Specifications of devices: everything about a machine that decides allocations and time.

use crate::rates::Rates;

/// Pages of host memory on every system.
const HOST_PAGE_BYTES: usize = 64 << 10;

/// Pages of NVIDIA devices, as the driver of every device of today says.
const CUDA_PAGE_BYTES: usize = 2 << 20;

/// The limit of mappings that the allocator of a real device has, except for the second device of
/// a process and later ones.
const MAPPINGS_MAX: usize = 1 << 14;

/// Assumed memory outside the allocator of an NVIDIA device that is not there.
const CUDA_OUTSIDE_BYTES: usize = 768 << 20;

/// The kind of machine that computes, or that a simulated device stands for: decides the workspace
/// of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The processor of a machine.
    Cpu,
    /// An NVIDIA device.
    Cuda,
}

/// A device to simulate: the properties of a machine that decide about allocations and time.
#[derive(Clone, Copy, Debug)]
pub struct SimSpec {
    /// The kind of machine that is simulated.
    pub kind: DeviceKind,
    /// Memory of the device.
    pub capacity_bytes: usize,
    /// Memory of the device that is not for tensors: on an NVIDIA device the context, kernels,
    /// libraries, and a reserve for what these load later.
    pub outside_bytes: usize,
    /// The unit in which memory is reserved, which decides the peak: a power of two, at least 512.
    pub page_bytes: usize,
    /// The limit of mappings that show pages at a second address: see
    /// [`CachingAllocator::mappings_max`](lowtide_allocator::CachingAllocator::mappings_max).
    pub mappings_max: usize,
    /// Threads that compute; decides the workspace of attention.
    pub threads: usize,
    /// True if products and convolutions of f32 are of tf32 on an NVIDIA device, as
    /// `Products::Library(Precision::Tf32)` asks for; decides the workspace of convolutions.
    pub tf32: bool,
    /// The rates that simulated time is made of.
    pub rates: Rates,
}

impl SimSpec {
    /// A device like this machine's CPU, with nominal rates: 40 Gflop/s per thread, 10 GB/s.
    /// Good for comparing plans with each other, not for predicting seconds.
    pub fn like_this_machine(capacity_bytes: usize) -> Self {
        let threads = available_threads();
        SimSpec {
            kind: DeviceKind::Cpu,
            capacity_bytes,
            outside_bytes: 0,
            page_bytes: HOST_PAGE_BYTES,
            mappings_max: if cfg!(target_os = "linux") { MAPPINGS_MAX } else { 0 },
            threads,
            tf32: false,
            rates: Rates::nominal(40e9 * threads as f64, 10e9),
        }
    }

    /// A device like an NVIDIA H100 (SXM): pages of 2 MiB, as every device of today has, and the
    /// rates of its data sheet for f32: 67 Tflop/s, 3.35 TB/s, 64 GB/s from and to the host. The
    /// memory outside is an assumption: 512 MiB of context, kernels and libraries, and 256 MiB of
    /// reserve; less on a device of less than 12 GiB.
    pub fn like_cuda(capacity_bytes: usize) -> Self {
        SimSpec {
            kind: DeviceKind::Cuda,
            outside_bytes: CUDA_OUTSIDE_BYTES.min(capacity_bytes / 16),
            page_bytes: CUDA_PAGE_BYTES,
            mappings_max: MAPPINGS_MAX,
            threads: 1,
            rates: Rates::nominal(67e12, 3.35e12).with_link(64e9),
            ..SimSpec::like_this_machine(capacity_bytes)
        }
    }
}

/// Threads that this machine runs at a time.
pub(crate) fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
