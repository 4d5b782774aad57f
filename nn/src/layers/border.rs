//! Padding around the input of a convolution, for padding that is not zeros or not equal on both
//! sides.

use lowtide_autograd::Var;
use lowtide_tensor::PadMode;

use crate::error::Result;

/// Numbers of places added around the last `N` dimensions, and their values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Border<const N: usize> {
    amounts: [[usize; 2]; N],
    mode: PadMode,
}

impl<const N: usize> Border<N> {
    /// The border of a layer whose padding is in `mode`. Its amounts are the amounts of `own`, or
    /// else `padding`, which becomes 0.
    pub(super) fn in_mode(own: Option<Self>, padding: &mut [usize; N], mode: PadMode) -> Self {
        let padding = std::mem::replace(padding, [0; N]);
        let amounts = own.map_or(padding.map(|both| [both; 2]), |border| border.amounts);
        Border { amounts, mode }
    }

    /// Padding that keeps the size with a stride of 1. If a total is odd, the extra place is at the
    /// end. If all totals are even, `padding` is set instead: the convolution pads with zeros
    /// itself and needs no copy of the input.
    pub(super) fn same(
        kernel: [usize; N],
        dilation: [usize; N],
        padding: &mut [usize; N],
    ) -> Option<Self> {
        let total: [usize; N] = std::array::from_fn(|i| dilation[i] * kernel[i].saturating_sub(1));
        let is_even = total.iter().all(|total| total % 2 == 0);
        *padding = if is_even { total.map(|total| total / 2) } else { [0; N] };
        let amounts = total.map(|total| [total / 2, total - total / 2]);
        (!is_even).then_some(Border { amounts, mode: PadMode::Constant(0.0) })
    }

    pub(super) fn around(&self, x: Var) -> Result<Var> {
        Ok(x.pad(&self.amounts, self.mode)?)
    }
}
