//! Layouts as kernels of NVIDIA devices take them.

use super::{Layout, Nest, RANK_MAX};

impl Layout {
    /// The beginning of each row of a matrix, as elements that are `times` times smaller: as many
    /// as the row has of the larger ones.
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

    /// The sizes of those dimensions, then ones.
    pub(crate) fn dims(&self) -> [usize; RANK_MAX] {
        self.dims
    }

    /// Every operand's strides along those dimensions, then zeros.
    pub(crate) fn strides(&self) -> [[usize; RANK_MAX]; N] {
        self.strides
    }
}
