//! The formulas by name: what each is defined for, and what it costs.

/// A formula over one to three sources, in the order of the comments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Op {
    Number(Number),
    Float(Float),
    Test(Test),
    Gradient(Gradient),
}

/// Defined for floats and integers; integers wrap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    // x
    Abs,
    Neg,
    Sign,
    Relu,
    Clamp(f64, f64),
    // a, b
    Add,
    AddScaled(f64),
    Sub,
    Mul,
    Maximum,
    Minimum,
    DivFloor,
    DivTrunc,
    Remainder,
    // condition, a, b
    Where,
    // x, mask, value
    MaskedFill,
    // x, a, b
    AddCMul(f64),
}

/// Defined for floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Float {
    // x
    Exp,
    Expm1,
    Log,
    Log1p,
    Sqrt,
    Rsqrt,
    Reciprocal,
    Sin,
    Cos,
    Tan,
    Tanh,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Log2,
    Log10,
    Exp2,
    Erf,
    Mish,
    HardSwish,
    HardSigmoid,
    Selu,
    Softsign,
    LogSigmoid,
    Sigmoid,
    LeakyRelu(f64),
    Elu(f64),
    Gelu,
    GeluTanh,
    Silu,
    Softplus { beta: f64, threshold: f64 },
    Floor,
    Ceil,
    Round,
    Trunc,
    PowScalar(f64),
    // a, b
    Div,
    Pow,
    Atan2,
    Lerp(f64),
    // x, a, b
    AddCDiv(f64),
}

/// Gradients through activations, of dy and of what the comments say; defined for floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Gradient {
    // y
    Relu,
    Sigmoid,
    Tanh,
    // x
    Gelu,
    GeluTanh,
    Silu,
    Elu(f64),
    LeakyRelu(f64),
    Softplus { beta: f64, threshold: f64 },
    Mish,
    HardSwish,
    HardSigmoid,
    Selu,
    Softsign,
    LogSigmoid,
}

/// Defined for every type; the result is a truth value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Test {
    // x
    Not,
    IsFinite,
    IsInf,
    IsNan,
    // a, b
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    And,
    Or,
    Xor,
}

/// The element types that a formula is defined for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Domain {
    Floats,
    FloatsAndIntegers,
    Everything,
}

impl Op {
    pub(super) fn domain(self) -> Domain {
        match self {
            Op::Float(_) | Op::Gradient(_) => Domain::Floats,
            // Choosing moves elements, which all types have.
            Op::Number(Number::Where | Number::MaskedFill) | Op::Test(_) => Domain::Everything,
            Op::Number(_) => Domain::FloatsAndIntegers,
        }
    }

    /// Whether the last source divides: an integer there must not be 0.
    pub(super) fn is_division(self) -> bool {
        use Number::{DivFloor, DivTrunc, Remainder};
        matches!(self, Op::Number(DivFloor | DivTrunc | Remainder))
    }

    pub(super) fn source_count(self) -> usize {
        use {Float as F, Number as N, Test as T};
        match self {
            Op::Number(N::Abs | N::Neg | N::Sign | N::Relu | N::Clamp(..)) => 1,
            Op::Number(N::Where | N::MaskedFill | N::AddCMul(_)) => 3,
            Op::Number(_) => 2,
            Op::Float(F::AddCDiv(_)) => 3,
            Op::Float(F::Div | F::Pow | F::Atan2 | F::Lerp(_)) | Op::Gradient(_) => 2,
            Op::Float(_) => 1,
            Op::Test(T::Not | T::IsFinite | T::IsInf | T::IsNan) => 1,
            Op::Test(_) => 2,
        }
    }

    /// Arithmetic operations per element, for the simulated time: the instructions of the f32
    /// loops, roughly.
    pub(super) fn flops(self) -> f64 {
        match self {
            Op::Number(Number::DivFloor | Number::DivTrunc | Number::Remainder) => 50.0,
            Op::Number(_) | Op::Test(_) => 1.0,
            Op::Float(Float::Div | Float::Sqrt | Float::Rsqrt | Float::Reciprocal) => 4.0,
            Op::Float(Float::Pow | Float::PowScalar(_) | Float::Atan2) => 50.0,
            Op::Float(Float::Floor | Float::Ceil | Float::Round | Float::Trunc) => 1.0,
            Op::Float(Float::Lerp(_) | Float::LeakyRelu(_)) => 2.0,
            Op::Gradient(Gradient::Relu | Gradient::LeakyRelu(_)) => 2.0,
            Op::Float(_) | Op::Gradient(_) => 20.0,
        }
    }
}
