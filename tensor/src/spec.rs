//! Specifications of devices: everything about a machine that decides allocations and time.

use crate::rates::Rates;

/// Pages of host memory on every system.
const HOST_PAGE_BYTES: usize = 64 << 10;

/// Pages of NVIDIA devices, as the driver reports for every device of today.
const CUDA_PAGE_BYTES: usize = 2 << 20;

/// Largest number of mappings of the allocator of a real device, except for the second device of a
/// process and later ones.
const MAPPINGS_MAX: usize = 1 << 14;

/// Assumed memory outside the allocator of a simulated NVIDIA device.
const CUDA_OUTSIDE_BYTES: usize = 768 << 20;

/// The kind of machine that computes, or that a simulated device stands for. The workspace of
/// operations depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The processor of a machine.
    Cpu,
    /// An NVIDIA device.
    Cuda,
}

/// A device to simulate: the properties of a machine that allocations and time depend on.
#[derive(Clone, Copy, Debug)]
pub struct SimSpec {
    /// The kind of machine that is simulated.
    pub kind: DeviceKind,
    /// Memory of the device.
    pub capacity_bytes: usize,
    /// Memory of the device that is not for tensors: on an NVIDIA device the context, kernels,
    /// libraries, and a reserve for what these load later.
    pub outside_bytes: usize,
    /// The unit in which memory is reserved: a power of two, at least 512. The peak of memory
    /// depends on it.
    pub page_bytes: usize,
    /// Largest number of mappings that show pages at a second address: see
    /// [`CachingAllocator::mappings_max`](lowtide_allocator::CachingAllocator::mappings_max).
    pub mappings_max: usize,
    /// Number of threads that compute. The workspace of attention depends on it.
    pub threads: usize,
    /// True if products and convolutions of f32 are in tf32 on an NVIDIA device, as
    /// `Products::Library(Precision::Tf32)` asks for. The workspace of convolutions depends on it.
    pub tf32: bool,
    /// The rates from which simulated time is computed.
    pub rates: Rates,
}

impl SimSpec {
    /// A device like this machine's CPU, with nominal rates: 40 Gflop/s per thread, 10 GB/s. The
    /// rates are good for comparing plans, not for predicting seconds.
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

    /// A device like an NVIDIA H100 (SXM): pages of 2 MiB, as on every device of today, and the
    /// rates of its data sheet for f32: 67 Tflop/s, 3.35 TB/s, 64 GB/s from and to the host. The
    /// memory outside the allocator is an assumption: 512 MiB of context, kernels and libraries,
    /// and 256 MiB of reserve; less on a device of less than 12 GiB.
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

/// Number of threads that this machine runs at a time.
pub(crate) fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
