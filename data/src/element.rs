//! Element types and fields: what one sample is made of.

use bytemuck::{CheckedBitPattern, NoUninit};
use half::bf16;
use std::fmt;
use std::sync::Arc;

/// The label of what does not count: of a sample, a pixel or a token. The one that PyTorch's
/// cross-entropy ignores.
pub const IGNORED_LABEL: i64 = -100;

/// Type of the elements of a [`Field`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// 4-byte floating point: images, features.
    F32,
    /// 8-byte floating point: reference computations.
    F64,
    /// The upper half of an f32: features in half the memory.
    Bf16,
    /// 8-byte signed integers: labels, tokens.
    I64,
    /// 4-byte signed integers: tokens in half the memory.
    I32,
    /// 2-byte unsigned integers: tokens of vocabularies of up to 65536, as files hold them.
    U16,
    /// Bytes: images that are converted after the upload.
    U8,
    /// Truth values of one byte, 0 or 1: masks. Any other byte is an error of its sample.
    Bool,
}

impl ElementType {
    /// Every type.
    pub const ALL: [Self; 8] =
        [Self::F32, Self::F64, Self::Bf16, Self::I64, Self::I32, Self::U16, Self::U8, Self::Bool];

    /// Bytes of one element.
    #[must_use]
    pub fn size_bytes(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::Bf16 | Self::U16 => 2,
            Self::U8 | Self::Bool => 1,
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Bf16 => "bf16",
            Self::I64 => "i64",
            Self::I32 => "i32",
            Self::U16 => "u16",
            Self::U8 => "u8",
            Self::Bool => "bool",
        })
    }
}

/// A Rust type that is the element of a field: one for each [`ElementType`], and no other.
pub trait Element: CheckedBitPattern + NoUninit + sealed::Sealed {
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
element!(
    f32 => F32, f64 => F64, bf16 => Bf16, i64 => I64, i32 => I32, u16 => U16, u8 => U8, bool => Bool
);

/// One named part of every sample of a dataset, such as its image or its label.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Field {
    /// Name by which the batch's consumer asks for it; unique in a dataset.
    pub name: Arc<str>,
    /// Type of its elements.
    pub element: ElementType,
    /// Shape of one sample, without the batch dimension; empty for a scalar. The first side of a
    /// ragged field is the greatest length that a sample may have.
    pub shape: Vec<usize>,
    /// How samples of different lengths come into a batch; `None` if they have one shape.
    pub ragged: Option<Collate>,
}

/// How the samples of a ragged field, each with a length of its own, lie in a batch.
///
/// Beside a ragged field `x` a batch has `x.length`, i64 `[B]`. Staging memory is that of the
/// greatest length in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Collate {
    /// Each to the greatest length, followed by zeros: `[B, L, ...]`, and beside it `x.mask`, bool
    /// `[B, L]`, which is true where there is a sample. Every batch has the same bytes, so that its
    /// memory can be predicted.
    Padded,
    /// One after the other without a gap, `[sum of lengths, ...]`, to be cut by
    /// [`FieldView::offsets`](crate::FieldView::offsets): no work on padding, and memory that
    /// differs from batch to batch.
    Packed,
}

impl Field {
    /// A field from its three parts.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>, element: ElementType, shape: &[usize]) -> Self {
        Self { name: name.into(), element, shape: shape.to_vec(), ragged: None }
    }

    /// A field whose samples have from 0 to `len_max` items of shape `item_shape`, such as a text
    /// of up to 512 tokens.
    #[must_use]
    pub fn ragged(
        name: impl Into<Arc<str>>,
        element: ElementType,
        len_max: usize,
        item_shape: &[usize],
        collate: Collate,
    ) -> Self {
        let shape = [&[len_max], item_shape].concat();
        Self { ragged: Some(collate), ..Self::new(name, element, &shape) }
    }

    /// Bytes of one sample, or `None` if that overflows.
    pub(crate) fn sample_bytes(&self) -> Option<usize> {
        let element_bytes = self.element.size_bytes();
        self.shape.iter().try_fold(element_bytes, |bytes, &side| bytes.checked_mul(side))
    }
}
