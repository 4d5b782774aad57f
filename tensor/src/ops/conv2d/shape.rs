//! The sizes of a two-dimensional convolution.

/// All sizes of a convolution: x `[batch, in_channels, in_height, in_width]`, w
/// `[out_channels, in_channels / groups, kernel]`, y
/// `[batch, out_channels, out_height(), out_width()]`. Pairs are (height, width).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Conv2dShape {
    /// Images.
    pub(super) batch: usize,
    /// Channels of x, a multiple of `groups`.
    pub(super) in_channels: usize,
    /// Rows of x.
    pub(super) in_height: usize,
    /// Columns of x.
    pub(super) in_width: usize,
    /// Channels of y, a multiple of `groups`.
    pub(super) out_channels: usize,
    /// Rows and columns of the kernel, at least 1.
    pub(super) kernel: [usize; 2],
    /// Step between outputs, at least 1.
    pub(super) stride: [usize; 2],
    /// Zeros on each side of x.
    pub(super) padding: [usize; 2],
    /// Step between the taps of the kernel, at least 1.
    pub(super) dilation: [usize; 2],
    /// Independent convolutions side by side, at least 1.
    pub(super) groups: usize,
}

impl Conv2dShape {
    /// Rows of y; 0 where the kernel does not fit.
    pub(super) fn out_height(&self) -> usize {
        self.out_len(0, self.in_height)
    }

    /// Columns of y; 0 where the kernel does not fit.
    pub(super) fn out_width(&self) -> usize {
        self.out_len(1, self.in_width)
    }

    fn out_len(&self, axis: usize, in_len: usize) -> usize {
        let reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1;
        match (in_len + 2 * self.padding[axis]).checked_sub(reach) {
            Some(room) => room / self.stride[axis] + 1,
            None => 0,
        }
    }

    /// Elements of x.
    pub(super) fn x_len(&self) -> usize {
        self.batch * self.in_channels * self.in_height * self.in_width
    }

    /// Elements of y.
    pub(super) fn y_len(&self) -> usize {
        self.batch * self.out_channels * self.out_height() * self.out_width()
    }

    /// Elements of w.
    pub(super) fn w_len(&self) -> usize {
        self.out_channels * (self.in_channels / self.groups) * self.kernel[0] * self.kernel[1]
    }

    /// Number of parts that a device cuts the pixels into for the gradient of w, so that the whole
    /// device has work. One block computes a tile of 64 channels and 64 taps.
    pub(super) fn weight_parts(&self) -> usize {
        /// Blocks that keep a large device busy.
        const BLOCKS_WANTED: usize = 256;
        /// Smallest number of pixels of a part. Each part costs writing its sums and reading them
        /// again.
        const PIXELS_MIN: usize = 1024;
        /// Largest number of elements of all parts.
        const PARTS_LEN_MAX: usize = 8 << 20;
        const TILE: usize = 64;
        let [ins, outs] = [self.in_channels, self.out_channels].map(|count| count / self.groups);
        let taps = ins * self.kernel[0] * self.kernel[1];
        let blocks = outs.div_ceil(TILE) * taps.div_ceil(TILE) * self.groups;
        let pixels = self.batch * self.out_height() * self.out_width();
        let most = (pixels / PIXELS_MIN).min(PARTS_LEN_MAX / self.w_len().max(1));
        BLOCKS_WANTED.div_ceil(blocks.max(1)).min(most).max(1)
    }
}
