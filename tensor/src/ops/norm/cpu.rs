//! Rows of `channels / groups` channels of `inner` elements each, normalised in the cache: the
//! statistics in two passes (mean, then squared distances from it), with sums carried in f64.

use std::ops::Range;

use super::{Center, Norm};
use crate::Element;
use crate::cpu::Cpu;
use crate::cpu::chunk::{Chunked, for_each_chunk2, for_each_chunk3};
use crate::cpu::lines::{Lines, Stored, Sums, load, store};
use crate::cpu::math::Math;
use crate::cpu::simd::{Simd, SimdFloat, SimdKernel};

/// Elements of a task.
const CHUNK_LEN: usize = 1 << 14;
impl Norm {
    pub(super) fn rows_per_task(&self) -> usize {
        (CHUNK_LEN / self.row_len().max(1)).max(1)
    }
}

/// What a task of [`forward`] works on.
struct Forward<'a, E: Stored> {
    norm: &'a Norm,
    first_row: usize,
    x: &'a [E],
    weight: Option<&'a [E]>,
    bias: Option<&'a [E]>,
    y: &'a mut [E],
    mean: Option<&'a mut [E::Lane]>,
    rstd: &'a mut [E::Lane],
}

impl<E: Stored> SimdKernel<E::Lane> for Forward<'_, E> {
    #[inline(always)]
    fn run<S: Simd<E::Lane>, const ROWS: usize, const COLS: usize>(mut self, _: S) {
        for row in 0..self.rstd.len() {
            self.row::<64>(row);
        }
    }
}

impl<E: Stored> Forward<'_, E> {
    #[inline(always)]
    fn row<const W: usize>(&mut self, row: usize) {
        let norm = self.norm;
        let len = norm.row_len();
        let x = &self.x[row * len..][..len];
        let y = &mut self.y[row * len..][..len];
        let (mean, variance) = match norm.center {
            Center::Mean => mean_and_variance::<E, E::Lane, W>(x),
            Center::Zero => (0.0, square_mean::<E, E::Lane, W>(x)),
        };
        let rstd = E::Lane::from_f64(1.0 / (variance + norm.eps).sqrt());
        let mean = E::Lane::from_f64(mean);
        if let Some(means) = &mut self.mean {
            means[row] = mean;
        }
        self.rstd[row] = rstd;
        let channels = norm.channels_of_row(self.first_row + row);
        let one = <E::Lane as crate::Float>::ONE;
        let zero = <E::Lane as crate::Float>::ZERO;
        let mut line = [zero; W];
        if norm.inner == 1 {
            let weight = self.weight.map(|weight| &weight[channels.clone()]);
            let bias = self.bias.map(|bias| &bias[channels]);
            let (mut w, mut b) = ([one; W], [zero; W]);
            for at in (0..len).step_by(W) {
                let places = at..len.min(at + W);
                load(&x[places.clone()], zero, &mut line);
                load_some(weight, &places, &mut w);
                load_some(bias, &places, &mut b);
                for lane in 0..W {
                    line[lane] = (line[lane] - mean) * rstd * w[lane] + b[lane];
                }
                store(&line, &mut y[places]);
            }
            return;
        }
        for (index, channel) in channels.enumerate() {
            let scale = self.weight.map_or(one, |weight| weight[channel].cast()) * rstd;
            let shift = self.bias.map_or(zero, |bias| bias[channel].cast());
            let first = index * norm.inner;
            affine::<E, E::Lane, W>(
                &x[first..][..norm.inner],
                [mean, scale, shift],
                &mut y[first..][..norm.inner],
            );
        }
    }
}

/// `y = (x - mean) · scale + shift`.
#[inline(always)]
pub(super) fn affine<E: Element, T: Math, const W: usize>(
    x: &[E],
    [mean, scale, shift]: [T; 3],
    y: &mut [E],
) {
    let mut line = [T::ZERO; W];
    for at in (0..x.len()).step_by(W) {
        let places = at..x.len().min(at + W);
        load(&x[places.clone()], T::ZERO, &mut line);
        for x in &mut line {
            *x = (*x - mean) * scale + shift;
        }
        store(&line, &mut y[places]);
    }
}

/// Overwrites `line` if there is something to load; its lanes beyond `places` do not matter.
#[inline(always)]
fn load_some<E: Element, T: Math, const W: usize>(
    from: Option<&[E]>,
    places: &Range<usize>,
    line: &mut [T; W],
) {
    if let Some(from) = from {
        load(&from[places.clone()], T::ZERO, line);
    }
}

/// The mean, and the mean squared distance from it. What rounding of the mean adds to the
/// distances is subtracted again: Chan, Golub and LeVeque, "Algorithms for computing the sample
/// variance" (1983), equation 1.7.
#[inline(always)]
pub(crate) fn mean_and_variance<E: Element, T: Math, const W: usize>(x: &[E]) -> (f64, f64) {
    let count = x.len() as f64;
    let mut line = [T::ZERO; W];
    let mut sums = Sums::<T, 1, W>::new();
    for places in Lines::row::<W>(0, x.len()).places() {
        load(&x[places], T::ZERO, &mut line);
        let [sum] = sums.next_line();
        for lane in 0..W {
            sum[lane] += line[lane];
        }
    }
    let [sum] = sums.totals();
    let mean = T::from_f64(sum / count);
    let mut sums = Sums::<T, 2, W>::new();
    for places in Lines::row::<W>(0, x.len()).places() {
        load(&x[places], mean, &mut line);
        let [rest, squares] = sums.next_line();
        for lane in 0..W {
            let distance = line[lane] - mean;
            rest[lane] += distance;
            squares[lane] += distance * distance;
        }
    }
    let [rest, squares] = sums.totals();
    (mean.to_f64() + rest / count, (squares - rest * rest / count) / count)
}

/// The mean of the squares.
#[inline(always)]
fn square_mean<E: Element, T: Math, const W: usize>(x: &[E]) -> f64 {
    let mut line = [T::ZERO; W];
    let mut sums = Sums::<T, 1, W>::new();
    for places in Lines::row::<W>(0, x.len()).places() {
        load(&x[places], T::ZERO, &mut line);
        let [squares] = sums.next_line();
        for lane in 0..W {
            squares[lane] += line[lane] * line[lane];
        }
    }
    let [squares] = sums.totals();
    squares / x.len() as f64
}

/// Overwrites y, the means (unless rows are not centred) and the reciprocal deviations.
#[expect(clippy::too_many_arguments, reason = "operands and results of one operation")]
pub(super) fn forward<E: Stored>(
    cpu: &Cpu,
    norm: &Norm,
    x: &[E],
    weight: Option<&[E]>,
    bias: Option<&[E]>,
    y: &mut [E],
    mean: Option<&mut [E::Lane]>,
    rstd: &mut [E::Lane],
) {
    let rows_per_task = norm.rows_per_task();
    let task_len = rows_per_task * norm.row_len();
    let task = |index: usize, y: &mut [E], rstd: &mut [E::Lane], mean: Option<&mut [E::Lane]>| {
        let x = &x[index * task_len..][..y.len()];
        let first_row = index * rows_per_task;
        E::Lane::dispatch(Forward { norm, first_row, x, weight, bias, y, mean, rstd });
    };
    let (y, rstd) = (Chunked::new(y, task_len), Chunked::new(rstd, rows_per_task));
    match mean {
        Some(mean) => for_each_chunk3(
            cpu.pool(),
            y,
            rstd,
            Chunked::new(mean, rows_per_task),
            |index, y, rstd, mean| task(index, y, rstd, Some(mean)),
        ),
        None => for_each_chunk2(cpu.pool(), y, rstd, |index, y, rstd| task(index, y, rstd, None)),
    }
}
