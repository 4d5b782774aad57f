//! The half of a kernel for NVIDIA devices, and the operands that it gets.

use super::gate::Argument;
use super::handle::Cuda;
use super::operand::DeviceOperand;
use crate::error::Result;
use crate::tensor::Tensor;

/// The half of a kernel of this crate for NVIDIA devices: see [`Kernel`](crate::launch::Kernel).
pub(crate) trait OnCuda: Sized {
    /// `Ok` if there is a kernel for these operands; by default there is one for all operands.
    fn check(&self, operands: &CudaOperands<'_>) -> Result<()> {
        let _ = operands;
        Ok(())
    }

    /// Enqueues the kernel, without waiting for it.
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()>;
}

/// The operands of a kernel, locked while it is enqueued, in the order in which they were given to
/// [`Device::launch`](crate::Device::launch).
pub struct CudaOperands<'a> {
    pub(crate) reads: &'a [&'a Tensor],
    pub(crate) writes: &'a [&'a Tensor],
}

impl<'a> CudaOperands<'a> {
    /// The `index`-th operand that is read.
    pub fn read(&self, index: usize) -> DeviceOperand<'a> {
        in_memory(self.reads[index])
    }

    /// The `index`-th operand that is read, for a kernel that may do without it.
    pub(crate) fn read_if(&self, is_there: bool, index: usize) -> Argument<'a> {
        if is_there { self.read(index).to_read() } else { Argument::Nothing }
    }

    /// The `index`-th operand that is written.
    pub fn write(&self, index: usize) -> DeviceOperand<'a> {
        in_memory(self.writes[index])
    }

    /// The number of operands that are written.
    pub fn write_count(&self) -> usize {
        self.writes.len()
    }

    /// The number of operands that are read.
    pub fn read_count(&self) -> usize {
        self.reads.len()
    }
}

fn in_memory(tensor: &Tensor) -> DeviceOperand<'_> {
    let (block, layout) = (tensor.storage().buffer(), tensor.layout());
    DeviceOperand { block, layout, dtype: tensor.dtype() }
}
