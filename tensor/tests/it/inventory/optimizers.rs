use lowtide_tensor::{AdamStep, Rounding, SgdStep, WeightDecay};

use super::{Op, in_place, not_half_yet};
use crate::update::Mixed;

const SGD: SgdStep = SgdStep {
    learning_rate: 0.1,
    momentum: 0.9,
    dampening: 0.0,
    weight_decay: 1e-3,
    nesterov: true,
    is_first: false,
    grad_scale: 0.3,
};
const ADAM: AdamStep = AdamStep {
    learning_rate: 0.1,
    beta1: 0.9,
    beta2: 0.999,
    eps: 1e-8,
    weight_decay: WeightDecay::Decoupled(0.01),
    bias_correction1: 0.1,
    bias_correction2: 0.001,
    grad_scale: 0.3,
};

pub(super) fn ops() -> Vec<Op> {
    not_half_yet(vec![
        in_place!(sgd_, i => i.a.sgd_(&i.b, Some(&mut i.m), SGD)),
        in_place!(adam_, i => i.a.adam_(&i.b, &mut i.m, &mut i.v, ADAM)),
        in_place!(update_, i => {
            let mut states = [i.m.clone(), i.v.clone()];
            i.a.update_(&i.b, &mut states, [&i.scalar], Mixed, Rounding::Nearest)
        }),
    ])
}
