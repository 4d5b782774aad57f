//! Negative axes give the values and gradients of the axes counted from the first dimension.

use lowtide_autograd::{AutogradError, AutogradResult as Result, Var};
use lowtide_tensor::{Axis, SortOrder, Tensor};

use crate::common::{Outcome, bits, cpu, gradients_of, tensor};

type Call = fn(Var, Axis) -> Result<Var>;

#[test]
fn a_negative_dimension_has_the_gradient_of_the_one_it_is() -> Outcome {
    let x = tensor(&cpu(), "x", [2, 3, 4]);
    let calls: [Call; 20] = [
        |x, axis| x.sum(&[axis]),
        |x, axis| x.mean_keep(&[axis]),
        |x, axis| x.std(&[axis], 1.0),
        |x, axis| x.amax(&[axis]),
        |x, axis| x.norm(&[axis], 2.0),
        |x, axis| Ok(x.max(axis)?.0),
        |x, axis| Ok(x.sort(axis, SortOrder::Ascending)?.0),
        |x, axis| x.softmax(axis),
        |x, axis| x.log_softmax(axis),
        |x, axis| x.cumsum(axis),
        |x, axis| x.cumprod(axis),
        |x, axis| x.flip(&[axis]),
        |x, axis| x.roll(axis, 1),
        |x, axis| x.repeat_interleave(axis, 2),
        |x, axis| x.narrow(axis, 1, 1),
        |x, axis| x.select(axis, 1),
        |x, axis| Var::cat(vec![x.clone(), x], axis),
        |x, axis| Var::stack(vec![x.clone(), x.exp()?], axis),
        |x, axis| Ok(x.chunk(axis, 2)?.remove(0)),
        |x, axis| x.unsqueeze(axis),
    ];
    for (number, call) in calls.into_iter().enumerate() {
        // Operations 17 and 19 count the new dimension too.
        let rank = if matches!(number, 17 | 19) { 4 } else { 3 };
        for axis in 0..rank {
            let found = |axis: Axis| -> Result<Vec<u32>> {
                let weighted = |mut x: Vec<Var>| {
                    let y = call(x.remove(0), axis)?;
                    y.clone().exp()?.mul(y)?.sum_all()
                };
                let (leaves, gradients) = gradients_of(&[&x], |_, x| weighted(x))?;
                Ok(bits(gradients.get(leaves[0]).expect("it has one")))
            };
            let back = (axis as isize - rank as isize).into();
            assert_eq!(found(back)?, found(Axis::from(axis))?, "call {number} along {axis}");
        }
        let outside = Axis::from(-1 - rank as isize);
        let error = gradients_of(&[&x], |_, mut x| call(x.remove(0), outside)?.sum_all());
        let error = error.expect_err("there are not so many");
        assert!(matches!(error, AutogradError::Tensor(_)), "{error}");
    }
    Ok(())
}

#[test]
fn negative_literals_are_dimensions_of_views() -> Outcome {
    let x: Tensor = tensor(&cpu(), "x", [2, 3, 4]);
    let call = |mut x: Vec<Var>| {
        let x = x.remove(0).transpose(-1, -2)?.movedim(0, -1)?.permute(&[-1, 0, 1])?;
        x.slice(-1, 0..2, 1)?.sum_all()
    };
    let (leaves, gradients) = gradients_of(&[&x], |_, x| call(x))?;
    assert_eq!(gradients.get(leaves[0]).expect("it has one").shape()[..], [2, 3, 4]);
    Ok(())
}
