//! Updates on NVIDIA devices: a launch for each tensor, by the kernel of its formula.

use lowtide_allocator::cuda::{Argument, Kernel as Signature, Parameter};

use super::kernel::Update;
use super::{KnownFormula, UpdateFormula};
use crate::cuda::kernels::{UPDATE, grid};
use crate::cuda::{Cuda, CudaOperands};
use crate::{DType, Result, TensorError};
use Parameter::{Floats, Read, U64, Write};

/// Enqueues the updates of parameters, gradients and states of f32.
pub(super) fn update<F, const STATES: usize, const SCALARS: usize>(
    op: &Update<F, STATES, SCALARS>,
    cuda: &Cuda,
    operands: &CudaOperands<'_>,
) -> Result<()>
where
    F: UpdateFormula<STATES, SCALARS>,
{
    let no_kernel = || TensorError::NoKernel { op: F::NAME, device: "cuda" };
    let has_kernel = op.form.dtypes == [DType::F32; 2]
        && op.form.is_contiguous
        && !op.form.quantized
        && SCALARS == 0
        && op.items.iter().all(|item| {
            item.formula.known().is_some_and(|formula| formula.state_counts().contains(&STATES))
        });
    if !has_kernel {
        return Err(no_kernel());
    }
    for (index, item) in op.items.iter().enumerate() {
        let state = |k: usize| operands.write(index * (1 + STATES) + k).to_write();
        let gradient = operands.read(index).to_read();
        let len = Argument::U64(item.len as u64);
        match item.formula.known().ok_or_else(no_kernel)? {
            KnownFormula::Sgd { weight_decay, keep, take, along_g, along_m } => {
                let floats = [weight_decay, keep, take, along_g, along_m].map(|x| x as f32);
                let parameters = &[Write, Write, Read, U64, Floats(5)];
                let kernel = Signature { name: "sgd_f32", parameters };
                let momentum = if STATES == 1 { state(1) } else { Argument::Nothing };
                let arguments = [state(0), momentum, gradient, len, Argument::Floats(&floats)];
                cuda.launch(UPDATE, &kernel, grid(item.len), &arguments)?;
            }
            KnownFormula::Adam { betas: [beta1, beta2], coupled, keep, rate, root_scale, eps } => {
                let [take1, take2] = [1.0 - beta1, 1.0 - beta2];
                let floats = [beta1, take1, beta2, take2, coupled, keep, rate, root_scale, eps]
                    .map(|x| x as f32);
                let parameters = &[Write, Write, Write, Read, U64, Floats(9)];
                let kernel = Signature { name: "adam_f32", parameters };
                let floats = Argument::Floats(&floats);
                let arguments = [state(0), state(1), state(2), gradient, len, floats];
                cuda.launch(UPDATE, &kernel, grid(item.len), &arguments)?;
            }
        }
    }
    Ok(())
}
