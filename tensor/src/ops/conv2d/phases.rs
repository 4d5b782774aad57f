//! The gradient of x as convolutions of dy without a stride.
//!
//! With a stride S, rows of dx with the same remainder modulo S meet the same rows of the kernel.
//! Neighbours among these rows meet neighbouring rows of dy. The same holds for columns. Each of
//! the S x S sets is a *phase*: a convolution of dy, without a stride, with a part of the kernel
//! turned around. Each tap belongs to one phase, so that nothing is multiplied by zero.

use super::Product;
use super::geometry::Geometry;
use super::shape::Conv2dShape;
use super::weight_order::{AxisTaps, WeightOrder};

/// The phases of a result: y has one, dx has one for each remainder modulo the stride.
#[derive(Clone, Copy, Debug)]
pub(super) struct Phases {
    /// The convolution from x to y.
    whole: Geometry,
    is_backward: bool,
    /// Number of phases along each axis.
    counts: [usize; 2],
}

/// Some rows and columns of the result, and the convolution that computes them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Phase {
    pub(super) geometry: Geometry,
    pub(super) order: WeightOrder,
    /// The first row and column of the phase in the result.
    pub(super) first: [usize; 2],
    /// Rows and columns of the result between neighbours in the phase.
    pub(super) step: [usize; 2],
}

impl Phases {
    /// The phases of y or dx; dw has none.
    pub(super) fn of(shape: &Conv2dShape, product: Product) -> Option<Self> {
        match product {
            Product::Forward => Some(Self::forward(shape)),
            Product::BackwardInput => Some(Self::backward_input(shape)),
            Product::BackwardWeight => None,
        }
    }

    /// The phase of y from x and w.
    pub(super) fn forward(shape: &Conv2dShape) -> Self {
        Self { whole: Geometry::forward(shape), is_backward: false, counts: [1, 1] }
    }

    /// The phases of dx from dy and w.
    fn backward_input(shape: &Conv2dShape) -> Self {
        let whole = Geometry::forward(shape);
        let counts = [0, 1].map(|axis| whole.stride[axis].min(whole.in_size[axis]));
        Self { whole, is_backward: true, counts }
    }

    /// These phases with channels of the source in pairs.
    pub(super) fn in_pairs(mut self) -> Self {
        self.whole.plane_channels = 2;
        self
    }

    /// True if one phase is the whole result.
    pub(super) fn is_one(&self) -> bool {
        !self.is_backward || self.whole.stride == [1, 1]
    }

    /// Channels of the result, of all groups.
    pub(super) fn channels(&self) -> usize {
        let Geometry { groups, in_channels, out_channels, .. } = self.whole;
        groups * if self.is_backward { in_channels } else { out_channels }
    }

    /// Rows and columns of the result.
    pub(super) fn size(&self) -> [usize; 2] {
        if self.is_backward { self.whole.in_size } else { self.whole.out_size }
    }

    pub(super) fn plane_len(&self) -> usize {
        self.size().iter().product()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Phase> {
        let (this, columns) = (*self, self.counts[1]);
        let of = move |index: usize| this.at([index / columns, index % columns]);
        (0..self.counts[0] * columns).map(of)
    }

    fn at(&self, first: [usize; 2]) -> Phase {
        let whole = self.whole;
        if !self.is_backward {
            let order = WeightOrder::forward(&whole);
            return Phase { geometry: whole, order, first, step: [1, 1] };
        }
        let [rows, columns] = [0, 1].map(|axis| AxisPhase::of(&whole, axis, first[axis]));
        let geometry = Geometry {
            in_channels: whole.out_channels,
            in_size: whole.out_size,
            out_channels: whole.in_channels,
            out_size: [rows.len, columns.len],
            kernel: [rows.taps.count, columns.taps.count],
            stride: [1, 1],
            dilation: [rows.dilation, columns.dilation],
            padding: [rows.padding, columns.padding],
            ..whole
        };
        let order = WeightOrder::backward_input(&whole, [rows.taps, columns.taps]);
        Phase { geometry, order, first, step: whole.stride }
    }
}

impl Phase {
    /// The first element of a row of the phase in a plane of the result; `size` is the plane's
    /// size.
    pub(super) fn row_start(&self, size: [usize; 2], row: usize) -> usize {
        (self.first[0] + row * self.step[0]) * size[1] + self.first[1]
    }

    /// Number of weights for an output, or of pairs of weights.
    pub(super) fn k_len(&self) -> usize {
        self.geometry.tile_planes() * self.geometry.tap_count()
    }
}

/// A phase along one axis.
struct AxisPhase {
    /// Number of outputs.
    len: usize,
    /// Taps that meet an output; there may be none.
    taps: AxisTaps,
    dilation: usize,
    padding: isize,
}

impl AxisPhase {
    /// The phase of remainder `r`. Tap k stands at D k. Output `r + S i` meets tap k at place
    /// `(r + S i + padding - D k) / S` of dy, if this is an integer.
    fn of(whole: &Geometry, axis: usize, r: usize) -> Self {
        let [stride, dilation, kernel, in_len] =
            [whole.stride, whole.dilation, whole.kernel, whole.in_size].map(|pair| pair[axis]);
        let at = r.cast_signed() + whole.padding[axis];
        let place = |tap: usize| at - (dilation * tap).cast_signed();
        let is_met = |tap: &usize| place(*tap) % stride.cast_signed() == 0;
        let tap_step = stride / gcd(stride, dilation);
        let met = (0..kernel.min(tap_step)).find(is_met);
        let count = met.map_or(0, |met| (kernel - met).div_ceil(tap_step));
        let last = count.saturating_sub(1) * tap_step;
        let (met, dilation) = (met.unwrap_or_default(), dilation * tap_step / stride);
        let first = place(met) / stride.cast_signed();
        AxisPhase {
            len: in_len.saturating_sub(r).div_ceil(stride),
            taps: AxisTaps { first: met + last, step: -tap_step.cast_signed(), count },
            dilation,
            padding: (count.saturating_sub(1) * dilation).cast_signed() - first,
        }
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
