//! The number types a tensor can hold, and what the kernels need to know of each.

use std::fmt::{Debug, Display};

/// The type of a tensor's elements, known at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// 64-bit IEEE float; gradient checks.
    F64,
    /// 32-bit IEEE float; the default for training.
    F32,
    /// 64-bit signed integer; class indices and counters.
    I64,
    /// Unsigned byte; images as they come from a file.
    U8,
}

impl DType {
    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 => 4,
            DType::U8 => 1,
        }
    }

    /// Whether gradients can flow through values of this type.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F64 | DType::F32)
    }
}

impl Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::I64 => "i64",
            DType::U8 => "u8",
        })
    }
}

/// A Rust type that is one of the [`DType`]s.
pub trait Element:
    bytemuck::Pod + Default + PartialOrd + Display + Debug + Send + Sync + 'static
{
    /// The run-time name of this type.
    const DTYPE: DType;
    /// The nearest value of this type, saturating; what `as` does.
    fn from_f64(value: f64) -> Self;
    /// This value as an f64; i64 beyond 2^53 is rounded.
    fn to_f64(self) -> f64;
}

macro_rules! element {
    ($($type:ty => $dtype:ident),*) => {$(
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as $type
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
        }
    )*};
}
element!(f64 => F64, f32 => F32, i64 => I64, u8 => U8);

/// A floating-point [`Element`]: the operations that kernels are written in.
pub trait Float:
    Element
    + std::ops::Add<Output = Self>
    + std::ops::Sub<Output = Self>
    + std::ops::Mul<Output = Self>
    + std::ops::Div<Output = Self>
    + std::ops::Neg<Output = Self>
    + std::ops::AddAssign
    + std::ops::MulAssign
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// -∞, where a maximum starts.
    const NEG_INFINITY: Self;
    /// e to the power of this value.
    fn exp(self) -> Self;
    /// The natural logarithm.
    fn ln(self) -> Self;
    /// The square root.
    fn sqrt(self) -> Self;
    /// The larger value; a NaN on either side is the result, as in PyTorch.
    fn maximum(self, other: Self) -> Self;
    /// Neither infinite nor NaN.
    fn is_finite(self) -> bool;
}

macro_rules! float {
    ($($type:ty),*) => {$(
        impl Float for $type {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const NEG_INFINITY: Self = <$type>::NEG_INFINITY;
            #[inline(always)]
            fn exp(self) -> Self { <$type>::exp(self) }
            #[inline(always)]
            fn ln(self) -> Self { <$type>::ln(self) }
            #[inline(always)]
            fn sqrt(self) -> Self { <$type>::sqrt(self) }
            #[inline(always)]
            fn maximum(self, other: Self) -> Self {
                if self > other || self.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn is_finite(self) -> bool { <$type>::is_finite(self) }
        }
    )*};
}
float!(f64, f32);

/// Runs `$body` with `$T` standing for the float type that `$dtype` names; `$else` otherwise.
macro_rules! for_float {
    ($dtype:expr, $T:ident => $body:expr, else $otherwise:expr) => {
        match $dtype {
            $crate::DType::F64 => {
                type $T = f64;
                $body
            }
            $crate::DType::F32 => {
                type $T = f32;
                $body
            }
            _ => $otherwise,
        }
    };
}

/// Runs `$body` with `$T` standing for the type that `$dtype` names.
macro_rules! for_each_dtype {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::DType::F64 => {
                type $T = f64;
                $body
            }
            $crate::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::DType::I64 => {
                type $T = i64;
                $body
            }
            $crate::DType::U8 => {
                type $T = u8;
                $body
            }
        }
    };
}

pub(crate) use {for_each_dtype, for_float};
