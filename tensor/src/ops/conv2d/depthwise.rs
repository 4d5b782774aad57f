//! Convolutions whose channels are groups of their own, with planes for lanes.
//!
//! Here an output has few products, and its neighbours in other channels share neither weights nor
//! pixels with it. So a vector holds one pixel of a *bundle*: sixteen planes that follow each other
//! in memory, of one image or several. Each tap is one multiply-add of whole vectors then, however
//! narrow a plane is. It costs that the planes are turned, twice for y and dx:
//!
//! - forward: y = b + Σ over taps of w · x, in the order of the taps; y is overwritten.
//! - gradient for x: the same with dy for x, in phases (`phases.rs`); dx is overwritten.
//! - gradient for w: dw = Σ over images and pixels of x · dy; dw is overwritten. The lanes are
//!   channels of one image, so that an image adds to the sums of the one before it.
//!
//! The source of a bundle is turned to a *frame*, `[rows, columns, 16]` with zeros around them, so
//! that no border needs a branch. Of large planes it holds the rows of one *strip* of results; the
//! next strip moves the rows that it reads too, and only turns what is new.

use super::depthwise_lanes::{
    Columns, Pixel, PlaceRows, SumRows, SumTaps, TurnBack, TurnKernels, zeros,
};
use super::phases::{Phase, Phases};
use super::shape::Conv2dShape;
use super::units::TASK_COUNT_MAX;
use super::weight::add_partials;
use super::weight_by_channel::TurnWeights;
use crate::cpu::chunk::{Chunked, for_each_chunk, for_each_chunk2};
use crate::cpu::math::SimdFloat;
use crate::cpu::pool::Pool;
use crate::cpu::simd::LANE_COUNT_MAX;
use crate::dtype::Element;

/// Planes of a bundle.
const LANES: usize = LANE_COUNT_MAX;

/// Elements of a strip's frame and results, if one row of results does not need more: 64 KiB of
/// f32. Half as many took as long for planes of 112x112, and twice as many some percent longer.
const STRIP_LEN_MAX: usize = 16 * 1024;

/// Elements of a plane from those that are turned to those that are fetched for later, where a
/// plane has several strips.
const FETCH_LEN: usize = 128;

/// With fewer planes most lanes of their only bundle are empty.
const PLANES_MIN: usize = 8;

/// With fewer channels those of the gradient for w are.
const CHANNELS_MIN: usize = 4;

/// A convolution of each channel with a kernel of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Depthwise {
    shape: Conv2dShape,
}

impl Depthwise {
    /// For a convolution that has work, and as many groups as channels on both sides.
    pub(super) fn of(shape: &Conv2dShape) -> Option<Self> {
        let Conv2dShape { batch, in_channels, out_channels, groups, .. } = *shape;
        let is_depthwise = [in_channels, out_channels] == [groups; 2];
        let fills_lanes = groups >= CHANNELS_MIN && batch * groups >= PLANES_MIN;
        let has_work = shape.x_len() > 0 && shape.y_len() > 0;
        (is_depthwise && fills_lanes && has_work).then_some(Depthwise { shape: *shape })
    }

    /// Elements of scratch that [`forward`](Self::forward) needs.
    pub(super) fn forward_workspace_len(&self) -> usize {
        self.output_workspace_len(&Phases::forward(&self.shape))
    }

    /// Elements of scratch that [`backward_input`](Self::backward_input) needs.
    pub(super) fn backward_input_workspace_len(&self) -> usize {
        self.output_workspace_len(&Phases::backward_input(&self.shape))
    }

    /// Elements of scratch that [`backward_weight`](Self::backward_weight) needs.
    pub(super) fn backward_weight_workspace_len(&self) -> usize {
        let units = WeightUnits::of(&self.shape);
        let frame = Frame::of(&Phases::forward(&self.shape));
        units.count * self.taps() * LANES + units.count.div_ceil(units.per_task) * frame.strip_len()
    }

    /// y = conv(x, w) + b.
    pub(super) fn forward<E: Element, T: SimdFloat>(
        &self,
        pool: &Pool,
        [x, w]: [&[E]; 2],
        b: Option<&[E]>,
        y: &mut [E],
        workspace: &mut [T],
    ) {
        self.convolve(pool, &Phases::forward(&self.shape), [x, w], b, y, workspace);
    }

    /// The gradient for x, plus `b` for each of its channels.
    pub(super) fn backward_input<E: Element, T: SimdFloat>(
        &self,
        pool: &Pool,
        [dy, w]: [&[E]; 2],
        b: Option<&[E]>,
        dx: &mut [E],
        workspace: &mut [T],
    ) {
        self.convolve(pool, &Phases::backward_input(&self.shape), [dy, w], b, dx, workspace);
    }

    /// The gradient for w.
    pub(super) fn backward_weight<E: Element, T: SimdFloat>(
        &self,
        pool: &Pool,
        [dy, x]: [&[E]; 2],
        dw: &mut [E],
        workspace: &mut [T],
    ) {
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
            T::dispatch(TurnWeights { sums, padded: LANES, k_len: taps, dw });
        });
    }

    fn taps(&self) -> usize {
        self.shape.kernel[0] * self.shape.kernel[1]
    }

    /// Elements of one row of the table of kernels: all channels, and then the first ones again,
    /// for bundles that end in the next image.
    fn table_row_len(&self) -> usize {
        (self.shape.groups + LANES - 1).next_multiple_of(LANES)
    }

    /// The table of kernels, and for each task the kernels of a bundle and a strip.
    fn output_workspace_len(&self, phases: &Phases) -> usize {
        let row_count = self.taps() + 1;
        let bundles = (self.shape.batch * self.shape.groups).div_ceil(LANES);
        let tasks = bundles.div_ceil(bundles.div_ceil(TASK_COUNT_MAX));
        let task_len = row_count * LANES + Frame::of(phases).strip_len();
        row_count * self.table_row_len() + tasks * task_len
    }

    /// The convolutions of `source` that the phases are, overwriting `y`.
    fn convolve<E: Element, T: SimdFloat>(
        &self,
        pool: &Pool,
        phases: &Phases,
        [source, w]: [&[E]; 2],
        b: Option<&[E]>,
        y: &mut [E],
        workspace: &mut [T],
    ) {
        let (plan, row_count) = (Plan::of(phases), self.taps() + 1);
        let [in_len, out_len] = [plan.frame.in_size, plan.frame.size].map(|[h, w]| h * w);
        let (table, scratch) = workspace.split_at_mut(row_count * self.table_row_len());
        // Few numbers: to share them among threads would take longer.
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

    /// A row of biases, and one for each tap.
    fn fill_table<E: Element, T: SimdFloat>(&self, w: &[E], b: Option<&[E]>, table: &mut [T]) {
        let row_len = self.table_row_len();
        let (biases, weights) = table.split_at_mut(row_len);
        match b {
            Some(kernels) => {
                T::dispatch(TurnKernels { kernels, taps: 1, table: biases, row_len });
            }
            None => biases.fill(T::ZERO),
        }
        T::dispatch(TurnKernels { kernels: w, taps: self.taps(), table: weights, row_len });
    }

    /// The biases and the weights of the bundle of plane `first`, in the order of the plan.
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

/// The cut of the gradient for w: bundles of the channels, and parts of the batch as far as tasks
/// would be idle without them.
struct WeightUnits {
    bundles: usize,
    batch: usize,
    batch_parts: usize,
    count: usize,
    per_task: usize,
}

/// What one sum of the gradient for w runs over.
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

/// The sizes of frames and strips: a function of the shape only.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// Rows and columns of a plane of the source.
    in_size: [usize; 2],
    /// Rows and columns of a plane of the result.
    size: [usize; 2],
    /// Rows and columns of the source from one result of a phase to the next.
    stride: [usize; 2],
    /// Rows of zeros above the source, and columns to the left of it.
    before: [usize; 2],
    /// Rows that one row of results reads, from the first to the last.
    reach: usize,
    /// Columns with the same remainder by the stride, which are neighbours in a frame: a tap is one
    /// run of pixels then.
    run_len: usize,
    /// Rows of the result from one of a phase to the next, and rows of the largest phase.
    step: usize,
    rows: usize,
    /// Rows of a phase in a strip; the last may have fewer.
    strip_rows: usize,
}

impl Frame {
    fn of(phases: &Phases) -> Self {
        let mut stride = [1; 2];
        let (mut in_size, mut step, mut rows) = ([0; 2], 1, 0);
        // The farthest that a tap is from its result, on both sides, and the last column of all.
        let (mut before, mut after, mut last) = ([0_isize; 2], 0_isize, 0_isize);
        for Phase { geometry, step: phase_step, .. } in phases.iter() {
            (in_size, stride, step) = (geometry.in_size, geometry.stride, phase_step[0]);
            rows = rows.max(geometry.out_size[0]);
            if geometry.tap_count() == 0 {
                continue;
            }
            let reach = |axis: usize| {
                ((geometry.kernel[axis] - 1) * geometry.dilation[axis]).cast_signed()
                    - geometry.padding[axis]
            };
            for axis in [0, 1] {
                before[axis] = before[axis].max(geometry.padding[axis]);
            }
            after = after.max(reach(0));
            let columns = geometry.out_size[1].saturating_sub(1) * stride[1];
            last = last.max(columns.cast_signed() + reach(1));
        }
        let before = before.map(isize::cast_unsigned);
        let columns = before[1] + in_size[1].max(last.cast_unsigned() + 1);
        let frame = Frame {
            in_size,
            size: phases.size(),
            stride,
            before,
            reach: before[0] + after.cast_unsigned() + 1,
            run_len: columns.div_ceil(stride[1]),
            step,
            rows,
            strip_rows: 1,
        };
        let fits = |strip_rows: usize| Frame { strip_rows, ..frame }.strip_len() <= STRIP_LEN_MAX;
        let most = (1..=rows).rev().find(|&rows| fits(rows)).unwrap_or(1);
        Frame { strip_rows: rows.div_ceil(rows.div_ceil(most)), ..frame }
    }

    /// Pixels of a row of the frame.
    fn pitch(&self) -> usize {
        self.stride[1] * self.run_len
    }

    /// Where column `index` of the frame stands in a row of it.
    fn column(&self, index: usize) -> usize {
        index % self.stride[1] * self.run_len + index / self.stride[1]
    }

    /// Rows that `count` rows of results read.
    fn row_count(&self, count: usize) -> usize {
        (count - 1) * self.stride[0] + self.reach
    }

    /// Elements from one of a source's planes to the one that is fetched meanwhile: of a later
    /// strip, or of the next bundle.
    fn ahead(&self, plane_len: usize) -> usize {
        if self.strip_rows < self.rows { FETCH_LEN } else { LANES * plane_len }
    }

    /// Pixels of a frame.
    fn pixel_count(&self) -> usize {
        self.row_count(self.strip_rows) * self.pitch()
    }

    /// Elements of a strip: its frame and its results, with the slack that turning them needs.
    fn strip_len(&self) -> usize {
        let results = (self.strip_rows * self.step).min(self.size[0]) * self.size[1];
        (self.pixel_count() + results + LANES) * LANES
    }
}

/// What is the same for all bundles.
struct Plan {
    frame: Frame,
    phases: Vec<PhasePlan>,
    /// The place in the kernel of each tap, phase by phase, and the first pixel of the frame that
    /// the first result of a strip meets it at.
    taps: Vec<usize>,
    offsets: Vec<usize>,
    /// Where the columns of the source, and those of the result, stand in a row.
    in_columns: Vec<usize>,
    out_columns: Vec<usize>,
}

struct PhasePlan {
    phase: Phase,
    /// Its taps in the plan.
    taps: std::ops::Range<usize>,
}

impl Plan {
    fn of(phases: &Phases) -> Self {
        let frame = Frame::of(phases);
        let (mut plans, mut taps, mut offsets) = (Vec::new(), Vec::new(), Vec::new());
        for phase in phases.iter() {
            let first = taps.len();
            taps.extend(phase.order.tap_places());
            let geometry = &phase.geometry;
            for (kh, kw) in
                (0..geometry.kernel[0]).flat_map(|h| (0..geometry.kernel[1]).map(move |w| (h, w)))
            {
                let [row, column] = [(kh, 0), (kw, 1)].map(|(tap, axis)| {
                    (frame.before[axis] + tap * geometry.dilation[axis])
                        .checked_add_signed(-geometry.padding[axis])
                        .expect("a frame begins before the first tap")
                });
                offsets.push(row * frame.pitch() + frame.column(column));
            }
            plans.push(PhasePlan { phase, taps: first..taps.len() });
        }
        let in_columns = (0..frame.in_size[1]).map(|index| frame.column(frame.before[1] + index));
        let in_columns = in_columns.collect();
        let out_columns = (0..frame.size[1]).collect();
        Plan { frame, phases: plans, taps, offsets, in_columns, out_columns }
    }

    /// Where the columns of the source go.
    fn columns(&self) -> Columns<'_> {
        let Frame { in_size: [_, width], stride: [_, stride], before: [_, left], .. } = self.frame;
        match stride {
            1 if width >= LANES => Columns::Run { first: left, width },
            2 if width >= LANES => {
                Columns::TwoRuns { firsts: [self.in_columns[0], self.in_columns[1]], width }
            }
            _ => Columns::Places(&self.in_columns),
        }
    }
}

/// Planes of a bundle, and what comes after them.
#[derive(Clone, Copy)]
struct Planes<'a, E> {
    elements: &'a [E],
    /// Elements of a plane.
    len: usize,
    count: usize,
}

/// The strips of a bundle, one after the other in the same memory.
struct Strips<'a, T> {
    plan: &'a Plan,
    pixels: &'a mut [Pixel<T>],
    results: &'a mut [Pixel<T>],
    /// The row of the source that the frame begins with, negative above it, and rows that are in.
    first_row: isize,
    row_count: usize,
}

impl<'a, T: SimdFloat> Strips<'a, T> {
    fn new(plan: &'a Plan, scratch: &'a mut [T]) -> Self {
        let (pixels, results) = scratch.as_chunks_mut().0.split_at_mut(plan.frame.pixel_count());
        // The columns beside the source stay as they are.
        pixels.fill(zeros());
        Strips { plan, pixels, results, first_row: 0, row_count: 0 }
    }

    /// Each strip's first row, and how many there are: rows of a phase.
    fn rows(&self) -> impl Iterator<Item = (usize, usize)> + use<T> {
        let Frame { rows, strip_rows, .. } = self.plan.frame;
        (0..rows).step_by(strip_rows).map(move |first| (first, strip_rows.min(rows - first)))
    }

    /// Overwrites `y`, planes of the result, with the sums of what their source's taps meet.
    fn write<E: Element>(&mut self, source: Planes<'_, E>, kernels: &[Pixel<T>], y: &mut [E]) {
        let Plan { frame, phases, offsets, .. } = self.plan;
        let [height, width] = frame.size;
        let (bias, weights) = kernels.split_first().expect("a bias, and then weights");
        self.row_count = 0;
        for (first, count) in self.rows() {
            self.fill(source, first, count);
            for PhasePlan { phase, taps } in phases {
                let [rows, columns] = phase.geometry.out_size;
                T::dispatch(SumRows {
                    frame: self.pixels,
                    row_step: frame.stride[0] * frame.pitch(),
                    bias,
                    weights: &weights[taps.clone()],
                    offsets: &offsets[taps.clone()],
                    size: [rows.saturating_sub(first).min(count), columns],
                    sums: &mut self.results[phase.first[0] * width + phase.first[1]..],
                    sums_step: [phase.step[0] * width, phase.step[1]],
                });
            }
            let first_row = first * frame.step;
            let row_count = (count * frame.step).min(height - first_row);
            T::dispatch(TurnBack {
                pixels: self.results,
                pixel_count: row_count * width,
                y: &mut y[first_row * width..],
                plane_len: height * width,
                plane_count: source.count,
            });
        }
    }

    /// Adds the products of the planes of an image to `dw`, a pixel for each tap.
    fn add_weights<E: Element>(
        &mut self,
        x: Planes<'_, E>,
        dy: Planes<'_, E>,
        dw: &mut [Pixel<T>],
    ) {
        let Plan { frame, offsets, out_columns, .. } = self.plan;
        let width = frame.size[1];
        self.row_count = 0;
        for (first, count) in self.rows() {
            self.fill(x, first, count);
            // Nothing is between the rows.
            let (row_count, columns) = match count * width {
                LANES.. => (1, Columns::Run { first: 0, width: count * width }),
                _ => (count, Columns::Places(out_columns)),
            };
            T::dispatch(PlaceRows {
                source: &dy.elements[first * width..],
                plane_len: dy.len,
                plane_count: dy.count,
                row_count,
                ahead: frame.ahead(dy.len),
                columns,
                pixels: self.results,
                pitch: width,
            });
            T::dispatch(SumTaps {
                dy: self.results,
                frame: self.pixels,
                row_step: frame.stride[0] * frame.pitch(),
                offsets,
                size: [count, width],
                dw,
            });
        }
    }

    /// Brings the rows that `count` rows of results read, from `first` on, into the frame.
    fn fill<E: Element>(&mut self, source: Planes<'_, E>, first: usize, count: usize) {
        let frame = &self.plan.frame;
        let (pitch, [height, width]) = (frame.pitch(), frame.in_size);
        let first_row = (first * frame.stride[0]).cast_signed() - frame.before[0].cast_signed();
        let row_count = frame.row_count(count);
        let gone = (first_row - self.first_row).max(0).cast_unsigned().min(self.row_count);
        let kept = (self.row_count - gone).min(row_count);
        self.pixels.copy_within(gone * pitch..(gone + kept) * pitch, 0);
        (self.first_row, self.row_count) = (first_row, row_count);
        // Rows of the source that are new, as rows of the frame.
        let [begin, end] = [0, height].map(|row| {
            let row = row.cast_signed() - first_row;
            row.clamp(kept.cast_signed(), row_count.cast_signed()).cast_unsigned()
        });
        self.pixels[kept * pitch..begin * pitch].fill(zeros());
        self.pixels[end * pitch..row_count * pitch].fill(zeros());
        if begin < end {
            let row = first_row.saturating_add_unsigned(begin).cast_unsigned();
            T::dispatch(PlaceRows {
                source: &source.elements[row * width..],
                plane_len: source.len,
                plane_count: source.count,
                row_count: end - begin,
                ahead: frame.ahead(source.len),
                columns: self.plan.columns(),
                pixels: &mut self.pixels[begin * pitch..],
                pitch,
            });
        }
    }
}
