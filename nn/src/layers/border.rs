//! What stands around the input of a convolution, if it is not the same number of zeros on both
//! sides.

use lowtide_autograd::Var;
use lowtide_tensor::PadMode;

use crate::error::Result;

/// Places around the last `N` dimensions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Border<const N: usize> {
    amounts: [[usize; 2]; N],
    mode: PadMode,
}

impl<const N: usize> Border<N> {
    /// The border of a layer whose padding is in `mode`: `padding`, which becomes 0, or that which
    /// it had.
    pub(super) fn in_mode(own: Option<Self>, padding: &mut [usize; N], mode: PadMode) -> Self {
        let padding = std::mem::replace(padding, [0; N]);
        let amounts = own.map_or(padding.map(|both| [both; 2]), |border| border.amounts);
        Border { amounts, mode }
    }

    /// With a stride of 1, as much as the kernel takes away; one more behind than before if it is
    /// odd.
    pub(super) fn same(kernel: [usize; N], dilation: [usize; N]) -> Self {
        let amounts = std::array::from_fn(|i| {
            let total = dilation[i] * kernel[i].saturating_sub(1);
            [total / 2, total - total / 2]
        });
        Border { amounts, mode: PadMode::Constant(0.0) }
    }

    pub(super) fn around(&self, x: Var) -> Result<Var> {
        Ok(x.pad(&self.amounts, self.mode)?)
    }
}
