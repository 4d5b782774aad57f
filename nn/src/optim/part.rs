//! Splits every parameter into parts of equal length, one for each rank.

use std::ops::Range;

use lowtide_autograd::Gradients;
use lowtide_tensor::{Tensor, TensorError};

use crate::error::Result;

/// Number of elements that parts are aligned to: a whole number of the allocator's blocks, so that
/// vector loads of every device are aligned.
const ALIGN_LEN: usize = 256;

/// The elements of every parameter, in row-major order, that one of several ranks updates. The rank
/// keeps the optimizer states only of these elements (ZeRO, Rajbhandari et al. 2020). Parts have
/// equal lengths, but the last parts of a parameter may be shorter or empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Index of the part, from 0.
    pub index: usize,
    /// Number of parts.
    pub count: usize,
}

impl Part {
    /// Number of elements of a part of a parameter of `len` elements. The last parts may have
    /// fewer.
    pub fn len_of(self, len: usize) -> usize {
        len.div_ceil(self.count).next_multiple_of(ALIGN_LEN)
    }

    /// The range of this part in a parameter of `len` elements.
    pub fn range(self, len: usize) -> Range<usize> {
        let part_len = self.len_of(len);
        let end_of = |parts: usize| len.min(parts * part_len);
        end_of(self.index)..end_of(self.index + 1)
    }

    /// This part of x, as a view.
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

    /// Replaces each gradient by a view of this part.
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
