//! Sums in f64 over fixed chunks of outputs and of the reduced range.

use crate::cpu::Cpu;
use crate::cpu::chunk::for_each_chunk;
use crate::launch::View;
use crate::layout::{Nest, Shape};
use crate::{Element, Float};

/// Outputs per chunk: their accumulators stay in the L1 cache.
const OUTPUTS_LEN: usize = 256;
/// Elements of the reduced range that one task adds up.
const REDUCED_LEN: usize = 1 << 15;

/// How many f64 partial sums [`sum`] needs for an input of `[kept.., reduced..]`.
pub(super) fn partial_count(shape: &Shape, kept_rank: usize) -> usize {
    let (outputs, reduced) = counts(shape, kept_rank);
    outputs * reduced.div_ceil(REDUCED_LEN).max(1)
}

fn counts(shape: &Shape, kept_rank: usize) -> (usize, usize) {
    (shape[..kept_rank].iter().product(), shape[kept_rank..].iter().product())
}

/// `y[k] = Σ_r x[k, r]`.
pub(super) fn sum<T: Float>(
    cpu: &Cpu,
    x: View<'_, T>,
    kept_rank: usize,
    y: &mut [T],
    partials: &mut [f64],
) {
    let (shape, strides) = (x.layout().shape(), x.layout().strides());
    let (outputs, reduced) = counts(shape, kept_rank);
    if outputs == 0 {
        return;
    }
    let kept = Nest::new(&Shape::new(&shape[..kept_rank]), [&strides[..kept_rank]]);
    let inner = Nest::new(&Shape::new(&shape[kept_rank..]), [&strides[kept_rank..]]);
    let data = x.data();
    let column_first = kept.inner_strides()[0] == 1 && inner.inner_strides()[0] != 1;

    // Partials are laid out [reduced chunk][output]; a task owns a piece of one such row.
    let pieces = outputs.div_ceil(OUTPUTS_LEN);
    let mut tasks: Vec<&mut [f64]> =
        partials.chunks_mut(outputs).flat_map(|row| row.chunks_mut(OUTPUTS_LEN)).collect();
    for_each_chunk(cpu.pool(), &mut tasks, 1, |task, piece| {
        let sums = &mut *piece[0];
        sums.fill(0.0);
        let first_output = task % pieces * OUTPUTS_LEN;
        let from = task / pieces * REDUCED_LEN;
        let to = reduced.min(from + REDUCED_LEN);
        let mut done = 0;
        kept.rows(first_output, first_output + sums.len(), |outs| {
            let sums = &mut sums[done..done + outs.len];
            done += outs.len;
            let step = kept.inner_strides()[0];
            inner.rows(from, to, |row| {
                let stride = inner.inner_strides()[0];
                let start = outs.starts[0] + row.starts[0];
                if column_first {
                    for r in 0..row.len {
                        let line = &data[start + r * stride..][..sums.len()];
                        sums.iter_mut().zip(line).for_each(|(sum, x)| *sum += x.to_f64());
                    }
                } else {
                    for (k, sum) in sums.iter_mut().enumerate() {
                        *sum += row_sum(&data[start + k * step..], stride, row.len);
                    }
                }
            });
        });
    });
    for (k, y) in y.iter_mut().enumerate() {
        *y = T::from_f64(partials.iter().skip(k).step_by(outputs).sum());
    }
}

/// The sum of `len` elements `stride` apart, in eight lanes.
fn row_sum<T: Element>(data: &[T], stride: usize, len: usize) -> f64 {
    if stride != 1 {
        return (0..len).map(|i| data[i * stride].to_f64()).sum();
    }
    const LANES: usize = 8;
    let mut lanes = [0.0; LANES];
    let blocks = data[..len].chunks_exact(LANES);
    let rest: f64 = blocks.remainder().iter().map(|x| x.to_f64()).sum();
    for block in blocks {
        lanes.iter_mut().zip(block).for_each(|(lane, x)| *lane += x.to_f64());
    }
    lanes.iter().sum::<f64>() + rest
}

/// `y[i]` is the position of the largest of `x[i, ..]`, of the first NaN if there is one.
pub(super) fn argmax<T: Float>(x: &[T], row_len: usize, y: &mut [i64]) {
    for (row, y) in x.chunks_exact(row_len).zip(y) {
        let mut best = 0;
        for (i, &value) in row.iter().enumerate() {
            let is_nan = |x: T| x.partial_cmp(&x).is_none();
            if value > row[best] || (is_nan(value) && !is_nan(row[best])) {
                best = i;
            }
        }
        *y = best as i64;
    }
}
