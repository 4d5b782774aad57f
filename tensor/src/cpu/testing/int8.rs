//! Products of 8-bit integers.

use half::{bf16, f16};

use crate::cpu::Cpu;
use crate::cpu::gemm::{Matrix, MatrixMut};
use crate::cpu::int8::{self, Int8Product, QuantizedRows};
use crate::cpu::int8_simd;
use crate::dtype::{Element, Float};

/// The longest rows of a product.
pub const DEPTH_MAX: usize = int8::DEPTH_MAX;

/// Codes that an instruction set multiplies at once, at most.
pub const STEP_LEN_MAX: usize = int8_simd::STEP_LEN_MAX;

/// Codes from one row of x to the next.
pub fn row_stride(depth: usize) -> usize {
    int8::row_stride(depth)
}

/// Codes, scales and sums of the rows of x.
#[derive(Clone, Debug)]
pub struct Int8Rows<T> {
    /// A [`row_stride`] for each row.
    pub codes: Vec<i8>,
    /// The value of code 1 in each row.
    pub scales: Vec<T>,
    /// The codes of each row added up.
    pub sums: Vec<i32>,
}

/// Elements of x and y, with the kernels that the library has for them.
pub trait Int8Multiplied: Element {
    /// The type that is computed in.
    type Sum: Float;

    /// Quantises x of M rows and K columns, which lies in strides.
    fn quantize(
        cpu: &Cpu,
        size: [usize; 2],
        x: (&[Self], [usize; 2]),
        to: &mut Int8Rows<Self::Sum>,
    );

    /// y of M rows and N columns. Of w and its scales, and of a bias there may be, each of N has K
    /// codes or one element.
    fn multiply_int8(
        cpu: &Cpu,
        size: [usize; 3],
        x: &Int8Rows<Self::Sum>,
        w: (&[i8], &[f32]),
        bias: &[Self],
        y: &mut [Self],
    );
}

macro_rules! int8_multiplied {
    ($($element:ty, in $sum:ty;)*) => {$(
        impl Int8Multiplied for $element {
            type Sum = $sum;

            fn quantize(
                cpu: &Cpu,
                size: [usize; 2],
                (data, [row_stride, col_stride]): (&[Self], [usize; 2]),
                to: &mut Int8Rows<$sum>,
            ) {
                let x = Matrix { data, row_stride, col_stride };
                let to = (&mut to.codes[..], &mut to.scales[..], &mut to.sums[..]);
                int8::quantize(cpu.pool(), size, x, to);
            }

            fn multiply_int8(
                cpu: &Cpu,
                size: [usize; 3],
                x: &Int8Rows<$sum>,
                (w, w_scales): (&[i8], &[f32]),
                bias: &[Self],
                y: &mut [Self],
            ) {
                let x = QuantizedRows { codes: &x.codes, scales: &x.scales, sums: &x.sums };
                let product = Int8Product { size, x, w, w_scales, bias };
                product.run(cpu.pool(), MatrixMut::row_major(y, size[2]));
            }
        }
    )*};
}
int8_multiplied! {
    f32, in f32;
    f64, in f64;
    bf16, in f32;
    f16, in f32;
}
