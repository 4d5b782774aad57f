//! NVIDIA devices: [`Device::cuda`](crate::Device::cuda), and what a kernel has there.
//!
//! Kernels are enqueued on one stream, in program order, and copies from and to the host on another
//! one. A copy waits for work on the memory that it goes to, and for all work where it reads a
//! result; work waits for the copies of its operands. The host waits where a value is read, and
//! nowhere else, unless it has no page-locked memory left for further copies. A kernel that finds a
//! wrong value, such as a label that is no class, has the next read of a value report it.

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
