//! Connectionist temporal classification on NVIDIA devices, see `ctc.cu`.

use super::{Backward, Forward, Sizes, X};
use crate::cuda::gate::{Argument, Grid, Parameter, Signature};
use crate::cuda::kernels::{CTC, typed_name};
use crate::cuda::{Checked, Cuda, CudaOperands, OnCuda};
use crate::error::Result;
use Parameter::{Read, U64, Words, Write};

/// The kernel parameters `struct Sizes` and `struct Strides`, in words.
const SIZES: Parameter = Words(5);
const STRIDES: Parameter = Words(3);

/// Largest number of threads of a block, which takes one sample at a time.
const THREADS_MAX: usize = 256;

/// Largest number of blocks of a grid. More samples go to the same blocks.
const BLOCKS_MAX: usize = 1 << 16;

impl Sizes {
    fn words(&self) -> [u64; 5] {
        let Sizes { steps, samples, classes, target_len_max, blank, .. } = *self;
        [steps, samples, classes, target_len_max, blank].map(|size| size as u64)
    }

    fn grid(&self) -> Grid {
        let threads = self.states().next_multiple_of(32).min(THREADS_MAX);
        Grid::row(self.samples.min(BLOCKS_MAX) as u32, threads as u32)
    }
}

fn strides(operands: &CudaOperands<'_>) -> Vec<u64> {
    operands.read(X).layout().strides().iter().map(|&stride| stride as u64).collect()
}

// Enqueues the losses. The next read of a value reports lengths and labels that are out of range.
impl OnCuda for Forward {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let [targets, steps, lens, x] = [0, 1, 2, X].map(|index| operands.read(index).to_read());
        let [loss, scratch] = [0, 1].map(|index| operands.write(index).to_write());
        let (sizes, strides) = (self.0.words(), strides(operands));
        let [sizes, strides] = [&sizes, &strides[..]].map(Argument::Words);
        let numbers = [Checked::Labels(self.0.op), Checked::Indices(self.0.op)]
            .map(|checked| Argument::U64(checked.number().expect("it is one of them")));
        let kernel = Signature {
            name: typed_name!("ctc_check", self.0.dtype),
            parameters: &[Write, Read, Read, Read, U64, U64, SIZES],
        };
        let image = CTC.of(self.0.dtype);
        cuda.with_complaint(|complaint| {
            let arguments = [complaint, targets, steps, lens, numbers[0], numbers[1], sizes];
            cuda.launch(image, &kernel, Grid::row(1, THREADS_MAX as u32), &arguments)
        })?;
        let kernel = Signature {
            name: typed_name!("ctc", self.0.dtype),
            parameters: &[Write, Write, Read, Read, Read, Read, SIZES, STRIDES],
        };
        let arguments = [loss, scratch, x, targets, steps, lens, sizes, strides];
        cuda.launch(image, &kernel, self.0.grid(), &arguments)
    }
}

// Enqueues the gradient. Forward has checked lengths and labels. If one of these has changed since
// then and is out of range, its gradients are NaN.
impl OnCuda for Backward {
    fn cuda(self, cuda: &Cuda, operands: &CudaOperands<'_>) -> Result<()> {
        let [targets, steps, lens, x, dy] =
            [0, 1, 2, X, X + 1].map(|index| operands.read(index).to_read());
        let [dx, scratch] = [0, 1].map(|index| operands.write(index).to_write());
        if self.0.steps * self.0.samples * self.0.classes == 0 {
            return Ok(());
        }
        let (sizes, strides) = (self.0.words(), strides(operands));
        let [sizes, strides] = [&sizes, &strides[..]].map(Argument::Words);
        let kernel = Signature {
            name: typed_name!("ctc_backward", self.0.dtype),
            parameters: &[Write, Write, Read, Read, Read, Read, Read, SIZES, STRIDES],
        };
        let arguments = [dx, scratch, x, targets, steps, lens, dy, sizes, strides];
        cuda.launch(CTC.of(self.0.dtype), &kernel, self.0.grid(), &arguments)
    }
}
