//! Windows along one dimension.

use std::ops::Range;

use crate::ops::windows::{Axis, Kind};

/// The windows along one dimension of an image.
#[derive(Clone, Copy, Debug)]
pub struct Windows(Axis);

impl Windows {
    /// `out_len` windows of one size and step over `in_len` inputs.
    pub fn stepped(
        [kernel, stride, padding]: [usize; 3],
        [in_len, out_len]: [usize; 2],
    ) -> Windows {
        Windows(Axis { in_len, out_len, kind: Kind::Stepped { kernel, stride, padding } })
    }

    /// `out_len` windows that divide `in_len` inputs.
    pub fn adaptive(in_len: usize, out_len: usize) -> Windows {
        Windows(Axis::adaptive(in_len, out_len))
    }

    /// The number of inputs, and of windows.
    pub fn lens(&self) -> [usize; 2] {
        [self.0.in_len, self.0.out_len]
    }

    /// The inputs in window `at`.
    pub fn window(&self, at: usize) -> Range<usize> {
        self.0.window(at)
    }

    /// The windows that hold input `at`.
    pub fn covering(&self, at: usize) -> Range<usize> {
        self.0.covering(at)
    }
}
