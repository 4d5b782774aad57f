//! The negative log-likelihood on NVIDIA devices, see `nll.cu`.

use super::TARGETS;
use crate::cuda::gate::{Argument, Grid, Parameter, Signature};
use crate::cuda::kernels::{NLL, WALK_OF_1, grid, typed_name, walk_of};
use crate::cuda::{Checked, Cuda, CudaOperands, OnCuda};
use crate::error::Result;
use crate::layout::{Nest, Shape};
use crate::ops::cross_entropy::nll::{Backward, Forward};
use Parameter::{I64, Read, U64, Write};

/// Threads of the block that sums all positions. The number is large because each thread waits for
/// its reads.
const THREADS: u32 = 512;

impl OnCuda for Forward {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let [labels, x] = [0, 1].map(|index| operands.read(index));
        let [sum, count] = [0, 1].map(|index| operands.write(index));
        let (shape, strides) = (x.layout().shape(), x.layout().strides());
        let others = [&strides[..1], &strides[2..]].concat();
        let positions = Shape::new(&[&shape[..1], &shape[2..]].concat());
        let walk = walk_of(&Nest::new(&positions, [&others[..]]), positions.element_count());
        let kernel = Signature {
            name: typed_name!("nll", self.0.dtype),
            parameters: &[Write, Write, Write, Read, Read, Read, I64, TARGETS, U64, WALK_OF_1],
        };
        let targets = self.0.words();
        let number =
            Argument::U64(Checked::Labels(self.0.name).number().expect("it is one of them"));
        let step = Argument::I64(strides[1] as i64);
        let sources = [x.to_read(), labels.to_read(), self.0.weight(operands)];
        let rest = [step, Argument::Words(&targets), number, Argument::Words(&walk)];
        cuda.with_complaint(|complaint| {
            let arguments =
                [&[sum.to_write(), count.to_write(), complaint], &sources[..], &rest].concat();
            // One block adds in a fixed order.
            cuda.launch(NLL.of(self.0.dtype), &kernel, Grid::row(1, THREADS), &arguments)
        })
    }
}

// Enqueues the gradient. Forward has checked the labels. If a label has changed since then and is
// out of range, its gradients are NaN.
impl OnCuda for Backward {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let ([labels, dy], dx) = ([0, 1].map(|index| operands.read(index)), operands.write(0));
        let kernel = Signature {
            name: typed_name!("nll_backward", self.0.dtype),
            parameters: &[Write, Read, Read, Read, TARGETS],
        };
        let targets = self.0.words();
        let sources = [dy.to_read(), labels.to_read(), self.0.weight(operands)];
        let arguments = [&[dx.to_write()], &sources[..], &[Argument::Words(&targets)]].concat();
        cuda.launch(NLL.of(self.0.dtype), &kernel, grid(self.0.blocks.element_count()), &arguments)
    }
}
