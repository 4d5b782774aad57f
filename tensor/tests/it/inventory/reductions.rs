use lowtide_tensor::{scale_and_check_finite, squared_norm};

use super::{Op, not_half_yet, out};

pub(super) fn ops() -> Vec<Op> {
    not_half_yet(vec![
        out!(sum, i => i.a.sum(&[0])),
        out!(sum_all, i => i.a.sum_all()),
        out!(mean, i => i.image.mean(&[0, 2, 3])),
        out!(sum_to, i => i.a.sum_to([65, 1])),
        out!(argmax, i => i.a.argmax()),
        out!(squared_norm, i => squared_norm(&i.device, [&i.a, &i.left.transpose(0, 1)?])),
        Op {
            name: "scale_and_check_finite",
            run: |i| {
                let flag = scale_and_check_finite(&i.device, [&mut i.a, &mut i.m], 0.1)?;
                Ok(vec![flag, i.a.clone(), i.m.clone()])
            },
            half: true,
        },
    ])
}
