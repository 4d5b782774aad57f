//! One rule per operation: the value and its derivative side by side.
//!
//! In every formula `y` is the output, `dy` its gradient, and `dx` the gradient of input `x`.

mod assemble;
mod attention;
mod batch_norm;
mod convert;
mod distance;
mod dropout;
mod einsum;
mod elementwise;
mod elementwise_activations;
mod elementwise_choice;
mod elementwise_fused;
mod elementwise_math;
mod elementwise_pairs;
mod embedding;
mod index;
mod join;
mod losses;
mod matmul;
mod network;
mod norm;
mod places;
mod quantize;
mod rank;
mod reduce;
mod reduce_choice;
mod scan;
mod scatter_reduce;
mod softmax;
mod statistics;
mod view;
mod view_parts;
mod windows;

pub use assemble::GridOrder;

use lowtide_tensor::{Axis, Shape, Tensor};

use crate::error::Result;
use crate::rule::Needs;
use crate::saved::{Saved, Saver};
use crate::var::Var;

/// The gradient that `compute` returns, if it is needed.
fn when(needed: bool, compute: impl FnOnce() -> Result<Tensor>) -> Result<Option<Tensor>> {
    needed.then(compute).transpose()
}

/// The gradient of an operand that was broadcast from `shape`: `dy` summed over the stretched
/// dimensions.
fn unbroadcast(dy: &Tensor, shape: Shape) -> Result<Tensor> {
    Ok(dy.sum_to(shape)?)
}

/// `x` changed in place if nothing else holds it, else the result of `fresh`.
fn reuse(
    mut x: Tensor,
    change: impl FnOnce(&mut Tensor) -> lowtide_tensor::TensorResult<()>,
    fresh: impl FnOnce(&Tensor) -> lowtide_tensor::TensorResult<Tensor>,
) -> Result<Tensor> {
    if x.is_reusable() {
        change(&mut x)?;
        return Ok(x);
    }
    Ok(fresh(&x)?)
}

impl Var {
    /// `axis` counted from the first dimension.
    fn axis(&self, op: &'static str, axis: impl Into<Axis>) -> Result<usize> {
        Ok(axis.into().index(op, self.shape().len())?)
    }

    /// Each of `axes` counted from the first dimension.
    fn axes(&self, op: &'static str, axes: &[impl Into<Axis> + Copy]) -> Result<Vec<usize>> {
        axes.iter().map(|&axis| self.axis(op, axis)).collect()
    }
}

/// The shape of `x` with `axes` of length 1.
fn kept(x: Shape, axes: &[usize]) -> Shape {
    let mut dims = x.to_vec();
    axes.iter().for_each(|&axis| dims[axis] = 1);
    Shape::new(&dims)
}

/// A tensor that only the rule needs, computed and kept if the rule may run.
fn when_recorded(
    save: &Saver,
    compute: impl FnOnce() -> lowtide_tensor::TensorResult<Tensor>,
) -> Result<Option<Saved>> {
    if !save.is_needed() {
        return Ok(None);
    }
    Ok(Some(save.keep(&compute()?)))
}

fn unpack(saved: Option<Saved>) -> Result<Tensor> {
    saved.expect("the operation was recorded").unpack()
}

/// The gradient of an input of shape `x` that an operation used one `part` of: `dy` in that part, 0
/// elsewhere.
fn placed(
    dy: &Tensor,
    x: Shape,
    part: impl FnOnce(&Tensor) -> lowtide_tensor::TensorResult<Tensor>,
) -> Result<Tensor> {
    let dx = Tensor::zeros(dy.device(), x, dy.dtype())?;
    part(&dx)?.copy_(dy)?;
    Ok(dx)
}

/// `dy · slope`.
fn times(dy: Tensor, slope: &Tensor) -> Result<Tensor> {
    reuse(dy, |dy| dy.mul_(slope), |dy| dy.mul(slope))
}

/// `dy / divisor`.
fn over(dy: Tensor, divisor: &Tensor) -> Result<Tensor> {
    reuse(dy, |dy| dy.div_(divisor), |dy| dy.div(divisor))
}

/// The inputs of a normalisation: x, then the weight and the bias, if present.
fn affine(inputs: &[Tensor], [has_weight, has_bias]: [bool; 2]) -> (&Tensor, [Option<&Tensor>; 2]) {
    let bias = 1 + usize::from(has_weight);
    (&inputs[0], [has_weight.then(|| &inputs[1]), has_bias.then(|| &inputs[bias])])
}

/// [`reuse`] as a cheap operation with a recipe. The rule of the operation does not keep `x`.
fn change(
    save: &Saver,
    x: Tensor,
    in_place: impl Fn(&mut Tensor) -> lowtide_tensor::TensorResult<()> + Copy + 'static,
    fresh: impl Fn(&Tensor) -> lowtide_tensor::TensorResult<Tensor> + Copy + 'static,
) -> Result<Tensor> {
    let source = save.source(&x);
    let y = reuse(x, in_place, fresh)?;
    save.add_recipe(&y, [source], move |mut x| reuse(x.remove(0), in_place, fresh));
    Ok(y)
}

/// An operation of one input whose rule computes the gradient from `dy` and `x`.
#[track_caller]
fn from_input(
    op: &'static str,
    x: Var,
    forward: impl Fn(&Tensor) -> lowtide_tensor::TensorResult<Tensor> + 'static,
    backward: impl FnOnce(Tensor, Tensor) -> Result<Tensor> + 'static,
) -> Result<Var> {
    Var::apply(op, [x], |[x], save| {
        let (y, saved) = (forward(&x)?, save.keep(&x));
        save.add_recipe(&y, [save.source_kept(&x)], move |x| Ok(forward(&x[0])?));
        Ok((y, move |dy: Tensor, _: Needs| Ok(vec![Some(backward(dy, saved.unpack()?)?)])))
    })
}

/// An operation of one input whose rule computes the gradient from `dy` and `y`. It runs in place
/// if the input's buffer is free.
#[track_caller]
fn from_output(
    op: &'static str,
    x: Var,
    in_place: impl Fn(&mut Tensor) -> lowtide_tensor::TensorResult<()> + Copy + 'static,
    fresh: impl Fn(&Tensor) -> lowtide_tensor::TensorResult<Tensor> + Copy + 'static,
    backward: impl FnOnce(Tensor, Tensor) -> Result<Tensor> + 'static,
) -> Result<Var> {
    Var::apply(op, [x], |[x], save| {
        let y = change(save, x, in_place, fresh)?;
        let saved = save.keep(&y);
        Ok((y, move |dy: Tensor, _: Needs| Ok(vec![Some(backward(dy, saved.unpack()?)?)])))
    })
}

/// An operation of one input that is piecewise constant: its gradient is 0.
#[track_caller]
fn zero_gradient(
    op: &'static str,
    x: Var,
    forward: impl FnOnce(&Tensor) -> lowtide_tensor::TensorResult<Tensor>,
) -> Result<Var> {
    Var::apply(op, [x], |[x], _| {
        // dx = 0
        let rule = |dy: Tensor, _: Needs| {
            Ok(vec![Some(Tensor::zeros(dy.device(), *dy.shape(), dy.dtype())?)])
        };
        Ok((forward(&x)?, rule))
    })
}
