//! The strips of a bundle. Strips take turns in the same memory.

use super::LANES;
use super::frame::{Frame, PhasePlan, Plan};
use super::sums::{SumRows, SumTaps};
use super::transpose::{Pixel, PlaceRows, Placement, TransposeBack, zeros};
use crate::cpu::math::SimdFloat;
use crate::dtype::Element;

/// Planes of a bundle.
#[derive(Clone, Copy)]
pub(super) struct Planes<'a, E> {
    /// The elements from the first plane on. The slice may be longer than the bundle.
    pub(super) elements: &'a [E],
    /// Elements of a plane.
    pub(super) len: usize,
    pub(super) count: usize,
}

/// The memory of a strip, and the rows of the source that it holds.
pub(super) struct Strips<'a, T> {
    plan: &'a Plan,
    pixels: &'a mut [Pixel<T>],
    results: &'a mut [Pixel<T>],
    /// The source row that the frame begins with; negative above the source.
    first_row: isize,
    /// Number of rows in the frame.
    row_count: usize,
}

impl<'a, T: SimdFloat> Strips<'a, T> {
    pub(super) fn new(plan: &'a Plan, scratch: &'a mut [T]) -> Self {
        let (pixels, results) = scratch.as_chunks_mut().0.split_at_mut(plan.frame.pixel_count());
        // Columns beside the source stay zero in all strips.
        pixels.fill(zeros());
        Strips { plan, pixels, results, first_row: 0, row_count: 0 }
    }

    /// The first row and the number of rows of each strip, in rows of a phase.
    fn rows(&self) -> impl Iterator<Item = (usize, usize)> + use<T> {
        let Frame { rows, strip_rows, .. } = self.plan.frame;
        (0..rows).step_by(strip_rows).map(move |first| (first, strip_rows.min(rows - first)))
    }

    /// Overwrites `y`, planes of the result, with sums over the taps of the source.
    pub(super) fn write<E: Element>(
        &mut self,
        source: Planes<'_, E>,
        kernels: &[Pixel<T>],
        y: &mut [E],
    ) {
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
            T::dispatch(TransposeBack {
                pixels: self.results,
                pixel_count: row_count * width,
                y: &mut y[first_row * width..],
                plane_len: height * width,
                plane_count: source.count,
            });
        }
    }

    /// Adds the products of an image's planes to `dw`, which has one pixel for each tap.
    pub(super) fn add_weights<E: Element>(
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
            // Rows of dy are contiguous.
            let (row_count, columns) = match count * width {
                LANES.. => (1, Placement::Run { first: 0, width: count * width }),
                _ => (count, Placement::Places(out_columns)),
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

    /// Fills the frame with the source rows that `count` rows of results read, from row `first` on.
    fn fill<E: Element>(&mut self, source: Planes<'_, E>, first: usize, count: usize) {
        let frame = &self.plan.frame;
        let (pitch, [height, width]) = (frame.pitch(), frame.in_size);
        let first_row = (first * frame.stride[0]).cast_signed() - frame.before[0].cast_signed();
        let row_count = frame.row_count(count);
        let gone = (first_row - self.first_row).max(0).cast_unsigned().min(self.row_count);
        let kept = (self.row_count - gone).min(row_count);
        self.pixels.copy_within(gone * pitch..(gone + kept) * pitch, 0);
        (self.first_row, self.row_count) = (first_row, row_count);
        // The range of the new source rows, in rows of the frame.
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
