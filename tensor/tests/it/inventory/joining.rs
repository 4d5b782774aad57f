use lowtide_tensor::{PadMode, Tensor};

use super::{Entry, both, in_place, out};

pub(super) fn ops() -> Vec<Entry> {
    let mut ops = both! { i;
        triu triu_ (-3);
        tril tril_ (7);
    };
    ops.extend([
        out!(flip, i => i.a.flip(&[0, 1])),
        out!(roll, i => i.a.roll(1, 300)),
        out!(repeat, i => i.a.repeat(&[2, 1, 3])),
        out!(repeat_interleave, i => i.a.repeat_interleave(1, 3)),
        out!(pad, i => i.image.pad(&[[2, 1], [0, 3]], PadMode::Reflect)),
        out!(pad_backward, i => {
            let x = i.image.transpose(2, 3)?.narrow(2, 0, 37)?;
            i.image.transpose(2, 3)?.pad_backward(*x.shape(), &[[1, 3], [0, 0]], PadMode::Reflect)
        }),
        out!(cat, i => Tensor::cat(&[&i.a, &i.row, &i.b.narrow(0, 3, 9)?], 0)),
        out!(stack, i => Tensor::stack(&[&i.a, &i.b, &i.m], 2)),
    ]);
    ops
}
