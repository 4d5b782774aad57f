//! Loops that follow indices. Where rows of elements share an index, whole rows move at once.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cpu::Cpu;
use crate::cpu::arithmetic::Arithmetic;
use crate::cpu::chunk::for_each_chunk;
use crate::dtype::{Element, is_same_type};
use crate::error::{Result, TensorError};
use crate::layout::{Nest, RANK_MAX, Shape};
use crate::operand_view::{View, ViewMut};

/// Elements of a chunk: enough to hide the cost of the fork, and small enough for the L2 cache.
const CHUNK_LEN: usize = 1 << 14;

/// Checks that all indices are below `len`. The error is that of the first index that is not.
pub(super) fn check(cpu: &Cpu, op: &'static str, index: View<'_, i64>, len: usize) -> Result<()> {
    let shape = index.layout().shape();
    let nest = Nest::new(shape, [index.layout().strides()]);
    let [step] = nest.inner_strides();
    let (data, count) = (index.data(), shape.element_count());
    let first_bad = AtomicUsize::new(usize::MAX);
    // A negative index wraps to a large number.
    let is_bad = |index: i64| index as u64 >= len as u64;
    cpu.pool().run(count.div_ceil(CHUNK_LEN), &|chunk| {
        let mut at = chunk * CHUNK_LEN;
        nest.rows(at, (at + CHUNK_LEN).min(count), |row| {
            let row_data = &data[row.starts[0]..];
            let bad = match step {
                1 => row_data[..row.len].iter().fold(false, |bad, &x| bad | is_bad(x)),
                _ => (0..row.len).any(|i| is_bad(row_data[i * step])),
            };
            if bad {
                let first = (0..row.len).find(|i| is_bad(row_data[i * step]));
                first_bad.fetch_min(at + first.unwrap_or(0), Ordering::Relaxed);
            }
            at += row.len;
        });
    });
    let at = first_bad.into_inner();
    let mut outcome = Ok(());
    if at < count {
        nest.rows(at, at + 1, |row| {
            let index = data[row.starts[0]] as usize;
            outcome = Err(TensorError::index(op, index, len));
        });
    }
    outcome
}

/// The source of an operation. Element `i, j, ..` of a shape comes from `strides · [i, j, ..]` plus
/// `axis_stride` times its index, which is at `index_strides · [i, j, ..]`.
pub(super) struct Follow<'a> {
    pub(super) index: &'a [i64],
    pub(super) index_strides: [usize; RANK_MAX],
    pub(super) strides: [usize; RANK_MAX],
    pub(super) axis_stride: usize,
}

/// Writes y, of shape `shape`, from the elements of x that `follow` names.
pub(super) fn gather<T: Copy + Send + Sync>(
    cpu: &Cpu,
    follow: &Follow<'_>,
    x: &[T],
    shape: &Shape,
    y: &mut [T],
) {
    let rank = shape.len();
    let nest = Nest::new(shape, [&follow.index_strides[..rank], &follow.strides[..rank]]);
    let [index_step, step] = nest.inner_strides();
    for_each_chunk(cpu.pool(), y, CHUNK_LEN, |chunk, y| {
        let from = chunk * CHUNK_LEN;
        let mut rest = y;
        nest.rows(from, from + rest.len(), |row| {
            let (y, next) = std::mem::take(&mut rest).split_at_mut(row.len);
            rest = next;
            let [index_start, start] = row.starts;
            let place = |i: usize| {
                let index = follow.index[index_start + i * index_step] as usize;
                start + i * step + index * follow.axis_stride
            };
            match (index_step, step) {
                (0, 0) => y.fill(x[place(0)]),
                (0, 1) => y.copy_from_slice(&x[place(0)..][..y.len()]),
                (0, _) => {
                    let source = x[place(0)..].iter().step_by(step);
                    y.iter_mut().zip(source).for_each(|(y, x)| *y = *x);
                }
                _ => y.iter_mut().enumerate().for_each(|(i, y)| *y = x[place(i)]),
            }
        });
    });
}

/// `to += from`, in the type of the sums.
#[inline(always)]
pub(super) fn add<S: Element, D: Element<Compute: Arithmetic>>(to: &mut D, from: S) {
    *to = to.cast::<D::Compute>().plus(from.cast()).cast();
}

/// [`add`] of each element. Half types with sums in f32 are converted with vector instructions.
#[inline]
pub(super) fn add_row<S: Element, D: Element<Compute: Arithmetic>>(to: &mut [D], from: &[S]) {
    if is_same_type::<S, D>() {
        return to.iter_mut().zip(from).for_each(|(to, from)| add(to, *from));
    }
    let mut tile = [D::ZERO; 256];
    for (to, from) in to.chunks_mut(256).zip(from.chunks(256)) {
        S::cast_slice(from, &mut tile[..from.len()]);
        to.iter_mut().zip(&tile).for_each(|(to, from)| add(to, *from));
    }
}

/// Elements that arrive at the places of their indices, in the order along the axis. If indices
/// repeat, sums round in a fixed order and the last write wins, for any number of threads.
pub(super) struct Arrivals<'a, S> {
    pub(super) index: &'a [i64],
    pub(super) index_strides: [usize; RANK_MAX],
    pub(super) source: View<'a, S>,
    pub(super) axis: usize,
}

/// The cut of the destination along the dimension with the largest stride, with a task for each
/// part.
struct Cut {
    axis: usize,
    stride: usize,
    /// Positions of each part along the dimension.
    rows: usize,
}

impl<S: Element> Arrivals<'_, S> {
    /// Overwrites elements of `to` with the elements that arrive.
    pub(super) fn replace(&self, cpu: &Cpu, to: &mut ViewMut<'_, S>) {
        self.run(cpu, to, |to, x| *to = x, <[S]>::copy_from_slice);
    }

    /// Combines all arriving elements with `to`.
    pub(super) fn run<D: Element>(
        &self,
        cpu: &Cpu,
        to: &mut ViewMut<'_, D>,
        combine: impl Fn(&mut D, S) + Sync,
        combine_row: impl Fn(&mut [D], &[S]) + Sync,
    ) {
        let shape = self.source.layout().shape();
        if shape.element_count() == 0 {
            return;
        }
        let layout = *to.layout();
        let order = &layout.axes_by_stride()[..layout.shape().len()];
        let outermost = order.iter().copied().find(|&axis| layout.shape()[axis] > 1);
        let first = outermost.unwrap_or(0);
        let cut = Cut {
            axis: first,
            stride: layout.strides()[first].max(1),
            rows: self.rows_per_part(cpu, first, layout.shape()[first]),
        };
        // The walk follows the destination's memory. Results depend on nothing but the order along
        // the axis, which no permutation changes.
        let others = order.iter().copied().filter(|&axis| axis != first);
        let order: Vec<usize> = std::iter::once(first).chain(others).collect();
        let dims: Vec<usize> = order.iter().map(|&axis| shape[axis]).collect();
        let permuted =
            |strides: &[usize]| -> Vec<usize> { order.iter().map(|&axis| strides[axis]).collect() };
        let mut strides = layout.strides().to_vec();
        let axis_stride = std::mem::take(&mut strides[self.axis]);
        let nest = Nest::new(
            &Shape::new(&dims),
            [
                &permuted(&self.index_strides),
                &permuted(self.source.layout().strides()),
                &permuted(&strides),
            ],
        );
        for_each_chunk(cpu.pool(), to.data(), cut.rows * cut.stride, |part, data| {
            self.part(&nest, &cut, part, axis_stride, data, &combine, &combine_row);
        });
    }

    /// Number of positions along dimension `first` of the destination for one task. Elements arrive
    /// at one place in one order, for every cut.
    fn rows_per_part(&self, cpu: &Cpu, first: usize, len: usize) -> usize {
        let shape = self.source.layout().shape();
        let count = shape.element_count();
        if count < CHUNK_LEN || cpu.threads() == 1 {
            return len;
        }
        if first != self.axis {
            return (CHUNK_LEN * shape[first] / count).max(1);
        }
        // Each task reads all indices and skips indices of other tasks. So the number of tasks is
        // limited: reading indices must be cheap compared to moving rows.
        let shared = (0..shape.len()).filter(|&axis| self.index_strides[axis] == 0);
        let row_len: usize = shared.map(|axis| shape[axis]).product();
        len.div_ceil(cpu.threads().max((row_len / 4).min(64)))
    }

    /// Combines the elements that arrive at `data`, part number `part` of the destination.
    #[expect(clippy::too_many_arguments, reason = "the state of one loop")]
    fn part<D>(
        &self,
        nest: &Nest<3>,
        cut: &Cut,
        part: usize,
        axis_stride: usize,
        data: &mut [D],
        combine: &impl Fn(&mut D, S),
        combine_row: &impl Fn(&mut [D], &[S]),
    ) {
        let shape = self.source.layout().shape();
        let (from, to) = (part * cut.rows, (part + 1) * cut.rows);
        let base = from * cut.stride;
        let row_len = shape.element_count() / shape[cut.axis];
        let (range, indices) = if cut.axis == self.axis {
            (0..shape.element_count(), from..to)
        } else {
            let [from, to] = [from, to].map(|row| row.min(shape[cut.axis]) * row_len);
            (from..to, 0..usize::MAX)
        };
        let source = self.source.data();
        let [index_step, source_step, step] = nest.inner_strides();
        nest.rows(range.start, range.end, |row| {
            let [index_start, source_start, start] = row.starts;
            if index_step != 0 {
                for i in 0..row.len {
                    let index = self.index[index_start + i * index_step] as usize;
                    if indices.contains(&index) {
                        let to = start + i * step + index * axis_stride - base;
                        combine(&mut data[to], source[source_start + i * source_step]);
                    }
                }
                return;
            }
            let index = self.index[index_start] as usize;
            if !indices.contains(&index) {
                return;
            }
            let start = start + index * axis_stride - base;
            if (source_step, step) == (1, 1) {
                combine_row(&mut data[start..][..row.len], &source[source_start..][..row.len]);
            } else {
                for i in 0..row.len {
                    combine(&mut data[start + i * step], source[source_start + i * source_step]);
                }
            }
        });
    }
}

/// Writes rows of zeros with a one at each row's index.
pub(super) fn one_hot<T: Element>(
    cpu: &Cpu,
    index: View<'_, i64>,
    class_count: usize,
    y: &mut [T],
) {
    let nest = Nest::new(index.layout().shape(), [index.layout().strides()]);
    let [step] = nest.inner_strides();
    let row_count = (CHUNK_LEN / class_count.max(1)).max(1);
    let one = T::from_f32(1.0);
    for_each_chunk(cpu.pool(), y, row_count * class_count, |chunk, y| {
        y.fill(T::default());
        let from = chunk * row_count;
        let mut rows = y.chunks_exact_mut(class_count);
        nest.rows(from, from + rows.len(), |run| {
            for i in 0..run.len {
                let class = index.data()[run.starts[0] + i * step] as usize;
                if let Some(row) = rows.next() {
                    row[class] = one;
                }
            }
        });
    });
}
