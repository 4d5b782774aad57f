use lowtide_tensor::{
    Dropout, Normalized, NormalizedBackward, RandomKey, Statistics, Tensor, TensorResult as Result,
};

use super::{Entry, both, in_place, out};

const DROPOUT: Dropout = Dropout { probability: 0.25, key: RandomKey::new(7), first: 3 };

fn all(found: Result<Normalized>) -> Result<Vec<Tensor>> {
    let found = found?;
    Ok([Some(found.y), found.mean, Some(found.rstd)].into_iter().flatten().collect())
}

fn gradients(found: Result<NormalizedBackward>) -> Result<Vec<Tensor>> {
    let found = found?;
    Ok(std::iter::once(found.dx).chain(found.parameters.into_iter().flatten()).collect())
}

/// An operation with several results.
macro_rules! several {
    ($collect:ident; $($name:ident, $inputs:ident => $result:expr;)*) => {
        vec![$(Entry {
            name: stringify!($name),
            run: |$inputs| $collect($result),
            half: true,
        }),*]
    };
}

pub(super) fn ops() -> Vec<Entry> {
    let mut ops = both! { i;
        softmax softmax_(1);
        log_softmax log_softmax_(1);
        softmax_backward softmax_backward_(&i.b, 1);
        log_softmax_backward log_softmax_backward_(&i.b, 1);
        dropout dropout_(DROPOUT);
    };
    ops.extend(several! { all;
        layer_norm, i => {
            let w = i.row.select(0, 0)?;
            i.a.layer_norm(1, Some(&w), Some(&w), 1e-5)
        };
        rms_norm, i => i.a.rms_norm(1, Some(&i.row.select(0, 0)?), 1e-5);
        group_norm, i => {
            let w = i.row.narrow(1, 0, 8)?.select(0, 0)?;
            i.image.group_norm(4, Some(&w), Some(&w), 1e-5)
        };
    });
    ops.extend(several! { gradients;
        layer_norm_backward, i => {
            let w = i.row.select(0, 0)?;
            let found = i.b.layer_norm(1, None, None, 1e-5)?;
            i.a.layer_norm_backward(&i.b, &found.mean.unwrap(), &found.rstd, Some(&w))
        };
        rms_norm_backward, i => {
            let w = i.row.select(0, 0)?;
            let found = i.b.rms_norm(1, None, 1e-5)?;
            i.a.rms_norm_backward(&i.b, &found.rstd, Some(&w))
        };
        group_norm_backward, i => {
            let w = i.row.narrow(1, 0, 12)?.select(0, 0)?;
            let found = i.dy.group_norm(4, None, None, 1e-5)?;
            i.dy.group_norm_backward(&i.dy, &found.mean.unwrap(), &found.rstd, Some(&w))
        };
    });
    ops.extend([
        Entry {
            name: "batch_norm",
            run: |i| {
                let w = i.row.narrow(1, 0, 8)?.select(0, 0)?;
                let found = i.image.batch_norm(Some(&w), Some(&w), 1e-5)?;
                let columns = i.b.batch_norm(None, None, 1e-5)?;
                Ok(vec![found.y, found.mean, found.variance, columns.y, columns.mean])
            },
            half: true,
        },
        out!(batch_norm_fixed, i => {
            let of = i.image.batch_norm(None, None, 1e-5)?;
            i.image.batch_norm_fixed(&of.mean, &of.variance, None, None, 1e-5)
        }),
        Entry {
            name: "batch_norm_backward",
            run: |i| {
                let of = i.b.batch_norm(None, None, 1e-5)?;
                let (mean, variance) = (&of.mean, &of.variance);
                let w = i.row.select(0, 0)?;
                let found = i.a.batch_norm_backward(
                    &i.b,
                    mean,
                    variance,
                    Some(&w),
                    Statistics::Batch,
                    1e-5,
                )?;
                let of = i.image.batch_norm(None, None, 1e-5)?;
                let (mean, variance) = (&of.mean, &of.variance);
                let (x, batch) = (&i.image, Statistics::Batch);
                let images = x.batch_norm_backward(x, mean, variance, None, batch, 1e-5)?;
                Ok(vec![found.dx, found.dweight, found.dbias, images.dx, images.dweight])
            },
            half: true,
        },
        in_place!(update_running_, i => {
            i.a.update_running_(&mut i.m, [&i.b, &i.positive], 4, 0.1)
        }),
    ]);
    ops
}
