//! The pass over all elements, with four coefficients for each channel.

use super::Channels;
use super::sums::{CHUNK_LEN, LINE, WIDTH, spread};
use crate::cpu::Cpu;
use crate::cpu::chunk::for_each_chunk;
use crate::cpu::lines::{load, store};
use crate::cpu::math::SimdFloat;
use crate::cpu::simd::{Simd, SimdKernel};
use crate::dtype::Element;

/// The coefficients of `y = scale · d + slope · (x - mean) + shift` in backward, where d is dy, and
/// of `y = scale · (x - mean) + shift` in forward. The slice holds the means, scales, slopes and
/// shifts of all channels, a quarter each.
pub(super) struct Affine<'a, T> {
    pub(super) coefficients: &'a [T],
}

impl<T> Affine<'_, T> {
    fn of(&self, channels: std::ops::Range<usize>) -> [&[T]; 4] {
        let count = self.coefficients.len() / 4;
        std::array::from_fn(|which| &self.coefficients[which * count..][channels.clone()])
    }
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
        let rows = self.y.len() / self.inner;
        let at_once = (WIDTH / self.inner).max(1);
        let mut lines = OfEach([[E::Compute::ZERO; WIDTH + LINE]; 4]);
        let mut row = 0;
        while row < rows {
            let channel = (self.first_row + row) % channels;
            let count = at_once.min(channels - channel).min(rows - row);
            let places = row * self.inner..(row + count) * self.inner;
            let dy = self.dy.map(|dy| &dy[places.clone()]);
            let (x, y) = (&self.x[places.clone()], &mut self.y[places]);
            let [mean, scale, slope, shift] = self.affine.of(channel..channel + count);
            if self.inner >= WIDTH {
                OfOne([mean[0], scale[0], slope[0], shift[0]]).apply(dy, x, y);
            } else {
                spread(mean, self.inner, &mut lines.0[0]);
                spread(scale, self.inner, &mut lines.0[1]);
                spread(slope, self.inner, &mut lines.0[2]);
                spread(shift, self.inner, &mut lines.0[3]);
                lines.apply(dy, x, y);
            }
            row += count;
        }
    }
}

/// Mean, scale, slope and shift of consecutive elements. Methods have no closures and no iterator
/// adapters: the compiler would turn these into functions without vector instructions.
trait Coefficients<T: SimdFloat>: Sized {
    /// Coefficient `which` (0 to 3: mean, scale, slope, shift) of the line that begins with element
    /// `at`.
    fn line(&self, which: usize, at: usize) -> [T; LINE];

    #[inline(always)]
    fn apply<E: Element<Compute = T>>(&self, dy: Option<&[E]>, x: &[E], y: &mut [E]) {
        let whole = x.len() / LINE * LINE;
        for at in (0..whole).step_by(LINE) {
            self.apply_line(at, LINE, dy, x, y);
        }
        if whole < x.len() {
            self.apply_line(whole, x.len() - whole, dy, x, y);
        }
    }

    /// Writes `len` elements from `at` on. Whole lines are fast because the compiler knows their
    /// length.
    #[inline(always)]
    fn apply_line<E: Element<Compute = T>>(
        &self,
        at: usize,
        len: usize,
        dy: Option<&[E]>,
        x: &[E],
        y: &mut [E],
    ) {
        let mut line = [T::ZERO; LINE];
        load(&x[at..at + len], T::ZERO, &mut line);
        let (mean, scale, shift) = (self.line(0, at), self.line(1, at), self.line(3, at));
        if let Some(dy) = dy {
            let (mut dy_line, slope) = ([T::ZERO; LINE], self.line(2, at));
            load(&dy[at..at + len], T::ZERO, &mut dy_line);
            for lane in 0..LINE {
                line[lane] = scale[lane] * dy_line[lane]
                    + slope[lane] * (line[lane] - mean[lane])
                    + shift[lane];
            }
        } else {
            for lane in 0..LINE {
                line[lane] = scale[lane] * (line[lane] - mean[lane]) + shift[lane];
            }
        }
        store(&line, &mut y[at..at + len]);
    }
}

/// The coefficients of one channel.
struct OfOne<T>([T; 4]);

impl<T: SimdFloat> Coefficients<T> for OfOne<T> {
    #[inline(always)]
    fn line(&self, which: usize, _: usize) -> [T; LINE] {
        [self.0[which]; LINE]
    }
}

/// The coefficients of several channels, repeated for each element.
struct OfEach<T>([[T; WIDTH + LINE]; 4]);

impl<T: SimdFloat> Coefficients<T> for OfEach<T> {
    #[inline(always)]
    fn line(&self, which: usize, at: usize) -> [T; LINE] {
        let mut line = [T::ZERO; LINE];
        line.copy_from_slice(&self.0[which][at..at + LINE]);
        line
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
    let rows = (CHUNK_LEN / shape.inner).max(1);
    for_each_chunk(cpu.pool(), y, rows * shape.inner, |index, y| {
        let places = index * rows * shape.inner..index * rows * shape.inner + y.len();
        let (first_row, x) = (index * rows, &x[places.clone()]);
        let dy = dy.map(|dy| &dy[places]);
        E::Compute::dispatch(Apply { affine, inner: shape.inner, first_row, dy, x, y });
    });
}
