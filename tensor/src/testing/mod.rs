//! Internals as plain calls, for the tests of this crate. Their form may change at any time.
//!
//! A call that runs a kernel is compiled here, for the types that it has, and not once more by the
//! tests.

mod layout;
mod windows;

#[cfg(feature = "cuda")]
pub mod cuda {
    //! Internals of the device.
    pub use crate::cuda::gate::testing::{from_values, get_or_make, hash};

    /// The numbers by which kernels divide by `size`.
    pub fn divisor(size: usize) -> [u64; 2] {
        crate::cuda::kernels::divisor(size)
    }
}

pub use self::layout::{
    NestRows, axes_by_stride, narrow, nest_rows, permute, repeats_elements, select, span,
    unsqueeze, with_strides,
};
pub use self::windows::Windows;
pub use crate::cpu::testing as cpu;
use crate::dtype::{DType, Element, for_each_float};
pub use crate::ops::conv2d::testing::{ConvProduct, ConvSizes, Convolved};
pub use crate::ops::elementwise::listed::{Function, FunctionGradient, functions};
pub use crate::ops::max_pool2d::testing::{PoolSizes, Pooled};
pub use crate::ops::rearrange::testing::{Positions, Walked, merged};
pub use crate::ops::update::testing::{BLOCK_BYTES, BLOCK_LEN, Codes};
use crate::random::RandomKey;
pub use crate::write_mode::WriteMode;

/// The type that kernels for elements of `dtype` have, and the type that they compute in.
pub fn kernel_dtypes(dtype: DType) -> [DType; 2] {
    for_each_float!(dtype, E as T => [E::DTYPE, T::DTYPE])
}

/// The type that kernels are said to compute in.
pub fn computed_dtype(dtype: DType) -> DType {
    dtype.computed()
}

/// Philox4x32-10.
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    crate::random::philox4x32(counter, key)
}

/// The blocks of `key` at the places `counter..counter + 8`, word by word.
pub fn random_blocks(key: &RandomKey, counter: u64) -> [[u32; 8]; 4] {
    key.blocks(counter)
}
