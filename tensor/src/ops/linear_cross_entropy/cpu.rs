//! Chunks of rows: logits, their losses and gradients in place, then the products with the
//! gradients.

use super::{LinearCrossEntropyKernel, LinearCrossEntropyOptions, Sizes};
use crate::cpu::Cpu;
use crate::cpu::chunk::{Chunked, for_each_chunk2};
use crate::cpu::gemm::{Batch, Matrix, MatrixMut, gemm_batched};
use crate::cpu::math::SimdFloat;
use crate::cpu::pool::Pool;
use crate::cpu::simd::{Simd, SimdKernel};
use crate::dtype::Element;
use crate::launch::Operands;
use crate::operand_view::{View, ViewMut};
use crate::spec::DeviceKind;
use crate::write_mode::WriteMode;

/// Logits of a task.
const TASK_LEN: usize = 1 << 14;

fn matrix<E: Element>(view: View<'_, E>) -> Matrix<'_, E> {
    let strides = view.layout().strides();
    Matrix { data: view.data(), row_stride: strides[0], col_stride: strides[1] }
}

/// The gradients to compute with the losses.
struct Gradients<'a, T, E, W> {
    /// The gradient of the sum of the losses.
    dy: T,
    dx: &'a mut [E],
    /// The gradients of w and b; the kernel adds to them.
    dw: Option<Strided<'a, W, 2>>,
    db: Option<Strided<'a, W, 1>>,
}

/// Elements with strides, which the kernel adds to in place.
struct Strided<'a, W, const RANK: usize> {
    data: &'a mut [W],
    strides: [usize; RANK],
}

impl<'a, W: Element, const RANK: usize> Strided<'a, W, RANK> {
    fn of(view: ViewMut<'a, W>) -> Self {
        let strides = std::array::from_fn(|axis| view.layout().strides()[axis]);
        Strided { data: view.into_data(), strides }
    }
}

/// Computes in `T` from operands in `E`; dw and db are in `W`.
///
/// # Errors
/// The first row whose label is neither a class nor the ignored one. In that case nothing is
/// written.
pub(super) fn run<T: SimdFloat, E: Element, W: Element>(
    cpu: &Cpu,
    kernel: &LinearCrossEntropyKernel,
    operands: &mut Operands<'_>,
) -> Result<(), usize> {
    let Sizes { rows, dim, classes } = kernel.sizes;
    let ignored = kernel.options.ignore_index;
    let (x, w) = (matrix(operands.read::<E>(0)), matrix(operands.read::<E>(1)));
    let labels = operands.read::<i64>(2).slice();
    let is_bad = |&label: &i64| {
        label != ignored && !usize::try_from(label).is_ok_and(|label| label < classes)
    };
    if let Some(row) = labels.iter().position(is_bad) {
        return Err(row);
    }
    let bias = kernel.has_bias.then(|| operands.read::<E>(3).slice());
    let [sum, count, logits, losses] = [0, 1, 2, 3].map(|k| operands.write::<T>(k).slice());
    let mut gradients = kernel.has_gradients.then(|| {
        let dy = operands.read::<T>(3 + usize::from(kernel.has_bias)).slice()[0];
        let dx = operands.write::<E>(4).slice();
        let dw = (operands.write_count() > 5).then(|| Strided::of(operands.write::<W>(5)));
        let db = (operands.write_count() > 6).then(|| Strided::of(operands.write::<W>(6)));
        Gradients { dy, dx, dw, db }
    });
    let (pool, single, mut total) = (cpu.pool(), Batch::single(), 0.0);
    let chunk_rows = kernel.sizes.chunk(DeviceKind::Cpu).rows;
    for first in (0..rows).step_by(chunk_rows.max(1)) {
        let count = chunk_rows.min(rows - first);
        let (logits, losses) = (&mut logits[..count * classes], &mut losses[..count]);
        let (x, labels) = (x.rows_from(first), &labels[first..][..count]);
        let y = MatrixMut::row_major(logits, classes);
        let size = [count, dim, classes];
        gemm_batched::<T, _, _, _>(
            pool,
            &single,
            size,
            x,
            w.transposed(),
            &[],
            WriteMode::Overwrite,
            y,
        );
        let dy = gradients.as_ref().map(|gradients| gradients.dy);
        let chunk = Chunk { bias, labels, options: kernel.options, dy };
        chunk.run(pool, classes, logits, losses);
        total += losses.iter().map(|loss| loss.to_f64()).sum::<f64>();
        let Some(Gradients { dx, dw, db, .. }) = &mut gradients else { continue };
        let dlogits = Matrix { data: &*logits, row_stride: classes, col_stride: 1 };
        let dx = MatrixMut::row_major(&mut dx[first * dim..][..count * dim], dim);
        let size = [count, classes, dim];
        gemm_batched::<T, _, _, _>(pool, &single, size, dlogits, w, &[], WriteMode::Overwrite, dx);
        let Some(Strided { data, strides: [row_stride, col_stride] }) = dw else { continue };
        let dw = MatrixMut { data, row_stride: *row_stride, col_stride: *col_stride };
        let size = [classes, count, dim];
        let dlogits = dlogits.transposed();
        gemm_batched::<T, _, _, _>(pool, &single, size, dlogits, x, &[], WriteMode::Accumulate, dw);
        if let Some(Strided { data, strides: [stride] }) = db {
            add_columns(logits, classes, data, *stride);
        }
    }
    sum[0] = T::from_f64(total);
    count[0] = T::from_f64(labels.iter().filter(|&&label| label != ignored).count() as f64);
    Ok(())
}

/// `db[v] += Σ` of column v, for a tile of columns at a time, so that memory is read along the
/// rows.
fn add_columns<T: SimdFloat, W: Element>(rows: &[T], classes: usize, db: &mut [W], stride: usize) {
    const TILE_LEN: usize = 64;
    for first in (0..classes).step_by(TILE_LEN) {
        let len = TILE_LEN.min(classes - first);
        let mut sums = [T::ZERO; TILE_LEN];
        for row in rows.chunks_exact(classes) {
            sums.iter_mut().zip(&row[first..first + len]).for_each(|(sum, &x)| *sum += x);
        }
        for (class, &sum) in (first..).zip(&sums[..len]) {
            let db = &mut db[class * stride];
            *db = (db.cast::<T>() + sum).cast();
        }
    }
}

/// The rows whose logits are in memory at once.
struct Chunk<'a, T, E> {
    bias: Option<&'a [E]>,
    labels: &'a [i64],
    options: LinearCrossEntropyOptions,
    /// The gradient of the loss, if the gradient of the logits is wanted.
    dy: Option<T>,
}

impl<T: SimdFloat, E: Element> Chunk<'_, T, E> {
    /// Overwrites the losses, and replaces the logits by their gradients.
    fn run(&self, pool: &Pool, classes: usize, logits: &mut [T], losses: &mut [T]) {
        let rows = (TASK_LEN / classes).max(1);
        let parts = (Chunked::new(logits, rows * classes), Chunked::new(losses, rows));
        for_each_chunk2(pool, parts.0, parts.1, |index, logits, losses| {
            let labels = &self.labels[index * rows..];
            for ((logits, loss), &label) in logits.chunks_exact_mut(classes).zip(losses).zip(labels)
            {
                let is_counted = label != self.options.ignore_index;
                let label = usize::try_from(label).ok().filter(|_| is_counted);
                let (bias, smoothing, dy) = (self.bias, self.options.label_smoothing, self.dy);
                T::dispatch(Row { logits, bias, label, smoothing, dy, loss });
            }
        });
    }
}

/// The loss of one row, whose logits are replaced by their gradient.
struct Row<'a, T, E> {
    logits: &'a mut [T],
    bias: Option<&'a [E]>,
    /// The class of the row; `None` if the row does not count.
    label: Option<usize>,
    smoothing: f64,
    /// The gradient of the loss, if the gradient of the logits is wanted.
    dy: Option<T>,
    loss: &'a mut T,
}

impl<T: SimdFloat, E: Element> SimdKernel<T> for Row<'_, T, E> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, _: S) {
        /// Sums that are independent of each other, so that the compiler can use vectors.
        const LANES: usize = 16;
        let Row { logits, bias, label, smoothing, dy, loss } = self;
        let Some(label) = label else {
            *loss = T::ZERO;
            logits.fill(T::ZERO);
            return;
        };
        if let Some(bias) = bias {
            logits.iter_mut().zip(bias).for_each(|(z, b)| *z += b.cast());
        }
        let max = logits.iter().fold(T::NEG_INFINITY, |max, &z| max.maximum(z));
        // With ∞ or NaN among the logits, a shift would make each logit NaN.
        let shift = if max.is_finite() { max } else { T::ZERO };
        let (mut powers, mut plain) = ([T::ZERO; LANES], [T::ZERO; LANES]);
        for chunk in logits.chunks(LANES) {
            for (lane, &z) in chunk.iter().enumerate() {
                powers[lane] += (z - shift).exp_in::<S>();
                plain[lane] += z;
            }
        }
        let total = powers.iter().fold(T::ZERO, |sum, &x| sum + x);
        let lse = shift + total.ln();
        let even = smoothing / logits.len() as f64;
        let own = T::from_f64(1.0 - smoothing);
        *loss = lse - own * logits[label];
        if smoothing != 0.0 {
            *loss = *loss - T::from_f64(even) * plain.iter().fold(T::ZERO, |sum, &x| sum + x);
        }
        if let Some(dy) = dy {
            let even = T::from_f64(even);
            for z in logits.iter_mut() {
                *z = dy * ((*z - lse).exp_in::<S>() - even);
            }
            logits[label] = logits[label] - dy * own;
        }
    }
}
