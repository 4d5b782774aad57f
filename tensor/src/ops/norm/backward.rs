//! The gradients of rows, computed in the cache, and the gradients of parameters, as partial sums.

use std::ops::Range;

use super::Norm;
use super::cpu::ROWS_TOGETHER_MAX;
use super::piece::{PIECE_LEN, Wide, pieces};
use super::rows::{RowKernel, each_row};
use crate::cpu::Cpu;
use crate::cpu::chunk::{Chunked, for_each_chunk, for_each_chunk2};
use crate::cpu::lines::{Lines, Sums, load, store};
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::{Simd, SimdKernel};
use crate::dtype::{Element, is_same_type};

/// Largest number of partial sums. If samples are not more, each has partial sums of its own.
const PARTIALS_MAX: usize = 64;

/// The cut of [`backward`]: a function of the shape alone.
#[derive(Clone, Copy)]
pub(super) struct Cut {
    rows_per_task: usize,
    /// Partial sums of each parameter's gradient.
    pub(super) partials: usize,
}

impl Norm {
    /// True if neighbouring rows have the same channels and add to the same partial sums.
    fn rows_share_sums(&self) -> bool {
        self.groups == 1 && self.samples > PARTIALS_MAX
    }
}

impl Cut {
    pub(super) fn of(norm: &Norm) -> Self {
        if norm.samples <= PARTIALS_MAX {
            let rows_per_task = norm.rows_per_task();
            return Cut { rows_per_task, partials: norm.samples };
        }
        let samples = norm.samples.div_ceil(PARTIALS_MAX);
        Cut { rows_per_task: samples * norm.groups, partials: norm.samples.div_ceil(samples) }
    }

    /// Elements of the workspace.
    pub(super) fn workspace_len(&self, norm: &Norm) -> usize {
        2 * self.partials * norm.channels
    }
}

/// A task of [`backward`].
struct Backward<'a, E: Element> {
    norm: &'a Norm,
    first_row: usize,
    dy: &'a [E],
    x: &'a [E],
    mean: Option<&'a [E::Compute]>,
    rstd: &'a [E::Compute],
    weight: Option<&'a [E]>,
    dx: &'a mut [E],
    /// Partial sums of the parameters' gradients, if there are parameters: pairs of rows of
    /// channels, `Σ dy·x̂` and `Σ dy`.
    partials: Option<&'a mut [E::Compute]>,
}

impl<E: Element<Compute: SimdFloat>> SimdKernel<E::Compute> for Backward<'_, E> {
    #[inline(always)]
    fn run<S: Simd<E::Compute>, const ROWS: usize, const COLS: usize>(mut self, simd: S) {
        if let Some(partials) = &mut self.partials {
            partials.fill(E::Compute::ZERO);
        }
        let rows = self.rstd.len();
        each_row(simd, self.norm, rows, &mut self);
    }
}

impl<E: Element<Compute: SimdFloat>> RowKernel<E::Compute> for Backward<'_, E> {
    /// `dx = rstd · (dy·w - mean(dy·w) - x̂ · mean(dy·w·x̂))`. While one row is summed, the means
    /// of the previous row are rounded and broadcast to vectors.
    #[inline(always)]
    fn rows_of_elements<S: Simd<E::Compute>>(
        &mut self,
        simd: S,
        rows: Range<usize>,
        wide: &mut Wide<E::Compute>,
    ) {
        let mut scales = [[E::Compute::ZERO; 4]; ROWS_TOGETHER_MAX];
        for row in rows.clone() {
            scales[row - rows.start] = self.scale_of(simd, row, wide);
        }
        // Rows of another type, or with weights or sums of their own, are computed one by one.
        let are_alike = is_same_type::<E, E::Compute>() && self.norm.rows_share_sums();
        if are_alike && rows.len() == ROWS_TOGETHER_MAX {
            return self.gradients(simd, rows.start, &scales, wide);
        }
        for row in rows.clone() {
            self.gradients(simd, row, &[scales[row - rows.start]], wide);
        }
    }

    #[inline(always)]
    fn row_of_channels<const W: usize>(&mut self, row: usize) {
        let norm = self.norm;
        let zero = E::Compute::ZERO;
        let one = E::Compute::ONE;
        let len = norm.row_len();
        let (dy, x) = (&self.dy[row * len..][..len], &self.x[row * len..][..len]);
        let mean = self.mean.map_or(zero, |mean| mean[row]);
        let rstd = self.rstd[row];
        let channels = norm.channels_of_row(self.first_row + row);
        let weight = self.weight;
        let weight_of = |channel: usize| weight.map_or(one, |weight| weight[channel].cast());
        let [dw, db] = Self::sums_of(norm, &mut self.partials, row);
        let mut totals = [0.0; 2];
        for (index, channel) in channels.clone().enumerate() {
            let places = index * norm.inner..(index + 1) * norm.inner;
            let [sum, product] =
                products::<E, E::Compute, W>(&dy[places.clone()], &x[places], [mean, rstd]);
            let weight: E::Compute = weight_of(channel);
            totals[0] += weight.to_f64() * sum;
            totals[1] += weight.to_f64() * product;
            if let (Some(partials), Some(dw), Some(db)) = (&mut self.partials, &dw, &db) {
                partials[dw.start + index] += E::Compute::from_f64(product);
                partials[db.start + index] += E::Compute::from_f64(sum);
            }
        }
        let [sum, product] = norm.center.means(totals, len).map(E::Compute::from_f64);
        let dx = &mut self.dx[row * len..][..len];
        for (index, channel) in channels.enumerate() {
            let places = index * norm.inner..(index + 1) * norm.inner;
            let scale = [mean, rstd, weight_of(channel), sum, product];
            let (dy, x) = (&dy[places.clone()], &x[places.clone()]);
            gradient::<E, E::Compute, W>(dy, x, scale, &mut dx[places]);
        }
    }
}

impl<'a, E: Element<Compute: SimdFloat>> Backward<'a, E> {
    /// The places of a row's channels among the partial sums: `Σ dy·x̂`, then `Σ dy`.
    #[inline(always)]
    fn sums_of(
        norm: &Norm,
        partials: &mut Option<&mut [E::Compute]>,
        row: usize,
    ) -> [Option<Range<usize>>; 2] {
        let Some(partials) = partials else { return [None, None] };
        let per_row = norm.channels / norm.groups;
        let rows = partials.len() / (2 * per_row);
        let first = row % rows * 2 * per_row;
        [Some(first..first + per_row), Some(first + per_row..first + 2 * per_row)]
    }

    /// The coefficients of a row's gradient: `[mean, rstd, mean(dy·w), mean(dy·w·x̂)]`.
    #[inline(always)]
    fn scale_of<S: Simd<E::Compute>>(
        &self,
        simd: S,
        row: usize,
        wide: &mut Wide<E::Compute>,
    ) -> [E::Compute; 4] {
        let norm = self.norm;
        let len = norm.row_len();
        let (dy, x) = (&self.dy[row * len..][..len], &self.x[row * len..][..len]);
        let mean = self.mean.map_or(E::Compute::ZERO, |mean| mean[row]);
        let rstd = self.rstd[row];
        let weight = self.weight_of(row);
        let mut totals = [0.0; 2];
        for places in pieces(len) {
            let weight = weight.map(|weight| &weight[places.clone()]);
            let dy = Some(&dy[places.clone()]);
            let piece = wide.operands(places.len(), &x[places], [weight, dy]);
            let sums = piece.products(simd, mean);
            totals = [totals[0] + sums[0], totals[1] + sums[1]];
        }
        totals[1] *= rstd.to_f64();
        let [sum, product] = norm.center.means(totals, len).map(E::Compute::from_f64);
        [mean, rstd, sum, product]
    }

    #[inline(always)]
    fn weight_of(&self, row: usize) -> Option<&'a [E]> {
        let channels = self.norm.channels_of_row(self.first_row + row);
        self.weight.map(|weight| &weight[channels])
    }

    /// Writes dx of `ROWS` rows from row `first` on, and adds to the sums of their channels.
    #[inline(always)]
    fn gradients<S: Simd<E::Compute>, const ROWS: usize>(
        &mut self,
        simd: S,
        first: usize,
        scales: &[[E::Compute; 4]; ROWS],
        wide: &mut Wide<E::Compute>,
    ) {
        let len = self.norm.row_len();
        let weight = self.weight_of(first);
        let [dw, db] = Self::sums_of(self.norm, &mut self.partials, first);
        for places in pieces(len) {
            let mut parameters = match (&mut self.partials, &dw, &db) {
                (Some(partials), Some(dw), Some(db)) => {
                    let (before, after) = partials.split_at_mut(db.start);
                    let dw = &mut before[dw.start..][places.clone()];
                    Some([dw, &mut after[places.clone()]])
                }
                _ => None,
            };
            let all = first * len + places.start..(first + ROWS - 1) * len + places.end;
            let weight = weight.map(|weight| &weight[places.clone()]);
            let dy = Some(&self.dy[all.clone()]);
            let piece = wide.operands(places.len(), &self.x[all.clone()], [weight, dy]);
            let dx = &mut self.dx[all];
            if is_same_type::<E, E::Compute>() {
                let dx = bytemuck::cast_slice_mut(dx);
                piece.gradients(simd, len, scales, dx, &mut parameters);
                continue;
            }
            let mut lanes = [E::Compute::ZERO; PIECE_LEN];
            let lanes = &mut lanes[..dx.len()];
            piece.gradients(simd, len, scales, lanes, &mut parameters);
            E::Compute::cast_slice(lanes, dx);
        }
    }
}

/// `Σ dy` and `Σ dy·x̂` with `x̂ = (x - mean) · rstd`.
#[inline(always)]
pub(crate) fn products<E: Element, T: SimdFloat, const W: usize>(
    dy: &[E],
    x: &[E],
    [mean, rstd]: [T; 2],
) -> [f64; 2] {
    let (mut d, mut hat) = ([T::ZERO; W], [T::ZERO; W]);
    let mut sums = Sums::<T, 2, W>::new();
    for places in Lines::row::<W>(0, x.len()).places() {
        load(&dy[places.clone()], T::ZERO, &mut d);
        load(&x[places], mean, &mut hat);
        let [sum, product] = sums.next_line();
        for lane in 0..W {
            sum[lane] += d[lane];
            product[lane] += d[lane] * ((hat[lane] - mean) * rstd);
        }
    }
    sums.totals()
}

/// `dx = rstd · (dy·w - sum - x̂ · product)`.
#[inline(always)]
pub(super) fn gradient<E: Element, T: SimdFloat, const W: usize>(
    dy: &[E],
    x: &[E],
    [mean, rstd, weight, sum, product]: [T; 5],
    dx: &mut [E],
) {
    let (mut d, mut hat) = ([T::ZERO; W], [T::ZERO; W]);
    for at in (0..x.len()).step_by(W) {
        let places = at..x.len().min(at + W);
        load(&dy[places.clone()], T::ZERO, &mut d);
        load(&x[places.clone()], mean, &mut hat);
        for lane in 0..W {
            let hat = (hat[lane] - mean) * rstd;
            d[lane] = rstd * (d[lane] * weight - sum - hat * product);
        }
        store(&d, &mut dx[places]);
    }
}

/// The operands that [`backward`] reads.
pub(super) struct Reads<'a, E: Element> {
    pub(super) dy: &'a [E],
    pub(super) x: &'a [E],
    pub(super) mean: Option<&'a [E::Compute]>,
    pub(super) rstd: &'a [E::Compute],
    pub(super) weight: Option<&'a [E]>,
}

/// Overwrites dx and, if given, the gradients of weight and bias, with `partials` as their scratch.
pub(super) fn backward<E: Element<Compute: SimdFloat>>(
    cpu: &Cpu,
    norm: &Norm,
    reads: &Reads<'_, E>,
    dx: &mut [E],
    parameters: Option<[&mut [E]; 2]>,
    partials: &mut [E::Compute],
) {
    let cut = Cut::of(norm);
    let rows = cut.rows_per_task;
    let task_len = rows * norm.row_len();
    let task = |index: usize, dx: &mut [E], partials: Option<&mut [E::Compute]>| {
        let places = index * task_len..index * task_len + dx.len();
        let first_row = index * rows;
        let rows = first_row..first_row + dx.len() / norm.row_len();
        E::Compute::dispatch(Backward {
            norm,
            first_row,
            dy: &reads.dy[places.clone()],
            x: &reads.x[places],
            mean: reads.mean.map(|mean| &mean[rows.clone()]),
            rstd: &reads.rstd[rows],
            weight: reads.weight,
            dx,
            partials,
        });
    };
    let Some([dweight, dbias]) = parameters else {
        for_each_chunk(cpu.pool(), dx, task_len, |i, dx| task(i, dx, None));
        return;
    };
    let per_row = norm.channels / norm.groups.max(1);
    let partial_rows = if norm.samples <= PARTIALS_MAX { rows } else { norm.groups };
    let partials_len = cut.workspace_len(norm);
    let partials = &mut partials[..partials_len];
    for_each_chunk2(
        cpu.pool(),
        Chunked::new(dx, task_len),
        Chunked::new(&mut *partials, partial_rows * 2 * per_row),
        |index, dx, partials| task(index, dx, Some(partials)),
    );
    // Partial sums are `[partials, groups, 2, channels of a group]`.
    for (which, to) in [dweight, dbias].into_iter().enumerate() {
        for (group, to) in to.chunks_exact_mut(per_row.max(1)).enumerate() {
            let (row_len, first) = (2 * norm.channels, (group * 2 + which) * per_row);
            E::Compute::dispatch(AddUp { rows: partials, row_len, first, to });
        }
    }
}

/// `to[i] = Σ rows[first + i]` over rows of `row_len`.
struct AddUp<'a, E: Element> {
    rows: &'a [E::Compute],
    row_len: usize,
    first: usize,
    to: &'a mut [E],
}

impl<E: Element<Compute: SimdFloat>> SimdKernel<E::Compute> for AddUp<'_, E> {
    /// Sums a tile of columns at a time, so that memory is read along the rows.
    #[inline(always)]
    fn run<S: Simd<E::Compute>, const ROWS: usize, const COLS: usize>(self, _: S) {
        const TILE_LEN: usize = 64;
        for (tile, to) in self.to.chunks_mut(TILE_LEN).enumerate() {
            let first = self.first + tile * TILE_LEN;
            let mut totals = [0.0; TILE_LEN];
            let totals = &mut totals[..to.len()];
            for row in self.rows.chunks_exact(self.row_len) {
                let row = &row[first..first + totals.len()];
                for (total, x) in totals.iter_mut().zip(row) {
                    *total += x.to_f64();
                }
            }
            for (to, total) in to.iter_mut().zip(totals) {
                *to = E::Compute::from_f64(*total).cast();
            }
        }
    }
}
