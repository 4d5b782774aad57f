use std::num::NonZeroUsize;

use lowtide_tensor::{
    AvgPool, Corners, Divisor, Interpolation, Pool2dGeometry, Resize, SizeRounding, Statistics,
    Tensor, TensorResult as Result,
};

use crate::alike::{assert_alike, each_float};
use crate::elementwise::noise;
use crate::gpu::Gpu;
use crate::storage::cpu;

fn batch_norm(operands: &[Tensor], has_parameters: bool) -> Result<Vec<Tensor>> {
    let [x, dy, weight, bias, running] = operands else { unreachable!("as given") };
    let (weight, bias) = (has_parameters.then_some(weight), has_parameters.then_some(bias));
    let found = x.batch_norm(weight, bias, 1e-5)?;
    let [mean, variance] = [&found.mean, &found.variance];
    let of_batch = dy.batch_norm_backward(x, mean, variance, weight, Statistics::Batch, 1e-5)?;
    let (mut mean, mut variance) = (running.copied()?, running.add_scalar(1.0)?);
    mean.update_running_(&mut variance, [&found.mean, &found.variance], 7, 0.1)?;
    let y = x.batch_norm_fixed(&mean, &variance, weight, bias, 1e-5)?;
    let of_fixed = dy.batch_norm_backward(x, &mean, &variance, weight, Statistics::Fixed, 1e-5)?;
    let gradients = [of_batch, of_fixed].map(|of| [of.dx, of.dweight, of.dbias]);
    let results = [found.y, found.mean, found.variance, y, mean, variance];
    Ok(results.into_iter().chain(gradients.into_iter().flatten()).collect())
}

#[test]
fn batch_normalisation_and_its_gradients_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    // A channel has one element in each sample, several, more than a part, none, or whole packs.
    let shapes = [[37, 5, 1], [3, 4, 9], [5, 2, 2000], [0, 3, 4], [6, 3, 40]];
    gpu.in_every_order(|| {
        for (dtype, tolerance) in each_float([4e-6, 1e-13]) {
            for (shape, has_parameters) in shapes.into_iter().zip([true, true, false, true, true]) {
                let of = |name: &str, shape: &[usize]| noise(&cpu(), name, shape, [-2.0, 3.0]);
                let here = |x: Tensor| x.to_dtype(dtype).unwrap();
                let channels = [shape[1]];
                let running = of("running", &channels).to_dtype(dtype.computed()).unwrap();
                let [x, dy] = ["x", "dy"].map(|name| here(of(name, &shape)));
                let [weight, bias] = ["weight", "bias"].map(|name| here(of(name, &channels)));
                let inputs = [&x, &dy, &weight, &bias, &running];
                let name = format!("{dtype} {shape:?}");
                // Gradients of parameters are sums over all elements of a channel.
                let sums = 1.0 + (shape[0] * shape[2]) as f64 / 16.0;
                assert_alike(&device, &name, &inputs, tolerance * sums, |operands| {
                    batch_norm(operands, has_parameters)
                });
            }
        }
    });
}

#[test]
fn means_of_windows_and_their_gradients_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let of = |kernel, stride, padding| Pool2dGeometry { kernel, stride, padding };
    let windows = [
        (of([2, 2], [2, 2], [0, 0]), Divisor::Window, SizeRounding::Down),
        (of([3, 2], [1, 3], [1, 1]), Divisor::Inside, SizeRounding::Up),
        (of([4, 5], [2, 2], [2, 1]), Divisor::Window, SizeRounding::Up),
        (of([3, 3], [2, 1], [1, 0]), Divisor::Exactly(NonZeroUsize::MIN), SizeRounding::Down),
    ];
    gpu.in_every_order(|| {
        for (dtype, tolerance) in each_float([2e-6, 1e-14]) {
            let x = noise(&cpu(), "x", &[2, 3, 9, 8], [-2.0, 2.0]).to_dtype(dtype).unwrap();
            for (geometry, divisor, rounding) in windows {
                let options = AvgPool { divisor, rounding };
                let name = format!("{dtype} {geometry:?}");
                assert_alike(&device, &name, &[&x], tolerance, |operands| {
                    let x = &operands[0];
                    let y = x.avg_pool2d(geometry, options)?;
                    let dx = y.avg_pool2d_backward(*x.shape(), geometry, options)?;
                    Ok(vec![y, dx])
                });
            }
            for size in [[1, 1], [4, 3], [9, 8], [11, 2]] {
                let name = format!("{dtype} {size:?}");
                assert_alike(&device, &name, &[&x], tolerance, |operands| {
                    let x = &operands[0];
                    let y = x.adaptive_avg_pool2d(size)?;
                    let dx = y.adaptive_avg_pool2d_backward(*x.shape())?;
                    Ok(vec![y, dx])
                });
            }
        }
    });
}

#[test]
fn images_of_another_size_and_their_gradients_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let sizes =
        [Resize::To([10, 12]), Resize::To([3, 6]), Resize::To([7, 2]), Resize::By([1.7, 2.3])];
    let ways = [
        Interpolation::Nearest,
        Interpolation::Bilinear(Corners::Centers),
        Interpolation::Bilinear(Corners::Aligned),
    ];
    gpu.in_every_order(|| {
        for (dtype, tolerance) in each_float([4e-6, 1e-13]) {
            let x = noise(&cpu(), "x", &[2, 2, 5, 6], [-2.0, 2.0]).to_dtype(dtype).unwrap();
            for (size, way) in sizes.into_iter().flat_map(|size| ways.map(|way| (size, way))) {
                let name = format!("{dtype} {size:?} {way:?}");
                assert_alike(&device, &name, &[&x], tolerance, |operands| {
                    let x = &operands[0];
                    let y = x.upsample2d(size, way)?;
                    let dx = y.upsample2d_backward(*x.shape(), size, way)?;
                    Ok(vec![y, dx])
                });
            }
        }
    });
}
