//! Products of matrices.

use half::{bf16, f16};

use crate::cpu::Cpu;
use crate::cpu::gemm::{Batch, Matrix, MatrixMut, gemm_batched};
use crate::dtype::Element;
use crate::write_mode::WriteMode;

/// One product of matrices, or several of one size. A matrix is a slice with the elements from a
/// row to the next, and from a column to the next.
#[derive(Clone, Copy, Debug)]
pub struct MatrixProducts<'a, A, B, Y> {
    /// The number of products, and the elements from one a, b and y to the next; `None` for one.
    pub batch: Option<(usize, [usize; 3])>,
    /// M, K and N.
    pub size: [usize; 3],
    /// The left factor.
    pub a: (&'a [A], [usize; 2]),
    /// The right factor.
    pub b: (&'a [B], [usize; 2]),
    /// N elements, or none.
    pub bias: &'a [Y],
    /// The use of y.
    pub start: WriteMode,
}

/// Elements of a left factor, with the products that the library has for them.
pub trait Multiplied<B, Y>: Element {
    /// y = or += a · b + bias.
    ///
    /// # Panics
    /// If a matrix does not fit its slice, or elements of y share a place.
    fn multiply(cpu: &Cpu, products: MatrixProducts<'_, Self, B, Y>, y: (&mut [Y], [usize; 2]));
}

macro_rules! multiplied {
    ($($a:ty, $b:ty => $y:ty, in $sum:ty;)*) => {$(
        impl Multiplied<$b, $y> for $a {
            fn multiply(
                cpu: &Cpu,
                products: MatrixProducts<'_, $a, $b, $y>,
                (y, [row_stride, col_stride]): (&mut [$y], [usize; 2]),
            ) {
                let MatrixProducts { batch, size, a, b, bias, start } = products;
                let batch = match &batch {
                    None => Batch::single(),
                    Some((count, steps)) => {
                        Batch::new(&[*count], steps.each_ref().map(std::slice::from_ref))
                    }
                };
                let (a, b) = (matrix(a), matrix(b));
                let y = MatrixMut { data: y, row_stride, col_stride };
                gemm_batched::<$sum, _, _, _>(cpu.pool(), &batch, size, a, b, bias, start, y);
            }
        }
    )*};
}
multiplied! {
    f64, f64 => f64, in f64;
    f32, f32 => f32, in f32;
    f16, f16 => f16, in f32;
    bf16, bf16 => bf16, in f32;
    f16, f16 => f32, in f32;
    bf16, bf16 => f32, in f32;
    f32, f16 => f16, in f32;
    f32, bf16 => bf16, in f32;
    f32, bf16 => f32, in f32;
}

fn matrix<T>((data, [row_stride, col_stride]): (&[T], [usize; 2])) -> Matrix<'_, T> {
    Matrix { data, row_stride, col_stride }
}
