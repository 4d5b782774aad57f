//! The sizes of one group of a convolution, for any source and result.

use super::shape::Conv2dShape;

/// A convolution in the terms of the loops: the source is x or dy, the result is y or a phase of
/// dx. Pairs are (height, width).
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    pub(super) batch: usize,
    pub(super) groups: usize,
    /// Channels of the source in a group.
    pub(super) in_channels: usize,
    pub(super) in_size: [usize; 2],
    /// Channels of the result in a group.
    pub(super) out_channels: usize,
    pub(super) out_size: [usize; 2],
    pub(super) kernel: [usize; 2],
    pub(super) stride: [usize; 2],
    pub(super) dilation: [usize; 2],
    /// Zeros before the source; negative if the first rows or columns of the source are never read.
    pub(super) padding: [isize; 2],
    /// Source channels that share a plane of a tile: 2 if channels are multiplied in pairs, else 1.
    pub(super) plane_channels: usize,
}

impl Geometry {
    /// y from x and w.
    pub(super) fn forward(shape: &Conv2dShape) -> Self {
        Self {
            batch: shape.batch,
            groups: shape.groups,
            in_channels: shape.in_channels / shape.groups,
            in_size: [shape.in_height, shape.in_width],
            out_channels: shape.out_channels / shape.groups,
            out_size: [shape.out_height(), shape.out_width()],
            kernel: shape.kernel,
            stride: shape.stride,
            dilation: shape.dilation,
            padding: shape.padding.map(usize::cast_signed),
            plane_channels: 1,
        }
    }

    /// Planes of a tile for all channels of the source.
    pub(super) fn tile_planes(&self) -> usize {
        self.in_channels.div_ceil(self.plane_channels)
    }

    pub(super) fn tap_count(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Taps of all channels of a group, K.
    pub(super) fn k_len(&self) -> usize {
        self.in_channels * self.tap_count()
    }

    pub(super) fn in_plane_len(&self) -> usize {
        self.in_size[0] * self.in_size[1]
    }

    pub(super) fn out_plane_len(&self) -> usize {
        self.out_size[0] * self.out_size[1]
    }

    /// The first element of a group's channel in the source.
    pub(super) fn source_start(&self, image: usize, group: usize, channel: usize) -> usize {
        ((image * self.groups + group) * self.in_channels + channel) * self.in_plane_len()
    }

    /// The convolution restricted to `len` columns of the result, from column `first` on.
    pub(super) fn columns(&self, first: usize, len: usize) -> Self {
        let skipped = (first * self.stride[1]).cast_signed();
        let padding = [self.padding[0], self.padding[1] - skipped];
        Geometry { out_size: [self.out_size[0], len], padding, ..*self }
    }
}
