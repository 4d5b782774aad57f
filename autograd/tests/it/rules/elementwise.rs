use lowtide_autograd::{AutogradResult as Result, Var};
use lowtide_tensor::{Device, Replacements, Tensor};

use super::{AROUND_ZERO, Cases, NEGATIVE, POSITIVE, pair};
use crate::common::values;

/// A range inside the domain of ln(1 + x).
const AWAY_FROM_MINUS_ONE: [f64; 2] = [-0.5, 1.0];

type Unary = fn(Var) -> Result<Var>;
type Binary = fn(Var, Var) -> Result<Var>;
/// Shapes that broadcast to each other in every way.
const PAIRS: [[&[usize]; 2]; 7] = [
    [&[2, 3], &[2, 3]],
    [&[2, 3], &[3]],
    [&[3], &[2, 3]],
    [&[2, 1, 3], &[4, 1]],
    [&[], &[2, 2]],
    [&[2, 2], &[]],
    [&[1, 2], &[2, 1]],
];
const ABOVE_ONE: [f64; 2] = [1.2, 3.0];
/// A range inside the domain of the arcsine and arccosine.
const INSIDE_ONE: [f64; 2] = [-0.9, 0.9];
/// A range beyond the kinks of the hard activation functions.
const WIDE: [f64; 2] = [-5.0, 5.0];
const SHAPES: [&[usize]; 4] = [&[2, 3], &[5], &[], &[0, 2]];

pub(super) fn arithmetic(cases: &mut Cases) {
    let binary: [(&'static str, [f64; 2], Binary); 26] = [
        ("add", AROUND_ZERO, Var::add),
        ("sub", AROUND_ZERO, Var::sub),
        ("mul", AROUND_ZERO, Var::mul),
        ("div", POSITIVE, Var::div),
        ("div", NEGATIVE, Var::div),
        ("pow", POSITIVE, Var::pow),
        ("maximum", AROUND_ZERO, Var::maximum),
        ("minimum", AROUND_ZERO, Var::minimum),
        ("remainder", POSITIVE, Var::remainder),
        ("div_floor", POSITIVE, Var::div_floor),
        ("div_trunc", NEGATIVE, Var::div_trunc),
        ("atan2", AROUND_ZERO, Var::atan2),
        ("atan2", NEGATIVE, Var::atan2),
        ("fmod", POSITIVE, Var::fmod),
        ("fmod", NEGATIVE, Var::fmod),
        ("hypot", POSITIVE, Var::hypot),
        ("hypot", AROUND_ZERO, Var::hypot),
        ("copysign", AROUND_ZERO, Var::copysign),
        ("logaddexp", AROUND_ZERO, Var::logaddexp),
        ("logaddexp", WIDE, Var::logaddexp),
        ("xlogy", POSITIVE, Var::xlogy),
        ("fmax", AROUND_ZERO, Var::fmax),
        ("fmin", AROUND_ZERO, Var::fmin),
        ("heaviside", AROUND_ZERO, Var::heaviside),
        ("lerp", AROUND_ZERO, |a, b| a.lerp(b, 0.3)),
        ("lerp", AROUND_ZERO, |a, b| a.lerp(b, 1.0)),
    ];
    for (rule, range, function) in binary {
        for shapes in PAIRS {
            cases.add(rule, &shapes, range, move |_, x| {
                let (a, b) = pair(x);
                function(a, b)
            });
        }
    }
}

pub(super) fn functions(cases: &mut Cases) {
    let unary: [(&'static str, [f64; 2], Unary); 76] = [
        ("neg", AROUND_ZERO, Var::neg),
        ("add_scalar", AROUND_ZERO, |x| x.add_scalar(0.75)),
        ("sub_scalar", AROUND_ZERO, |x| x.sub_scalar(0.75)),
        ("mul_scalar", AROUND_ZERO, |x| x.mul_scalar(-1.5)),
        ("div_scalar", AROUND_ZERO, |x| x.div_scalar(-1.5)),
        ("remainder_scalar", POSITIVE, |x| x.remainder_scalar(0.4)),
        ("div_floor_scalar", AROUND_ZERO, |x| x.div_floor_scalar(0.3)),
        ("div_trunc_scalar", AROUND_ZERO, |x| x.div_trunc_scalar(0.3)),
        ("exp", AROUND_ZERO, Var::exp),
        ("expm1", AROUND_ZERO, Var::expm1),
        ("log", POSITIVE, Var::log),
        ("log1p", AWAY_FROM_MINUS_ONE, Var::log1p),
        ("sqrt", POSITIVE, Var::sqrt),
        ("rsqrt", POSITIVE, Var::rsqrt),
        ("reciprocal", NEGATIVE, Var::reciprocal),
        ("pow_scalar", POSITIVE, |x| x.pow_scalar(2.5)),
        ("pow_scalar", NEGATIVE, |x| x.pow_scalar(3.0)),
        ("pow_scalar", NEGATIVE, |x| x.pow_scalar(-1.0)),
        ("pow_scalar", AROUND_ZERO, |x| x.pow_scalar(0.0)),
        ("sin", AROUND_ZERO, Var::sin),
        ("cos", AROUND_ZERO, Var::cos),
        ("tan", AROUND_ZERO, Var::tan),
        ("atan", AROUND_ZERO, Var::atan),
        ("asin", INSIDE_ONE, Var::asin),
        ("acos", INSIDE_ONE, Var::acos),
        ("sinh", AROUND_ZERO, Var::sinh),
        ("cosh", AROUND_ZERO, Var::cosh),
        ("asinh", AROUND_ZERO, Var::asinh),
        ("acosh", ABOVE_ONE, Var::acosh),
        ("atanh", INSIDE_ONE, Var::atanh),
        ("erfc", AROUND_ZERO, Var::erfc),
        ("erfinv", INSIDE_ONE, Var::erfinv),
        ("lgamma", POSITIVE, Var::lgamma),
        ("lgamma", [-0.9, -0.1], Var::lgamma),
        ("digamma", POSITIVE, Var::digamma),
        ("digamma", [-0.7, -0.3], Var::digamma),
        ("frac", POSITIVE, Var::frac),
        ("log2", POSITIVE, Var::log2),
        ("log10", POSITIVE, Var::log10),
        ("exp2", AROUND_ZERO, Var::exp2),
        ("mish", WIDE, Var::mish),
        ("hardswish", WIDE, Var::hardswish),
        ("hardsigmoid", WIDE, Var::hardsigmoid),
        ("selu", AROUND_ZERO, Var::selu),
        ("selu", WIDE, Var::selu),
        ("softsign", WIDE, Var::softsign),
        ("logsigmoid", WIDE, Var::logsigmoid),
        ("tanh", AROUND_ZERO, Var::tanh),
        ("erf", AROUND_ZERO, Var::erf),
        ("sign", AROUND_ZERO, Var::sign),
        ("floor", AROUND_ZERO, Var::floor),
        ("ceil", AROUND_ZERO, Var::ceil),
        ("round", AROUND_ZERO, Var::round),
        ("trunc", POSITIVE, Var::trunc),
        ("relu", AROUND_ZERO, Var::relu),
        ("hardtanh", AROUND_ZERO, |x| x.hardtanh(-0.7, 1.1)),
        ("leaky_relu", AROUND_ZERO, |x| x.leaky_relu(0.1)),
        ("leaky_relu", AROUND_ZERO, |x| x.leaky_relu(-0.5)),
        ("elu", AROUND_ZERO, |x| x.elu(1.5)),
        ("elu", AROUND_ZERO, |x| x.elu(-0.5)),
        ("celu", AROUND_ZERO, |x| x.celu(1.5)),
        ("celu", WIDE, |x| x.celu(-0.5)),
        ("fmod_scalar", AROUND_ZERO, |x| x.fmod_scalar(0.3)),
        ("nan_to_num", AROUND_ZERO, |x| x.nan_to_num(Replacements::default())),
        ("sigmoid", AROUND_ZERO, Var::sigmoid),
        ("silu", AROUND_ZERO, Var::silu),
        ("softplus", AROUND_ZERO, |x| x.softplus(2.0, 20.0)),
        ("softplus", AROUND_ZERO, |x| x.softplus(3.0, 0.5)),
        ("gelu", AROUND_ZERO, Var::gelu),
        ("gelu", NEGATIVE, Var::gelu),
        ("gelu_tanh", AROUND_ZERO, Var::gelu_tanh),
        ("gelu_tanh", POSITIVE, Var::gelu_tanh),
        ("abs", AROUND_ZERO, Var::abs),
        ("clamp", AROUND_ZERO, |x| x.clamp(-0.4, 0.3)),
        ("maximum_scalar", AROUND_ZERO, |x| x.maximum_scalar(0.1)),
        ("minimum_scalar", AROUND_ZERO, |x| x.minimum_scalar(0.1)),
    ];
    for (rule, range, function) in unary {
        for shape in SHAPES {
            cases.unary(rule, shape, range, function);
        }
    }
}

/// A random mask of the given shape.
fn mask(device: &Device, shape: &[usize]) -> lowtide_tensor::TensorResult<Tensor> {
    let numbers = values("mask", shape.iter().product(), -1.0, 1.0);
    Tensor::from_slice(device, shape, &numbers)?.gt_scalar(0.0)
}

pub(super) fn choice(cases: &mut Cases) {
    for mask_shape in [&[4, 3][..], &[3], &[2, 1, 3], &[]] {
        for shapes in [[&[4, 3][..], &[4, 3]], [&[4, 1], &[3]], [&[], &[4, 3]]] {
            cases.add("where_cond", &shapes, AROUND_ZERO, move |_, x| {
                let (a, b) = pair(x);
                let mask = mask(a.value().device(), mask_shape)?;
                a.where_cond(&mask, b)
            });
        }
        for shape in [&[4, 3][..], &[4, 1]] {
            cases.unary("masked_fill", shape, AROUND_ZERO, move |x| {
                let mask = mask(x.value().device(), mask_shape)?;
                x.masked_fill(&mask, 7.0)
            });
        }
    }
}

pub(super) fn fused(cases: &mut Cases) {
    type Ternary = fn(Var, Var, Var) -> Result<Var>;
    let ternary: [(&'static str, Ternary); 3] = [
        ("addcmul", |x, a, b| x.addcmul(a, b, 1.0)),
        ("addcmul", |x, a, b| x.addcmul(a, b, -0.5)),
        ("addcdiv", |x, a, b| x.addcdiv(a, b, 1.5)),
    ];
    let triples: [[&[usize]; 3]; 4] = [
        [&[2, 3], &[2, 3], &[2, 3]],
        [&[3], &[2, 1], &[2, 3]],
        [&[2, 3], &[], &[3]],
        [&[2, 1], &[4, 1, 3], &[]],
    ];
    for (rule, function) in ternary {
        for shapes in triples {
            cases.add(rule, &shapes, POSITIVE, move |_, x| {
                let [x, a, b] = x.try_into().unwrap_or_else(|_| panic!("three inputs"));
                function(x, a, b)
            });
        }
    }
}
