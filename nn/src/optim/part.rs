//! One of several equal parts of every parameter, as ranks divide them.

use std::ops::Range;

use lowtide_autograd::Gradients;
use lowtide_tensor::{Tensor, TensorError};

use crate::error::Result;

/// Whole blocks of the allocator, and addresses that vectors of any device can be read from.
const ALIGN_LEN: usize = 256;

/// One of several equal parts of every parameter: the elements, in row-major order, that one of
/// several ranks updates, and keeps the optimizer's states of (ZeRO, Rajbhandari et al. 2020). The
/// last parts of a parameter may be shorter, those of a small one empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// From 0 on.
    pub index: usize,
    /// How many there are.
    pub count: usize,
}

impl Part {
    /// Elements that each part of a parameter of `len` elements has, but for the last ones.
    pub fn len_of(self, len: usize) -> usize {
        len.div_ceil(self.count).next_multiple_of(ALIGN_LEN)
    }

    /// Its elements of a parameter of `len` elements.
    pub fn range(self, len: usize) -> Range<usize> {
        let part_len = self.len_of(len);
        let end_of = |parts: usize| len.min(parts * part_len);
        end_of(self.index)..end_of(self.index + 1)
    }

    /// Its elements of x, as a view.
    ///
    /// # Shapes
    /// `x: [..] -> [n]`
    ///
    /// # Errors
    /// `Strided` unless x is contiguous.
    #[track_caller]
    pub fn of(self, x: &Tensor) -> Result<Tensor> {
        if !x.layout().is_contiguous() {
            return Err(TensorError::Strided { op: "part" }.into());
        }
        let range = self.range(x.element_count());
        Ok(x.view([x.element_count()])?.narrow(0, range.start, range.len())?)
    }

    /// Leaves of each gradient its part, as a view.
    ///
    /// # Errors
    /// `Strided`.
    pub fn keep(self, gradients: &mut Gradients) -> Result<()> {
        gradients.iter_mut().try_for_each(|gradient| {
            *gradient = self.of(gradient)?;
            Ok(())
        })
    }
}
