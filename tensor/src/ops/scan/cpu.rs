//! Scans over `[A, T, B]` in two passes. The first pass sums each chunk of T; the second computes
//! the results from the sums of the earlier chunks. A chunk is contiguous in y.

use super::Scan;
use crate::cpu::Cpu;
use crate::cpu::arithmetic::Arithmetic;
use crate::cpu::chunk::{Chunked, for_each_chunk, for_each_chunk2};
use crate::cpu::tiles::{Source, TILE_LEN};
use crate::dtype::Element;
use crate::layout::Shape;
use crate::spec::DeviceKind;

/// Elements of a chunk.
const CHUNK_LEN: usize = 1 << 16;

/// The accumulated value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Running {
    Sum,
    Product,
}

/// The end at which a scan begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScanOrder {
    Forwards,
    Backwards,
}

/// The dimensions before, along and after the axis, and its chunks.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    pub(super) before: usize,
    pub(super) along: usize,
    pub(super) after: usize,
    /// Places along the axis in a chunk.
    step: usize,
}

impl Extent {
    pub(super) fn new(shape: &Shape, axis: usize, running: Running) -> Self {
        let (before, rest) = shape.split_at(axis);
        let (along, after) = (rest[0], rest[1..].iter().product());
        // A chunk's product may overflow although the product before it is 0, so products have one
        // chunk.
        let step = match running {
            Running::Sum => (CHUNK_LEN / std::cmp::max(after, 1)).clamp(1, along.max(1)),
            Running::Product => along.max(1),
        };
        Extent { before: before.iter().product(), along, after, step }
    }

    pub(super) fn element_count(&self) -> usize {
        self.before * self.along * self.after
    }

    /// Number of chunks along the axis.
    fn parts(&self) -> usize {
        self.along.div_ceil(self.step)
    }

    /// Number of running values in memory: `[A][part][B]`. An NVIDIA device has them in registers.
    pub(super) fn sum_count(&self, kind: DeviceKind) -> usize {
        match kind {
            DeviceKind::Cpu => self.before * self.parts() * self.after,
            DeviceKind::Cuda => 0,
        }
    }
}

pub(super) fn scan<A: Arithmetic, O: Element>(
    cpu: &Cpu,
    scan: &Scan,
    x: &dyn Source<A>,
    y: &mut [O],
    sums: &mut [A],
) {
    let Extent { along, after, step, .. } = scan.extent;
    let parts = scan.extent.parts();
    if y.is_empty() {
        return;
    }
    let start = if scan.running == Running::Sum { A::ZERO } else { A::ONE };
    let pass = Pass { scan, x };
    let sums = &mut sums[..scan.extent.sum_count(DeviceKind::Cpu)];
    if parts > 1 {
        for_each_chunk(cpu.pool(), sums, after, |index, sums| {
            sums.fill(start);
            pass.run::<O>(index, sums, None);
        });
        for sums in sums.chunks_mut(parts * after) {
            begin_parts(scan.direction, sums, after);
        }
    } else {
        sums.fill(start);
    }
    // Chunks of y have one length only if the chunk length divides the axis.
    if along % step == 0 {
        let (y, sums) = (Chunked::new(y, step * after), Chunked::new(sums, after));
        for_each_chunk2(cpu.pool(), y, sums, |index, y, sums| pass.run(index, sums, Some(y)));
        return;
    }
    let mut tasks: Vec<(&mut [O], &mut [A])> = y
        .chunks_mut(along * after)
        .flat_map(|y| y.chunks_mut(step * after))
        .zip(sums.chunks_mut(after))
        .collect();
    for_each_chunk(cpu.pool(), &mut tasks, 1, |index, task| {
        let (y, sums) = &mut task[0];
        pass.run(index, sums, Some(y));
    });
}

/// Replaces the sums of parts, `[part][B]`, by the sums of all earlier parts.
fn begin_parts<A: Arithmetic>(direction: ScanOrder, sums: &mut [A], after: usize) {
    let parts = sums.len() / after;
    for b in 0..after {
        let mut sum = A::ZERO;
        for index in 0..parts {
            let part = if direction == ScanOrder::Forwards { index } else { parts - 1 - index };
            let of_part = &mut sums[part * after + b];
            sum = std::mem::replace(of_part, sum).plus(sum);
        }
    }
}

struct Pass<'a, A> {
    scan: &'a Scan,
    x: &'a dyn Source<A>,
}

impl<A: Arithmetic> Pass<'_, A> {
    /// Adds chunk `index` to `sums`, and writes every running value to `y`.
    fn run<O: Element>(&self, index: usize, sums: &mut [A], mut y: Option<&mut [O]>) {
        let Extent { along, after, step, .. } = self.scan.extent;
        let parts = self.scan.extent.parts();
        let first = index % parts * step;
        let begin = (index / parts * along + first) * after;
        let end = begin + step.min(along - first) * after;
        let is_sum = self.scan.running == Running::Sum;
        let mut tile = [A::ZERO; TILE_LEN];
        let tiles = (end - begin).div_ceil(TILE_LEN);
        for at in 0..tiles {
            let is_forwards = self.scan.direction == ScanOrder::Forwards;
            let at = if is_forwards { at } else { tiles - 1 - at };
            let from = begin + at * TILE_LEN;
            let len = TILE_LEN.min(end - from);
            let tile = &mut tile[..len];
            self.x.write(from, tile);
            // The place along B of the tile's elements, which wraps around.
            let mut b = if is_forwards { from % after } else { (from + len - 1) % after };
            let mut accumulate = |x: &mut A, b: usize| {
                let sum = if is_sum { sums[b].plus(*x) } else { sums[b].times(*x) };
                (sums[b], *x) = (sum, sum);
            };
            if is_forwards {
                for x in tile.iter_mut() {
                    accumulate(x, b);
                    b = if b + 1 == after { 0 } else { b + 1 };
                }
            } else {
                for x in tile.iter_mut().rev() {
                    accumulate(x, b);
                    b = if b == 0 { after - 1 } else { b - 1 };
                }
            }
            if let Some(y) = &mut y {
                A::cast_slice(tile, &mut y[from - begin..][..len]);
            }
        }
    }
}
