//! Activation functions, and softmax.

use lowtide_autograd::Var;
use lowtide_nn::{GLU, Hardshrink, Hardtanh, Module, ReLU6, Softshrink, Tanhshrink, Threshold};

use super::{Family, INPUT};
use crate::call::{Call, Output, Result, at, named, no_such, one};

macro_rules! of_one {
    ($($name:literal $method:ident)*) => {
        &[$((concat!("nn.functional.", $name), |call| one(call.var(INPUT)?.$method()?))),*]
    };
}

pub(super) const OF_ONE: Family = of_one! {
    "hardsigmoid" hardsigmoid "hardswish" hardswish "logsigmoid" logsigmoid "mish" mish
    "relu" relu "selu" selu "silu" silu "softsign" softsign
};

pub(super) const OPS: Family = &[
    ("log_softmax", |call| one(call.var(INPUT)?.log_softmax(dim(call)?)?)),
    ("log_softmax/with_dtype", |call| one(converted(call)?.log_softmax(dim(call)?)?)),
    ("nn.functional.celu", |call| {
        one(call.var(INPUT)?.celu(call.number(at(1, "alpha"))?.unwrap_or(1.0))?)
    }),
    ("nn.functional.elu", |call| {
        one(call.var(INPUT)?.elu(call.number(at(1, "alpha"))?.unwrap_or(1.0))?)
    }),
    ("nn.functional.gelu", |call| {
        let x = call.var(INPUT)?;
        match call.text(named("approximate"))? {
            None | Some("none") => one(x.gelu()?),
            Some("tanh") => one(x.gelu_tanh()?),
            Some(_) => no_such(call, "approximate"),
        }
    }),
    ("nn.functional.glu", |call| module(call, &GLU(dim(call)?))),
    ("nn.functional.hardshrink", |call| {
        module(call, &Hardshrink(call.number(at(1, "lambd"))?.unwrap_or(0.5)))
    }),
    ("nn.functional.hardtanh", |call| {
        let low = call.number(at(1, "min_val"))?.unwrap_or(-1.0);
        let high = call.number(at(2, "max_val"))?.unwrap_or(1.0);
        module(call, &Hardtanh([low, high]))
    }),
    ("nn.functional.leaky_relu", |call| {
        let slope = call.number(at(1, "negative_slope"))?.unwrap_or(0.01);
        one(call.var(INPUT)?.leaky_relu(slope)?)
    }),
    ("nn.functional.relu6", |call| module(call, &ReLU6)),
    ("nn.functional.softmin", |call| one(call.var(INPUT)?.neg()?.softmax(dim(call)?)?)),
    ("nn.functional.softmin/with_dtype", |call| {
        one(converted(call)?.neg()?.softmax(dim(call)?)?)
    }),
    ("nn.functional.softplus", |call| {
        let beta = call.number(at(1, "beta"))?.unwrap_or(1.0);
        let threshold = call.number(at(2, "threshold"))?.unwrap_or(20.0);
        one(call.var(INPUT)?.softplus(beta, threshold)?)
    }),
    ("nn.functional.softshrink", |call| {
        module(call, &Softshrink(call.number(at(1, "lambd"))?.unwrap_or(0.5)))
    }),
    ("nn.functional.tanhshrink", |call| module(call, &Tanhshrink)),
    ("nn.functional.threshold", |call| {
        let threshold = call.number(at(1, "threshold"))?.unwrap_or_default();
        module(call, &Threshold(threshold, call.number(at(2, "value"))?.unwrap_or_default()))
    }),
    ("softmax", |call| one(call.var(INPUT)?.softmax(dim(call)?)?)),
    ("softmax/with_dtype", |call| one(converted(call)?.softmax(dim(call)?)?)),
];

fn dim(call: &Call<'_>) -> Result<isize> {
    Ok(call.integer(at(1, "dim"))?.unwrap_or(-1))
}

/// The input, converted to the requested type.
fn converted(call: &Call<'_>) -> Result<Var> {
    let x = call.var(INPUT)?;
    let dtype = call.element_type(named("dtype"))?.unwrap_or(x.value().dtype());
    if x.value().dtype().is_float() {
        Ok(x.to_dtype(dtype)?)
    } else {
        Ok(call.pass.constant(x.value().to_dtype(dtype)?))
    }
}

/// Calls a layer without parameters.
fn module(call: &Call<'_>, module: &impl Module) -> Result<Vec<Output>> {
    one(module.forward(&call.pass, call.var(INPUT)?)?)
}
