//! Three passes over the lines of a row or of neighbouring columns. All but the first find the
//! lines in the cache.

use super::Softmax;
use crate::cpu::Cpu;
use crate::cpu::chunk::for_each_chunk;
use crate::cpu::lines::{AllLines, Blocks, Lines, LinesKernel, each_strided_row, load, store};
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::Fused;
use crate::dtype::{Element, Float, is_same_type};
use crate::operand_view::{View, ViewMut};
use crate::ops::direction::Direction;

/// The rows or slabs of one task.
struct Task<'a, E> {
    softmax: Softmax,
    blocks: Blocks,
    outer: usize,
    /// The source of the destination, x or dy; `None` if the destination holds the source.
    source: Option<&'a [E]>,
    /// The result of forward, for the gradient.
    y: &'a [E],
    to: &'a mut [E],
}

impl<E: Element<Compute: SimdFloat>> LinesKernel<E::Compute> for Task<'_, E> {
    fn extent(&self) -> (Blocks, usize) {
        (self.blocks, self.outer)
    }

    #[inline(always)]
    fn lines<F: Fused, const W: usize>(&mut self, lines: &Lines) {
        let (source, y, to) = (self.source, self.y, &mut *self.to);
        match (self.softmax.direction, self.softmax.is_log) {
            (Direction::Forward, false) => forward::<E, E::Compute, F, W>(lines, source, to),
            (Direction::Forward, true) => forward_log::<E, E::Compute, F, W>(lines, source, to),
            (Direction::Backward, false) => backward::<E, E::Compute, W>(lines, source, y, to),
            (Direction::Backward, true) => {
                backward_log::<E, E::Compute, F, W>(lines, source, y, to)
            }
        }
    }
}

/// Runs `$body` for the places of all lines: once for whole lines, once for the others.
macro_rules! for_lines {
    ($lines:ident, $places:ident => $body:expr) => {
        for $places in $lines.whole::<W>() {
            $body;
        }
        for $places in $lines.others::<W>() {
            $body;
        }
    };
}

/// The largest element of each reduction. With ∞ or NaN, or with -∞ only, the result is not finite.
/// The differences are then NaN, and so is the whole reduction, as in PyTorch.
#[inline(always)]
fn maxima<E: Element, T: SimdFloat, const W: usize>(lines: &Lines, x: &[E]) -> [T; W] {
    let mut max = [T::NEG_INFINITY; W];
    for_lines!(lines, places => {
        let line = loaded::<E, T, W>(&x[places], T::NEG_INFINITY);
        for lane in 0..W {
            max[lane] = line[lane].maximum(max[lane]);
        }
    });
    lines.fold(&mut max, T::maximum);
    max
}

/// `y = exp(x - max) / Σ exp(x - max)`.
#[inline(always)]
fn forward<E: Element, T: SimdFloat, F: Fused, const W: usize>(
    lines: &Lines,
    x: Option<&[E]>,
    to: &mut [E],
) {
    let max = maxima::<E, T, W>(lines, x.unwrap_or(to));
    let mut sum = [T::ZERO; W];
    for_lines!(lines, places => {
        let mut line = loaded::<E, T, W>(&x.unwrap_or(to)[places.clone()], T::NEG_INFINITY);
        for lane in 0..W {
            line[lane] = (line[lane] - max[lane]).exp_in::<F>();
            sum[lane] += line[lane];
        }
        // A half type would round its exponentials here, so the next pass computes them again.
        if is_same_type::<E, T>() {
            store(&line, &mut to[places]);
        }
    });
    lines.fold(&mut sum, |a, b| a + b);
    let scale = sum.map(|sum| T::ONE / sum);
    for_lines!(lines, places => {
        let mut line;
        if is_same_type::<E, T>() {
            line = loaded::<E, T, W>(&to[places.clone()], T::ZERO);
        } else {
            line = loaded::<E, T, W>(&x.unwrap_or(to)[places.clone()], T::ZERO);
            for lane in 0..W {
                line[lane] = (line[lane] - max[lane]).exp_in::<F>();
            }
        }
        for lane in 0..W {
            line[lane] *= scale[lane];
        }
        store(&line, &mut to[places]);
    });
}

/// `y = (x - max) - ln Σ exp(x - max)`.
#[inline(always)]
fn forward_log<E: Element, T: SimdFloat, F: Fused, const W: usize>(
    lines: &Lines,
    x: Option<&[E]>,
    to: &mut [E],
) {
    let max = maxima::<E, T, W>(lines, x.unwrap_or(to));
    let mut line = [T::ZERO; W];
    let mut sum = [T::ZERO; W];
    for places in lines.places() {
        load(&x.unwrap_or(to)[places], T::NEG_INFINITY, &mut line);
        for lane in 0..W {
            sum[lane] += (line[lane] - max[lane]).exp_in::<F>();
        }
    }
    lines.fold(&mut sum, |a, b| a + b);
    let log = sum.map(T::log_in::<F>);
    for places in lines.places() {
        load(&x.unwrap_or(to)[places.clone()], T::ZERO, &mut line);
        for lane in 0..W {
            line[lane] = (line[lane] - max[lane]) - log[lane];
        }
        store(&line, &mut to[places]);
    }
}

/// `dx = y · (dy - sum - rest)`, where `sum = Σ dy·y` and `rest = Σ y·(dy - sum)`. `rest` is 0 but
/// for rounding errors. If one y is nearly 1, its dy and the sum cancel, and without `rest` these
/// errors would be as large as dx.
#[inline(always)]
fn backward<E: Element, T: SimdFloat, const W: usize>(
    lines: &Lines,
    dy: Option<&[E]>,
    y: &[E],
    to: &mut [E],
) {
    let mut sum = [T::ZERO; W];
    for_lines!(lines, places => {
        let line = loaded::<E, T, W>(&dy.unwrap_or(to)[places.clone()], T::ZERO);
        let y_line = loaded::<E, T, W>(&y[places], T::ZERO);
        for lane in 0..W {
            sum[lane] += line[lane] * y_line[lane];
        }
    });
    lines.fold(&mut sum, |a, b| a + b);
    let mut rest = [T::ZERO; W];
    for_lines!(lines, places => {
        let line = loaded::<E, T, W>(&dy.unwrap_or(to)[places.clone()], T::ZERO);
        let y_line = loaded::<E, T, W>(&y[places], T::ZERO);
        for lane in 0..W {
            rest[lane] += (line[lane] - sum[lane]) * y_line[lane];
        }
    });
    lines.fold(&mut rest, |a, b| a + b);
    for_lines!(lines, places => {
        let mut line = loaded::<E, T, W>(&dy.unwrap_or(to)[places.clone()], T::ZERO);
        let y_line = loaded::<E, T, W>(&y[places.clone()], T::ZERO);
        for lane in 0..W {
            line[lane] = (line[lane] - sum[lane] - rest[lane]) * y_line[lane];
        }
        store(&line, &mut to[places]);
    });
}

/// [`load`] that returns the line.
#[inline(always)]
fn loaded<E: Element, T: SimdFloat, const W: usize>(from: &[E], pad: T) -> [T; W] {
    let mut line = [T::ZERO; W];
    load(from, pad, &mut line);
    line
}

/// `dx = dy - exp(y) · Σ dy`.
#[inline(always)]
fn backward_log<E: Element, T: SimdFloat, F: Fused, const W: usize>(
    lines: &Lines,
    dy: Option<&[E]>,
    y: &[E],
    to: &mut [E],
) {
    let (mut line, mut y_line) = ([T::ZERO; W], [T::ZERO; W]);
    let mut sum = [T::ZERO; W];
    for places in lines.places() {
        load(&dy.unwrap_or(to)[places], T::ZERO, &mut line);
        for lane in 0..W {
            sum[lane] += line[lane];
        }
    }
    lines.fold(&mut sum, |a, b| a + b);
    for places in lines.places() {
        load(&dy.unwrap_or(to)[places.clone()], T::ZERO, &mut line);
        load(&y[places.clone()], T::ZERO, &mut y_line);
        for lane in 0..W {
            line[lane] = line[lane] - y_line[lane].exp_in::<F>() * sum[lane];
        }
        store(&line, &mut to[places]);
    }
}

/// Softmax or a gradient of contiguous operands. `source` is `None` if the destination holds the
/// source.
pub(super) fn contiguous<E: Element<Compute: SimdFloat>>(
    cpu: &Cpu,
    softmax: Softmax,
    blocks: Blocks,
    source: Option<&[E]>,
    y: Option<&[E]>,
    to: &mut [E],
) {
    let outer_len = blocks.len * blocks.inner;
    let chunk_len = blocks.outer_per_task() * outer_len;
    for_each_chunk(cpu.pool(), to, chunk_len, |index, to| {
        let places = index * chunk_len..index * chunk_len + to.len();
        let outer = to.len() / outer_len;
        let source = source.map(|source| &source[places.clone()]);
        let y = y.map(|y| &y[places]).unwrap_or_default();
        E::Compute::dispatch(AllLines(Task { softmax, blocks, outer, source, y, to }));
    });
}

/// Softmax or a gradient of operands with any strides, in place, on the calling thread, one element
/// at a time.
pub(super) fn strided<E: Element<Compute: SimdFloat>>(
    softmax: Softmax,
    axis: usize,
    y: Option<View<'_, E>>,
    mut to: ViewMut<'_, E>,
) {
    let layout = *to.layout();
    let y_layout = y.map_or(layout, |y| *y.layout());
    let y_data = y.map(|y| y.data()).unwrap_or_default();
    let (len, step) = (layout.shape()[axis], layout.strides()[axis]);
    let y_step = y_layout.strides()[axis];
    let data = to.data();
    each_strided_row([&layout, &y_layout], axis, |[start, y_start]| {
        let y_at = |i: usize| y_data[y_start + i * y_step].cast::<E::Compute>();
        let at = |data: &[E], i: usize| data[start + i * step].cast::<E::Compute>();
        let (a, b) = coefficients(softmax, len, |i| at(data, i), y_at);
        for i in 0..len {
            let x = at(data, i);
            let result = match (softmax.direction, softmax.is_log) {
                (Direction::Forward, false) => (x - a).exp() / b,
                (Direction::Forward, true) => (x - a) - b.ln(),
                (Direction::Backward, false) => (x - a - b) * y_at(i),
                (Direction::Backward, true) => x - y_at(i).exp() * a,
            };
            data[start + i * step] = result.cast();
        }
    });
}

/// The maximum and the sum of exponentials; for gradients, the numbers that are subtracted from dy,
/// as in [`backward`].
fn coefficients<T: Float>(
    softmax: Softmax,
    len: usize,
    x: impl Fn(usize) -> T,
    y: impl Fn(usize) -> T,
) -> (T, T) {
    let sum = |term: &dyn Fn(usize) -> T| (0..len).fold(T::ZERO, |sum, i| sum + term(i));
    match (softmax.direction, softmax.is_log) {
        (Direction::Forward, _) => {
            let max = (0..len).fold(T::NEG_INFINITY, |max, i| x(i).maximum(max));
            (max, sum(&|i| (x(i) - max).exp()))
        }
        (Direction::Backward, false) => {
            let of_products = sum(&|i| x(i) * y(i));
            (of_products, sum(&|i| (x(i) - of_products) * y(i)))
        }
        (Direction::Backward, true) => (sum(&x), T::ZERO),
    }
}
