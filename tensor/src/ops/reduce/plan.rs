//! Plans of reductions: the cut into tasks, and a task's walk over its part of the input.
//!
//! The input is viewed as `[kept.., reduced..]`. A task owns a range of outputs and a range of the
//! reduced elements. The partial results of an output are merged in order afterwards.

use std::ops::Range;

use crate::cpu::tiles::TILE_LEN;
use crate::dtype::{Element, same_type};
use crate::layout::{Layout, Nest, Shape};

/// Elements of a task: enough to outweigh the cost of starting it, and few enough to balance.
const TASK_LEN: usize = 1 << 17;
/// Reduced elements of a task that walks along rows.
const ROW_LEN: usize = 1 << 15;
/// Outputs of a task, so that their accumulators stay in the L1 cache.
const OUTPUTS_LEN: usize = 1024;

/// The tasks of a reduction; a function of the input's layout alone.
pub(super) struct Tasks {
    pub(super) kept: Nest<1>,
    pub(super) inner: Nest<1>,
    pub(super) outputs: usize,
    pub(super) reduced: usize,
    outputs_len: usize,
    pub(super) reduced_len: usize,
    pub(super) is_by_lines: bool,
}

/// The layout of a [`Block`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Along {
    /// Each run is a part of the reduced elements of one output. Runs are of consecutive outputs.
    Rows,
    /// Each run is one reduced element of consecutive outputs.
    Lines,
}

/// `count` runs of `len` elements, with `step` elements from one run to the next.
#[derive(Clone, Copy)]
pub(super) struct Block<'a, L> {
    pub(super) along: Along,
    pub(super) data: &'a [L],
    pub(super) step: usize,
    pub(super) count: usize,
    pub(super) len: usize,
    /// The first output, counted from the task's first.
    pub(super) output: usize,
    /// The index of the first reduced element.
    pub(super) reduced: usize,
}

impl<'a, L> Block<'a, L> {
    #[inline(always)]
    pub(super) fn run(&self, index: usize) -> &'a [L] {
        &self.data[index * self.step..][..self.len]
    }

    /// The outputs of the block, counted from the task's first.
    #[inline(always)]
    pub(super) fn outputs(&self) -> Range<usize> {
        let count = if self.along == Along::Rows { self.count } else { self.len };
        self.output..self.output + count
    }
}

impl Tasks {
    /// The plan for an input whose first `kept_rank` dimensions are kept.
    pub(super) fn new(layout: &Layout, kept_rank: usize) -> Self {
        let (shape, strides) = (layout.shape(), layout.strides());
        let kept = Nest::new(&Shape::new(&shape[..kept_rank]), [&strides[..kept_rank]]);
        let inner = Nest::new(&Shape::new(&shape[kept_rank..]), [&strides[kept_rank..]]);
        let outputs: usize = shape[..kept_rank].iter().product();
        let reduced: usize = shape[kept_rank..].iter().product();
        let is_by_lines =
            outputs > 1 && kept.inner_strides()[0] == 1 && inner.inner_strides()[0] != 1;
        let (outputs_len, reduced_len) = if is_by_lines {
            let outputs_len = outputs.min(OUTPUTS_LEN);
            (outputs_len, TASK_LEN / outputs_len)
        } else {
            let reduced_len = reduced.clamp(1, ROW_LEN);
            ((TASK_LEN / reduced_len).min(OUTPUTS_LEN), reduced_len)
        };
        Tasks { kept, inner, outputs, reduced, outputs_len, reduced_len, is_by_lines }
    }

    /// Number of partial results of an output.
    pub(super) fn parts(&self) -> usize {
        self.reduced.div_ceil(self.reduced_len).max(1)
    }

    /// Number of all partial results, `[part][output]`.
    pub(super) fn partial_count(&self) -> usize {
        self.outputs * self.parts()
    }

    /// Splits the partial results into the pieces that tasks own.
    pub(super) fn pieces<'a, A>(&self, partials: &'a mut [A]) -> Vec<&'a mut [A]> {
        let used = &mut partials[..self.partial_count()];
        let rows = used.chunks_mut(self.outputs.max(1));
        rows.flat_map(|row| row.chunks_mut(self.outputs_len)).collect()
    }

    /// The outputs and the reduced elements of task `index`.
    pub(super) fn task(&self, index: usize) -> (Range<usize>, Range<usize>) {
        let pieces = self.outputs.div_ceil(self.outputs_len);
        let first = index % pieces * self.outputs_len;
        let from = index / pieces * self.reduced_len;
        (
            first..self.outputs.min(first + self.outputs_len),
            from..self.reduced.min(from + self.reduced_len),
        )
    }

    /// Visits the input of a task, converted to `L`. The reduced elements of an output come in
    /// order.
    pub(super) fn walk<E: Element, L: Element>(
        &self,
        data: &[E],
        (outputs, reduced): (Range<usize>, Range<usize>),
        mut visit: impl FnMut(Block<'_, L>),
    ) {
        let mut tile = [L::default(); TILE_LEN];
        let [step] = self.kept.inner_strides();
        let [stride] = self.inner.inner_strides();
        let mut output = 0;
        self.kept.rows(outputs.start, outputs.end, |outs| {
            let mut at = reduced.start;
            self.inner.rows(reduced.start, reduced.end, |row| {
                let data = &data[outs.starts[0] + row.starts[0]..];
                let place = BlockPosition { output, reduced: at };
                if self.is_by_lines {
                    let runs = Runs { data, step: stride, count: row.len, len: outs.len, unit: 1 };
                    runs.visit(Along::Lines, place, &mut tile, &mut visit);
                } else {
                    let runs = Runs { data, step, count: outs.len, len: row.len, unit: stride };
                    runs.visit(Along::Rows, place, &mut tile, &mut visit);
                }
                at += row.len;
            });
            output += outs.len;
        });
    }
}

/// The place of a block.
#[derive(Clone, Copy)]
struct BlockPosition {
    output: usize,
    reduced: usize,
}

/// `count` runs of `len` elements. `step` separates runs, `unit` separates elements.
struct Runs<'a, E> {
    data: &'a [E],
    step: usize,
    count: usize,
    len: usize,
    unit: usize,
}

impl<E: Element> Runs<'_, E> {
    /// Visits the runs in place, or copied to the tile in pieces.
    fn visit<L: Element>(
        &self,
        along: Along,
        place: BlockPosition,
        tile: &mut [L; TILE_LEN],
        visit: &mut impl FnMut(Block<'_, L>),
    ) {
        let BlockPosition { output, reduced } = place;
        if let (1, Some(data)) = (self.unit, same_type::<E, L>(self.data)) {
            let (step, count, len) = (self.step, self.count, self.len);
            return visit(Block { along, data, step, count, len, output, reduced });
        }
        let len = self.len.min(TILE_LEN);
        let batch = if self.len > TILE_LEN { 1 } else { TILE_LEN / len };
        for first in (0..self.count).step_by(batch) {
            let count = batch.min(self.count - first);
            for from in (0..self.len).step_by(len) {
                let len = len.min(self.len - from);
                for index in 0..count {
                    let start = (first + index) * self.step + from * self.unit;
                    gather(&self.data[start..], self.unit, &mut tile[index * len..][..len]);
                }
                let (output, reduced) = match along {
                    Along::Rows => (output + first, reduced + from),
                    Along::Lines => (output + from, reduced + first),
                };
                let data = &tile[..count * len];
                visit(Block { along, data, step: len, count, len, output, reduced });
            }
        }
    }
}

/// Copies elements that are `step` apart, converted.
pub(super) fn gather<E: Element, L: Element>(data: &[E], step: usize, to: &mut [L]) {
    match step {
        0 => to.fill(data[0].cast()),
        1 => E::cast_slice(&data[..to.len()], to),
        _ => to.iter_mut().zip(data.iter().step_by(step)).for_each(|(to, x)| *to = x.cast()),
    }
}
