//! y`[M, N]` = or += a`[M, K]` · b`[K, N]`, any strides, by way of `cpu::gemm`.

use crate::cpu::gemm::{Gemm, Matrix, MatrixMut, gemm};
use crate::cpu::pool::Pool;

/// What becomes of the values that y holds before a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// They are overwritten, and never read.
    Overwrite,
    /// The product is added to them: a bias, or a gradient so far.
    Accumulate,
}

/// y = a · b, or y += a · b; `size` is (M, K, N).
pub(crate) fn matmul<T: Gemm>(
    pool: &Pool,
    size: [usize; 3],
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    start: Start,
    y: MatrixMut<'_, T>,
) {
    let beta = match start {
        Start::Overwrite => T::ZERO,
        Start::Accumulate => T::ONE,
    };
    gemm(pool, size, T::ONE, a, b, beta, y);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_layer_and_its_gradients_are_three_products() {
        let pool = Pool::new(2);
        // B inputs of I features to O outputs: y = x·wᵀ + b, dx = dy·w, dw = dyᵀ·x.
        let (batch, ins, outs) = (7, 19, 23);
        let value = |i: usize| ((i * 5 + i / 3) % 7) as f32 - 3.0;
        let x: Vec<f32> = (0..batch * ins).map(value).collect();
        let w: Vec<f32> = (0..outs * ins).map(|i| value(i + 1)).collect();
        let dy: Vec<f32> = (0..batch * outs).map(|i| value(i + 2)).collect();
        let bias: Vec<f32> = (0..outs).map(value).collect();
        let (mut y, mut dx, mut dw) = (bias.repeat(batch), vec![f32::NAN; x.len()], w.clone());

        let rows = Matrix::row_major;
        let to = MatrixMut::row_major(&mut y, outs);
        let turned = rows(&w, ins).transposed();
        matmul(&pool, [batch, ins, outs], rows(&x, ins), turned, Start::Accumulate, to);
        let to = MatrixMut::row_major(&mut dx, ins);
        matmul(&pool, [batch, outs, ins], rows(&dy, outs), rows(&w, ins), Start::Overwrite, to);
        let to = MatrixMut::row_major(&mut dw, ins);
        let turned = rows(&dy, outs).transposed();
        matmul(&pool, [outs, batch, ins], turned, rows(&x, ins), Start::Overwrite, to);

        let dot = |len: usize, term: &dyn Fn(usize) -> f32| (0..len).map(term).sum::<f32>();
        for (i, &y) in y.iter().enumerate() {
            let (n, o) = (i / outs, i % outs);
            assert_eq!(y, bias[o] + dot(ins, &|k| x[n * ins + k] * w[o * ins + k]));
        }
        for (i, &dx) in dx.iter().enumerate() {
            let (n, k) = (i / ins, i % ins);
            assert_eq!(dx, dot(outs, &|o| dy[n * outs + o] * w[o * ins + k]));
        }
        for (i, &dw) in dw.iter().enumerate() {
            let (o, k) = (i / ins, i % ins);
            assert_eq!(dw, dot(batch, &|n| dy[n * outs + o] * x[n * ins + k]));
        }
    }
}
