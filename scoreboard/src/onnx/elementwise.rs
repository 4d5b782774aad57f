//! Element by element: functions of one value, arithmetic, comparisons, choices, conversions.

use lowtide_autograd::Var;
use lowtide_nn::{Hardshrink, Module, Softshrink, Threshold};
use lowtide_tensor::DType;

use super::node::NodeCall;
use super::{Family, converted};
use crate::call::{Output, Result, one};

macro_rules! of_one {
    ($($name:literal $method:ident)*) => {
        &[$(($name, |node| one(node.var(0)?.$method()?))),*]
    };
}

macro_rules! of_two {
    ($($name:literal $method:ident)*) => {
        &[$(($name, |node| one(node.var(0)?.$method(node.var(1)?)?))),*]
    };
}

macro_rules! comparisons {
    ($($name:literal $method:ident)*) => {
        &[$(($name, |node| one(node.tensor(0)?.$method(&node.tensor(1)?)?))),*]
    };
}

pub(super) const OF_ONE: Family = of_one! {
    "Abs" abs "Acos" acos "Asin" asin "Atan" atan "Ceil" ceil "Cos" cos "Cosh" cosh "Erf" erf
    "Exp" exp "Floor" floor "HardSwish" hardswish "Log" log "Mish" mish "Neg" neg
    "Reciprocal" reciprocal "Relu" relu "Round" round "Sigmoid" sigmoid "Sign" sign "Sin" sin
    "Sinh" sinh "Softsign" softsign "Sqrt" sqrt "Tan" tan "Tanh" tanh
};

pub(super) const OF_TWO: Family = of_two! { "Add" add "Mul" mul "Sub" sub };

pub(super) const COMPARISONS: Family = comparisons! {
    "And" logical_and "Equal" eq "Greater" gt "GreaterOrEqual" ge "Less" lt "LessOrEqual" le
    "Or" logical_or "Xor" logical_xor
};

pub(super) const OPS: Family = &[
    ("Acosh", |node| {
        // ln(x + √(x² - 1))
        let x = node.var(0)?;
        let root = x.clone().mul(x.clone())?.sub_scalar(1.0)?.sqrt()?;
        one(x.add(root)?.log()?)
    }),
    ("Asinh", |node| {
        // ln(|x| + √(x² + 1)) with the sign of x
        let x = node.var(0)?;
        let root = x.clone().mul(x.clone())?.add_scalar(1.0)?.sqrt()?;
        one(x.clone().abs()?.add(root)?.log()?.copysign(x)?)
    }),
    ("Atanh", |node| {
        // (ln(1 + x) - ln(1 - x)) / 2
        let x = node.var(0)?;
        one(x.clone().log1p()?.sub(x.neg()?.log1p()?)?.mul_scalar(0.5)?)
    }),
    ("Cast", |node| {
        // Both attributes are about float8.
        node.ignore(&["saturate", "round_mode"]);
        let dtype = node.element_type("to")?.ok_or_else(|| node.wrong("there is no `to`"))?;
        one(converted(node, node.var(0)?, dtype)?)
    }),
    ("CastLike", |node| {
        node.ignore(&["saturate", "round_mode"]);
        let dtype = node.var(1)?.value().dtype();
        one(converted(node, node.var(0)?, dtype)?)
    }),
    ("Celu", |node| one(node.var(0)?.celu(node.attribute_number("alpha")?.unwrap_or(1.0))?)),
    ("Clip", |node| {
        let mut x = node.var(0)?;
        let dtype = x.value().dtype();
        // Bounds are attributes in early versions, and then have no type.
        if let Some(low) = node.attribute_number("min")? {
            x = x.maximum_scalar(low)?;
        }
        if let Some(high) = node.attribute_number("max")? {
            x = x.minimum_scalar(high)?;
        }
        if let Some(low) = node.optional_var(1) {
            x = x.maximum(converted(node, low, dtype)?)?;
        }
        match node.optional_var(2) {
            Some(high) => one(x.minimum(converted(node, high, dtype)?)?),
            None => one(x),
        }
    }),
    ("Div", |node| {
        let (x, y) = (node.var(0)?, node.var(1)?);
        // The division of integers rounds towards 0, as in C.
        one(if x.value().dtype().is_float() { x.div(y)? } else { x.div_trunc(y)? })
    }),
    ("Elu", |node| one(node.var(0)?.elu(node.attribute_number("alpha")?.unwrap_or(1.0))?)),
    ("Gelu", |node| match node.text("approximate")?.unwrap_or("none") {
        "none" => one(node.var(0)?.gelu()?),
        "tanh" => one(node.var(0)?.gelu_tanh()?),
        other => Err(node.wrong(&format!("approximate = {other}"))),
    }),
    ("HardSigmoid", |node| {
        let alpha = node.attribute_number("alpha")?.unwrap_or(0.2);
        let beta = node.attribute_number("beta")?.unwrap_or(0.5);
        one(node.var(0)?.mul_scalar(alpha)?.add_scalar(beta)?.clamp(0.0, 1.0)?)
    }),
    ("Identity", |node| one(node.var(0)?)),
    ("IsInf", |node| {
        let x = node.tensor(0)?;
        let positive = node.flag("detect_positive")?.unwrap_or(true);
        let negative = node.flag("detect_negative")?.unwrap_or(true);
        let is_inf = x.is_inf()?;
        one(match (positive, negative) {
            (true, true) => is_inf,
            (true, false) => is_inf.logical_and(&x.gt_scalar(0.0)?)?,
            (false, true) => is_inf.logical_and(&x.lt_scalar(0.0)?)?,
            (false, false) => is_inf.logical_xor(&is_inf)?,
        })
    }),
    ("IsNaN", |node| one(node.tensor(0)?.is_nan()?)),
    ("LeakyRelu", |node| {
        one(node.var(0)?.leaky_relu(node.attribute_number("alpha")?.unwrap_or(0.01))?)
    }),
    ("Max", |node| folded(node, |x, y| Ok(x.maximum(y)?))),
    ("Mean", |node| {
        let count = node.input_count() as f64;
        let sum = folded(node, |x, y| Ok(x.add(y)?))?.pop();
        match sum {
            Some(Output::Var(sum)) => one(sum.div_scalar(count)?),
            _ => Err(node.wrong("there is no input")),
        }
    }),
    ("Min", |node| folded(node, |x, y| Ok(x.minimum(y)?))),
    ("Mod", |node| {
        let (x, y) = (node.var(0)?, node.var(1)?);
        let is_signed_as_x = node.flag("fmod")?.unwrap_or(false);
        one(if is_signed_as_x { x.fmod(y)? } else { x.remainder(y)? })
    }),
    ("Not", |node| one(node.tensor(0)?.logical_not()?)),
    ("PRelu", |node| {
        let (x, slope) = (node.var(0)?, node.var(1)?);
        let is_positive = x.value().gt_scalar(0.0)?;
        one(x.clone().where_cond(&is_positive, x.mul(slope)?)?)
    }),
    ("Pow", |node| {
        let (x, y) = (node.var(0)?, node.var(1)?);
        let dtype = x.value().dtype();
        // Integers are computed in f64, which holds whole numbers up to 2^53.
        let wide = if dtype.is_float() { dtype } else { DType::F64 };
        let power = converted(node, x, wide)?.pow(converted(node, y, wide)?)?;
        one(converted(node, power, dtype)?)
    }),
    ("Selu", |node| {
        let (alpha, gamma) = (node.attribute_number("alpha")?, node.attribute_number("gamma")?);
        match (alpha, gamma) {
            (None, None) => one(node.var(0)?.selu()?),
            (alpha, gamma) => {
                let (alpha, gamma) = (alpha.unwrap_or(1.673_263), gamma.unwrap_or(1.050_701));
                one(node.var(0)?.elu(alpha)?.mul_scalar(gamma)?)
            }
        }
    }),
    ("Shrink", |node| {
        let bias = node.attribute_number("bias")?.unwrap_or(0.0);
        let limit = node.attribute_number("lambd")?.unwrap_or(0.5);
        let x = node.var(0)?;
        if bias == limit {
            return one(Softshrink(limit).forward(node.pass(), x)?);
        }
        if bias == 0.0 {
            return one(Hardshrink(limit).forward(node.pass(), x)?);
        }
        node.no_form("a bias that is not the limit")
    }),
    ("Softplus", |node| one(node.var(0)?.softplus(1.0, 20.0)?)),
    ("Sum", |node| folded(node, |x, y| Ok(x.add(y)?))),
    ("SwiGLU", |node| {
        let alpha = node.attribute_number("alpha")?.unwrap_or(1.0);
        one(swish(node.var(0)?, alpha)?.mul(node.var(1)?)?)
    }),
    ("Swish", |node| {
        let alpha = node.attribute_number("alpha")?.unwrap_or(1.0);
        one(swish(node.var(0)?, alpha)?)
    }),
    ("ThresholdedRelu", |node| {
        let threshold = node.attribute_number("alpha")?.unwrap_or(1.0);
        one(Threshold(threshold, 0.0).forward(node.pass(), node.var(0)?)?)
    }),
    ("Where", |node| one(node.var(1)?.where_cond(&node.tensor(0)?, node.var(2)?)?)),
];

/// All inputs combined from the first on.
fn folded(node: &NodeCall<'_>, combine: fn(Var, Var) -> Result<Var>) -> Result<Vec<Output>> {
    let mut all = node.vars()?.into_iter();
    let first = all.next().ok_or_else(|| node.wrong("there is no input"))?;
    one(all.try_fold(first, combine)?)
}

/// x · sigmoid(alpha · x)
fn swish(x: Var, alpha: f64) -> Result<Var> {
    if alpha == 1.0 {
        return Ok(x.silu()?);
    }
    Ok(x.clone().mul(x.mul_scalar(alpha)?.sigmoid()?)?)
}
