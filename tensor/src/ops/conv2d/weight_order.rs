//! The order of weights: w itself, or the weights of a phase for the gradient of x.

use super::geometry::Geometry;

/// The order that gives the place in w of a weight. A weight has an output channel (counted over
/// all groups), a source channel and a tap.
#[derive(Clone, Copy, Debug)]
pub(super) struct WeightOrder {
    /// Output and source channels of a group.
    pub(super) channels: [usize; 2],
    /// Rows and columns of the kernel.
    pub(super) kernel: [usize; 2],
    /// Weights between neighbouring output channels of a group.
    out_stride: usize,
    /// Weights between neighbouring source channels.
    source_stride: usize,
    /// Rows and columns of the kernel that are taps, in order.
    pub(super) taps: [AxisTaps; 2],
    /// Source channels whose weights are packed side by side; see [`Geometry`].
    pub(super) plane_channels: usize,
}

/// Taps along an axis of the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct AxisTaps {
    pub(super) first: usize,
    /// Distance between neighbouring taps; negative if they go backwards.
    pub(super) step: isize,
    pub(super) count: usize,
}

impl AxisTaps {
    /// The rows or columns of the kernel where the taps are.
    pub(super) fn places(self) -> impl Iterator<Item = usize> {
        let place =
            move |index: usize| self.first.wrapping_add_signed(index.cast_signed() * self.step);
        (0..self.count).map(place)
    }
}

impl WeightOrder {
    /// The order of w itself, for a whole convolution.
    pub(super) fn forward(whole: &Geometry) -> Self {
        let kernel = whole.kernel;
        let channels = [whole.out_channels, whole.in_channels];
        let taps = kernel.map(|count| AxisTaps { first: 0, step: 1, count });
        let source_stride = kernel[0] * kernel[1];
        let out_stride = channels[1] * source_stride;
        let plane_channels = whole.plane_channels;
        Self { channels, kernel, out_stride, source_stride, taps, plane_channels }
    }

    /// The order of some taps of a whole convolution, for the gradient of its x. Input and output
    /// channels are exchanged within a group.
    pub(super) fn backward_input(whole: &Geometry, taps: [AxisTaps; 2]) -> Self {
        let kernel = whole.kernel;
        let channels = [whole.in_channels, whole.out_channels];
        let out_stride = kernel[0] * kernel[1];
        let source_stride = channels[0] * out_stride;
        let plane_channels = whole.plane_channels;
        Self { channels, kernel, out_stride, source_stride, taps, plane_channels }
    }

    /// The indices of the taps in the kernel, in order.
    pub(super) fn tap_places(&self) -> impl Iterator<Item = usize> {
        let WeightOrder { kernel: [_, columns], taps: [heights, widths], .. } = *self;
        heights
            .places()
            .flat_map(move |height| widths.places().map(move |width| height * columns + width))
    }

    /// The kernel between an output channel and a source channel.
    pub(super) fn kernel_of<'a, E>(&self, w: &'a [E], channel: usize, source: usize) -> &'a [E] {
        let [outs, sources] = self.channels;
        let kernel_len = self.kernel[0] * self.kernel[1];
        let group_start = channel / outs * (outs * sources * kernel_len);
        let at = group_start + channel % outs * self.out_stride + source * self.source_stride;
        &w[at..][..kernel_len]
    }
}
