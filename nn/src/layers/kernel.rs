//! Initial parameters of convolutions, as in PyTorch: uniform, with a bound that depends on the fan
//! in of the weight. The fan in is the product of all dimensions but the first, also for transposed
//! convolutions.

use lowtide_tensor::{Device, RandomKey};

use crate::error::Result;
use crate::init;
use crate::parameter::Parameter;

/// A weight of this shape, drawn from `key`'s stream "weight".
#[track_caller]
pub(crate) fn weight<const N: usize>(
    device: &Device,
    key: RandomKey,
    shape: [usize; N],
) -> Result<Parameter> {
    let bound = init::default_bound(shape[1..].iter().product());
    Parameter::uniform(device, key.op("weight"), shape, bound)
}

/// A bias for each of `outputs` channels of a layer with this weight, drawn from `key`'s stream
/// "bias".
#[track_caller]
pub(crate) fn bias(
    device: &Device,
    key: RandomKey,
    outputs: usize,
    weight: &Parameter,
) -> Result<Parameter> {
    let bound = init::default_bound(weight.value().shape()[1..].iter().product());
    Parameter::uniform(device, key.op("bias"), [outputs], bound)
}
