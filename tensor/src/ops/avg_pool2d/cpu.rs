//! Means over windows of an image, and the gradient.

use crate::cpu::pool::Pool;
use crate::dtype::{Element, Float};
use crate::ops::windows::{Axis, for_each_row};

use super::Divisor;

/// The sizes of an average pooling over `planes` images of one channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Means {
    pub(super) planes: usize,
    /// (height, width).
    pub(super) axes: [Axis; 2],
    pub(super) divisor: Divisor,
}

impl Means {
    pub(super) fn in_size(&self) -> [usize; 2] {
        self.axes.map(|axis| axis.in_len)
    }

    pub(super) fn out_size(&self) -> [usize; 2] {
        self.axes.map(|axis| axis.out_len)
    }

    /// The factor that one axis contributes to the divisor of window `at`.
    fn count(&self, axis: usize, at: usize) -> usize {
        match self.divisor {
            Divisor::Window => self.axes[axis].padded_len(at),
            Divisor::Inside => self.axes[axis].window(at).len(),
            Divisor::Exactly(number) if axis == 0 => number.get(),
            Divisor::Exactly(_) => 1,
        }
    }
}

/// y = Σ window / count.
pub(super) fn forward<E: Element, T: Float>(pool: &Pool, shape: &Means, x: &[E], y: &mut [E]) {
    let [height, width] = shape.in_size();
    // Computed once for all rows, because windows need integer divisions.
    let cols: Vec<_> =
        (0..shape.out_size()[1]).map(|at| (shape.axes[1].window(at), shape.count(1, at))).collect();
    for_each_row(pool, y, shape.out_size(), |plane, row, y| {
        let x = &x[plane * height * width..][..height * width];
        let rows = shape.axes[0].window(row);
        let row_count = shape.count(0, row);
        for (y, (cols, col_count)) in y.iter_mut().zip(&cols) {
            let mut sum = T::ZERO;
            for row in rows.clone() {
                sum += sum_of::<E, T>(&x[row * width..][cols.clone()]);
            }
            let count = (row_count * col_count).max(1);
            *y = (sum / T::from_f64(count as f64)).cast();
        }
    });
}

/// The sum of a row, in eight lanes for long rows: the mean of an image sums whole rows.
fn sum_of<E: Element, T: Float>(row: &[E]) -> T {
    let (whole, rest) = row.as_chunks::<8>();
    let mut lanes = [T::ZERO; 8];
    for x in whole {
        lanes.iter_mut().zip(x).for_each(|(lane, x)| *lane += x.cast());
    }
    let mut sum = T::ZERO;
    if !whole.is_empty() {
        lanes.iter().for_each(|&lane| sum += lane);
    }
    rest.iter().for_each(|x| sum += x.cast());
    sum
}

/// dx = Σ of dy / count over the windows that hold the input.
pub(super) fn backward<E: Element, T: Float>(pool: &Pool, shape: &Means, dy: &[E], dx: &mut [E]) {
    let [out_height, out_width] = shape.out_size();
    // Computed once for all rows, because windows need integer divisions.
    let cols: Vec<_> = (0..shape.in_size()[1]).map(|at| shape.axes[1].covering(at)).collect();
    let col_counts: Vec<_> = (0..out_width).map(|at| shape.count(1, at)).collect();
    let row_counts: Vec<_> = (0..out_height).map(|at| shape.count(0, at)).collect();
    for_each_row(pool, dx, shape.in_size(), |plane, row, dx| {
        let dy = &dy[plane * out_height * out_width..][..out_height * out_width];
        let rows = shape.axes[0].covering(row);
        for (dx, cols) in dx.iter_mut().zip(&cols) {
            let mut sum = T::ZERO;
            for row in rows.clone() {
                for col in cols.clone() {
                    let count = row_counts[row] * col_counts[col];
                    let dy: T = dy[row * out_width + col].cast();
                    sum += dy / T::from_f64(count as f64);
                }
            }
            *dx = sum.cast();
        }
    });
}
