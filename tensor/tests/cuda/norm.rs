use lowtide_tensor::{DType, Tensor, TensorResult as Result};

use crate::alike::{assert_alike, each_float};
use crate::elementwise::noise;
use crate::gpu::Gpu;
use crate::storage::cpu;

/// A normalisation of x with weight and bias, if given, and its gradients for dy.
fn pass(
    operands: &[Tensor],
    forward: impl Fn(&Tensor, [Option<&Tensor>; 2]) -> Result<lowtide_tensor::Normalized>,
    backward: impl Fn(
        &Tensor,
        &Tensor,
        &lowtide_tensor::Normalized,
        Option<&Tensor>,
    ) -> Result<lowtide_tensor::NormalizedBackward>,
) -> Result<Vec<Tensor>> {
    let [x, dy, parameters @ ..] = operands else { unreachable!("x and dy are always there") };
    let found = forward(x, [parameters.first(), parameters.get(1)])?;
    let gradients = backward(dy, x, &found, parameters.first())?;
    let statistics = [Some(found.rstd), found.mean].into_iter().flatten();
    let results = [found.y, gradients.dx].into_iter().chain(statistics);
    Ok(results.chain(gradients.parameters.into_iter().flatten()).collect())
}

#[test]
fn normalisation_and_its_gradients_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    // Rows shorter and longer than a block, more samples than partial sums, no samples, and rows of
    // whole packs. Some of these rows fit a warp, some exceed the registers.
    let shapes = [
        [3, 4, 5],
        [2, 6, 130],
        [70, 6, 1],
        [130, 2, 7],
        [0, 4, 3],
        [3, 4, 0],
        [70, 136, 1],
        [2, 10, 1104],
    ];
    gpu.in_every_order(|| {
        for (dtype, tolerance) in each_float([4e-6, 1e-13]) {
            for (shape, parameter_count) in shapes.into_iter().zip([2, 1, 2, 0, 2, 2, 2, 2]) {
                let of = |name: &str, shape: &[usize]| {
                    noise(&cpu(), name, shape, [-2.0, 3.0]).to_dtype(dtype).unwrap()
                };
                let [_, channels, inner] = shape;
                let both = [of("x", &shape), of("dy", &shape)];
                let check = |name: &str, parameters: &[usize], f: &Pass<'_>| {
                    let parameters = ["weight", "bias"].map(|name| of(name, parameters));
                    let inputs = both.iter().chain(&parameters[..parameter_count]);
                    let inputs: Vec<&Tensor> = inputs.collect();
                    // Gradients of parameters are sums over all rows.
                    let name = format!("{name} {dtype} {shape:?}");
                    let sums = 1.0 + shape.iter().product::<usize>() as f64 / 16.0;
                    assert_alike(&device, &name, &inputs, tolerance * sums, f);
                };
                check("layer", &[channels, inner], &|operands| {
                    pass(
                        operands,
                        |x, [weight, bias]| x.layer_norm(2, weight, bias, 1e-5),
                        |dy, x, found, weight| {
                            let mean = found.mean.as_ref().expect("rows have one");
                            dy.layer_norm_backward(x, mean, &found.rstd, weight)
                        },
                    )
                });
                check("last", &[inner], &|operands| {
                    pass(
                        operands,
                        |x, [weight, _]| x.rms_norm(1, weight, 1e-5),
                        |dy, x, found, weight| dy.rms_norm_backward(x, &found.rstd, weight),
                    )
                });
                check("group", &[channels], &|operands| {
                    pass(
                        operands,
                        |x, [weight, bias]| x.group_norm(2, weight, bias, 1e-5),
                        |dy, x, found, weight| {
                            let mean = found.mean.as_ref().expect("rows have one");
                            dy.group_norm_backward(x, mean, &found.rstd, weight)
                        },
                    )
                });
            }
        }
    });
}

type Pass<'a> = dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + 'a;

#[test]
fn large_mean_does_not_swallow_the_variance_on_a_device() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let x = noise(&cpu(), "x", &[3, 300], [-1.0, 1.0]).add_scalar(4096.0).unwrap();
    assert_eq!(x.dtype(), DType::F32);
    assert_alike(&device, "far from 0", &[&x], 4e-6, |operands| {
        let found = operands[0].layer_norm(1, None, None, 1e-5)?;
        Ok(vec![found.y, found.rstd])
    });
}
