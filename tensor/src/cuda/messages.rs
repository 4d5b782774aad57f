//! Tensors that one NVIDIA device sends to another, without the host.

use lowtide_allocator::Stream;

use super::gate::Communicator;
use super::handle::Cuda;
use super::on_cuda::CudaOperands;
use crate::cost::{Cost, OpClass};
use crate::cpu::Cpu;
use crate::device::Device;
use crate::error::{Result, TensorError};
use crate::launch::{Kernel, Operands};
use crate::tensor::Tensor;

/// The messages of an exchange: tensors that are read for other ranks, and tensors that are written
/// with the data of other ranks.
struct Exchange<'a> {
    communicator: &'a Communicator,
    gifts: &'a [(usize, Tensor)],
    takings: &'a [(usize, Tensor)],
}

impl Kernel for Exchange<'_> {
    fn name(&self) -> &'static str {
        "exchange"
    }

    fn cost(&self) -> Cost {
        let tensors = self.gifts.iter().chain(self.takings);
        let bytes = tensors.map(|(_, tensor)| tensor.size_bytes() as f64).sum();
        Cost { class: OpClass::Transfer, flops: 0.0, bytes }
    }

    fn cpu(self, _: &Cpu, _: &mut Operands<'_>) -> Result<()> {
        Err(TensorError::NoKernel { op: self.name(), device: "cpu" })
    }

    fn check_cuda(&self, _: &CudaOperands<'_>) -> Result<()> {
        Ok(())
    }

    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let gift = |(index, &(rank, _)): (usize, &(usize, Tensor))| {
            let operand = operands.read(index);
            (rank, (operand.block(), operand.bytes()))
        };
        let taking = |(index, &(rank, _)): (usize, &(usize, Tensor))| {
            let operand = operands.write(index);
            (rank, (operand.block(), operand.bytes()))
        };
        let gifts: Vec<_> = self.gifts.iter().enumerate().map(gift).collect();
        let takings: Vec<_> = self.takings.iter().enumerate().map(taking).collect();
        let streams = cuda.streams();
        Ok(self.communicator.exchange(streams, Stream::DEFAULT, &gifts, &takings)?)
    }
}

impl Device {
    /// Gives tensors of this NVIDIA device to other ranks, and takes tensors from them. Each of
    /// these ranks has to call `exchange` too, with the same numbers of bytes. A tensor that is
    /// given must not share elements with a tensor that is taken.
    ///
    /// # Errors
    /// `NoKernel` on other devices; `Shape` for a tensor that is not contiguous; `Overlap`,
    /// `Frozen`; `Messages`, after which the communicator cannot be used any more.
    #[track_caller]
    pub fn exchange(
        &self,
        communicator: &Communicator,
        gifts: &[(usize, Tensor)],
        takings: &[(usize, Tensor)],
    ) -> Result<()> {
        let exchange = Exchange { communicator, gifts, takings };
        let mut tensors = gifts.iter().chain(takings).map(|(_, tensor)| tensor);
        if let Some(tensor) = tensors.find(|tensor| !tensor.layout().is_contiguous()) {
            let (op, shape) = (exchange.name(), *tensor.shape());
            return Err(TensorError::Shape { op, left: shape, right: shape });
        }
        let [reads, writes] =
            [gifts, takings].map(|all| all.iter().map(|(_, tensor)| tensor).collect::<Vec<_>>());
        self.launch(exchange, &reads, &writes)
    }
}
