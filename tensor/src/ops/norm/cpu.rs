//! Normalises rows of `channels / groups` channels of `inner` elements each, in the cache. The
//! statistics take two passes (the mean, then squared distances from it), with sums in f64.

use std::ops::Range;

use super::moments::{MeanVariance, rstd};
use super::piece::{PIECE_LEN, Wide, moments, pieces};
use super::rows::{RowKernel, each_row};
use super::{Center, Norm};
use crate::cpu::Cpu;
use crate::cpu::chunk::{Chunked, for_each_chunk2, for_each_chunk3};
use crate::cpu::lines::{load, store};
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::{Simd, SimdKernel};
use crate::dtype::{Element, is_same_type};

/// Elements of a task.
const CHUNK_LEN: usize = 1 << 14;

/// Largest number of rows that are computed together.
pub(super) const ROWS_TOGETHER_MAX: usize = 4;

/// Elements of rows that are computed together, so that they stay in the L1 cache.
const TOGETHER_LEN: usize = 1 << 12;

impl Norm {
    pub(super) fn rows_per_task(&self) -> usize {
        (CHUNK_LEN / self.row_len().max(1)).max(1)
    }

    pub(super) fn rows_together(&self) -> usize {
        (TOGETHER_LEN / self.row_len().max(1)).clamp(1, ROWS_TOGETHER_MAX)
    }
}

/// A task of [`forward`].
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
        let rows = self.rstd.len();
        each_row(simd, self.norm, rows, &mut self);
    }
}

impl<E: Element<Compute: SimdFloat>> RowKernel<E::Compute> for Forward<'_, E> {
    /// Roots and quotients of one row are computed while another row is summed.
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
        // Rows of another type, or with weights of their own, are computed one by one.
        let are_alike = is_same_type::<E, E::Compute>() && self.norm.groups == 1;
        if are_alike && rows.len() == ROWS_TOGETHER_MAX {
            return self.normalize::<S, ROWS_TOGETHER_MAX>(simd, rows.start, wide);
        }
        for row in rows {
            self.normalize::<S, 1>(simd, row, wide);
        }
    }

    #[inline(always)]
    fn row_of_channels<const W: usize>(&mut self, row: usize) {
        let norm = self.norm;
        let (len, one) = (norm.row_len(), E::Compute::ONE);
        let x = &self.x[row * len..][..len];
        let moments = match norm.center {
            Center::Mean => MeanVariance::of_row::<E, E::Compute, W>(x),
            Center::Zero => MeanVariance::about_zero::<E, E::Compute, W>(x),
        };
        let [mean, rstd] = self.keep(row, moments);
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

impl<E: Element<Compute: SimdFloat>> Forward<'_, E> {
    /// Stores the statistics of a row. Returns the mean and rstd that normalise the row.
    #[inline(always)]
    fn keep(&mut self, row: usize, mut moments: MeanVariance) -> [E::Compute; 2] {
        if !moments.variance.is_finite() {
            let (len, center) = (self.norm.row_len(), self.norm.center);
            moments = MeanVariance::one_by_one(&self.x[row * len..][..len], center);
        }
        let mean = E::Compute::from_f64(moments.mean);
        let rstd = E::Compute::from_f64(rstd(moments.variance, self.norm.eps));
        if let Some(means) = &mut self.mean {
            means[row] = mean;
        }
        self.rstd[row] = rstd;
        [mean, rstd]
    }

    /// The rounded mean of a row.
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

    /// Stores the statistics of a row, from its distances to a number near its mean.
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
        let moments = match self.norm.center {
            Center::Mean => MeanVariance::corrected(near, [rest, squares], len),
            Center::Zero => MeanVariance { mean: 0.0, variance: squares / len as f64 },
        };
        self.keep(row, moments);
    }

    /// Writes y of `ROWS` rows from row `first` on.
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

/// The operands that [`forward`] reads.
pub(super) struct Reads<'a, E> {
    pub(super) x: &'a [E],
    pub(super) weight: Option<&'a [E]>,
    pub(super) bias: Option<&'a [E]>,
}

/// The results of [`forward`], which are overwritten.
pub(super) struct Writes<'a, E: Element> {
    pub(super) y: &'a mut [E],
    /// The means; `None` if rows have no mean.
    pub(super) mean: Option<&'a mut [E::Compute]>,
    /// The reciprocals of the standard deviations.
    pub(super) rstd: &'a mut [E::Compute],
}

/// Normalises all rows.
pub(super) fn forward<E: Element<Compute: SimdFloat>>(
    cpu: &Cpu,
    norm: &Norm,
    reads: &Reads<'_, E>,
    writes: Writes<'_, E>,
) {
    let &Reads { x, weight, bias } = reads;
    let rows_per_task = norm.rows_per_task();
    let task_len = rows_per_task * norm.row_len();
    let task = |index: usize, writes: Writes<'_, E>| {
        let Writes { y, mean, rstd } = writes;
        let x = &x[index * task_len..][..y.len()];
        let first_row = index * rows_per_task;
        E::Compute::dispatch(Forward { norm, first_row, x, weight, bias, y, mean, rstd });
    };
    let y = Chunked::new(writes.y, task_len);
    let rstd = Chunked::new(writes.rstd, rows_per_task);
    match writes.mean {
        Some(mean) => {
            let mean = Chunked::new(mean, rows_per_task);
            for_each_chunk3(cpu.pool(), y, rstd, mean, |index, y, rstd, mean| {
                task(index, Writes { y, mean: Some(mean), rstd });
            });
        }
        None => for_each_chunk2(cpu.pool(), y, rstd, |index, y, rstd| {
            task(index, Writes { y, mean: None, rstd });
        }),
    }
}
