//! Matrix products.

use lowtide_tensor::Scales;

use super::{Family, INPUT};
use crate::call::{Call, Result, at, named, no_form, one};

pub(super) const OPS: Family = &[
    ("__rmatmul__", |call| one(call.var(at(1, "other"))?.matmul(call.var(INPUT)?)?)),
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
