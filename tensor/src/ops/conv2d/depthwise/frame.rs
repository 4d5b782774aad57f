//! The sizes of frames and strips, and the places in them: functions of the shape only.

use std::ops::Range;

use super::LANES;
use super::transpose::Placement;
use crate::ops::conv2d::phases::{Phase, Phases};

/// Elements of a strip's frame and results, unless one row of results needs more: 64 KiB of f32.
/// For planes of 112x112, half this length was as fast; twice this length was some percent slower.
const STRIP_LEN_MAX: usize = 16 * 1024;

/// Distance in elements between transposing and prefetching, where a plane has several strips.
const FETCH_LEN: usize = 128;

/// The sizes of frames and strips.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// Rows and columns of a plane of the source.
    pub(super) in_size: [usize; 2],
    /// Rows and columns of a plane of the result.
    pub(super) size: [usize; 2],
    /// Rows and columns of the source between neighbouring results of a phase.
    pub(super) stride: [usize; 2],
    /// Rows of zeros above the source, and columns of zeros to the left of it.
    pub(super) before: [usize; 2],
    /// Rows of the source that one row of results reads, with the rows in between.
    reach: usize,
    /// Columns with the same remainder modulo the stride. Such columns are neighbours in a frame,
    /// so that a tap reads one run of pixels.
    run_len: usize,
    /// Rows of the result between neighbouring rows of a phase.
    pub(super) step: usize,
    /// Rows of the phase with the most rows.
    pub(super) rows: usize,
    /// Rows of each phase in a strip; the last strip may have fewer.
    pub(super) strip_rows: usize,
}

impl Frame {
    pub(super) fn of(phases: &Phases) -> Self {
        let mut stride = [1; 2];
        let (mut in_size, mut step, mut rows) = ([0; 2], 1, 0);
        // The largest distance of a tap from its result, on both sides, and the last column that a
        // tap reads.
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
    pub(super) fn pitch(&self) -> usize {
        self.stride[1] * self.run_len
    }

    /// The place of column `index` in a row of the frame.
    fn column(&self, index: usize) -> usize {
        index % self.stride[1] * self.run_len + index / self.stride[1]
    }

    /// Rows of the source that `count` rows of results read.
    pub(super) fn row_count(&self, count: usize) -> usize {
        (count - 1) * self.stride[0] + self.reach
    }

    /// Elements between the element that is transposed and the element that is prefetched at the
    /// same time. The latter belongs to a later strip, or to the next bundle.
    pub(super) fn ahead(&self, plane_len: usize) -> usize {
        if self.strip_rows < self.rows { FETCH_LEN } else { LANES * plane_len }
    }

    /// Pixels of a frame.
    pub(super) fn pixel_count(&self) -> usize {
        self.row_count(self.strip_rows) * self.pitch()
    }

    /// Elements of a strip: its frame, its results, and the slack for transposing.
    pub(super) fn strip_len(&self) -> usize {
        let results = (self.strip_rows * self.step).min(self.size[0]) * self.size[1];
        (self.pixel_count() + results + LANES) * LANES
    }
}

/// The places that all bundles share.
pub(super) struct Plan {
    pub(super) frame: Frame,
    pub(super) phases: Vec<PhasePlan>,
    /// The index of each tap in the kernel, phase by phase.
    pub(super) taps: Vec<usize>,
    /// The pixel of the frame that each tap meets for the first result of a strip.
    pub(super) offsets: Vec<usize>,
    /// The place of each column of the source in a row of the frame.
    in_columns: Vec<usize>,
    /// The place of each column of the result in a row.
    pub(super) out_columns: Vec<usize>,
}

/// A phase of the plan.
pub(super) struct PhasePlan {
    pub(super) phase: Phase,
    /// Range of the phase's taps in [`Plan::taps`].
    pub(super) taps: Range<usize>,
}

impl Plan {
    pub(super) fn of(phases: &Phases) -> Self {
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

    /// The places in the frame of the columns of a source row.
    pub(super) fn columns(&self) -> Placement<'_> {
        let Frame { in_size: [_, width], stride: [_, stride], before: [_, left], .. } = self.frame;
        match stride {
            1 if width >= LANES => Placement::Run { first: left, width },
            2 if width >= LANES => {
                Placement::TwoRuns { firsts: [self.in_columns[0], self.in_columns[1]], width }
            }
            _ => Placement::Places(&self.in_columns),
        }
    }
}
