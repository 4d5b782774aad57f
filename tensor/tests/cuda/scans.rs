use lowtide_tensor::{DType, Tensor, TensorError};

use crate::alike::{assert_alike, each_float};
use crate::elementwise::noise;
use crate::gpu::Gpu;
use crate::storage::cpu;

/// `[before, along, after]`: scans by lines and by columns, shorter and longer than a block, and
/// empty.
const SHAPES: [[usize; 3]; 9] = [
    [3, 7, 1],
    [2, 600, 1],
    [1, 1100, 2],
    [2, 5, 33],
    [1, 70, 300],
    [1, 1, 1],
    [0, 4, 2],
    [2, 0, 3],
    [2, 3, 0],
];

#[test]
fn running_sums_and_products_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for dtype in DType::ALL {
            let tolerance = match dtype {
                DType::F64 => 1e-12,
                // Sums are in f64, and may be rounded to different sides.
                DType::F32 => 2e-7,
                DType::F16 => 1e-3,
                _ => 8e-3,
            };
            for shape in SHAPES {
                let bounds = if dtype.is_float() { [-1.5, 1.5] } else { [0.0, 3.5] };
                let x = noise(&cpu(), "x", &shape, bounds).to_dtype(dtype).unwrap();
                let name = format!("{dtype} {shape:?}");
                assert_alike(&device, &name, &[&x], tolerance, |operands| {
                    let x = &operands[0];
                    let turned = x.transpose(0, 1)?.contiguous()?.transpose(0, 1)?;
                    Ok(vec![
                        x.cumsum(1)?,
                        x.cumsum_backward(1)?,
                        x.cumprod(1)?,
                        turned.cumsum(1)?,
                        turned.cumsum_backward(0)?,
                        turned.transpose(1, 2)?.cumprod(2)?,
                    ])
                });
            }
        }
    });
}

#[test]
fn running_extremes_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for dtype in DType::ALL {
            for shape in SHAPES {
                // Few different values: most are equal to others.
                let x = noise(&cpu(), "x", &shape, [-2.9, 2.9]).trunc().unwrap();
                let x = x.to_dtype(dtype).unwrap();
                let name = format!("{dtype} {shape:?}");
                assert_alike(&device, &name, &[&x], 0.0, |operands| {
                    let turned = operands[0].transpose(0, 1)?.contiguous()?.transpose(0, 1)?;
                    let ((a, b), (c, d)) = (operands[0].cummax(1)?, turned.cummin(1)?);
                    Ok(vec![a, b, c, d])
                });
            }
        }
    });
}

#[test]
fn running_extremes_of_nan_zeros_and_infinities_are_those_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let x = [0.0, -0.0, 0.0, 1.0, nan, 2.0, inf, nan, -inf, 3.0, -inf, -0.0, -0.0, 0.0, inf, nan];
    let x = Tensor::from_slice(&cpu(), [2, 8], &x).unwrap();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let x = x.to_dtype(dtype).unwrap();
        let of_lines = |x: &Tensor| -> Result<Vec<Tensor>, TensorError> {
            let ((a, b), (c, d)) = (x.cummax(1)?, x.cummin(1)?);
            // Quotients of the results tell zeros of different signs apart.
            let one = Tensor::ones(x.device(), *x.shape(), dtype)?;
            Ok(vec![one.div(&a)?, one.div(&c)?, a, b, c, d])
        };
        assert_alike(&device, &format!("{dtype}"), &[&x], 0.0, |operands| of_lines(&operands[0]));
        assert_alike(&device, &format!("{dtype} columns"), &[&x], 0.0, |operands| {
            let wide = operands[0].reshape([2, 8, 1])?.expand([2, 8, 40])?;
            of_lines(&wide.contiguous()?)
        });
    }
}

#[test]
fn running_logarithms_of_sums_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for (dtype, tolerance) in each_float([1e-6, 1e-12]) {
            for shape in SHAPES {
                let of = |name: &str, bounds: [f64; 2]| {
                    noise(&cpu(), name, &shape, bounds).to_dtype(dtype).unwrap()
                };
                let (x, dy) = (of("x", [-30.0, 30.0]), of("dy", [-1.0, 1.0]));
                // A y that is large enough for every x, the same on both devices.
                let y = Tensor::full(&cpu(), shape, dtype, 30.0).unwrap();
                let name = format!("{dtype} {shape:?}");
                assert_alike(&device, &name, &[&x, &dy, &y], 40.0 * tolerance, |operands| {
                    let [x, dy, y] = operands else { unreachable!("as given") };
                    let turned = x.transpose(0, 1)?.contiguous()?.transpose(0, 1)?;
                    Ok(vec![
                        x.logcumsumexp(1)?,
                        turned.logcumsumexp(1)?,
                        dy.logcumsumexp_backward(x, y, 1)?,
                    ])
                });
            }
        }
    });
}

#[test]
fn running_logarithms_of_infinities_are_those_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let x = [-inf, -inf, 1.0, -inf, inf, 2.0, inf, -inf, 0.0, nan, 5.0, inf];
    let x = Tensor::from_slice(&cpu(), [2, 6], &x).unwrap();
    assert_alike(&device, "infinite", &[&x], 1e-12, |operands| {
        let y = operands[0].logcumsumexp(1)?;
        let dy = Tensor::ones(operands[0].device(), [2, 6], DType::F64)?;
        let dx = dy.logcumsumexp_backward(&operands[0], &y, 1)?;
        let wide = operands[0].reshape([2, 6, 1])?.expand([2, 6, 33])?.contiguous()?;
        Ok(vec![y, dx, wide.logcumsumexp(1)?])
    });
}
