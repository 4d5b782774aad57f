//! Element by element: functions of one value, arithmetic, comparisons, choices, conversions.

use lowtide_autograd::Var;
use lowtide_tensor::{Closeness, DType, Replacements, Tensor};

use super::{Family, INPUT};
use crate::call::{At, Call, Output, Result, at, named, no_form, one};

const OTHER: At = at(1, "other");

/// Methods of the first operand, which has a gradient, without further arguments.
macro_rules! of_one {
    ($($name:literal $method:ident)*) => {
        &[$(($name, |call| one(call.var(INPUT)?.$method()?))),*]
    };
}

/// Methods whose results are truth values.
macro_rules! tests {
    ($($name:literal $method:ident)*) => {
        &[$(($name, |call| one(call.var(INPUT)?.value().$method()?))),*]
    };
}

macro_rules! of_two {
    ($($name:literal $method:ident)*) => {
        &[$(($name, |call| one(call.var(INPUT)?.$method(call.var(OTHER)?)?))),*]
    };
}

macro_rules! comparisons {
    ($($name:literal $method:ident)*) => {
        &[$(($name, |call| {
            one(call.var(INPUT)?.value().$method(call.var(OTHER)?.value())?)
        })),*]
    };
}

pub(super) const OF_ONE: Family = of_one! {
    "abs" abs "acos" acos "acosh" acosh "asin" asin "asinh" asinh "atan" atan "atanh" atanh
    "ceil" ceil "cos" cos "cosh" cosh "digamma" digamma "erf" erf "erfc" erfc "erfinv" erfinv
    "lgamma" lgamma "frac" frac "sgn" sign "exp" exp
    "exp2" exp2 "expm1" expm1 "floor" floor "log" log "log10" log10 "log1p" log1p "log2" log2
    "neg" neg "reciprocal" reciprocal "round" round "rsqrt" rsqrt "sigmoid" sigmoid "sign" sign
    "sin" sin "sinh" sinh "sqrt" sqrt "tan" tan "tanh" tanh "trunc" trunc
};

pub(super) const TESTS: Family = tests! {
    "isfinite" is_finite "isinf" is_inf "isnan" is_nan "logical_not" logical_not
};

pub(super) const OF_TWO: Family = of_two! {
    "atan2" atan2 "clamp_max" minimum "clamp_min" maximum "copysign" copysign
    "div/no_rounding_mode" div "floor_divide" div_floor "fmax" fmax "fmin" fmin
    "heaviside" heaviside "hypot" hypot "logaddexp" logaddexp "xlogy" xlogy
    "max/binary" maximum "maximum" maximum "min/binary" minimum "minimum" minimum "mul" mul
    "pow" pow "remainder" remainder "true_divide" div
};

pub(super) const COMPARISONS: Family = comparisons! {
    "eq" eq "ge" ge "gt" gt "le" le "logical_and" logical_and "logical_or" logical_or
    "logical_xor" logical_xor "lt" lt "ne" ne
};

pub(super) const OPS: Family = &[
    ("__radd__", |call| one(call.var(OTHER)?.add(call.var(INPUT)?)?)),
    ("__rdiv__", |call| one(call.var(OTHER)?.div(call.var(INPUT)?)?)),
    ("__rmod__", |call| one(call.var(OTHER)?.remainder(call.var(INPUT)?)?)),
    ("__rmul__", |call| one(call.var(OTHER)?.mul(call.var(INPUT)?)?)),
    ("__rpow__", |call| one(call.var(OTHER)?.pow(call.var(INPUT)?)?)),
    ("__rsub__", |call| one(call.var(OTHER)?.sub(call.var(INPUT)?)?)),
    ("add", |call| one(call.var(INPUT)?.add(scaled(call, OTHER)?)?)),
    ("addcdiv", |call| {
        let [x, a, b] = ternary(call)?;
        one(x.addcdiv(a, b, call.number(named("value"))?.unwrap_or(1.0))?)
    }),
    ("addcmul", |call| {
        let [x, a, b] = ternary(call)?;
        one(x.addcmul(a, b, call.number(named("value"))?.unwrap_or(1.0))?)
    }),
    ("clamp", |call| {
        let x = call.var(INPUT)?;
        let low = call.optional_var(at(1, "min"))?;
        let x = match low {
            Some(low) => x.maximum(low)?,
            None => x,
        };
        match call.optional_var(at(2, "max"))? {
            Some(high) => one(x.minimum(high)?),
            None => one(x),
        }
    }),
    ("allclose", |call| {
        let [x, other] = [INPUT, OTHER].map(|at| call.var(at));
        truth(call, x?.value().allclose(other?.value(), closeness(call)?)?)
    }),
    ("deg2rad", |call| one(call.var(INPUT)?.mul_scalar(std::f64::consts::PI / 180.0)?)),
    ("equal", |call| {
        let [x, other] = [INPUT, OTHER].map(|at| call.var(at));
        truth(call, x?.value().equal(other?.value())?)
    }),
    ("fmod", |call| {
        let x = call.var(INPUT)?;
        match call.value(OTHER).and_then(|value| call.var_of(value)) {
            Some(other) => one(x.fmod(other)?),
            None => one(x.fmod_scalar(call.number(OTHER)?.unwrap_or_default())?),
        }
    }),
    ("isclose", |call| {
        let [x, other] = [INPUT, OTHER].map(|at| call.var(at));
        one(x?.value().isclose(other?.value(), closeness(call)?)?)
    }),
    ("nan_to_num", |call| {
        let replacements = Replacements {
            nan: call.number(at(1, "nan"))?.unwrap_or_default(),
            infinity: call.number(at(2, "posinf"))?,
            negative_infinity: call.number(at(3, "neginf"))?,
        };
        one(call.var(INPUT)?.nan_to_num(replacements)?)
    }),
    ("lerp", |call| {
        let [x, end] = [call.var(INPUT)?, call.var(at(1, "end"))?];
        let weight = at(2, "weight");
        if call.value(weight).is_some_and(|value| call.var_of(value).is_some()) {
            return no_form("a weight for each element");
        }
        one(x.lerp(end, call.number(weight)?.unwrap_or(0.0))?)
    }),
    ("masked_fill", |call| {
        let (x, mask) = (call.var(INPUT)?, call.constant(at(1, "mask"))?);
        let value = at(2, "value");
        if call.value(value).is_some_and(|value| call.var_of(value).is_some()) {
            return one(call.var(value)?.where_cond(&mask, x)?);
        }
        one(x.masked_fill(&mask, call.number(value)?.unwrap_or(0.0))?)
    }),
    ("positive", |call| one(call.var(INPUT)?)),
    ("rad2deg", |call| one(call.var(INPUT)?.mul_scalar(180.0 / std::f64::consts::PI)?)),
    ("rsub", |call| one(call.var(OTHER)?.sub(scaled(call, INPUT)?)?)),
    ("square", |call| {
        let x = call.var(INPUT)?;
        one(x.clone().mul(x)?)
    }),
    ("sub", |call| one(call.var(INPUT)?.sub(scaled(call, OTHER)?)?)),
    ("where", |call| {
        let condition = call.constant(at(1, "condition"))?;
        one(call.var(INPUT)?.where_cond(&condition, call.var(at(2, "other"))?)?)
    }),
    ("bfloat16", |call| convert(call, DType::BF16)),
    ("bool", |call| convert(call, DType::Bool)),
    ("byte", |call| convert(call, DType::U8)),
    ("div/floor_rounding", |call| {
        call.text(named("rounding_mode"))?;
        one(call.var(INPUT)?.div_floor(call.var(OTHER)?)?)
    }),
    ("div/trunc_rounding", |call| {
        call.text(named("rounding_mode"))?;
        one(call.var(INPUT)?.div_trunc(call.var(OTHER)?)?)
    }),
    ("double", |call| convert(call, DType::F64)),
    ("float", |call| convert(call, DType::F32)),
    ("half", |call| convert(call, DType::F16)),
    ("int", |call| convert(call, DType::I32)),
    ("long", |call| convert(call, DType::I64)),
];

fn closeness(call: &Call<'_>) -> Result<Closeness> {
    let Closeness { relative, absolute, is_nan_equal } = Closeness::default();
    Ok(Closeness {
        relative: call.number(at(2, "rtol"))?.unwrap_or(relative),
        absolute: call.number(at(3, "atol"))?.unwrap_or(absolute),
        is_nan_equal: call.flag(at(4, "equal_nan"))?.unwrap_or(is_nan_equal),
    })
}

/// A truth value as a tensor, because the cases have tensors.
fn truth(call: &Call<'_>, is_true: bool) -> Result<Vec<Output>> {
    one(Tensor::from_slice(&call.device, [], &[is_true])?)
}

fn ternary(call: &Call<'_>) -> Result<[Var; 3]> {
    Ok([call.var(INPUT)?, call.var(at(1, "tensor1"))?, call.var(at(2, "tensor2"))?])
}

/// `alpha` times an operand.
fn scaled(call: &Call<'_>, at: At) -> Result<Var> {
    let x = call.var(at)?;
    match call.number(named("alpha"))? {
        None | Some(1.0) => Ok(x),
        Some(alpha) => Ok(x.mul_scalar(alpha)?),
    }
}

fn convert(call: &Call<'_>, dtype: DType) -> Result<Vec<Output>> {
    let x = call.var(INPUT)?;
    if dtype.is_float() && x.value().dtype().is_float() {
        return one(x.to_dtype(dtype)?);
    }
    let converted: Tensor = x.value().to_dtype(dtype)?;
    one(converted)
}
