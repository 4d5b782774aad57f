//! Costs of kernels, which a simulated device adds up to its time.

use std::fmt::{self, Display};

/// A class of operations whose speed has one limit, so that one measured rate fits the whole class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OpClass {
    /// Matrix products.
    Product,
    /// Convolutions and their gradients.
    Convolution,
    /// Convolutions with strides, or with few pixels in a plane of the result.
    CoarseConvolution,
    /// Attention and its gradients.
    Attention,
    /// Operations on each element by itself, casts and fills; operations of no other class.
    #[default]
    Elementwise,
    /// Sums, softmax and losses: fewer elements out of many.
    Reduction,
    /// Normalisation and its gradients: several passes over the operands.
    Normalization,
    /// Pooling and its gradients.
    Pooling,
    /// Looking elements up, placing and sorting them.
    Indexing,
    /// Random numbers, dropout.
    Random,
    /// Updates of parameters by an optimizer.
    Update,
    /// Copies of elements within one memory.
    Copy,
    /// Copies to the memory of another device; each byte counts once.
    Transfer,
}

impl OpClass {
    /// Every class.
    pub const ALL: [OpClass; 13] = [
        OpClass::Product,
        OpClass::Convolution,
        OpClass::CoarseConvolution,
        OpClass::Attention,
        OpClass::Elementwise,
        OpClass::Reduction,
        OpClass::Normalization,
        OpClass::Pooling,
        OpClass::Indexing,
        OpClass::Random,
        OpClass::Update,
        OpClass::Copy,
        OpClass::Transfer,
    ];
}

/// Name of the class in reports and files.
impl Display for OpClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OpClass::Product => "product",
            OpClass::Convolution => "convolution",
            OpClass::CoarseConvolution => "coarse convolution",
            OpClass::Attention => "attention",
            OpClass::Elementwise => "elementwise",
            OpClass::Reduction => "reduction",
            OpClass::Normalization => "normalization",
            OpClass::Pooling => "pooling",
            OpClass::Indexing => "indexing",
            OpClass::Random => "random",
            OpClass::Update => "update",
            OpClass::Copy => "copy",
            OpClass::Transfer => "transfer",
        })
    }
}

/// Work of a kernel, from which a simulated device computes time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// The class, whose rates limit the speed of the kernel.
    pub class: OpClass,
    /// Arithmetic operations; a multiply-add counts two.
    pub flops: f64,
    /// Bytes moved from and to memory, each operand once.
    pub bytes: f64,
}
