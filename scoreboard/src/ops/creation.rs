//! Creation of tensors.

use lowtide_tensor::{DType, Tensor};

use super::{Family, INPUT};
use crate::call::{At, Call, Output, Result, at, named, one};

pub(super) const OPS: Family = &[
    ("arange", |call| {
        let first = call.number(INPUT)?.unwrap_or_default();
        let (start, end) = match call.number(at(1, "end"))? {
            Some(end) => (first, end),
            None => (0.0, first),
        };
        let step = call.number(at(2, "step"))?.unwrap_or(1.0);
        // PyTorch's default: integers, unless one of the numbers is a float.
        let are_integers = call.case().arguments.iter().all(|value| value.is_i64());
        let default = if are_integers { DType::I64 } else { DType::F32 };
        let dtype = call.element_type(named("dtype"))?.unwrap_or(default);
        one(Tensor::arange(&call.device, start..end, step, dtype)?)
    }),
    ("eye", |call| {
        let rows = call.count(at(0, "n"))?.unwrap_or_default();
        let columns = call.count(at(1, "m"))?.unwrap_or(rows);
        let dtype = call.element_type(named("dtype"))?.unwrap_or(DType::F32);
        one(Tensor::eye(&call.device, rows, columns, dtype)?)
    }),
    ("full", |call| {
        let value = call.number(at(1, "fill_value"))?.unwrap_or_default();
        filled(call, value)
    }),
    ("full_like", |call| {
        let value = call.number(at(1, "fill_value"))?.unwrap_or_default();
        filled_like(call, value)
    }),
    ("linspace", |call| {
        let ends = [at(0, "start"), at(1, "end")].map(|at| call.number(at));
        let [start, end] = ends;
        let ends = [start?.unwrap_or_default(), end?.unwrap_or_default()];
        let count = call.count(at(2, "steps"))?.unwrap_or_default();
        let dtype = call.element_type(DTYPE)?.unwrap_or(DType::F32);
        one(Tensor::linspace(&call.device, ends, count, dtype)?)
    }),
    ("ones", |call| filled(call, 1.0)),
    ("ones_like", |call| filled_like(call, 1.0)),
    ("scalar_tensor", |call| {
        let value = call.number(at(0, "s"))?.unwrap_or_default();
        let dtype = call.element_type(DTYPE)?.unwrap_or(DType::F32);
        one(Tensor::full(&call.device, [], dtype, value)?)
    }),
    ("zeros", |call| filled(call, 0.0)),
    ("zeros_like", |call| filled_like(call, 0.0)),
];

const DTYPE: At = named("dtype");

fn filled(call: &Call<'_>, value: f64) -> Result<Vec<Output>> {
    let shape = call.counts(at(0, "size"))?.unwrap_or_default();
    let dtype = call.element_type(DTYPE)?.unwrap_or(DType::F32);
    one(Tensor::full(&call.device, &shape[..], dtype, value)?)
}

fn filled_like(call: &Call<'_>, value: f64) -> Result<Vec<Output>> {
    let like = call.var(INPUT)?;
    let dtype = call.element_type(DTYPE)?.unwrap_or(like.value().dtype());
    one(Tensor::full(&call.device, *like.shape(), dtype, value)?)
}
