//! Sums over all samples of each channel, from partial ones of fixed parts, and then one pass of
//! `a·x + b` with coefficients of the channel.

use super::Channels;
use crate::cpu::Cpu;
use crate::cpu::chunk::{Chunked, for_each_chunk};
use crate::cpu::lines::{load, store};
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::{Simd, SimdKernel};
use crate::dtype::Element;
use crate::ops::norm::backward::products;
use crate::ops::norm::cpu::mean_and_variance;

/// Elements of a task.
const CHUNK_LEN: usize = 1 << 14;
/// Partial sums of a channel, at most.
const PARTIALS_MAX: usize = 64;

/// How the samples are cut for the sums: by the shape alone.
#[derive(Clone, Copy)]
struct Cut {
    /// Rows `[inner]` of a task; all channels of some samples, or fewer of one.
    rows: usize,
    /// Channels that the partial sums of a task have.
    channels: usize,
    /// Samples that one partial sum adds up.
    samples: usize,
}

impl Cut {
    fn of(shape: &Channels) -> Self {
        let row_count_min = (CHUNK_LEN / shape.inner.max(1)).max(1);
        if shape.inner > 1 && shape.samples <= PARTIALS_MAX {
            return Cut { rows: row_count_min, channels: row_count_min, samples: 1 };
        }
        let samples = shape
            .samples
            .div_ceil(PARTIALS_MAX)
            .max(CHUNK_LEN / (shape.channels * shape.inner).max(1))
            .max(1);
        Cut { rows: samples * shape.channels, channels: shape.channels, samples }
    }
}

/// Numbers of f64 scratch for the sums: two of each channel and part.
pub(super) fn partials_len(shape: &Channels) -> usize {
    2 * shape.samples.div_ceil(Cut::of(shape).samples) * shape.channels
}

/// What is summed over each channel.
#[derive(Clone, Copy)]
enum Sums<'a, E: Element> {
    /// The mean, and the squared distances from it.
    Moments,
    /// `Σ dy` and `Σ dy·(x - mean)`, with dy and the means.
    Products(&'a [E], &'a [E::Compute]),
}

/// The sums over the rows of a task.
struct Part<'a, E: Element> {
    sums: Sums<'a, E>,
    inner: usize,
    channel_count: usize,
    first_row: usize,
    x: &'a [E],
    /// Pairs, of the rows' channels in turn.
    to: &'a mut [f64],
}

impl<E: Element<Compute: SimdFloat>> SimdKernel<E::Compute> for Part<'_, E> {
    #[inline(always)]
    fn run<S: Simd<E::Compute>, const ROWS: usize, const COLS: usize>(self, _: S) {
        match self.inner {
            1 => self.columns::<32>(),
            _ => self.rows::<64>(),
        }
    }
}

impl<E: Element<Compute: SimdFloat>> Part<'_, E> {
    #[inline(always)]
    fn rows<const W: usize>(self) {
        let (inner, one) = (self.inner, E::Compute::ONE);
        let channels = self.to.len() / 2;
        self.to.fill(0.0);
        for row in 0..self.x.len() / inner {
            let x = &self.x[row * inner..][..inner];
            let to = &mut self.to[row % channels * 2..][..2];
            match self.sums {
                Sums::Moments => {
                    let (mean, variance) = mean_and_variance::<E, E::Compute, W>(x);
                    let found =
                        Moments { count: inner as f64, mean, squares: variance * inner as f64 };
                    let count = (row / channels * inner) as f64;
                    let both = Moments { count, mean: to[0], squares: to[1] }.and(found);
                    (to[0], to[1]) = (both.mean, both.squares);
                }
                Sums::Products(dy, mean) => {
                    let mean = mean[(self.first_row + row) % self.channel_count];
                    let dy = &dy[row * inner..][..inner];
                    let [sum, product] = products::<E, E::Compute, W>(dy, x, [mean, one]);
                    to[0] += sum;
                    to[1] += product;
                }
            }
        }
    }

    /// One element of each channel and sample: whole samples, neighbouring channels in lanes.
    #[inline(always)]
    fn columns<const W: usize>(self) {
        let zero = E::Compute::ZERO;
        let channels = self.channel_count;
        let count = self.x.len() / channels;
        let (mut line, mut dy_line) = ([zero; W], [zero; W]);
        for from in (0..channels).step_by(W) {
            let len = W.min(channels - from);
            let (mut a, mut b) = ([0.0; W], [0.0; W]);
            let mut mean = [0.0; W];
            if let Sums::Products(_, means) = self.sums {
                (0..len).for_each(|lane| mean[lane] = means[from + lane].to_f64());
            } else {
                for sample in 0..count {
                    load(&self.x[sample * channels + from..][..len], zero, &mut line);
                    for lane in 0..W {
                        mean[lane] += line[lane].to_f64();
                    }
                }
                mean.iter_mut().for_each(|mean| *mean /= count as f64);
                a = mean;
            }
            for sample in 0..count {
                let first = sample * channels + from;
                load(&self.x[first..][..len], zero, &mut line);
                match self.sums {
                    Sums::Moments => {
                        for lane in 0..W {
                            let distance = line[lane].to_f64() - mean[lane];
                            b[lane] += distance * distance;
                        }
                    }
                    Sums::Products(dy, _) => {
                        load(&dy[first..][..len], zero, &mut dy_line);
                        for lane in 0..W {
                            a[lane] += dy_line[lane].to_f64();
                            b[lane] += dy_line[lane].to_f64() * (line[lane].to_f64() - mean[lane]);
                        }
                    }
                }
            }
            for lane in 0..len {
                self.to[2 * (from + lane)] = a[lane];
                self.to[2 * (from + lane) + 1] = b[lane];
            }
        }
    }
}

/// The mean of some elements, and their squared distances from it.
#[derive(Clone, Copy)]
struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Moments {
    /// Those of two sets: Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
    /// computing sample variances" (1979).
    fn and(self, other: Self) -> Self {
        let count = self.count + other.count;
        if self.count == 0.0 || count == 0.0 {
            return other;
        }
        let distance = other.mean - self.mean;
        let mean = self.mean + distance * (other.count / count);
        let between = distance * distance * (self.count * other.count / count);
        Moments { count, mean, squares: self.squares + other.squares + between }
    }
}

fn partial_sums<E: Element<Compute: SimdFloat>>(
    cpu: &Cpu,
    shape: &Channels,
    sums: Sums<'_, E>,
    x: &[E],
    partials: &mut [f64],
) {
    let cut = Cut::of(shape);
    let task_len = cut.rows * shape.inner;
    let partials = &mut partials[..partials_len(shape)];
    debug_assert_eq!(
        Chunked::new(&mut *partials, 2 * cut.channels).count(),
        x.len().div_ceil(task_len)
    );
    for_each_chunk(cpu.pool(), partials, 2 * cut.channels, |index, to| {
        let places = index * task_len..x.len().min((index + 1) * task_len);
        let sums = match sums {
            Sums::Moments => Sums::Moments,
            Sums::Products(dy, mean) => Sums::Products(&dy[places.clone()], mean),
        };
        let (inner, channel_count) = (shape.inner, shape.channels);
        let (first_row, x) = (index * cut.rows, &x[places]);
        E::Compute::dispatch(Part { sums, inner, channel_count, first_row, x, to });
    });
}

/// Overwrites the means and the biased variances.
pub(super) fn moments<E: Element<Compute: SimdFloat>>(
    cpu: &Cpu,
    shape: &Channels,
    x: &[E],
    [mean, variance]: [&mut [E::Compute]; 2],
    partials: &mut [f64],
) {
    partial_sums(cpu, shape, Sums::Moments, x, partials);
    let samples = Cut::of(shape).samples;
    let parts = shape.samples.div_ceil(samples);
    for channel in 0..shape.channels {
        let none = Moments { count: 0.0, mean: 0.0, squares: 0.0 };
        let total = (0..parts).fold(none, |total, part| {
            let at = 2 * (part * shape.channels + channel);
            let count = samples.min(shape.samples - part * samples) * shape.inner;
            let [mean, squares] = [partials[at], partials[at + 1]];
            total.and(Moments { count: count as f64, mean, squares })
        });
        mean[channel] = E::Compute::from_f64(total.mean);
        variance[channel] = E::Compute::from_f64(total.squares / total.count);
    }
}

/// Leaves `Σ dy` and `Σ dy·(x - mean)` of each channel in the first `2·channels` of `partials`.
pub(super) fn gradient_sums<E: Element<Compute: SimdFloat>>(
    cpu: &Cpu,
    shape: &Channels,
    dy: &[E],
    x: &[E],
    mean: &[E::Compute],
    partials: &mut [f64],
) {
    partial_sums(cpu, shape, Sums::Products(dy, mean), x, partials);
    let parts = shape.samples.div_ceil(Cut::of(shape).samples);
    for at in 0..2 * shape.channels {
        partials[at] = (0..parts).map(|part| partials[2 * part * shape.channels + at]).sum();
    }
}

/// `y = scale · d + slope · (x - mean) + shift`, where d is dy, or x for a forward pass, which
/// has no slope. A quarter of the slice each: mean, scale, slope, shift.
pub(super) struct Affine<'a, T> {
    pub(super) coefficients: &'a [T],
}

struct Apply<'a, E: Element> {
    affine: &'a Affine<'a, E::Compute>,
    inner: usize,
    first_row: usize,
    dy: Option<&'a [E]>,
    x: &'a [E],
    y: &'a mut [E],
}

impl<E: Element<Compute: SimdFloat>> SimdKernel<E::Compute> for Apply<'_, E> {
    #[inline(always)]
    fn run<S: Simd<E::Compute>, const ROWS: usize, const COLS: usize>(self, _: S) {
        let channels = self.affine.coefficients.len() / 4;
        // With one element for each channel, a row is all channels of a sample.
        let len = if self.inner == 1 { channels } else { self.inner };
        for row in 0..self.y.len() / len {
            let places = row * len..(row + 1) * len;
            let dy = self.dy.map(|dy| &dy[places.clone()]);
            let channel = (self.first_row + row) % channels;
            let step = self.inner == 1;
            apply_row::<E, 64>(
                self.affine,
                if step { None } else { Some(channel) },
                dy,
                &self.x[places.clone()],
                &mut self.y[places],
            );
        }
    }
}

/// A row of one channel, or of all.
#[inline(always)]
fn apply_row<E: Element<Compute: SimdFloat>, const W: usize>(
    affine: &Affine<'_, E::Compute>,
    channel: Option<usize>,
    dy: Option<&[E]>,
    x: &[E],
    y: &mut [E],
) {
    let zero = E::Compute::ZERO;
    let channels = affine.coefficients.len() / 4;
    let of = |which: usize| &affine.coefficients[which * channels..][..channels];
    let mut lines = [[zero; W]; 4];
    if let Some(channel) = channel {
        (0..4).for_each(|which| lines[which] = [of(which)[channel]; W]);
    }
    let (mut line, mut dy_line) = ([zero; W], [zero; W]);
    for at in (0..x.len()).step_by(W) {
        let places = at..x.len().min(at + W);
        load(&x[places.clone()], zero, &mut line);
        if channel.is_none() {
            (0..4).for_each(|which| load(&of(which)[places.clone()], zero, &mut lines[which]));
        }
        let [mean, scale, slope, shift] = &lines;
        match dy {
            Some(dy) => {
                load(&dy[places.clone()], zero, &mut dy_line);
                for lane in 0..W {
                    line[lane] = scale[lane] * dy_line[lane]
                        + slope[lane] * (line[lane] - mean[lane])
                        + shift[lane];
                }
            }
            None => {
                for lane in 0..W {
                    line[lane] = scale[lane] * (line[lane] - mean[lane]) + shift[lane];
                }
            }
        }
        store(&line, &mut y[places]);
    }
}

/// Overwrites `y`.
pub(super) fn apply<E: Element<Compute: SimdFloat>>(
    cpu: &Cpu,
    shape: &Channels,
    affine: &Affine<'_, E::Compute>,
    dy: Option<&[E]>,
    x: &[E],
    y: &mut [E],
) {
    let len = if shape.inner == 1 { shape.channels } else { shape.inner };
    let rows = (CHUNK_LEN / len).max(1);
    for_each_chunk(cpu.pool(), y, rows * len, |index, y| {
        let places = index * rows * len..index * rows * len + y.len();
        let (first_row, x) = (index * rows, &x[places.clone()]);
        let dy = dy.map(|dy| &dy[places]);
        E::Compute::dispatch(Apply { affine, inner: shape.inner, first_row, dy, x, y });
    });
}
