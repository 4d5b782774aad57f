use lowtide_tensor::{Tensor, scale_and_check_finite, squared_norm};

use super::{Entry, out};

/// Reductions and their forms that keep the dimensions.
macro_rules! kept {
    ($inputs:ident; $($name:ident $keep:ident $arguments:tt;)*) => {
        vec![$( kept!(@one $inputs $name $arguments), kept!(@one $inputs $keep $arguments), )*]
    };
    (@one $inputs:ident $name:ident ($($argument:expr),*)) => {
        out!($name, $inputs => $inputs.a.$name($($argument),*))
    };
}

/// An operation with two results.
macro_rules! pair {
    ($name:ident, $inputs:ident => $result:expr) => {
        Entry {
            name: stringify!($name),
            run: |$inputs| {
                let (values, positions): (Tensor, Tensor) = $result?;
                Ok(vec![values, positions])
            },
            half: true,
        }
    };
}

pub(super) fn ops() -> Vec<Entry> {
    let mut ops = kept! { i;
        sum sum_keep (&[0]);
        prod prod_keep (&[1]);
        mean mean_keep (&[1]);
        amax amax_keep (&[0]);
        amin amin_keep (&[1]);
        any any_keep (&[0]);
        all all_keep (&[1]);
        count_nonzero count_nonzero_keep (&[0]);
        logsumexp logsumexp_keep (&[0, 1]);
        var var_keep (&[0], 1.0);
        std std_keep (&[1], 0.0);
        norm norm_keep (&[0, 1], 2.0);
        argmax_axis argmax_keep (0);
        argmin_axis argmin_keep (0);
    };
    ops.extend([
        out!(sum_all, i => i.image.sum_all()),
        out!(sum_to, i => i.a.sum_to([65, 1])),
        out!(argmax, i => i.a.argmax()),
        out!(argmin, i => i.a.argmin()),
        out!(argmax_all, i => i.a.argmax_all()),
        out!(argmin_all, i => i.a.argmin_all()),
        pair!(max, i => i.a.max(0)),
        pair!(max_keep, i => i.a.max_keep(1)),
        pair!(min, i => i.a.min(0)),
        pair!(min_keep, i => i.a.min_keep(1)),
    ]);
    ops.extend(passes());
    ops
}

fn passes() -> Vec<Entry> {
    vec![
        out!(squared_norm, i => squared_norm(&i.device, [&i.a, &i.left.transpose(0, 1)?])),
        Entry {
            name: "scale_and_check_finite",
            run: |i| {
                let flag = scale_and_check_finite(&i.device, [&mut i.a, &mut i.m], 0.1)?;
                Ok(vec![flag, i.a.clone(), i.m.clone()])
            },
            half: true,
        },
    ]
}
