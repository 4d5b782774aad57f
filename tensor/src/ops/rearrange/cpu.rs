//! One loop for every operation that maps the positions of each dimension separately:
//! `y[i, j, ..] = x[f(i), g(j), ..]`, or a constant if a mapped position is outside x.

use crate::cpu::Cpu;
use crate::cpu::chunk::for_each_chunk;
use crate::layout::RANK_MAX;

/// Elements of a chunk: enough to hide the cost of the fork, and small enough for the L2 cache.
const CHUNK_LEN: usize = 1 << 14;

/// The position in x for position `i` of y, along a dimension with length `n` in x.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Map {
    /// `(i + start) mod n`: the whole dimension, rolled, repeated or continued around the ends.
    Cycle { start: usize },
    /// `n - 1 - i`.
    Flip,
    /// `i / times`.
    Interleave { times: usize },
    /// `i - before`; outside x, the value that `Edge` selects.
    Pad { before: usize, edge: Edge },
}

/// The value of positions outside x.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Edge {
    /// A constant.
    Constant,
    /// x mirrored at its first and last position, which are not repeated.
    Reflect,
    /// The first or the last position of x.
    Replicate,
}

/// One dimension of y, and its source in x.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dimension {
    /// Number of positions in x.
    pub(super) len: usize,
    /// Elements of x between neighbours.
    pub(super) stride: usize,
    /// Number of positions in y.
    pub(super) out_len: usize,
    pub(super) map: Map,
}

/// Positions of y whose sources in x are neighbours.
#[derive(Debug, PartialEq)]
struct Run {
    /// Position of the first element in x; `None` for the constant.
    from: Option<usize>,
    step: Step,
    len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Forward,
    Backward,
    Still,
}

impl Dimension {
    /// The run that begins at position `at` of y.
    #[inline]
    fn run(&self, at: usize) -> Run {
        let (n, rest) = (self.len, self.out_len - at);
        let run = |from, step, len| Run { from: Some(from), step, len };
        match self.map {
            Map::Cycle { start } => {
                // Most dimensions are whole, and a division for each row would be slow.
                let from = if start + at < n { start + at } else { (start + at) % n };
                run(from, Step::Forward, rest.min(n - from))
            }
            Map::Flip => run(n - 1 - at, Step::Backward, rest),
            Map::Interleave { times } => run(at / times, Step::Still, times - at % times),
            Map::Pad { before, edge } if at < before => match edge {
                Edge::Constant => Run { from: None, step: Step::Still, len: before - at },
                Edge::Reflect => run(before - at, Step::Backward, before - at),
                Edge::Replicate => run(0, Step::Still, before - at),
            },
            Map::Pad { before, .. } if at < before + n => {
                run(at - before, Step::Forward, before + n - at)
            }
            Map::Pad { before, edge } => match edge {
                Edge::Constant => Run { from: None, step: Step::Still, len: rest },
                Edge::Reflect => run(n - 2 - (at - before - n), Step::Backward, rest),
                Edge::Replicate => run(n - 1, Step::Still, rest),
            },
        }
    }

    fn is_whole(&self) -> bool {
        self.map == Map::Cycle { start: 0 } && self.len == self.out_len
    }

    /// Merges this dimension with a whole dimension inside it, if both are contiguous in x.
    fn merged(&self, inner: &Dimension) -> Option<Dimension> {
        let side_by_side = self.stride == inner.len * inner.stride;
        if !inner.is_whole() || !side_by_side {
            return None;
        }
        let map = match self.map {
            Map::Cycle { start } => Map::Cycle { start: start * inner.len },
            Map::Pad { before, edge: Edge::Constant } => {
                Map::Pad { before: before * inner.len, edge: Edge::Constant }
            }
            _ => return None,
        };
        let [len, out_len] = [self.len, self.out_len].map(|len| len * inner.len);
        Some(Dimension { len, stride: inner.stride, out_len, map })
    }
}

/// The position in x of each position of y, for a map that stays inside x.
pub(super) fn sources(len: usize, out_len: usize, map: Map) -> Vec<i64> {
    let dimension = Dimension { len, stride: 1, out_len, map };
    (0..out_len).filter_map(|at| dimension.run(at).from).map(|from| from as i64).collect()
}

/// Merges contiguous dimensions, so that rows become long.
fn merge(dimensions: &[Dimension]) -> Vec<Dimension> {
    let mut merged: Vec<Dimension> = Vec::with_capacity(RANK_MAX);
    // From the innermost dimension outwards; `merged` has this order, too.
    for dimension in dimensions.iter().rev().filter(|d| !(d.is_whole() && d.len == 1)) {
        match merged.last().and_then(|inner| dimension.merged(inner)) {
            Some(both) => *merged.last_mut().expect("the inner one") = both,
            None => merged.push(*dimension),
        }
    }
    merged.reverse();
    if merged.is_empty() {
        merged.push(Dimension { len: 1, stride: 1, out_len: 1, map: Map::Cycle { start: 0 } });
    }
    merged
}

/// Writes y, whose dimensions in row-major order are `dimensions`.
pub(super) fn rearrange<T: Copy + Send + Sync>(
    cpu: &Cpu,
    dimensions: &[Dimension],
    x: &[T],
    fill: T,
    y: &mut [T],
) {
    let dimensions = merge(dimensions);
    for_each_chunk(cpu.pool(), y, CHUNK_LEN, |index, chunk| {
        write(&dimensions, x, fill, index * CHUNK_LEN, chunk);
    });
}

/// Writes the elements of y from number `from` on.
fn write<T: Copy>(dimensions: &[Dimension], x: &[T], fill: T, from: usize, mut y: &mut [T]) {
    let (inner, outer) = dimensions.split_last().expect("at least one dimension");
    let mut at = [0; RANK_MAX];
    let mut rest = from / inner.out_len;
    for (at, dimension) in at.iter_mut().zip(outer).rev() {
        *at = rest % dimension.out_len;
        rest /= dimension.out_len;
    }
    // The place in x for position `at` of an outer dimension; `None` if outside x.
    let place =
        |axis: usize, at: usize| outer[axis].run(at).from.map(|from| from * outer[axis].stride);
    let mut places: [Option<usize>; RANK_MAX] = [Some(0); RANK_MAX];
    (0..outer.len()).for_each(|axis| places[axis] = place(axis, at[axis]));
    let mut column = from % inner.out_len;
    while !y.is_empty() {
        let (row, next) = y.split_at_mut((inner.out_len - column).min(y.len()));
        match places[..outer.len()].iter().try_fold(0, |sum, place| Some(sum + (*place)?)) {
            Some(start) => write_row(inner, x, start, fill, column, row),
            None => row.fill(fill),
        }
        (y, column) = (next, 0);
        for axis in (0..outer.len()).rev() {
            at[axis] += 1;
            if at[axis] == outer[axis].out_len {
                at[axis] = 0;
            }
            places[axis] = place(axis, at[axis]);
            if at[axis] > 0 {
                break;
            }
        }
    }
}

/// Writes positions from `column` on along the innermost dimension. The row starts at `start` in x.
fn write_row<T: Copy>(
    inner: &Dimension,
    x: &[T],
    start: usize,
    fill: T,
    mut column: usize,
    mut row: &mut [T],
) {
    let stride = inner.stride;
    while !row.is_empty() {
        let Run { from, step, len } = inner.run(column);
        let (part, next) = row.split_at_mut(len.min(row.len()));
        (row, column) = (next, column + part.len());
        let Some(from) = from else {
            part.fill(fill);
            continue;
        };
        let first = start + from * stride;
        let reach = (part.len() - 1) * stride;
        match step {
            Step::Still => part.fill(x[first]),
            _ if stride == 0 => part.fill(x[first]),
            Step::Forward if stride == 1 => part.copy_from_slice(&x[first..][..part.len()]),
            Step::Forward => {
                let source = x[first..=first + reach].iter().step_by(stride);
                part.iter_mut().zip(source).for_each(|(y, x)| *y = *x);
            }
            Step::Backward if stride == 1 => {
                let source = x[first - reach..=first].iter().rev();
                part.iter_mut().zip(source).for_each(|(y, x)| *y = *x);
            }
            Step::Backward => {
                let source = x[first - reach..=first].iter().step_by(stride).rev();
                part.iter_mut().zip(source).for_each(|(y, x)| *y = *x);
            }
        }
    }
}

#[cfg(feature = "testing")]
pub(crate) mod testing {
    //! Dimensions and how they join, for the tests of this crate.

    use super::{Dimension, Edge, Map};

    /// Where the positions of y are in x.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Positions {
        /// Rolled by `start`.
        Cycle {
            /// The position of x that y begins with.
            start: usize,
        },
        /// In reverse.
        Flip,
        /// Behind `before` times a constant.
        Pad {
            /// The positions of the constant in front.
            before: usize,
        },
    }

    /// A dimension of y, and where it comes from in x.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Walked {
        /// Positions in x.
        pub len: usize,
        /// Elements of x between neighbours.
        pub stride: usize,
        /// Positions in y.
        pub out_len: usize,
        /// The places of these positions.
        pub positions: Positions,
    }

    /// The dimensions with those merged that lie side by side.
    pub fn merged(dimensions: &[Walked]) -> Vec<Walked> {
        let edge = Edge::Constant;
        let dimensions = dimensions.iter().map(|&Walked { len, stride, out_len, positions }| {
            let map = match positions {
                Positions::Cycle { start } => Map::Cycle { start },
                Positions::Flip => Map::Flip,
                Positions::Pad { before } => Map::Pad { before, edge },
            };
            Dimension { len, stride, out_len, map }
        });
        let merged = super::merge(&dimensions.collect::<Vec<_>>());
        let walked = merged.iter().map(|&Dimension { len, stride, out_len, map }| {
            let positions = match map {
                Map::Cycle { start } => Positions::Cycle { start },
                Map::Flip => Positions::Flip,
                Map::Pad { before, edge: Edge::Constant } => Positions::Pad { before },
                other => unreachable!("none was {other:?}"),
            };
            Walked { len, stride, out_len, positions }
        });
        walked.collect()
    }
}
