//! Loops over places that several indices name together.

use std::ops::Range;

use crate::cpu::Cpu;
use crate::cpu::chunk::for_each_chunk;
use crate::layout::{Layout, Nest, RANK_MAX};

/// Elements of a chunk: enough to hide the cost of the fork, and small enough for the L2 cache.
const CHUNK_LEN: usize = 1 << 14;

/// Dimensions that one index counts through in row-major order.
pub(super) struct Group {
    /// Lengths and strides. Contiguous dimensions are merged.
    dims: Vec<[usize; 2]>,
    len: usize,
}

impl Group {
    /// The dimensions `axes` of `layout`.
    pub(super) fn new(layout: &Layout, axes: Range<usize>) -> Self {
        let mut dims: Vec<[usize; 2]> = Vec::new();
        let (mut len, shape) = (1, layout.shape());
        for axis in axes {
            let [dim, stride] = [shape[axis], layout.strides()[axis]];
            len *= dim;
            match dims.last_mut() {
                _ if dim == 1 => {}
                Some([last, last_stride]) if *last_stride == stride * dim => {
                    (*last, *last_stride) = (*last * dim, stride);
                }
                _ => dims.push([dim, stride]),
            }
        }
        Group { dims, len }
    }

    /// The number of places.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The offset of place `index`.
    fn offset(&self, mut index: usize) -> usize {
        match self.dims[..] {
            [] => 0,
            [[_, stride]] => index * stride,
            _ => {
                let along = |&[len, stride]: &[usize; 2]| {
                    let at = index % len;
                    index /= len;
                    at * stride
                };
                self.dims.iter().rev().map(along).sum()
            }
        }
    }
}

/// Places named by indices of one shape; each index has dimensions of its own. `nest` also walks
/// over a source of that shape, as its last tensor.
pub(super) struct Places<'a> {
    pub(super) indices: Vec<(&'a [i64], Group)>,
    pub(super) nest: Nest<{ RANK_MAX + 1 }>,
}

impl Places<'_> {
    /// Calls `visit(place, start in the source)` for the named places of `range`, in order.
    fn each(&self, range: Range<usize>, mut visit: impl FnMut(usize, usize)) {
        let steps = self.nest.inner_strides();
        self.nest.rows(range.start, range.end, |row| {
            for i in 0..row.len {
                let mut place = 0;
                for (k, (index, group)) in self.indices.iter().enumerate() {
                    place += group.offset(index[row.starts[k] + i * steps[k]] as usize);
                }
                visit(place, row.starts[RANK_MAX] + i * steps[RANK_MAX]);
            }
        });
    }
}

/// Writes y from the rows of x at the places. `row` is the layout and length of a row.
pub(super) fn take<T: Copy + Send + Sync>(
    cpu: &Cpu,
    places: &Places<'_>,
    (row, row_len): (&Nest<1>, usize),
    x: &[T],
    y: &mut [T],
) {
    if row_len == 0 {
        return;
    }
    let count = (CHUNK_LEN / row_len).max(1);
    let [step] = row.inner_strides();
    for_each_chunk(cpu.pool(), y, count * row_len, |chunk, y| {
        let from = chunk * count;
        let range = from..from + y.len() / row_len;
        let mut rest = y;
        places.each(range, |place, _| {
            row.rows(0, row_len, |run| {
                let (y, next) = std::mem::take(&mut rest).split_at_mut(run.len);
                rest = next;
                let x = &x[place + run.starts[0]..];
                if step == 1 {
                    y.copy_from_slice(&x[..y.len()]);
                } else {
                    y.iter_mut().enumerate().for_each(|(i, y)| *y = x[i * step]);
                }
            });
        });
    });
}

/// Sends the rows of a source to the `count` places, in order. `row` is the layout of a row in `to`
/// and in the source, and its length.
///
/// Each task owns a part of the memory of `to`, goes through all places and takes the elements that
/// fall into its part. So every element is changed in the same order, for any number of tasks.
pub(super) fn put<S: Copy + Sync, D: Send>(
    cpu: &Cpu,
    (places, count): (&Places<'_>, usize),
    (row, row_len): (&Nest<2>, usize),
    source: &[S],
    to: &mut [D],
    (combine, combine_row): (impl Fn(&mut D, S) + Sync, impl Fn(&mut [D], &[S]) + Sync),
) {
    let parts = if count * row_len < CHUNK_LEN { 1 } else { cpu.threads() };
    let part_len = to.len().div_ceil(parts);
    let steps = row.inner_strides();
    for_each_chunk(cpu.pool(), to, part_len, |part, to| {
        let base = part * part_len;
        let end = base + to.len();
        places.each(0..count, |place, from| {
            row.rows(0, row_len, |run| {
                let [start, from] = [place + run.starts[0], from + run.starts[1]];
                if steps == [1, 1] {
                    let [low, high] = [base, end].map(|end| end.saturating_sub(start).min(run.len));
                    if low < high {
                        let to = &mut to[start + low - base..start + high - base];
                        combine_row(to, &source[from + low..from + high]);
                    }
                    return;
                }
                for i in 0..run.len {
                    let at = start + i * steps[0];
                    if (base..end).contains(&at) {
                        combine(&mut to[at - base], source[from + i * steps[1]]);
                    }
                }
            });
        });
    });
}
