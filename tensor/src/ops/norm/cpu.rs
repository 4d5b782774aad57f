//! Rows of `channels / groups` channels of `inner` elements each, normalised in the cache: the
//! statistics in two passes (mean, then squared distances from it), with sums carried in f64.

use std::ops::Range;

use super::piece::{PIECE_LEN, Wide, moments, pieces};
use super::{Center, Norm};
use crate::cpu::Cpu;
use crate::cpu::chunk::{Chunked, for_each_chunk2, for_each_chunk3};
use crate::cpu::lines::{Lines, Sums, load, store};
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::{Simd, SimdKernel};
use crate::dtype::{Element, is_same_type};

/// Elements of a task.
const CHUNK_LEN: usize = 1 << 14;

/// Rows that are worked on together, if they have no more elements: those stay in the L1 cache.
pub(super) const ROWS_TOGETHER_MAX: usize = 4;
const TOGETHER_LEN: usize = 1 << 12;

impl Norm {
    pub(super) fn rows_per_task(&self) -> usize {
        (CHUNK_LEN / self.row_len().max(1)).max(1)
    }

    pub(super) fn rows_together(&self) -> usize {
        (TOGETHER_LEN / self.row_len().max(1)).clamp(1, ROWS_TOGETHER_MAX)
    }
}

/// What a task of [`forward`] works on.
struct Forward<'a, E: Element> {
    norm: &'a Norm,
    first_row: usize,
    x: &'a [E],
    weight: Option<&'a [E]>,
    bias: Option<&'a [E]>,
    y: &'a mut [E],
    mean: Option<&'a mut [E::Compute]>,
    rstd: &'a mut [E::Compute],
}

impl<E: Element<Compute: SimdFloat>> SimdKernel<E::Compute> for Forward<'_, E> {
    #[inline(always)]
    fn run<S: Simd<E::Compute>, const ROWS: usize, const COLS: usize>(mut self, simd: S) {
        let rows = 0..self.rstd.len();
        if self.norm.inner > 1 {
            // Not `for_each`: its closure would be compiled for any processor.
            for row in rows {
                self.row_of_channels::<64>(row);
            }
            return;
        }
        let mut wide = Wide::new();
        let together = self.norm.rows_together();
        for first in rows.clone().step_by(together) {
            let rows = first..rows.end.min(first + together);
            self.rows_of_elements(simd, rows, &mut wide);
        }
    }
}

impl<E: Element<Compute: SimdFloat>> Forward<'_, E> {
    /// Stores the statistics of a row; gives those that it is normalised by.
    #[inline(always)]
    fn keep(&mut self, row: usize, mean: f64, variance: f64) -> [E::Compute; 2] {
        let (mut mean, mut variance) = (mean, variance);
        if !variance.is_finite() {
            let len = self.norm.row_len();
            (mean, variance) = wide_moments(&self.x[row * len..][..len], self.norm.center);
        }
        let mean = E::Compute::from_f64(mean);
        let rstd = E::Compute::from_f64(1.0 / (variance + self.norm.eps).sqrt());
        if let Some(means) = &mut self.mean {
            means[row] = mean;
        }
        self.rstd[row] = rstd;
        [mean, rstd]
    }

    /// Each element has a weight. The roots and quotients of one row are computed while another
    /// is summed.
    #[inline(always)]
    fn rows_of_elements<S: Simd<E::Compute>>(
        &mut self,
        simd: S,
        rows: Range<usize>,
        wide: &mut Wide<E::Compute>,
    ) {
        let mut near = [E::Compute::ZERO; ROWS_TOGETHER_MAX];
        if self.norm.center == Center::Mean {
            for row in rows.clone() {
                near[row - rows.start] = self.mean_of_elements(simd, row, wide);
            }
        }
        for row in rows.clone() {
            self.keep_moments(simd, row, near[row - rows.start], wide);
        }
        // Rows that are widened, or have weights of their own, go one by one.
        let are_alike = is_same_type::<E, E::Compute>() && self.norm.groups == 1;
        if are_alike && rows.len() == ROWS_TOGETHER_MAX {
            return self.normalize::<S, ROWS_TOGETHER_MAX>(simd, rows.start, wide);
        }
        for row in rows {
            self.normalize::<S, 1>(simd, row, wide);
        }
    }

    /// The mean of a row but for rounding.
    #[inline(always)]
    fn mean_of_elements<S: Simd<E::Compute>>(
        &self,
        simd: S,
        row: usize,
        wide: &mut Wide<E::Compute>,
    ) -> E::Compute {
        let len = self.norm.row_len();
        let x = &self.x[row * len..][..len];
        let mut sum = 0.0;
        for places in pieces(len) {
            sum += moments(simd, wide.x(&x[places]), E::Compute::ZERO)[0];
        }
        E::Compute::from_f64(sum / len as f64)
    }

    /// Stores the statistics of a row, from the distances to what is near its mean.
    #[inline(always)]
    fn keep_moments<S: Simd<E::Compute>>(
        &mut self,
        simd: S,
        row: usize,
        near: E::Compute,
        wide: &mut Wide<E::Compute>,
    ) {
        let len = self.norm.row_len();
        let x = &self.x[row * len..][..len];
        let (mut rest, mut squares) = (0.0, 0.0);
        for places in pieces(len) {
            let found = moments(simd, wide.x(&x[places]), near);
            (rest, squares) = (rest + found[0], squares + found[1]);
        }
        let (mean, variance) = match self.norm.center {
            Center::Mean => corrected(near, [rest, squares], len),
            Center::Zero => (0.0, squares / len as f64),
        };
        self.keep(row, mean, variance);
    }

    /// Writes y of `ROWS` rows from `first` on.
    #[inline(always)]
    fn normalize<S: Simd<E::Compute>, const ROWS: usize>(
        &mut self,
        simd: S,
        first: usize,
        wide: &mut Wide<E::Compute>,
    ) {
        let zero = E::Compute::ZERO;
        let len = self.norm.row_len();
        let mut scales = [[zero; 2]; ROWS];
        for (row, scale) in scales.iter_mut().enumerate() {
            let mean = self.mean.as_ref().map_or(zero, |means| means[first + row]);
            *scale = [mean, self.rstd[first + row]];
        }
        let channels = self.norm.channels_of_row(self.first_row + first);
        let weight = self.weight.map(|weight| &weight[channels.clone()]);
        let bias = self.bias.map(|bias| &bias[channels]);
        for places in pieces(len) {
            let all = first * len + places.start..(first + ROWS - 1) * len + places.end;
            let parameters = [weight, bias].map(|all| all.map(|all| &all[places.clone()]));
            let piece = wide.operands(places.len(), &self.x[all.clone()], parameters);
            let y = &mut self.y[all];
            if is_same_type::<E, E::Compute>() {
                piece.normalized(simd, len, &scales, bytemuck::cast_slice_mut(y));
                continue;
            }
            let mut lanes = [zero; PIECE_LEN];
            let lanes = &mut lanes[..y.len()];
            piece.normalized(simd, len, &scales, lanes);
            E::Compute::cast_slice(lanes, y);
        }
    }

    /// `inner` elements share a weight.
    #[inline(always)]
    fn row_of_channels<const W: usize>(&mut self, row: usize) {
        let norm = self.norm;
        let (len, one) = (norm.row_len(), E::Compute::ONE);
        let x = &self.x[row * len..][..len];
        let (mean, variance) = match norm.center {
            Center::Mean => mean_and_variance::<E, E::Compute, W>(x),
            Center::Zero => (0.0, square_mean::<E, E::Compute, W>(x)),
        };
        let [mean, rstd] = self.keep(row, mean, variance);
        let y = &mut self.y[row * len..][..len];
        for (index, channel) in norm.channels_of_row(self.first_row + row).enumerate() {
            let scale = self.weight.map_or(one, |weight| weight[channel].cast()) * rstd;
            let shift = self.bias.map_or(E::Compute::ZERO, |b| b[channel].cast());
            let first = index * norm.inner;
            affine::<E, E::Compute, W>(
                &x[first..][..norm.inner],
                [mean, scale, shift],
                &mut y[first..][..norm.inner],
            );
        }
    }
}

/// `y = (x - mean) · scale + shift`.
#[inline(always)]
pub(super) fn affine<E: Element, T: SimdFloat, const W: usize>(
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

/// The mean and the variance of `len` elements from the sums of their distances and squared
/// distances from `near`, the mean but for rounding. What that adds to the distances is subtracted
/// again: Chan, Golub and LeVeque, "Algorithms for computing the sample variance" (1983), equation
/// 1.7.
#[inline(always)]
fn corrected<T: SimdFloat>(near: T, sums: [f64; 2], len: usize) -> (f64, f64) {
    let [rest, square] = sums.map(|sum| sum / len as f64);
    (near.to_f64() + rest, square - rest * rest)
}

/// The mean and the variance of a row whose squares are beyond the type that rows are summed in,
/// all in f64, element by element.
#[cold]
#[inline(never)]
fn wide_moments<E: Element>(x: &[E], center: Center) -> (f64, f64) {
    let len = x.len() as f64;
    let mean = match center {
        Center::Mean => x.iter().map(|x| x.to_f64()).sum::<f64>() / len,
        Center::Zero => 0.0,
    };
    let distances = x.iter().map(|x| x.to_f64() - mean);
    let squares = distances.map(|distance| distance * distance).sum::<f64>();
    (mean, squares / len)
}

/// The mean, and the mean squared distance from it.
#[inline(always)]
pub(crate) fn mean_and_variance<E: Element, T: SimdFloat, const W: usize>(x: &[E]) -> (f64, f64) {
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
    let mean = T::from_f64(sum / x.len() as f64);
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
    corrected(mean, sums.totals(), x.len())
}

/// The mean of the squares.
#[inline(always)]
fn square_mean<E: Element, T: SimdFloat, const W: usize>(x: &[E]) -> f64 {
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
pub(super) fn forward<E: Element<Compute: SimdFloat>>(
    cpu: &Cpu,
    norm: &Norm,
    x: &[E],
    weight: Option<&[E]>,
    bias: Option<&[E]>,
    y: &mut [E],
    mean: Option<&mut [E::Compute]>,
    rstd: &mut [E::Compute],
) {
    let rows_per_task = norm.rows_per_task();
    let task_len = rows_per_task * norm.row_len();
    let task =
        |index: usize, y: &mut [E], rstd: &mut [E::Compute], mean: Option<&mut [E::Compute]>| {
            let x = &x[index * task_len..][..y.len()];
            let first_row = index * rows_per_task;
            E::Compute::dispatch(Forward { norm, first_row, x, weight, bias, y, mean, rstd });
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
