use lowtide_autograd::{AutogradResult as Result, GridOrder, Var};
use lowtide_tensor::PadMode;

use super::{AROUND_ZERO, Cases, pair};

pub(super) fn all(cases: &mut Cases) {
    type Join = fn(Vec<Var>) -> Result<Var>;
    let joins: [(&'static str, Join, &[&[usize]]); 13] = [
        ("hstack", Var::hstack, &[&[2], &[3], &[]]),
        ("hstack", Var::hstack, &[&[2, 1, 2], &[2, 3, 2]]),
        ("vstack", Var::vstack, &[&[3], &[2, 3]]),
        ("vstack", Var::vstack, &[&[2, 2, 2], &[1, 2, 2]]),
        ("dstack", Var::dstack, &[&[2], &[1, 2], &[1, 2, 3]]),
        ("dstack", Var::dstack, &[&[], &[1]]),
        ("column_stack", Var::column_stack, &[&[2], &[2, 3], &[2]]),
        ("block_diag", Var::block_diag, &[&[2, 3], &[], &[2], &[3, 1]]),
        ("block_diag", Var::block_diag, &[&[2, 2]]),
        ("multi_dot", Var::multi_dot, &[&[2, 3], &[3, 2]]),
        ("multi_dot", Var::multi_dot, &[&[2, 4], &[4, 1], &[1, 3], &[3, 2]]),
        ("multi_dot", Var::multi_dot, &[&[3], &[3, 2], &[2, 4], &[4]]),
        ("multi_dot", Var::multi_dot, &[&[3], &[3, 2]]),
    ];
    for (rule, join, shapes) in joins {
        cases.add(rule, shapes, AROUND_ZERO, move |_, x| join(x));
    }
    for order in [GridOrder::Matrix, GridOrder::Plane] {
        cases.add("meshgrid", &[&[2], &[3], &[]], AROUND_ZERO, move |_, x| {
            let points = Var::meshgrid(x, order)?;
            // Each part has a weight of its own.
            let weighted = (1_u8..).zip(points).map(|(n, x)| x.mul_scalar(f64::from(n)));
            Var::stack(weighted.collect::<Result<_>>()?, 0)
        });
    }
    for axis in [0, 1, 2] {
        cases.unary("unbind", &[2, 3, 4], AROUND_ZERO, move |x| {
            let slices = x.unbind(axis)?;
            let weighted = (1_u8..).zip(slices).map(|(n, x)| x.mul_scalar(f64::from(n)));
            Var::stack(weighted.collect::<Result<_>>()?, 0)
        });
    }
    for (from, to) in [([0, 2], [2, 1]), ([1, -1], [-1, 0])] {
        cases.unary("movedims", &[2, 3, 4], AROUND_ZERO, move |x| x.movedims(&from, &to));
    }
    for (amounts, mode) in [
        ([[1, -1], [-2, 1]], PadMode::Constant(0.5)),
        ([[-1, 2], [0, 1]], PadMode::Reflect),
        ([[0, -1], [-1, 2]], PadMode::Replicate),
        ([[-1, 0], [-1, 2]], PadMode::Circular),
        ([[-1, -1], [0, -2]], PadMode::Circular),
        ([[-4, 2], [3, -6]], PadMode::Replicate),
    ] {
        let pad = move |x: Var| x.pad_or_crop(&amounts, mode);
        cases.unary("pad_or_crop", &[2, 4, 5], AROUND_ZERO, pad);
    }
    for shapes in [[&[2, 3][..], &[3, 2]], [&[2], &[2, 2]], [&[], &[3]], [&[2, 1, 2], &[2]]] {
        cases.add("kron", &shapes, AROUND_ZERO, |_, x| {
            let (a, b) = pair(x);
            a.kron(b)
        });
    }
    type Axes = &'static [i32];
    let dots: [([&[usize]; 2], Axes, Axes); 5] = [
        ([&[2, 1, 3], &[4, 2, 1]], &[1, 2], &[0, -1]),
        ([&[2, 3, 4], &[4, 3, 2]], &[1, 2], &[1, 0]),
        ([&[2, 3], &[4, 2]], &[0], &[-1]),
        ([&[2], &[3]], &[], &[]),
        ([&[2, 3], &[2, 3]], &[0, 1], &[0, 1]),
    ];
    for (shapes, axes, other_axes) in dots {
        cases.add("tensordot", &shapes, AROUND_ZERO, move |_, x| {
            let (a, b) = pair(x);
            a.tensordot(b, axes, other_axes)
        });
    }
}
