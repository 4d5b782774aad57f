//! Element types and fields: what one sample is made of.

use bytemuck::Pod;
use std::fmt;

/// Type of the elements of a [`Field`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// 4-byte floating point: images, features.
    F32,
    /// 8-byte floating point: reference computations.
    F64,
    /// 8-byte signed integers: labels, tokens.
    I64,
    /// Bytes: images that are converted after the upload, masks.
    U8,
}

impl ElementType {
    /// Bytes of one element.
    #[must_use]
    pub fn size_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F64 | Self::I64 => 8,
            Self::U8 => 1,
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::I64 => "i64",
            Self::U8 => "u8",
        })
    }
}

/// A Rust type that is the element of a field. Implemented for `f32`, `f64`, `i64` and `u8` only.
pub trait Element: Pod + sealed::Sealed {
    /// The type's name at run time.
    const TYPE: ElementType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! element {
    ($($rust:ty => $name:ident),*) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const TYPE: ElementType = ElementType::$name;
        }
        const _: () = assert!(size_of::<$rust>() == align_of::<$rust>());
    )*};
}
element!(f32 => F32, f64 => F64, i64 => I64, u8 => U8);

/// One named part of every sample of a dataset, such as its image or its label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Name by which the batch's consumer asks for it; unique in a dataset.
    pub name: &'static str,
    /// Type of its elements.
    pub element: ElementType,
    /// Shape of one sample, without the batch dimension; empty for a scalar.
    pub shape: Vec<usize>,
}

impl Field {
    /// A field from its three parts.
    #[must_use]
    pub fn new(name: &'static str, element: ElementType, shape: &[usize]) -> Self {
        Self { name, element, shape: shape.to_vec() }
    }

    /// Bytes of one sample, or `None` if that overflows.
    pub(crate) fn sample_bytes(&self) -> Option<usize> {
        let element_bytes = self.element.size_bytes();
        self.shape.iter().try_fold(element_bytes, |bytes, &side| bytes.checked_mul(side))
    }
}
