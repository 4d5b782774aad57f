//! Functions without a method in lowtide, as a few equivalent calls.

use std::f64::consts::{LN_2, PI};

use lowtide_autograd::{GridOrder, Var};
use lowtide_tensor::{DType, PadMode, Tensor};

use super::views::from_first;
use super::{Family, INPUT};
use crate::call::{At, Call, Output, Result, at, named, no_such, one};

const OTHER: At = at(1, "other");

pub(super) const OPS: Family = &[
    ("cartesian_prod", |call| {
        let columns = call.rest(0).iter().map(|value| call.var_of(value));
        let Some(columns) = columns.collect::<Option<Vec<Var>>>() else {
            return no_such(call, "a number");
        };
        if let [column] = &columns[..] {
            return one(column.clone());
        }
        let points = Var::meshgrid(columns, GridOrder::Matrix)?;
        let len = points[0].shape().element_count();
        let flat = points.into_iter().map(|x| Ok(x.reshape([len])?));
        one(Var::stack(flat.collect::<Result<_>>()?, -1)?)
    }),
    ("combinations", |call| {
        let x = call.var(INPUT)?;
        let count = call.count(at(1, "r"))?.unwrap_or(2);
        let repeats = call.flag(at(2, "with_replacement"))?.unwrap_or(false);
        let &[len] = &x.shape()[..] else { return no_such(call, "no vector") };
        if count == 0 {
            return one(x.narrow(0, 0, 0)?);
        }
        let mut rows = vec![vec![]];
        for _ in 0..count {
            let longer = |row: Vec<usize>| {
                let first = row.last().map_or(0, |&last| if repeats { last } else { last + 1 });
                (first..len).map(move |next| [&row[..], &[next]].concat())
            };
            rows = rows.into_iter().flat_map(longer).collect();
        }
        let places: Vec<i64> = rows.iter().flatten().map(|&place| place as i64).collect();
        let index = Tensor::from_slice(&call.device, [places.len()], &places)?;
        one(x.index_select(0, &index)?.reshape([rows.len(), count])?)
    }),
    ("cross", |call| {
        let (a, b) = (call.var(INPUT)?, call.var(OTHER)?);
        let first = a.shape().iter().position(|&len| len == 3);
        let dim = call.integer(at(2, "dim"))?.or(first.map(|dim| dim as isize));
        let Some(dim) = dim else { return no_such(call, "no dimension of 3") };
        cross(call, [a, b], dim)
    }),
    ("float_power", |call| {
        let x = float(call.var(INPUT)?, DType::F64)?;
        let exponent = at(1, "exponent");
        if let Some(exponent) = call.value(exponent).and_then(|value| call.var_of(value)) {
            return one(x.pow(float(exponent, DType::F64)?)?);
        }
        one(x.pow_scalar(call.number(exponent)?.unwrap_or(1.0))?)
    }),
    ("isneginf", |call| {
        let x = call.constant(INPUT)?;
        one(x.is_inf()?.logical_and(&x.lt_scalar(0.0)?)?)
    }),
    ("isposinf", |call| {
        let x = call.constant(INPUT)?;
        one(x.is_inf()?.logical_and(&x.gt_scalar(0.0)?)?)
    }),
    ("ldexp", |call| {
        let (x, other) = (call.var(INPUT)?, call.var(OTHER)?);
        let dtype = float_of(&x);
        one(float(x, dtype)?.mul(float(other, dtype)?.exp2()?)?)
    }),
    ("linalg.cross", |call| {
        let (a, b) = (call.var(INPUT)?, call.var(OTHER)?);
        cross(call, [a, b], call.integer(named("dim"))?.unwrap_or(-1))
    }),
    ("logaddexp2", |call| {
        let [a, b] = [call.var(INPUT)?, call.var(OTHER)?].map(|x| x.mul_scalar(LN_2));
        one(a?.logaddexp(b?)?.mul_scalar(1.0 / LN_2)?)
    }),
    ("logit", |call| {
        let x = call.var(INPUT)?;
        let dtype = float_of(&x);
        let mut x = float(x, dtype)?;
        if let Some(eps) = call.number(at(1, "eps"))? {
            let is_low = x.value().lt_scalar(eps)?;
            x = x.minimum_scalar(1.0 - eps)?.masked_fill(&is_low, eps)?;
        }
        let rest = x.clone().neg()?.add_scalar(1.0)?;
        one(x.div(rest)?.log()?)
    }),
    ("nn.functional.bilinear", |call| {
        let inputs = [call.var(at(0, "input1"))?, call.var(at(1, "input2"))?];
        let weight = call.var(at(2, "weight"))?;
        let [a, b] = inputs;
        let y = Var::einsum("...i,oij,...j->...o", vec![a, weight, b])?;
        match call.optional_var(at(3, "bias"))? {
            Some(bias) => one(y.add(bias)?),
            None => one(y),
        }
    }),
    ("nn.functional.pdist", |call| {
        let x = call.var(INPUT)?;
        let order = call.number(at(1, "p"))?.unwrap_or(2.0);
        let &[rows, _] = &x.shape()[..] else { return no_such(call, "no matrix") };
        let above =
            (0..rows).flat_map(|row| (row + 1..rows).map(move |column| row * rows + column));
        let places: Vec<i64> = above.map(|place| place as i64).collect();
        let places = Tensor::from_slice(&call.device, [places.len()], &places)?;
        let all = x.clone().cdist(x, order)?.reshape([rows * rows])?;
        one(all.index_select(0, &places)?)
    }),
    ("nn.functional.unfold", |call| {
        let x = call.var(INPUT)?;
        let kernel = call.pair(at(1, "kernel_size"), 1)?;
        let dilation = call.pair(at(2, "dilation"), 1)?;
        let padding = call.pair(at(3, "padding"), 0)?;
        let stride = call.pair(at(4, "stride"), 1)?;
        let x = if x.shape().len() == 3 { x.unsqueeze(0)? } else { x };
        let &[batch, channels, ..] = &x.shape()[..] else { return no_such(call, "no image") };
        let mut x = x.pad(&padding.map(|side| [side; 2]), PadMode::Constant(0.0))?;
        for (dim, len) in [2, 3].into_iter().zip(kernel) {
            let (dilation, stride) = (dilation[dim - 2], stride[dim - 2]);
            let reach = len.saturating_sub(1) * dilation + 1;
            let windows = x.unfold(dim, reach, stride)?;
            let last = windows.shape().len() - 1;
            x = windows.slice(last, 0..reach, dilation)?;
        }
        // [batch, channels, rows, columns, kernel rows, kernel columns]
        let places = x.shape()[2] * x.shape()[3];
        let y = x.permute(&[0, 1, 4, 5, 2, 3])?;
        let y = y.reshape([batch, channels * kernel[0] * kernel[1], places])?;
        let is_alone = call.var(INPUT)?.shape().len() == 3;
        one(if is_alone { y.squeeze(0)? } else { y })
    }),
    ("round/decimals_0", rounded),
    ("round/decimals_3", rounded),
    ("round/decimals_neg_3", rounded),
    ("signbit", |call| {
        let x = call.constant(INPUT)?;
        if !x.dtype().is_float() {
            return one(x.lt_scalar(0.0)?);
        }
        // -0 and NaN have signs too.
        let ones = Tensor::full(&call.device, *x.shape(), x.dtype(), 1.0)?;
        one(ones.copysign(&x)?.lt_scalar(0.0)?)
    }),
    ("sinc", |call| {
        let x = call.var(INPUT)?;
        let dtype = float_of(&x);
        // Half types are computed in f32, because rounding would change their angles.
        let x = float(x, dtype.computed())?;
        let is_zero = x.value().eq_scalar(0.0)?;
        let angle = x.masked_fill(&is_zero, 1.0)?.mul_scalar(PI)?;
        let y = angle.clone().sin()?.div(angle)?.masked_fill(&is_zero, 1.0)?;
        one(y.to_dtype(dtype)?)
    }),
];

/// The type of the results of functions: f32 for integers.
fn float_of(x: &Var) -> DType {
    let dtype = x.value().dtype();
    if dtype.is_float() { dtype } else { DType::F32 }
}

fn float(x: Var, dtype: DType) -> Result<Var> {
    if x.value().dtype().is_float() {
        return Ok(x.to_dtype(dtype)?);
    }
    Ok(x.pass().constant(x.value().to_dtype(dtype)?))
}

/// The cross product along a dimension of length 3. A negative dimension counts from the end.
fn cross(call: &Call<'_>, [a, b]: [Var; 2], dim: isize) -> Result<Vec<Output>> {
    let len = |x: &Var| x.shape().get(from_first(dim, x.shape().len())).copied();
    if [&a, &b].map(len) != [Some(3); 2] || a.shape().len() != b.shape().len() {
        return no_such(call, "no dimension of 3 in both");
    }
    let turned = |x: &Var, by: isize| x.clone().roll(dim, by);
    let (left, right) =
        (turned(&a, -1)?.mul(turned(&b, -2)?)?, turned(&a, -2)?.mul(turned(&b, -1)?)?);
    one(left.sub(right)?)
}

/// Rounds to a number of decimal places. A negative number rounds before the decimal point.
fn rounded(call: &Call<'_>) -> Result<Vec<Output>> {
    let x = call.var(INPUT)?;
    let decimals = call.integer(named("decimals"))?.unwrap_or(0);
    let scale = 10f64.powi(decimals.unsigned_abs() as i32);
    one(match decimals {
        0 => x.round()?,
        1.. => x.mul_scalar(scale)?.round()?.div_scalar(scale)?,
        _ => x.div_scalar(scale)?.round()?.mul_scalar(scale)?,
    })
}
