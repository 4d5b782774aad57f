//! NVIDIA devices: [`Device::cuda`](crate::Device::cuda), and the interface of a kernel there.
//!
//! Kernels are enqueued on one stream, in program order, and copies from and to the host on another
//! one. A copy to the device waits for earlier work on its destination, and a copy to the host for
//! all earlier work. A kernel waits for the copies of its operands. The host waits only when it
//! reads a value, or when there is no page-locked memory left for further copies. If a kernel finds
//! a wrong value, such as a label that is no class, the next read of a value reports it.

mod copies;
mod device;
pub mod gate;
mod handle;
pub(crate) mod kernels;
mod library;
mod messages;
mod on_cuda;
mod operand;
#[cfg(feature = "pretend")]
pub mod pretend;
mod refusal;

pub(crate) use copies::Checked;
pub use gate::Precision;
pub use handle::{Cuda, CudaOptions};
pub use kernels::compile_kernels;
pub use library::{ProductCounts, Products, ProductsBy};
pub use on_cuda::CudaOperands;
pub(crate) use on_cuda::OnCuda;
pub use operand::DeviceOperand;
