//! Losses of pairs on NVIDIA devices, see `pair_loss.cu`.

use super::cpu::partial_count;
use super::{Gradient, PairLoss, Sum, Terms};
use crate::cuda::gate::{Argument, Grid, Parameter, Signature};
use crate::cuda::kernels::{PAIR_LOSS, WALK_OF_3, WALK_OF_4, grid, typed_name, walk_of};
use crate::cuda::{Cuda, CudaOperands, DeviceOperand, OnCuda};
use crate::error::Result;
use crate::layout::{Nest, RANK_MAX};
use Parameter::{F64, Read, U32, U64, Write};

/// Threads of a block that sums a part.
const THREADS: u32 = 256;

/// A loss's number in `pair_loss.cu`, and the loss's parameter.
fn number(loss: PairLoss) -> [Argument<'static>; 2] {
    let (number, parameter) = match loss {
        PairLoss::SquaredError => (0, 0.0),
        PairLoss::AbsoluteError => (1, 0.0),
        PairLoss::SmoothL1 { beta } => (2, beta),
        PairLoss::Huber { delta } => (3, delta),
        PairLoss::BinaryCrossEntropy => (4, 0.0),
        PairLoss::BinaryCrossEntropyOfLogits => (5, 0.0),
        PairLoss::KlDivergence => (6, 0.0),
        PairLoss::KlDivergenceOfLog => (7, 0.0),
    };
    [Argument::U32(number), Argument::F64(parameter)]
}

/// x, the target, and the weight if there is one.
struct Sources<'a>([Option<DeviceOperand<'a>>; 3]);

impl<'a> Sources<'a> {
    /// The operands from operand `first` on.
    fn new(operands: &CudaOperands<'a>, first: usize) -> Self {
        let read = |index| (index < operands.read_count()).then(|| operands.read(index));
        Sources([0, 1, 2].map(|source| read(first + source)))
    }

    fn arguments(&self) -> [Argument<'a>; 3] {
        self.0.map(|source| source.map_or(Argument::Nothing, |source| source.to_read()))
    }

    fn strides(&self) -> [&'a [usize]; 3] {
        self.0.map(|source| source.map_or(&[0; RANK_MAX][..], |source| source.layout().strides()))
    }
}

// Enqueues the sum, with a partial sum for each part.
impl OnCuda for Sum {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let sources = Sources::new(operands, 0);
        let [sum, partials] = [operands.write(0), operands.write(1)];
        let count = partial_count(self.len);
        let walk =
            walk_of(&Nest::new(operands.read(0).layout().shape(), sources.strides()), self.len);
        let kernel = Signature {
            name: typed_name!("pair_loss_part", self.dtype),
            parameters: &[Write, Read, Read, Read, U32, F64, WALK_OF_3],
        };
        let arguments = [
            &[partials.to_write()],
            &sources.arguments()[..],
            &number(self.loss),
            &[Argument::Words(&walk)],
        ];
        let (image, parts) = (PAIR_LOSS.of(self.dtype), Grid::row(count as u32, THREADS));
        cuda.launch(image, &kernel, parts, &arguments.concat())?;
        let name = typed_name!("pair_loss_sum", self.dtype);
        let kernel = Signature { name, parameters: &[Write, Read, U64] };
        let arguments = [sum.to_write(), partials.to_read(), Argument::U64(count as u64)];
        // One block adds in a fixed order.
        cuda.launch(image, &kernel, Grid::row(1, THREADS), &arguments)
    }
}

/// `struct Walk<4>` over the result and the sources.
fn walk(to: &DeviceOperand<'_>, sources: &Sources<'_>, len: usize) -> Vec<u64> {
    let [x, target, weight] = sources.strides();
    walk_of(&Nest::new(to.layout().shape(), [to.layout().strides(), x, target, weight]), len)
}

// Enqueues the loss of each pair.
impl OnCuda for Terms {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let (y, sources) = (operands.write(0), Sources::new(operands, 0));
        let walk = walk(&y, &sources, self.len);
        let kernel = Signature {
            name: typed_name!("pair_loss_terms", self.dtype),
            parameters: &[Write, Read, Read, Read, U32, F64, WALK_OF_4],
        };
        let arguments = [
            &[y.to_write()],
            &sources.arguments()[..],
            &number(self.loss),
            &[Argument::Words(&walk)],
        ];
        cuda.launch(PAIR_LOSS.of(self.dtype), &kernel, grid(self.len), &arguments.concat())
    }
}

// Enqueues the gradient of x.
impl OnCuda for Gradient {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let (dx, dy, sources) = (operands.write(0), operands.read(0), Sources::new(operands, 1));
        let walk = walk(&dx, &sources, self.len);
        let kernel = Signature {
            name: typed_name!("pair_loss_gradient", self.dtype),
            parameters: &[Write, Read, Read, Read, Read, U32, F64, WALK_OF_4],
        };
        let arguments = [
            &[dx.to_write(), dy.to_read()],
            &sources.arguments()[..],
            &number(self.loss),
            &[Argument::Words(&walk)],
        ];
        cuda.launch(PAIR_LOSS.of(self.dtype), &kernel, grid(self.len), &arguments.concat())
    }
}
