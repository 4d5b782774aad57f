//! Means and variances: of a row in two passes, and of merged parts.

use super::Center;
use crate::cpu::lines::{Lines, Sums, load};
use crate::cpu::math::SimdFloat;
use crate::dtype::Element;

/// `1 / √(variance + eps)`.
#[inline(always)]
pub(crate) fn rstd(variance: f64, eps: f64) -> f64 {
    1.0 / (variance + eps).sqrt()
}

/// The mean of some elements, and their biased variance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeanVariance {
    pub(crate) mean: f64,
    /// The mean squared distance from the mean.
    pub(crate) variance: f64,
}

impl MeanVariance {
    /// The moments of `len` elements. `sums` are the sums of distances, and squared distances, from
    /// `near`, the rounded mean. The error of the rounding is subtracted again: Chan, Golub and
    /// LeVeque, "Algorithms for computing the sample variance" (1983), equation 1.7.
    #[inline(always)]
    pub(super) fn corrected<T: SimdFloat>(near: T, sums: [f64; 2], len: usize) -> Self {
        let [rest, square] = sums.map(|sum| sum / len as f64);
        MeanVariance { mean: near.to_f64() + rest, variance: square - rest * rest }
    }

    /// The moments of a row, in two passes with `W` lanes.
    #[inline(always)]
    pub(crate) fn of_row<E: Element, T: SimdFloat, const W: usize>(x: &[E]) -> Self {
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
        Self::corrected(mean, sums.totals(), x.len())
    }

    /// The mean of the squares of a row, as the variance around a mean of 0.
    #[inline(always)]
    pub(super) fn about_zero<E: Element, T: SimdFloat, const W: usize>(x: &[E]) -> Self {
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
        MeanVariance { mean: 0.0, variance: squares / x.len() as f64 }
    }

    /// The moments of a row whose squares overflow the type of the computation: all in f64, element
    /// by element.
    #[cold]
    #[inline(never)]
    pub(super) fn one_by_one<E: Element>(x: &[E], center: Center) -> Self {
        let len = x.len() as f64;
        let mean = match center {
            Center::Mean => x.iter().map(|x| x.to_f64()).sum::<f64>() / len,
            Center::Zero => 0.0,
        };
        let distances = x.iter().map(|x| x.to_f64() - mean);
        let squares = distances.map(|distance| distance * distance).sum::<f64>();
        MeanVariance { mean, variance: squares / len }
    }
}

/// The moments of a set of elements, which can be merged with the moments of another set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moments {
    pub(crate) count: f64,
    pub(crate) mean: f64,
    /// The sum of the squared distances from the mean.
    pub(crate) squares: f64,
}

impl Moments {
    /// The moments of no elements.
    pub(crate) const NONE: Moments = Moments { count: 0.0, mean: 0.0, squares: 0.0 };

    /// The moments of a row of `len` elements.
    #[inline(always)]
    pub(crate) fn of_row(len: usize, row: MeanVariance) -> Self {
        let MeanVariance { mean, variance } = row;
        Moments { count: len as f64, mean, squares: variance * len as f64 }
    }

    /// The moments of both sets: Chan, Golub and LeVeque, "Updating formulae and a pairwise
    /// algorithm for computing sample variances" (1979).
    pub(crate) fn and(self, other: Self) -> Self {
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
