//! Layouts as kernels of NVIDIA devices take them.

use super::{Layout, Nest, RANK_MAX};

impl Layout {
    /// The beginning of each row of a matrix, in elements that are `times` times smaller. The
    /// number of elements of a row is unchanged.
    pub(crate) fn front_of_rows(&self, times: usize) -> Layout {
        let mut layout = *self;
        layout.strides[0] *= times;
        layout.offset *= times;
        layout
    }
}

impl<const N: usize> Nest<N> {
    /// The number of dimensions that are left after merging, at least one.
    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    /// The sizes of the dimensions that are left after merging, then ones.
    pub(crate) fn dims(&self) -> [usize; RANK_MAX] {
        self.dims
    }

    /// Every operand's strides along the dimensions that are left after merging, then zeros.
    pub(crate) fn strides(&self) -> [[usize; RANK_MAX]; N] {
        self.strides
    }
}
