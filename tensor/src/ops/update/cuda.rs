//! Updates on NVIDIA devices: a launch for each tensor, by the kernel of its formula.

use lowtide_allocator::cuda::{Argument, Kernel as Signature, Parameter};

use super::kernel::{Item, Update};
use super::{AdamUpdate, KnownFormula, SgdUpdate, UpdateFormula};
use crate::cuda::kernels::{UPDATE, grid};
use crate::cuda::{Cuda, CudaOperands};
use crate::dtype::DType;
use crate::error::{Result, TensorError};
use Parameter::{Floats, Read, U64, Write};

const SGD: Signature =
    Signature { name: "sgd_f32", parameters: &[Write, Write, Read, U64, Floats(5)] };
const ADAM: Signature =
    Signature { name: "adam_f32", parameters: &[Write, Write, Write, Read, U64, Floats(9)] };

/// Loads the kernels of all known formulas.
pub(super) fn reserve(cuda: &Cuda) -> Result<()> {
    [SGD, ADAM].iter().try_for_each(|kernel| cuda.reserve(UPDATE, kernel))
}

/// `Ok` if there is a kernel for every item.
pub(super) fn check<F, const STATES: usize, const SCALARS: usize>(
    op: &Update<F, STATES, SCALARS>,
) -> Result<()>
where
    F: UpdateFormula<STATES, SCALARS>,
{
    let is_plain = op.form.dtypes == [DType::F32; 2] && op.form.is_contiguous && !op.form.quantized;
    let is_known = |item: &Item<F>| {
        item.formula.known().is_some_and(|formula| formula.state_counts().contains(&STATES))
    };
    if is_plain && SCALARS == 0 && op.items.iter().all(is_known) {
        return Ok(());
    }
    Err(TensorError::NoKernel { op: F::NAME, device: "cuda" })
}

/// Enqueues the updates of parameters, gradients and states of f32.
pub(super) fn update<F, const STATES: usize, const SCALARS: usize>(
    op: &Update<F, STATES, SCALARS>,
    cuda: &Cuda,
    operands: &CudaOperands<'_>,
) -> Result<()>
where
    F: UpdateFormula<STATES, SCALARS>,
{
    let formulas = op.items.iter().filter_map(|item| Some((item.len, item.formula.known()?)));
    for (index, (item_len, formula)) in formulas.enumerate() {
        let state = |k: usize| operands.write(index * (1 + STATES) + k).to_write();
        let gradient = operands.read(index).to_read();
        let len = Argument::U64(item_len as u64);
        match formula {
            KnownFormula::Sgd(SgdUpdate { weight_decay, keep, take, along_g, along_m }) => {
                let floats = [weight_decay, keep, take, along_g, along_m].map(|x| x as f32);
                let momentum = if STATES == 1 { state(1) } else { Argument::Nothing };
                let arguments = [state(0), momentum, gradient, len, Argument::Floats(&floats)];
                cuda.launch(UPDATE, &SGD, grid(item_len), &arguments)?;
            }
            KnownFormula::Adam(AdamUpdate { betas, coupled, keep, rate, root_scale, eps }) => {
                let [[beta1, take1], [beta2, take2]] = betas.map(|beta| [beta, 1.0 - beta]);
                let floats = [beta1, take1, beta2, take2, coupled, keep, rate, root_scale, eps]
                    .map(|x| x as f32);
                let floats = Argument::Floats(&floats);
                let arguments = [state(0), state(1), state(2), gradient, len, floats];
                cuda.launch(UPDATE, &ADAM, grid(item_len), &arguments)?;
            }
        }
    }
    Ok(())
}
