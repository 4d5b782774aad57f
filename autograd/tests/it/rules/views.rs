use lowtide_autograd::{AutogradResult as Result, Var};
use lowtide_tensor::{DType, PadMode, Tensor};

use super::{AROUND_ZERO, Cases, pair};

const SHAPE: &[usize] = &[2, 3, 4];

/// The sums of the parts, each with a weight of its own, except for the part at `without`.
fn weighed(parts: Vec<Var>, without: usize) -> Result<Var> {
    let weighed = parts.into_iter().enumerate().filter(|&(at, _)| at != without);
    let squares = weighed.map(|(at, part)| part.mul_scalar(1.5 + at as f64)?.sum_all());
    Var::stack(squares.collect::<Result<_>>()?, 0)
}

pub(super) fn of_parts(cases: &mut Cases) {
    cases.unary("view", &[2, 1], AROUND_ZERO, |x| x.contiguous()?.view([1, 2]));
    for shape in [SHAPE, &[2, 3], &[5]] {
        cases.unary("t", &shape[..shape.len().min(2)], AROUND_ZERO, Var::t);
    }
    for (from, to) in [(0, 2), (2, 0), (1, 2), (1, 1)] {
        cases.unary("movedim", SHAPE, AROUND_ZERO, move |x| x.movedim(from, to));
    }
    for (axis, start, end, step) in [(2, 1, 4, 2), (1, 0, 3, 2), (2, 0, 4, 1), (0, 1, 1, 3)] {
        cases.unary("slice", SHAPE, AROUND_ZERO, move |x| x.slice(axis, start..end, step));
    }
    // First all parts are in the loss, then one is left out.
    for without in [9, 0, 1] {
        cases.unary("split", SHAPE, AROUND_ZERO, move |x| weighed(x.split(1, 2)?, without));
        cases.unary("chunk", SHAPE, AROUND_ZERO, move |x| weighed(x.chunk(2, 3)?, without));
        cases.unary("split_with_sizes", SHAPE, AROUND_ZERO, move |x| {
            weighed(x.split_with_sizes(2, &[1, 0, 3])?, without)
        });
    }
    for (offset, a, b) in [(0, 0, 1), (1, 1, 2), (-1, 2, 0), (1, 0, 2), (7, 1, 2)] {
        cases.unary("diagonal", SHAPE, AROUND_ZERO, move |x| x.diagonal(offset, a, b));
    }
    // Windows that overlap (more windows than their length, and fewer), touch, or have gaps.
    for (len, axis, window, step) in
        [(7, 0, 2, 1), (5, 1, 4, 1), (7, 0, 3, 2), (6, 1, 2, 2), (7, 0, 2, 3)]
    {
        let mut shape = [2, 2];
        shape[axis] = len;
        cases.unary("unfold", &shape, AROUND_ZERO, move |x| x.unfold(axis, window, step));
    }
}

pub(super) fn moved(cases: &mut Cases) {
    for axis in 0..2 {
        let mut longer = [2, 3];
        longer[axis] = 1;
        cases.add("cat", &[&[2, 3], &longer, &[2, 3]], AROUND_ZERO, move |_, x| Var::cat(x, axis));
        cases.add("stack", &[&[2, 3], &[2, 3]], AROUND_ZERO, move |_, x| Var::stack(x, axis));
    }
    cases.add("stack", &[&[], &[]], AROUND_ZERO, |_, x| Var::stack(x, 0));
    cases.add("cat", &[&[2], &[2]], AROUND_ZERO, |pass, x| {
        let (a, b) = pair(x);
        let constant = pass.constant(Tensor::zeros(a.value().device(), [3], DType::F64)?);
        Var::cat(vec![a, constant, b], 0)
    });
    for times in [&[2, 3][..], &[2], &[3, 1, 2], &[0, 2], &[1, 1], &[]] {
        cases.unary("repeat", &[2, 3], AROUND_ZERO, move |x| x.repeat(times));
    }
    for (axis, times) in [(0, 2), (1, 3), (2, 1), (1, 0)] {
        let repeat = move |x: Var| x.repeat_interleave(axis, times);
        cases.unary("repeat_interleave", SHAPE, AROUND_ZERO, repeat);
    }
    let modes = [PadMode::Constant(2.0), PadMode::Reflect, PadMode::Replicate, PadMode::Circular];
    for mode in modes {
        cases.unary("pad", SHAPE, AROUND_ZERO, move |x| x.pad(&[[2, 1], [0, 3]], mode));
        cases.unary("pad", SHAPE, AROUND_ZERO, move |x| x.pad(&[], mode));
    }
    for axes in [&[0][..], &[2, 1], &[]] {
        cases.unary("flip", SHAPE, AROUND_ZERO, move |x| x.flip(axes));
    }
    for (axis, shift) in [(0, 1), (2, -1), (2, 7), (1, 0), (1, isize::MIN), (2, isize::MAX)] {
        cases.unary("roll", SHAPE, AROUND_ZERO, move |x| x.roll(axis, shift));
    }
    for diagonal in [0, 1, -1, 9] {
        cases.unary("triu", SHAPE, AROUND_ZERO, move |x| x.mul_scalar(2.0)?.triu(diagonal));
        cases.unary("tril", SHAPE, AROUND_ZERO, move |x| x.tril(diagonal));
    }
}
