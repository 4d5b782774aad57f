//! Known formulas in the form of `update.cu`: a number and constants.

use crate::cuda::kernels::kernel_number;
use crate::ops::update::known::{AdamUpdate, KnownFormula, KnownNorms, SgdUpdate};

/// The largest number of constants that a known formula has.
pub(super) const CONSTANTS_MAX: usize = 10;

/// A formula's number in `update.cu`, and its constants in the order of the kernel.
pub(super) type OfKernel = (u32, [f64; CONSTANTS_MAX]);

/// The place of a name in its enum in `update.cu`, looked up by the compiler.
macro_rules! number {
    ($name:literal) => {
        const { kernel_number(include_str!("../update.cu"), $name) }
    };
}

fn with_zeros<const N: usize>(constants: [f64; N]) -> [f64; CONSTANTS_MAX] {
    std::array::from_fn(|k| constants.get(k).copied().unwrap_or(0.0))
}

impl KnownFormula {
    /// The formula for the kernel; `None` if the kernel takes other numbers of states or scalars.
    pub(super) fn of_kernel(self, states: usize, scalars: usize) -> Option<OfKernel> {
        use KnownFormula as Known;
        let (number, constants) = match (self, states, scalars) {
            (Known::Sgd(sgd), 0, 0) => (number!("SGD"), sgd.constants()),
            (Known::Sgd(sgd), 1, 0) => (number!("MOMENTUM"), sgd.constants()),
            (Known::Adam(adam), 2, 0) => (number!("ADAM"), adam.constants()),
            (Known::Amsgrad(adam), 3, 0) => (number!("AMSGRAD"), adam.constants()),
            (Known::Nadam(all), 2, 0) => (number!("NADAM"), all),
            (Known::Adamax(all), 2, 0) => (number!("ADAMAX"), with_zeros(all)),
            (Known::Adagrad(all), 1, 0) => (number!("ADAGRAD"), with_zeros(all)),
            (Known::Adadelta(all), 2, 0) => (number!("ADADELTA"), with_zeros(all)),
            (Known::RmsProp(all), 1, 0) => (number!("RMS_PROP"), with_zeros(all)),
            (Known::RmsProp(all), 2, 0) => (number!("RMS_PROP_MOMENTUM"), with_zeros(all)),
            (Known::CenteredRmsProp(all), 2, 0) => (number!("RMS_PROP_VARIANCE"), with_zeros(all)),
            (Known::CenteredRmsProp(all), 3, 0) => {
                (number!("RMS_PROP_VARIANCE_MOMENTUM"), with_zeros(all))
            }
            (Known::Rprop(all), 2, 0) => (number!("RPROP"), with_zeros(all)),
            (Known::Lion(all), 1, 0) => (number!("LION"), with_zeros(all)),
            (Known::Lamb(all), 2, 2) => (number!("LAMB"), with_zeros(all)),
            (Known::Adafactor(all), 0, 2) => (number!("ADAFACTOR"), with_zeros(all)),
            (Known::Step(all), 0, 0) => (number!("STEP"), with_zeros(all)),
            (Known::Average(take), 0, 0) => (number!("AVERAGE"), with_zeros([take])),
            _ => return None,
        };
        Some((number, constants))
    }
}

impl KnownNorms {
    /// The norms for the kernel; `None` if the kernel takes other numbers of states or values.
    pub(super) fn of_kernel(self, states: usize, norms: usize) -> Option<OfKernel> {
        let (number, constants) = match (self, states, norms) {
            (KnownNorms::ParameterAndGradient, 0, 2) => {
                (number!("PARAMETER_AND_GRADIENT"), with_zeros([]))
            }
            (KnownNorms::Lamb(all), 2, 2) => (number!("LAMB_DIRECTION"), with_zeros(all)),
            (KnownNorms::Muon(all), 0, 1) => (number!("MUON_DIRECTION"), with_zeros(all)),
            _ => return None,
        };
        Some((number, constants))
    }
}

impl SgdUpdate {
    fn constants(self) -> [f64; CONSTANTS_MAX] {
        let SgdUpdate { weight_decay, keep, take, along_g, along_m } = self;
        with_zeros([weight_decay, keep, take, along_g, along_m])
    }
}

impl AdamUpdate {
    fn constants(self) -> [f64; CONSTANTS_MAX] {
        let AdamUpdate { betas: [beta1, beta2], coupled, keep, rate, root_scale, eps } = self;
        let [take1, take2] = [1.0 - beta1, 1.0 - beta2];
        with_zeros([beta1, take1, beta2, take2, coupled, keep, rate, root_scale, eps])
    }
}
