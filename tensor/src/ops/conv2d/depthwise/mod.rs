//! Depthwise convolutions, where each channel is a group. The lanes of a vector are planes.
//!
//! Here an output has few products, and outputs of other channels share neither weights nor pixels
//! with it. So a vector holds one pixel of a *bundle*: sixteen planes that are consecutive in
//! memory, of one image or several. Each tap is one multiply-add of whole vectors, even for narrow
//! planes. The price is a transpose of the planes, twice for y and dx:
//!
//! - forward: y = b + Σ over taps of w · x, in the order of the taps; y is overwritten.
//! - gradient of x: the same sum of dy, in phases (`phases.rs`); dx is overwritten.
//! - gradient of w: dw = Σ over images and pixels of x · dy; dw is overwritten. The lanes are
//!   channels of one image, and each image adds to the sums of the previous image.
//!
//! The source of a bundle is transposed to a *frame*, `[rows, columns, 16]`. Zeros surround the
//! frame, so that no border needs a branch (`frame.rs`). For large planes a frame holds the source
//! rows of one *strip* of results. The next strip moves the rows that both strips read, and
//! transposes the new rows (`strips.rs`). Inner loops are `transpose.rs` and `sums.rs`.

mod frame;
mod strips;
mod sums;
mod transpose;

use super::Product;
use super::phases::Phases;
use super::shape::Conv2dShape;
use super::sums::{TransposeWeights, add_partials};
use super::way::{Slices, TASK_COUNT_MAX};
use crate::cpu::chunk::{Chunked, for_each_chunk, for_each_chunk2};
use crate::cpu::math::SimdFloat;
use crate::cpu::pool::Pool;
use crate::cpu::simd::LANE_COUNT_MAX;
use crate::dtype::Element;
use frame::{Frame, Plan};
use strips::{Planes, Strips};
use transpose::{Pixel, TransposeKernels, zeros};

/// Planes of a bundle.
const LANES: usize = LANE_COUNT_MAX;

/// Smallest number of planes of all images. With fewer planes, most lanes of the only bundle are
/// empty.
const PLANES_MIN: usize = 8;

/// Smallest number of channels. With fewer channels, most lanes of the gradient of w are empty.
const CHANNELS_MIN: usize = 4;

/// A convolution of each channel with a kernel of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Depthwise {
    shape: Conv2dShape,
}

impl Depthwise {
    /// A convolution that has work, where each channel on both sides is a group.
    pub(super) fn of(shape: &Conv2dShape) -> Option<Self> {
        let Conv2dShape { batch, in_channels, out_channels, groups, .. } = *shape;
        let is_depthwise = [in_channels, out_channels] == [groups; 2];
        let fills_lanes = groups >= CHANNELS_MIN && batch * groups >= PLANES_MIN;
        let has_work = shape.x_len() > 0 && shape.y_len() > 0;
        (is_depthwise && fills_lanes && has_work).then_some(Depthwise { shape: *shape })
    }

    /// Overwrites dw with the sum over the batch.
    fn backward_weight<E: Element, T: SimdFloat>(&self, pool: &Pool, slices: Slices<'_, E, T>) {
        let Slices { factors: [dy, x], to: dw, workspace, .. } = slices;
        let units = WeightUnits::of(&self.shape);
        let plan = Plan::of(&Phases::forward(&self.shape));
        let (channels, taps) = (self.shape.groups, self.taps());
        let [x_len, dy_len] = [plan.frame.in_size, plan.frame.size].map(|[h, w]| h * w);
        let unit_len = taps * LANES;
        let (sums, scratch) = workspace.split_at_mut(units.count * unit_len);
        for_each_chunk2(
            pool,
            Chunked::new(sums, units.per_task * unit_len),
            Chunked::new(scratch, plan.frame.strip_len()),
            |task, sums, scratch| {
                let mut strips = Strips::new(&plan, scratch);
                for (index, sums) in sums.chunks_exact_mut(unit_len).enumerate() {
                    let unit = units.at(task * units.per_task + index);
                    let count = LANES.min(channels - unit.channel);
                    let sums = sums.as_chunks_mut().0;
                    sums.fill(zeros());
                    for image in unit.images {
                        let first = image * channels + unit.channel;
                        let x = Planes { elements: &x[first * x_len..], len: x_len, count };
                        let dy = Planes { elements: &dy[first * dy_len..], len: dy_len, count };
                        strips.add_weights(x, dy, sums);
                    }
                }
            },
        );
        let (total, others) = sums.split_at_mut(units.bundles * unit_len);
        if !others.is_empty() {
            add_partials(pool, total, others);
        }
        for_each_chunk(pool, dw, LANES * taps, |bundle, dw| {
            let sums = &total[bundle * unit_len..][..unit_len];
            T::dispatch(TransposeWeights { sums, padded: LANES, k_len: taps, dw });
        });
    }

    fn taps(&self) -> usize {
        self.shape.kernel[0] * self.shape.kernel[1]
    }

    /// Elements of a row of the table of kernels: all channels, then the first channels again for
    /// bundles that continue in the next image.
    fn table_row_len(&self) -> usize {
        (self.shape.groups + LANES - 1).next_multiple_of(LANES)
    }

    /// Elements of scratch for y or dx: the table of kernels, and for each task the kernels of a
    /// bundle and one strip.
    fn output_workspace_len(&self, phases: &Phases) -> usize {
        let row_count = self.taps() + 1;
        let bundles = (self.shape.batch * self.shape.groups).div_ceil(LANES);
        let tasks = bundles.div_ceil(bundles.div_ceil(TASK_COUNT_MAX));
        let task_len = row_count * LANES + Frame::of(phases).strip_len();
        row_count * self.table_row_len() + tasks * task_len
    }

    /// Elements of scratch for dw: partial sums, and a strip for each task.
    fn weight_workspace_len(&self) -> usize {
        let units = WeightUnits::of(&self.shape);
        let frame = Frame::of(&Phases::forward(&self.shape));
        units.count * self.taps() * LANES + units.count.div_ceil(units.per_task) * frame.strip_len()
    }

    /// Overwrites y with the convolutions of the source in all phases.
    fn convolve<E: Element, T: SimdFloat>(
        &self,
        pool: &Pool,
        phases: &Phases,
        slices: Slices<'_, E, T>,
    ) {
        let Slices { factors: [source, w], bias: b, to: y, workspace } = slices;
        let (plan, row_count) = (Plan::of(phases), self.taps() + 1);
        let [in_len, out_len] = [plan.frame.in_size, plan.frame.size].map(|[h, w]| h * w);
        let (table, scratch) = workspace.split_at_mut(row_count * self.table_row_len());
        // The table is small: with several threads, filling it would take longer.
        self.fill_table(w, b, table);
        let table = &*table;
        let bundles = (self.shape.batch * self.shape.groups).div_ceil(LANES);
        let per_task = bundles.div_ceil(TASK_COUNT_MAX);
        let bundle_len = LANES * out_len;
        for_each_chunk2(
            pool,
            Chunked::new(y, per_task * bundle_len),
            Chunked::new(scratch, row_count * LANES + plan.frame.strip_len()),
            |task, y, scratch| {
                let (kernels, strip) = scratch.split_at_mut(row_count * LANES);
                let kernels = kernels.as_chunks_mut().0;
                let mut strips = Strips::new(&plan, strip);
                for (index, y) in y.chunks_mut(bundle_len).enumerate() {
                    let first = (task * per_task + index) * LANES;
                    let count = y.len() / out_len;
                    self.kernels_of(first, &plan, table, kernels);
                    let source = Planes { elements: &source[first * in_len..], len: in_len, count };
                    strips.write(source, kernels, y);
                }
            },
        );
    }

    /// Fills the table with a row of biases and a row of weights for each tap.
    fn fill_table<E: Element, T: SimdFloat>(&self, w: &[E], b: Option<&[E]>, table: &mut [T]) {
        let row_len = self.table_row_len();
        let (biases, weights) = table.split_at_mut(row_len);
        match b {
            Some(kernels) => {
                T::dispatch(TransposeKernels { kernels, taps: 1, table: biases, row_len });
            }
            None => biases.fill(T::ZERO),
        }
        T::dispatch(TransposeKernels { kernels: w, taps: self.taps(), table: weights, row_len });
    }

    /// Copies the biases and weights for the bundle that begins with plane `first`, in the order of
    /// the plan.
    fn kernels_of<T: SimdFloat>(
        &self,
        first: usize,
        plan: &Plan,
        table: &[T],
        kernels: &mut [Pixel<T>],
    ) {
        let channel = first % self.shape.groups;
        let rows = std::iter::once(0).chain(plan.taps.iter().map(|tap| tap + 1));
        for (kernel, row) in kernels.iter_mut().zip(rows) {
            kernel.copy_from_slice(&table[row * self.table_row_len() + channel..][..LANES]);
        }
    }
}

impl Depthwise {
    /// Elements of scratch that [`run`](Self::run) needs.
    pub(super) fn workspace_len(&self, product: Product) -> usize {
        match Phases::of(&self.shape, product) {
            Some(phases) => self.output_workspace_len(&phases),
            None => self.weight_workspace_len(),
        }
    }

    /// Overwrites the result of a product: see `way::run`.
    pub(super) fn run<E: Element, T: SimdFloat>(
        &self,
        product: Product,
        pool: &Pool,
        slices: Slices<'_, E, T>,
    ) {
        match Phases::of(&self.shape, product) {
            Some(phases) => self.convolve(pool, &phases, slices),
            None => self.backward_weight(pool, slices),
        }
    }
}

/// The cut of the gradient of w: bundles of channels, and enough parts of the batch to keep all
/// tasks busy.
struct WeightUnits {
    bundles: usize,
    batch: usize,
    batch_parts: usize,
    count: usize,
    per_task: usize,
}

/// The channels and images of one partial sum of the gradient of w.
struct WeightUnit {
    channel: usize,
    images: std::ops::Range<usize>,
}

impl WeightUnits {
    fn of(shape: &Conv2dShape) -> Self {
        let (bundles, batch) = (shape.groups.div_ceil(LANES), shape.batch);
        let batch_parts = TASK_COUNT_MAX.div_ceil(bundles).min(batch);
        let count = batch_parts * bundles;
        let per_task = count.div_ceil(TASK_COUNT_MAX);
        WeightUnits { bundles, batch, batch_parts, count, per_task }
    }

    fn at(&self, index: usize) -> WeightUnit {
        let (part, bundle) = (index / self.bundles, index % self.bundles);
        let image = |part: usize| part * self.batch / self.batch_parts;
        WeightUnit { channel: bundle * LANES, images: image(part)..image(part + 1) }
    }
}
