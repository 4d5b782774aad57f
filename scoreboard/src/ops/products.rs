//! Matrix products.

use super::{Family, INPUT};
use crate::call::{at, no_form, one};

pub(super) const OPS: Family = &[
    ("__rmatmul__", |call| one(call.var(at(1, "other"))?.matmul(call.var(INPUT)?)?)),
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
