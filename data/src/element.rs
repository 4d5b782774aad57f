//! Element types and fields: the parts of a sample.

use bytemuck::{CheckedBitPattern, NoUninit};
use half::bf16;
use std::fmt;
use std::sync::Arc;

/// The label of a sample, pixel or token that the loss ignores. PyTorch's cross-entropy ignores the
/// same label.
pub const IGNORED_LABEL: i64 = -100;

/// Type of the elements of a [`Field`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// 4-byte floating point, for images and features.
    F32,
    /// 8-byte floating point, for reference computations.
    F64,
    /// The upper half of an f32, for features in half the memory.
    Bf16,
    /// 8-byte signed integers, for labels and tokens.
    I64,
    /// 4-byte signed integers, for tokens in half the memory.
    I32,
    /// 2-byte unsigned integers, for tokens as files store them, with vocabularies of up to 65536.
    U16,
    /// Bytes, for images that are converted after the upload.
    U8,
    /// Truth values of one byte, 0 or 1, for masks. Any other byte is an error of its sample.
    Bool,
}

impl ElementType {
    /// All element types.
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

/// The Rust type of an [`ElementType`].
pub trait Element: CheckedBitPattern + NoUninit + sealed::Sealed {
    /// The corresponding element type.
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
    /// Name of the field, unique in a dataset. [`Batch::field`](crate::Batch::field) finds the
    /// field by this name.
    pub name: Arc<str>,
    /// Type of the elements.
    pub element: ElementType,
    /// Shape of one sample without the batch dimension; empty for a scalar. The first dimension of
    /// a ragged field is the maximum length of a sample.
    pub shape: Vec<usize>,
    /// The layout of the field in a batch if samples have different lengths; `None` if all samples
    /// have one shape.
    pub ragged: Option<Collate>,
}

/// The layout of a ragged field in a batch. Each sample of a ragged field has a length of its own.
///
/// A batch with a ragged field `x` also has a field `x.length`, i64 `[B]`. Staging memory always
/// has room for samples of the maximum length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Collate {
    /// Each sample is padded with zeros to the maximum length: `[B, L, ...]`. The batch also has
    /// `x.mask`, bool `[B, L]`, which is false for padding. All batches have one size, so their
    /// memory can be predicted.
    Padded,
    /// The samples are joined without gaps: `[sum of lengths, ...]`.
    /// [`FieldView::offsets`](crate::FieldView::offsets) are the starts of the samples. No work is
    /// spent on padding, and the size differs from batch to batch.
    Packed,
}

impl Field {
    /// A field whose samples all have one shape.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>, element: ElementType, shape: &[usize]) -> Self {
        Self { name: name.into(), element, shape: shape.to_vec(), ragged: None }
    }

    /// A field whose samples have 0 to `len_max` items of shape `item_shape`, such as texts of up
    /// to 512 tokens.
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

    /// Bytes of one sample; `None` if the number overflows.
    pub(crate) fn sample_bytes(&self) -> Option<usize> {
        let element_bytes = self.element.size_bytes();
        self.shape.iter().try_fold(element_bytes, |bytes, &side| bytes.checked_mul(side))
    }
}
