//! The number types that a tensor can hold, and their properties for kernels.
//!
//! An [`Element`] is a type in memory, and [`Element::Compute`] is the type that kernels compute
//! in. Formulas of users are generic over [`Float`]. On the processor (`cpu/`), `Arithmetic` is
//! common to the computing types f64, f32 and i64, and `SimdFloat` is the interface of f64 and f32
//! for kernels. The half types become elements in `cpu/half_types.rs`. A few operations add rules
//! of their own, such as the keys of a sort.

use std::any::TypeId;
use std::fmt::{Debug, Display};

/// The type of a tensor's elements, known at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DType {
    /// 64-bit IEEE float; gradient checks.
    F64,
    /// 32-bit IEEE float; the default for training.
    F32,
    /// 16-bit IEEE float; activations in half the memory. Kernels compute in f32.
    F16,
    /// The upper half of an f32: its range, fewer digits. Kernels compute in f32.
    BF16,
    /// 64-bit signed integer; class indices and counters.
    I64,
    /// 32-bit signed integer; indices in half the memory.
    I32,
    /// Unsigned byte; images as read from a file.
    U8,
    /// Truth value in one byte; masks, and results of comparisons.
    Bool,
}

impl DType {
    /// Every type, widest floats first.
    pub const ALL: [DType; 8] = [
        DType::F64,
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::I64,
        DType::I32,
        DType::U8,
        DType::Bool,
    ];

    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::U8 | DType::Bool => 1,
        }
    }

    /// True if gradients can flow through values of this type.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F64 | DType::F32 | DType::F16 | DType::BF16)
    }

    /// The type that kernels compute floats in, [`Element::Compute`]: f32 for the half types, else
    /// this type. Integers and truth values keep their type, because their results are stored
    /// unchanged.
    pub const fn computed(self) -> DType {
        match self {
            DType::F16 | DType::BF16 => DType::F32,
            other => other,
        }
    }

    /// The name, as errors and prints show it.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I64 => "i64",
            DType::I32 => "i32",
            DType::U8 => "u8",
            DType::Bool => "bool",
        }
    }
}

impl Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// A Rust type that lies in memory as one of the [`DType`]s, for kernels to read and write.
///
/// Conversions are as in [`crate::Tensor::to_dtype`]. No other crate can implement this trait,
/// because memory is shared out by the size of [`Element::DTYPE`]:
///
/// ```compile_fail,E0277
/// #[derive(Clone, Copy, Default, PartialEq, PartialOrd, Debug, bytemuck::Pod, bytemuck::Zeroable)]
/// #[repr(C)]
/// struct Pair([f32; 2]);
/// # impl std::fmt::Display for Pair {
/// #     fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { Ok(()) }
/// # }
/// impl lowtide_tensor::Element for Pair {
///     const DTYPE: lowtide_tensor::DType = lowtide_tensor::DType::F32;
///     type Compute = f32;
///     const ZERO: Self = Pair([0.0; 2]);
///     const ONE: Self = Pair([1.0; 2]);
///     fn from_f64(value: f64) -> Self { Pair([value as f32; 2]) }
///     fn from_f32(value: f32) -> Self { Pair([value; 2]) }
///     fn from_i64(value: i64) -> Self { Pair([value as f32; 2]) }
///     fn to_f64(self) -> f64 { self.0[0].into() }
///     fn cast<T: lowtide_tensor::Element>(self) -> T { T::from_f32(self.0[0]) }
/// }
/// ```
pub trait Element:
    sealed::Sealed + bytemuck::Pod + Default + PartialOrd + Display + Debug + Send + Sync + 'static
{
    /// The run-time name of this type.
    const DTYPE: DType;
    /// The type that kernels compute in: f32 for the half types, i64 for integers and truth values.
    /// The lower bits of an i64 are the result of wrapping arithmetic in the narrower type.
    type Compute: Element;
    /// 0, or false.
    const ZERO: Self;
    /// 1, or true.
    const ONE: Self;
    /// A float, converted to this type.
    fn from_f64(value: f64) -> Self;
    /// A float, converted to this type.
    fn from_f32(value: f32) -> Self;
    /// An integer, converted to this type.
    fn from_i64(value: i64) -> Self;
    /// This value as an f64; i64 beyond 2^53 is rounded.
    fn to_f64(self) -> f64;
    /// This value as another type.
    fn cast<T: Element>(self) -> T;
    /// Converts each element with [`Element::from_f32`].
    ///
    /// # Panics
    /// If the lengths differ.
    fn from_f32_slice(from: &[f32], to: &mut [Self]) {
        assert_eq!(from.len(), to.len());
        to.iter_mut().zip(from).for_each(|(to, &from)| *to = Self::from_f32(from));
    }
    /// Converts each element with [`Element::cast`].
    ///
    /// # Panics
    /// If the lengths differ.
    fn cast_slice<T: Element>(from: &[Self], to: &mut [T]) {
        assert_eq!(from.len(), to.len());
        to.iter_mut().zip(from).for_each(|(to, from)| *to = from.cast());
    }
}

/// The types that are elements, and `bool`.
mod sealed {
    pub trait Sealed {}
    impl Sealed for f64 {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
    impl Sealed for i64 {}
    impl Sealed for i32 {}
    impl Sealed for u8 {}
    impl Sealed for super::Bool {}
    impl Sealed for bool {}
}

/// Makes types elements that convert as `as` does, through `$wide`, which holds every value
/// exactly.
macro_rules! element {
    ($($type:ident => $dtype:ident, $from_wide:ident as $wide:ty;)*) => {$(
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            type Compute = $wide;
            const ZERO: Self = 0 as $type;
            const ONE: Self = 1 as $type;
            #[inline(always)]
            fn from_f64(value: f64) -> Self { element!(@float $type, value) }
            #[inline(always)]
            fn from_f32(value: f32) -> Self { element!(@float $type, value) }
            #[inline(always)]
            fn from_i64(value: i64) -> Self { value as $type }
            #[inline(always)]
            fn to_f64(self) -> f64 { self as f64 }
            #[inline(always)]
            fn cast<T: Element>(self) -> T { T::$from_wide(self as $wide) }
            element!(@slice $type);
        }
    )*};
    // A conversion to a half type has vector instructions.
    (@slice f32) => {
        fn cast_slice<T: Element>(from: &[Self], to: &mut [T]) {
            T::from_f32_slice(from, to);
        }
    };
    (@slice $type:ident) => {};
    // PyTorch converts to a byte through i64, then modulo 256.
    (@float u8, $value:ident) => { $value as i64 as u8 };
    (@float $type:ident, $value:ident) => { $value as $type };
}
element! {
    f64 => F64, from_f64 as f64;
    f32 => F32, from_f32 as f32;
    i64 => I64, from_i64 as i64;
    i32 => I32, from_i64 as i64;
    u8 => U8, from_i64 as i64;
}

/// A truth value as it lies in memory: 0 is false, every other byte is true.
///
/// Kernels see this type, because memory may hold any byte; users see [`bool`], through [`Value`].
#[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct Bool(u8);

impl From<bool> for Bool {
    #[inline(always)]
    fn from(value: bool) -> Self {
        Bool(value.into())
    }
}

impl From<Bool> for bool {
    #[inline(always)]
    fn from(value: Bool) -> Self {
        value.0 != 0
    }
}

impl PartialEq for Bool {
    fn eq(&self, other: &Self) -> bool {
        bool::from(*self) == bool::from(*other)
    }
}

impl PartialOrd for Bool {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        bool::from(*self).partial_cmp(&bool::from(*other))
    }
}

impl Debug for Bool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Debug::fmt(&bool::from(*self), f)
    }
}

impl Display for Bool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Display::fmt(&bool::from(*self), f)
    }
}

impl Element for Bool {
    const DTYPE: DType = DType::Bool;
    type Compute = i64;
    const ZERO: Self = Bool(0);
    const ONE: Self = Bool(1);
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        Bool::from(value != 0.0)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        Bool::from(value != 0.0)
    }
    #[inline(always)]
    fn from_i64(value: i64) -> Self {
        Bool::from(value != 0)
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(u8::from(self.0 != 0))
    }
    #[inline(always)]
    fn cast<T: Element>(self) -> T {
        T::from_i64(i64::from(self.0 != 0))
    }
}

/// A Rust type that users put into tensors and get out of them: every [`Element`], and `bool`. No
/// other crate can implement this trait.
pub trait Value: sealed::Sealed + Copy + Send + Sync + 'static {
    /// The type of its values in memory.
    type Element: Element;
    /// The value of an element.
    fn from_element(element: Self::Element) -> Self;
    /// The bytes of these values in memory.
    fn as_bytes(values: &[Self]) -> &[u8];
}

impl<T: Element> Value for T {
    type Element = T;
    fn from_element(element: T) -> Self {
        element
    }
    fn as_bytes(values: &[Self]) -> &[u8] {
        bytemuck::cast_slice(values)
    }
}

impl Value for bool {
    type Element = Bool;
    fn from_element(element: Bool) -> Self {
        element.into()
    }
    fn as_bytes(values: &[Self]) -> &[u8] {
        bytemuck::cast_slice(values)
    }
}

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
    /// -∞, the start of a maximum.
    const NEG_INFINITY: Self;
    /// e to the power of this value.
    fn exp(self) -> Self;
    /// The natural logarithm.
    fn ln(self) -> Self;
    /// The square root.
    fn sqrt(self) -> Self;
    /// The larger value; NaN if either is NaN, as in PyTorch.
    fn maximum(self, other: Self) -> Self;
    /// True if the value is neither infinite nor NaN.
    fn is_finite(self) -> bool;
}

macro_rules! float {
    ($($type:ty),*) => {$(
        impl Float for $type {
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

/// Runs `$body` with `$E` standing for the float type that `$dtype` names and, after `as`, `$T` for
/// its [`Element::Compute`]. `$dtype` has to be a float.
macro_rules! for_each_float {
    ($dtype:expr, $E:ident as $T:ident => $body:expr) => {
        for_each_float!($dtype, $E => {
            type $T = <$E as $crate::dtype::Element>::Compute;
            $body
        })
    };
    ($dtype:expr, $E:ident => $body:expr) => {
        for_each_float!(@match $dtype, $E => $body;
            F64 f64, F32 f32, F16 half::f16, BF16 half::bf16)
    };
    (@match $dtype:expr, $E:ident => $body:expr; $($name:ident $type:ty),*) => {
        match $dtype {
            $($crate::dtype::DType::$name => {
                type $E = $type;
                $body
            })*
            _ => unreachable!("checked to be a float"),
        }
    };
}

/// Runs `$body` with `$T` standing for the type that `$dtype` names.
macro_rules! for_each_dtype {
    ($dtype:expr, $T:ident => $body:expr) => {
        for_each_dtype!(@match $dtype, $T => $body;
            F64 f64, F32 f32, F16 half::f16, BF16 half::bf16,
            I64 i64, I32 i32, U8 u8, Bool $crate::dtype::Bool)
    };
    (@match $dtype:expr, $T:ident => $body:expr; $($name:ident $type:ty),*) => {
        match $dtype {$(
            $crate::dtype::DType::$name => {
                type $T = $type;
                $body
            }
        )*}
    };
}

pub(crate) use {for_each_dtype, for_each_float};

/// True if both types are the same.
#[inline(always)]
pub(crate) fn is_same_type<A: 'static, B: 'static>() -> bool {
    TypeId::of::<A>() == TypeId::of::<B>()
}

/// `slice` itself, if `E` and `T` are the same type.
#[inline(always)]
pub(crate) fn same_type<E: Element, T: Element>(slice: &[E]) -> Option<&[T]> {
    is_same_type::<E, T>().then(|| bytemuck::cast_slice(slice))
}

/// [`same_type`] of a slice to write to.
#[inline(always)]
pub(crate) fn same_type_mut<E: Element, T: Element>(slice: &mut [E]) -> Option<&mut [T]> {
    is_same_type::<E, T>().then(|| bytemuck::cast_slice_mut(slice))
}

/// Number of elements of T that have room for `len` elements of E, which is not larger than T.
pub(crate) fn stored_len<E: Element, T: Element>(len: usize) -> usize {
    len.div_ceil(size_of::<T>() / size_of::<E>())
}

/// [`Element::cast_slice`], a plain copy where both types are the same.
pub(crate) fn convert_slice<E: Element, T: Element>(from: &[E], to: &mut [T]) {
    if is_same_type::<E, T>() {
        to.copy_from_slice(bytemuck::cast_slice(from));
    } else {
        E::cast_slice(from, to);
    }
}
