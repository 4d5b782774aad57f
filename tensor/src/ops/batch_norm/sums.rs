//! Sums over all samples of each channel, from partial sums over fixed parts.

use super::Channels;
use crate::cpu::Cpu;
use crate::cpu::chunk::{Blocks, Joined, for_each_joined_part};
use crate::cpu::lines::{fold, load};
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::{Simd, SimdKernel};
use crate::dtype::Element;
use crate::ops::norm::backward::products as sums_of_products;
use crate::ops::norm::moments::{MeanVariance, Moments};

/// Elements of a task.
pub(super) const CHUNK_LEN: usize = 1 << 14;

/// Largest number of partial sums of a channel.
const PARTIALS_MAX: usize = 64;

/// Elements of several channels that are computed side by side. A row `[inner]` of at least this
/// length has its own loops. In shorter rows, such loops would spend most of their time at the
/// ends.
pub(super) const WIDTH: usize = 256;

/// Elements of a line.
pub(super) const LINE: usize = 32;

/// The cut of x for the sums: a function of the shape alone.
#[derive(Clone, Copy)]
struct Cut {
    /// Channels of a task.
    channels: usize,
    /// Samples of a partial sum.
    samples: usize,
}

impl Cut {
    fn of(shape: &Channels) -> Self {
        let inner = shape.inner.max(1);
        // A task takes long rows of neighbouring channels one after the other as they lie in
        // memory. It takes short rows side by side, of more samples.
        let channels_max = if inner < WIDTH { WIDTH / inner } else { CHUNK_LEN / inner };
        let channels = channels_max.clamp(1, shape.channels.max(1));
        let samples = shape.samples.div_ceil(PARTIALS_MAX).max(CHUNK_LEN / (channels * inner));
        Cut { channels, samples: samples.max(1) }
    }

    fn parts(&self, shape: &Channels) -> usize {
        shape.samples.div_ceil(self.samples)
    }
}

/// Number of f64 elements of scratch for the sums: two for each channel and part.
pub(super) fn partials_len(shape: &Channels) -> usize {
    2 * Cut::of(shape).parts(shape) * shape.channels
}

/// The sums over each channel.
#[derive(Clone, Copy)]
enum Sums<'a, E: Element> {
    /// The mean, and the squared distances from it.
    Moments,
    /// `Σ dy` and `Σ dy·(x - mean)`, with dy and the means.
    Products(&'a [E], &'a [E::Compute]),
}

/// The sums over some samples of neighbouring channels.
struct Part<'a, E: Element> {
    sums: Sums<'a, E>,
    shape: &'a Channels,
    samples: std::ops::Range<usize>,
    first_channel: usize,
    x: &'a [E],
    /// A pair for each channel.
    to: &'a mut [f64],
}

impl<E: Element<Compute: SimdFloat>> SimdKernel<E::Compute> for Part<'_, E> {
    #[inline(always)]
    fn run<S: Simd<E::Compute>, const ROWS: usize, const COLS: usize>(self, _: S) {
        match self.shape.inner {
            ..WIDTH => self.side_by_side(),
            _ => self.rows::<64>(),
        }
    }
}

impl<E: Element<Compute: SimdFloat>> Part<'_, E> {
    /// The first element of the channels of a sample.
    fn start(&self, sample: usize) -> usize {
        (sample * self.shape.channels + self.first_channel) * self.shape.inner
    }

    #[inline(always)]
    fn rows<const W: usize>(self) {
        let (inner, one) = (self.shape.inner, E::Compute::ONE);
        for index in 0..self.to.len() / 2 {
            let mut moments = Moments::NONE;
            let mut products = [0.0; 2];
            for sample in self.samples.clone() {
                let start = self.start(sample) + index * inner;
                let x = &self.x[start..start + inner];
                match self.sums {
                    Sums::Moments => {
                        let row = MeanVariance::of_row::<E, E::Compute, W>(x);
                        moments = moments.and(Moments::of_row(inner, row));
                    }
                    Sums::Products(dy, mean) => {
                        let dy = &dy[start..start + inner];
                        let mean = mean[self.first_channel + index];
                        let row = sums_of_products::<E, E::Compute, W>(dy, x, [mean, one]);
                        products = [products[0] + row[0], products[1] + row[1]];
                    }
                }
            }
            self.to[2 * index..2 * index + 2].copy_from_slice(&match self.sums {
                Sums::Moments => [moments.mean, moments.squares],
                Sums::Products(..) => products,
            });
        }
    }

    /// Sums over the samples for each element of the channels, and then over the elements of a
    /// channel. With distances d from an element c of the channel, its mean is `c + Σd / n`, and
    /// the sum of squared distances from the mean is `Σd² - (Σd)² / n`. Little cancels, because c
    /// is an element.
    #[inline(always)]
    fn side_by_side(self) {
        let (inner, zero) = (self.shape.inner, E::Compute::ZERO);
        let channels = self.first_channel..self.first_channel + self.to.len() / 2;
        let width = channels.len() * inner;
        let first = self.start(self.samples.start);
        let mut centers = [zero; WIDTH + LINE];
        match self.sums {
            Sums::Moments => {
                let mut values = [zero; WIDTH];
                for (channel, value) in values[..channels.len()].iter_mut().enumerate() {
                    let x: E::Compute = self.x[first + channel * inner].cast();
                    *value = if x.to_f64().is_finite() { x } else { zero };
                }
                spread(&values[..channels.len()], inner, &mut centers);
            }
            Sums::Products(_, mean) => spread(&mean[channels.clone()], inner, &mut centers),
        }
        let (mut sums, mut products) = ([0.0; WIDTH + LINE], [0.0; WIDTH + LINE]);
        let whole = width / LINE * LINE;
        for sample in self.samples.clone() {
            let start = self.start(sample);
            for at in (0..whole).step_by(LINE) {
                self.add_line(
                    start + at,
                    LINE,
                    &centers[at..],
                    &mut sums[at..],
                    &mut products[at..],
                );
            }
            if whole < width {
                let (sums, products) = (&mut sums[whole..], &mut products[whole..]);
                self.add_line(start + whole, width - whole, &centers[whole..], sums, products);
            }
        }
        let count = (self.samples.len() * inner) as f64;
        for (channel, to) in self.to.chunks_exact_mut(2).enumerate() {
            let places = channel * inner..(channel + 1) * inner;
            let (sum, product) = (total(&sums[places.clone()]), total(&products[places]));
            to.copy_from_slice(&match self.sums {
                Sums::Moments => {
                    let squares = product - sum * (sum / count);
                    let squares = if squares < 0.0 { 0.0 } else { squares };
                    [centers[channel * inner].to_f64() + sum / count, squares]
                }
                Sums::Products(..) => [sum, product],
            });
        }
    }

    /// Adds `len` elements from `start` on to the sums, whose first element belongs to `start`.
    #[inline(always)]
    fn add_line(
        &self,
        start: usize,
        len: usize,
        centers: &[E::Compute],
        sums: &mut [f64],
        products: &mut [f64],
    ) {
        let zero = E::Compute::ZERO;
        let (centers, sums) = (&centers[..LINE], &mut sums[..LINE]);
        let products = &mut products[..LINE];
        let mut line = [zero; LINE];
        load(&self.x[start..start + len], zero, &mut line);
        match self.sums {
            Sums::Moments => {
                for lane in 0..LINE {
                    let distance = line[lane].to_f64() - centers[lane].to_f64();
                    sums[lane] += distance;
                    products[lane] += distance * distance;
                }
            }
            Sums::Products(dy, _) => {
                let mut dy_line = [zero; LINE];
                load(&dy[start..start + len], zero, &mut dy_line);
                for lane in 0..LINE {
                    let distance = line[lane].to_f64() - centers[lane].to_f64();
                    sums[lane] += dy_line[lane].to_f64();
                    products[lane] += dy_line[lane].to_f64() * distance;
                }
            }
        }
    }
}

/// Elements that [`spread`] may write beyond the last one.
const SLACK: usize = 16;

/// Overwrites `to` with `inner` copies of each value, and up to [`SLACK`] elements more.
#[inline(always)]
pub(super) fn spread<T: Copy>(values: &[T], inner: usize, to: &mut [T]) {
    if inner == 1 {
        to[..values.len()].copy_from_slice(values);
        return;
    }
    for (index, &value) in values.iter().enumerate() {
        // Whole vectors are written. The next value overwrites the excess.
        for at in (index * inner..(index + 1) * inner).step_by(SLACK) {
            to[at..at + SLACK].copy_from_slice(&[value; SLACK]);
        }
    }
}

/// The sum of `x`, in the lanes of a vector.
#[inline(always)]
fn total(x: &[f64]) -> f64 {
    let (lines, rest) = x.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for line in lines {
        for lane in 0..8 {
            sums[lane] += line[lane];
        }
    }
    let rest: f64 = rest.iter().sum();
    if lines.is_empty() { rest } else { fold(&sums, |a, b| a + b) + rest }
}

fn partial_sums<E: Element<Compute: SimdFloat>>(
    cpu: &Cpu,
    shape: &Channels,
    sums: Sums<'_, E>,
    x: &[E],
    partials: &mut [f64],
) {
    let cut = Cut::of(shape);
    let (parts, blocks) = (cut.parts(shape), shape.channels.div_ceil(cut.channels));
    let partials = &mut partials[..2 * parts * shape.channels];
    let partials = Blocks::new(partials, [parts, shape.channels], cut.channels, 2);
    for_each_joined_part(cpu.pool(), Joined::new(vec![partials]), |_, index, to| {
        let (part, block) = (index / blocks, index % blocks);
        let samples = part * cut.samples..shape.samples.min((part + 1) * cut.samples);
        let first_channel = block * cut.channels;
        E::Compute::dispatch(Part { sums, shape, samples, first_channel, x, to });
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
    let cut = Cut::of(shape);
    for channel in 0..shape.channels {
        let total = (0..cut.parts(shape)).fold(Moments::NONE, |total, part| {
            let at = 2 * (part * shape.channels + channel);
            let count = cut.samples.min(shape.samples - part * cut.samples) * shape.inner;
            let [mean, squares] = [partials[at], partials[at + 1]];
            total.and(Moments { count: count as f64, mean, squares })
        });
        mean[channel] = E::Compute::from_f64(total.mean);
        variance[channel] = E::Compute::from_f64(total.squares / total.count);
    }
}

/// Writes `Σ dy` and `Σ dy·(x - mean)` of each channel to the first `2·channels` of `partials`.
pub(super) fn gradient_sums<E: Element<Compute: SimdFloat>>(
    cpu: &Cpu,
    shape: &Channels,
    dy: &[E],
    x: &[E],
    mean: &[E::Compute],
    partials: &mut [f64],
) {
    partial_sums(cpu, shape, Sums::Products(dy, mean), x, partials);
    let parts = Cut::of(shape).parts(shape);
    for at in 0..2 * shape.channels {
        partials[at] = (0..parts).map(|part| partials[2 * part * shape.channels + at]).sum();
    }
}
