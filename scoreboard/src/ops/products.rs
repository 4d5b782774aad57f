//! Matrix products.

use lowtide_autograd::Var;
use lowtide_tensor::Scales;

use super::{Family, INPUT};
use crate::call::{Call, Result, at, named, no_form, no_such, one};

pub(super) const OPS: Family = &[
    ("__rmatmul__", |call| one(call.var(at(1, "other"))?.matmul(call.var(INPUT)?)?)),
    ("addbmm", |call| {
        let (a, b) = (call.var(at(1, "batch1"))?, call.var(at(2, "batch2"))?);
        // One product over the batch and the columns together.
        let (&[batch, rows, inner], &[.., columns]) = (&a.shape()[..], &b.shape()[..]) else {
            return no_such(call, "batches of matrices");
        };
        let a = a.transpose(0, 1)?.reshape([rows, batch * inner])?;
        let b = b.reshape([batch * inner, columns])?;
        one(call.var(INPUT)?.addmm(a, b, scales(call)?)?)
    }),
    ("addr", |call| {
        let (a, b) = (call.var(at(1, "vec1"))?, call.var(at(2, "vec2"))?);
        one(call.var(INPUT)?.addmm(a.unsqueeze(1)?, b.unsqueeze(0)?, scales(call)?)?)
    }),
    ("einsum", |call| {
        let equation = call.text(at(1, "equation"))?.unwrap_or_default();
        one(Var::einsum(equation, call.vars(at(0, "operands"))?)?)
    }),
    ("inner", |call| {
        let (a, b) = (call.var(INPUT)?, call.var(at(1, "other"))?);
        match (a.shape().len(), b.shape().len()) {
            (0, _) | (_, 0) => one(a.mul(b)?),
            (1, 1) => one(a.dot(b)?),
            _ => no_form("inner products of rows"),
        }
    }),
    ("linalg.vecdot", |call| {
        let (a, b) = (call.var(INPUT)?, call.var(at(1, "y"))?);
        let dim = call.integer(named("dim"))?.unwrap_or(-1);
        one(a.mul(b)?.sum(&[dim])?)
    }),
    ("vdot", |call| one(call.var(INPUT)?.dot(call.var(at(1, "other"))?)?)),
    ("addmm", |call| {
        let (a, b) = (call.var(at(1, "mat1"))?, call.var(at(2, "mat2"))?);
        one(call.var(INPUT)?.addmm(a, b, scales(call)?)?)
    }),
    ("addmm/decomposed", |call| {
        let (a, b) = (call.var(at(1, "mat1"))?, call.var(at(2, "mat2"))?);
        one(call.var(INPUT)?.addmm(a, b, scales(call)?)?)
    }),
    ("addmv", |call| {
        let (a, v) = (call.var(at(1, "mat"))?, call.var(at(2, "vec"))?);
        one(call.var(INPUT)?.addmv(a, v, scales(call)?)?)
    }),
    ("baddbmm", |call| {
        let (a, b) = (call.var(at(1, "batch1"))?, call.var(at(2, "batch2"))?);
        one(call.var(INPUT)?.baddbmm(a, b, scales(call)?)?)
    }),
    ("bmm", |call| one(call.var(INPUT)?.bmm(call.var(at(1, "mat2"))?)?)),
    ("dot", |call| one(call.var(INPUT)?.dot(call.var(at(1, "tensor"))?)?)),
    ("matmul", |call| one(call.var(INPUT)?.matmul(call.var(at(1, "other"))?)?)),
    ("mm", |call| one(call.var(INPUT)?.matmul(call.var(at(1, "mat2"))?)?)),
    ("mv", |call| one(call.var(INPUT)?.matvec(call.var(at(1, "vec"))?)?)),
    ("nn.functional.linear", |call| {
        let (w, b) = (call.var(at(1, "weight"))?, call.optional_var(at(2, "bias"))?);
        if w.shape().len() == 1 {
            return no_form("a weight of one output as a vector");
        }
        one(call.var(INPUT)?.linear(w, b)?)
    }),
    ("outer", |call| one(call.var(INPUT)?.outer(call.var(at(1, "vec2"))?)?)),
];

fn scales(call: &Call<'_>) -> Result<Scales> {
    let [beta, alpha] = ["beta", "alpha"].map(|name| call.number(named(name)));
    Ok(Scales { beta: beta?.unwrap_or(1.0), alpha: alpha?.unwrap_or(1.0) })
}
