//! Remedies: changes that would help if nothing fits.

use lowtide_autograd::AutogradError;
use lowtide_nn::NnError;
use lowtide_nn::optim::{ByModel, Sgd, SgdOptions, Stateful};
use lowtide_tensor::{Device, DeviceKind, SimSpec, TensorError};

use super::{Candidate, Search, part_sizes};
use crate::error::{Remedy, Result, TrainError};
use crate::options::Options;
use crate::plan::knobs::{Knobs, Thrift};
use crate::plan::rehearsal::RunInputs;
use crate::precision::Precision;
use crate::task::contract::Task;

/// Number of plans that are rehearsed again for a remedy, such as another optimizer. The plans that
/// need least memory are taken.
const NEAR_LEAST: usize = 8;

/// A capacity larger than any machine has.
const HOST_BYTES_MAX: usize = 1 << 50;

/// True if the error says that the device has no kernel for an operation.
fn lacks_kernel(error: &TrainError) -> bool {
    let TrainError::Nn(NnError::Autograd(AutogradError::Tensor(error))) = error else {
        return false;
    };
    matches!(error, TensorError::NoKernel { .. })
}

impl<'a, T: Task + Clone, O: Stateful + Clone> Search<'a, T, O> {
    /// Changes that would make the training fit, the cheapest first. Splitting changes only
    /// rounding; more memory changes nothing. Narrower numbers or another optimizer change the
    /// training.
    pub(super) fn remedies(
        &mut self,
        least: Knobs,
        needed_bytes: usize,
        can_split: bool,
    ) -> Result<Vec<Remedy>> {
        // Offloading is tried first, before `largest` adds candidates with parts that are not
        // allowed.
        let host_bytes = self.offload_budget()?;
        let mut remedies = Vec::new();
        if can_split {
            let sizes = part_sizes(least.micro_batch);
            for thrift in self.levels() {
                if let Some(part) = self.largest(&sizes[1..], thrift)? {
                    remedies.push(Remedy::MicroBatch(part.knobs.micro_batch));
                    break;
                }
            }
        }
        remedies.push(Remedy::Budget(needed_bytes));
        remedies.extend(host_bytes.map(Remedy::OffloadBudget));
        let RunInputs { task, options, .. } = self.inputs;
        let may_change = self.inputs.division.freedom().eight_bit_states;
        if let Some(eight_bit) = self.inputs.optimizer.eight_bit().filter(|_| may_change) {
            let with_8bit = self.inputs.with_optimizer(&eight_bit);
            if let Some(needed_bytes) = self.fitting_bytes(with_8bit)? {
                remedies.push(Remedy::EightBitStates { needed_bytes });
            }
        }
        let sgd = Sgd::new(SgdOptions::new(self.inputs.optimizer.learning_rate()))?;
        let stateless: Box<dyn Stateful> = match task.turns().as_slice() {
            [] => Box::new(sgd),
            models => Box::new(
                models.iter().fold(ByModel::new(), |all, model| all.with(model, sgd.clone())),
            ),
        };
        let with_sgd = self.inputs.with_optimizer(&stateless);
        if let Some(needed_bytes) = self.fitting_bytes(with_sgd)? {
            remedies.push(Remedy::StatelessOptimizer { needed_bytes });
        }
        if options.precision == Precision::F32 {
            let halved = Options { precision: Precision::Bf16, ..options.clone() };
            let in_half = RunInputs { options: &halved, ..self.inputs };
            // A model that cannot be cast does not get this remedy.
            if let Ok(Some(needed_bytes)) = self.fitting_bytes(in_half) {
                remedies.push(Remedy::HalfPrecision { needed_bytes });
            }
        }
        Ok(remedies)
    }

    /// The least peak with other `inputs`; `None` if it does not fit or the device lacks a kernel.
    fn fitting_bytes<P>(&self, inputs: RunInputs<'_, T, P>) -> Result<Option<usize>>
    where
        P: Stateful + Clone,
    {
        match self.least_bytes(inputs) {
            Err(error) if lacks_kernel(&error) => Ok(None),
            found => Ok(Some(found?).filter(|&needed_bytes| needed_bytes <= self.budget_bytes)),
        }
    }

    /// The least host memory for offloaded blocks with which the training fits.
    fn offload_budget(&mut self) -> Result<Option<usize>> {
        if self.block_count == 0 {
            return Ok(None);
        }
        let mut tried = self.tried.clone();
        if !self.can_offload() && self.inputs.device.kind() == DeviceKind::Cuda {
            let host = Device::sim(SimSpec::like_this_machine(HOST_BYTES_MAX))?;
            let options = Options { offload: Some(host), ..self.inputs.options.clone() };
            let inputs = RunInputs { options: &options, ..self.inputs };
            let mut search = Search::new(inputs, self.events, self.budget_bytes);
            let sizes: Vec<usize> = self.tried.iter().map(|of| of.knobs.micro_batch).collect();
            let smallest = sizes.into_iter().min().expect("a batch has at least one part");
            for recomputed in [Thrift::CHEAP, Thrift::blocks(self.block_count)] {
                search.offloaded(&[smallest], recomputed)?;
            }
            tried = search.tried;
        }
        let would_fit = tried.iter().filter(|candidate| self.fits_device(candidate));
        let bytes = would_fit.map(|candidate| candidate.forecast.offloaded_peak_bytes);
        Ok(bytes.min())
    }

    /// The least peak with other `inputs`. Other inputs may change the order of the plans, so the
    /// plans that need least memory with the present inputs are all tried.
    fn least_bytes<P: Stateful + Clone>(&self, inputs: RunInputs<'_, T, P>) -> Result<usize> {
        let mut tried: Vec<&Candidate> = self.tried.iter().collect();
        tried.sort_by_key(|candidate| candidate.forecast.peak_bytes);
        let mut least_bytes = usize::MAX;
        for candidate in tried.into_iter().take(NEAR_LEAST) {
            let forecast = inputs.rehearse(self.events, candidate.knobs)?;
            least_bytes = least_bytes.min(forecast.peak_bytes);
        }
        Ok(least_bytes)
    }
}
