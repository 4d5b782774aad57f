//! Concatenation row by row: y is `[outer, Σ row_len]`, part k is `[outer, row_len[k]]` with any
//! strides.

use crate::cpu::Cpu;
use crate::cpu::chunk::for_each_chunk;
use crate::layout::Nest;
use crate::operand_view::View;

/// Elements of a chunk: enough to hide the cost of the fork, and small enough for the L2 cache.
const CHUNK_LEN: usize = 1 << 14;

/// One of the tensors that are concatenated.
pub(super) struct Part<'a, T> {
    data: &'a [T],
    nest: Nest<1>,
    /// Elements of a row of the part, which are contiguous in y.
    row_len: usize,
}

impl<'a, T: Copy> Part<'a, T> {
    pub(super) fn new(view: View<'a, T>, axis: usize) -> Self {
        let layout = view.layout();
        let row_len = layout.shape()[axis..].iter().product();
        let nest = Nest::new(layout.shape(), [layout.strides()]);
        Part { data: view.data(), nest, row_len }
    }

    pub(super) fn row_len(&self) -> usize {
        self.row_len
    }

    /// Copies elements in row-major order, from number `from` on, until `to` is full.
    fn copy(&self, from: usize, to: &mut [T]) {
        let [step] = self.nest.inner_strides();
        let mut rest = to;
        self.nest.rows(from, from + rest.len(), |row| {
            let (to, next) = std::mem::take(&mut rest).split_at_mut(row.len);
            rest = next;
            let data = &self.data[row.starts[0]..];
            match step {
                0 => to.fill(data[0]),
                1 => to.copy_from_slice(&data[..to.len()]),
                _ => to.iter_mut().zip(data.iter().step_by(step)).for_each(|(to, x)| *to = *x),
            }
        });
    }

    /// Copies the part's rows from `row` on to rows of `y` that are `stride` elements apart.
    fn copy_rows(&self, row: usize, y: &mut [T], stride: usize) {
        let row_count = y.len().div_ceil(stride);
        let from = row * self.row_len;
        let [step] = self.nest.inner_strides();
        // The place of the next element: its column in the part's row, and the start of the row in
        // y.
        let (mut column, mut start) = (0, 0);
        self.nest.rows(from, from + row_count * self.row_len, |run| {
            let data = &self.data[run.starts[0]..];
            if self.row_len == 1 {
                // Rows of one element interleave: one loop instead of a call for each element.
                let to = y[start..].iter_mut().step_by(stride).take(run.len);
                match step {
                    0 => to.for_each(|to| *to = data[0]),
                    1 => to.zip(&data[..run.len]).for_each(|(to, x)| *to = *x),
                    _ => to.zip(data.iter().step_by(step)).for_each(|(to, x)| *to = *x),
                }
                start += run.len * stride;
                return;
            }
            let mut done = 0;
            while done < run.len {
                let len = (self.row_len - column).min(run.len - done);
                let to = &mut y[start + column..][..len];
                match step {
                    0 => to.fill(data[0]),
                    1 => to.copy_from_slice(&data[done..][..len]),
                    _ => {
                        let source = data[done * step..].iter().step_by(step);
                        to.iter_mut().zip(source).for_each(|(to, x)| *to = *x);
                    }
                }
                (done, column) = (done + len, column + len);
                if column == self.row_len {
                    (column, start) = (0, start + stride);
                }
            }
        });
    }
}

/// Fills y row by row with the rows of all parts. No part is empty.
pub(super) fn cat<T: Copy + Send + Sync>(cpu: &Cpu, parts: &[Part<'_, T>], y: &mut [T]) {
    let row_len: usize = parts.iter().map(Part::row_len).sum();
    if y.is_empty() {
        return;
    }
    if row_len >= CHUNK_LEN {
        for_each_chunk(cpu.pool(), y, CHUNK_LEN, |index, chunk| {
            write_long(parts, row_len, index * CHUNK_LEN, chunk);
        });
        return;
    }
    let row_count = CHUNK_LEN / row_len;
    for_each_chunk(cpu.pool(), y, row_count * row_len, |index, chunk| {
        let mut start = 0;
        for part in parts {
            part.copy_rows(index * row_count, &mut chunk[start..], row_len);
            start += part.row_len;
        }
    });
}

/// Writes the elements of y from number `from` on, for rows at least as long as a chunk.
fn write_long<T: Copy>(parts: &[Part<'_, T>], row_len: usize, from: usize, mut y: &mut [T]) {
    let (mut row, mut column) = (from / row_len, from % row_len);
    while !y.is_empty() {
        let mut start = 0;
        for part in parts {
            let end = start + part.row_len;
            if column < end && !y.is_empty() {
                let (to, next) = y.split_at_mut((end - column).min(y.len()));
                part.copy(row * part.row_len + column - start, to);
                column += to.len();
                y = next;
            }
            start = end;
        }
        (row, column) = (row + 1, 0);
    }
}
