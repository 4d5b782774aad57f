//! Matrix products.

use lowtide_autograd::Var;
use lowtide_tensor::Scales;

use super::Family;
use crate::call::{Stop, one};

pub(super) const OPS: Family = &[
    ("Einsum", |node| {
        let equation = node.text("equation")?.unwrap_or_default();
        one(Var::einsum(equation, node.vars()?)?)
    }),
    ("Gemm", |node| {
        let turned = |index: usize, name: &'static str| {
            let x = node.var(index)?;
            Ok::<_, Stop>(if node.flag(name)?.unwrap_or(false) { x.t()? } else { x })
        };
        let (a, b) = (turned(0, "transA")?, turned(1, "transB")?);
        let alpha = node.attribute_number("alpha")?.unwrap_or(1.0);
        let beta = node.attribute_number("beta")?.unwrap_or(1.0);
        // The attribute is always 1 in older versions; shapes broadcast in any case.
        node.ignore(&["broadcast"]);
        match node.optional_var(2) {
            Some(c) => one(c.addmm(a, b, Scales { beta, alpha })?),
            None if alpha == 1.0 => one(a.matmul(b)?),
            None => one(a.matmul(b)?.mul_scalar(alpha)?),
        }
    }),
    ("MatMul", |node| one(node.var(0)?.matmul(node.var(1)?)?)),
];
