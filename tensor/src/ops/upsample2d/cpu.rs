//! Interpolation between the pixels of an image, and its gradient. Both gather.

use std::ops::Range;

use super::{Corners, Interpolation};
use crate::cpu::pool::Pool;
use crate::dtype::{Element, Float};
use crate::ops::windows::for_each_row;

/// One dimension of a resized image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) in_len: usize,
    pub(super) out_len: usize,
    /// The factor that the caller gave; `None` if the caller gave a size.
    pub(super) factor: Option<f64>,
    pub(super) interpolation: Interpolation,
}

/// The two inputs around an output, and their weights.
#[derive(Clone, Copy)]
struct Taps<T> {
    low: usize,
    high: usize,
    weights: [T; 2],
}

impl<T: Float> Taps<T> {
    /// The weight of input `at` in the output.
    fn weight(&self, at: usize) -> T {
        let mut weight = T::ZERO;
        if self.low == at {
            weight += self.weights[0];
        }
        if self.high == at {
            weight += self.weights[1];
        }
        weight
    }
}

impl Line {
    /// Number of inputs for each output: `area_pixel_compute_scale` of PyTorch's UpSample.h.
    pub(super) fn scale<T: Float>(&self) -> T {
        let divide = |a: usize, b: usize| T::from_f64(a as f64) / T::from_f64(b as f64);
        match (self.interpolation, self.factor) {
            (Interpolation::Bilinear(Corners::Aligned), _) => match self.out_len {
                0 | 1 => T::ZERO,
                out_len => divide(self.in_len - 1, out_len - 1),
            },
            (_, Some(factor)) => T::from_f64(1.0 / factor),
            (_, None) => divide(self.in_len, self.out_len),
        }
    }

    /// The input that output `at` copies for any factor: if a side keeps its length, or if
    /// `Nearest` doubles it, as in PyTorch's UpSample.h.
    pub(super) fn copied(&self, at: usize) -> Option<usize> {
        let is_doubled = self.out_len == 2 * self.in_len;
        match self.interpolation {
            _ if self.out_len == self.in_len => Some(at),
            Interpolation::Nearest if is_doubled => Some(at / 2),
            _ => None,
        }
    }

    /// The inputs of output `at`: `nearest_idx` (in f32 for every type) and
    /// `compute_source_index_and_lambda` of PyTorch's UpSample.h.
    fn taps<T: Float>(&self, at: usize) -> Taps<T> {
        if let Some(low) = self.copied(at) {
            return Taps { low, high: low, weights: [T::ONE, T::ZERO] };
        }
        let last = self.in_len - 1;
        let half = T::from_f64(0.5);
        let place = T::from_f64(at as f64);
        let source = match self.interpolation {
            Interpolation::Nearest => {
                let low = ((at as f32 * self.scale::<f32>()) as usize).min(last);
                return Taps { low, high: low, weights: [T::ONE, T::ZERO] };
            }
            Interpolation::Bilinear(Corners::Aligned) => self.scale::<T>() * place,
            Interpolation::Bilinear(Corners::Centers) => {
                let source = self.scale::<T>() * (place + half) - half;
                if source < T::ZERO { T::ZERO } else { source }
            }
        };
        let low = (source.to_f64() as usize).min(last);
        let high = (low + 1).min(last);
        let fraction = source - T::from_f64(low as f64);
        let weight = if fraction > T::ONE { T::ONE } else { fraction };
        Taps { low, high, weights: [T::ONE - weight, weight] }
    }

    /// The outputs that use input `at`. Taps of later outputs never go back.
    fn covering<T: Float>(&self, at: usize) -> Range<usize> {
        let first = |is_past: &dyn Fn(Taps<T>) -> bool| {
            let (mut low, mut high) = (0, self.out_len);
            while low < high {
                let middle = low + (high - low) / 2;
                if is_past(self.taps(middle)) { high = middle } else { low = middle + 1 }
            }
            low
        };
        first(&|taps| taps.high >= at)..first(&|taps| taps.low > at)
    }
}

/// y = Σ weight · pixel over the surrounding pixels.
pub(super) fn forward<E: Element, T: Float>(pool: &Pool, lines: [Line; 2], x: &[E], y: &mut [E]) {
    let [rows, cols] = lines;
    let (height, width) = (rows.in_len, cols.in_len);
    for_each_row(pool, y, [rows.out_len, cols.out_len], |plane, row, y| {
        let x = &x[plane * height * width..][..height * width];
        let taps = rows.taps::<T>(row);
        let [upper, lower] = [taps.low, taps.high].map(|row| &x[row * width..][..width]);
        if rows.interpolation == Interpolation::Nearest {
            y.iter_mut().enumerate().for_each(|(at, y)| *y = upper[cols.taps::<T>(at).low]);
            return;
        }
        for (at, y) in y.iter_mut().enumerate() {
            let across = cols.taps::<T>(at);
            let along = |row: &[E]| {
                across.weights[0] * row[across.low].cast::<T>()
                    + across.weights[1] * row[across.high].cast::<T>()
            };
            *y = (taps.weights[0] * along(upper) + taps.weights[1] * along(lower)).cast();
        }
    });
}

/// dx = Σ weight · dy over the outputs that use the pixel.
pub(super) fn backward<E: Element, T: Float>(
    pool: &Pool,
    lines: [Line; 2],
    dy: &[E],
    dx: &mut [E],
) {
    let [rows, cols] = lines;
    let (height, width) = (rows.out_len, cols.out_len);
    for_each_row(pool, dx, [rows.in_len, cols.in_len], |plane, row, dx| {
        let dy = &dy[plane * height * width..][..height * width];
        let covering = rows.covering::<T>(row);
        let mut first = 0;
        for (col, dx) in dx.iter_mut().enumerate() {
            while first < width && cols.taps::<T>(first).high < col {
                first += 1;
            }
            let mut sum = T::ZERO;
            for at in first..width {
                let across = cols.taps::<T>(at);
                if across.low > col {
                    break;
                }
                let mut column = T::ZERO;
                for p in covering.clone() {
                    column += rows.taps::<T>(p).weight(row) * dy[p * width + at].cast::<T>();
                }
                sum += across.weight(col) * column;
            }
            *dx = sum.cast();
        }
    });
}
