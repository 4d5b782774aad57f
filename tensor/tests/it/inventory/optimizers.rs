use lowtide_tensor::{Rounding, TensorUpdate, update_all_};

use super::{Entry, in_place, not_half_yet, out};
use crate::update::Mixed;

pub(super) fn ops() -> Vec<Entry> {
    not_half_yet(vec![
        in_place!(update_, i => {
            let mut states = [i.m.clone(), i.v.clone()];
            i.a.update_(&i.b, &mut states, [&i.scalar], Mixed, Rounding::Nearest)
        }),
        in_place!(update_all_, i => {
            let update = TensorUpdate {
                parameter: &mut i.a,
                gradient: &i.b,
                states: &mut [i.m.clone(), i.v.clone()],
                scalars: std::slice::from_ref(&i.scalar),
                formula: Mixed,
                rounding: Rounding::Nearest,
            };
            update_all_(&i.device, &mut [update])
        }),
        out!(update_norms, i => i.a.update_norms(&i.b, &[i.m.clone(), i.v.clone()], Mixed)),
    ])
}
