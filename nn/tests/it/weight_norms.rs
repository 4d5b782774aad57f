//! Weights that are split into lengths and directions.

use lowtide_autograd::{Pass, Var, check};
use lowtide_nn::{
    Conv1d, Conv2d, Conv3d, Conv3dGeometry, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d,
    ConvTranspose3dGeometry, Linear, Module, NnError, Parameter, Parameters, WeightNorm, Weighted,
};
use lowtide_tensor::{
    Conv1dGeometry, Conv2dGeometry, ConvTranspose1dGeometry, ConvTranspose2dGeometry, Tensor,
};

use crate::common::{KEY, Outcome, cpu, f32s, f64s, names, values, widen};

fn numbers(var: &Var) -> Vec<f32> {
    var.value().contiguous().expect("memory").to_vec::<f32>().expect("f32")
}

fn check_as_before(layer: impl Weighted + Module + Clone, x: &Tensor) -> Outcome {
    let pass = Pass::eval();
    let before = numbers(&layer.forward(&pass, pass.constant(x.clone()))?);
    for axis in [0, 1] {
        let mut normed = WeightNorm::along(layer.clone(), axis)?;
        let y = numbers(&normed.forward(&pass, pass.constant(x.clone()))?);
        for (a, b) in y.iter().zip(&before) {
            assert!((a - b).abs() < 1e-5, "along {axis}: {a}, not {b}");
        }
        // The size of the direction does not change the weight.
        normed.visit(&mut |name, parameter| {
            if name.ends_with("original1") {
                // The layer keeps the storage that both layers share.
                *parameter.value_mut() = parameter.value().mul_scalar(4.0).expect("memory");
            }
        });
        let again = numbers(&normed.forward(&pass, pass.constant(x.clone()))?);
        for (a, b) in again.iter().zip(&before) {
            assert!((a - b).abs() < 1e-5, "along {axis}: {a}, not {b}");
        }
    }
    Ok(())
}

#[test]
fn a_layer_with_normed_weights_begins_as_it_was() -> Outcome {
    let device = cpu();
    let line = f32s(&device, "line", [2, 4, 6]);
    let image = f32s(&device, "image", [2, 4, 5, 6]);
    let volume = f32s(&device, "volume", [2, 4, 3, 4, 5]);
    check_as_before(Linear::new(&device, KEY, 6, 3)?, &line)?;
    let conv = Conv1d::new(&device, KEY, [4, 3], 3, Conv1dGeometry::default())?;
    check_as_before(conv.with_same_padding()?, &line)?;
    let conv = Conv2d::without_bias(&device, KEY, [4, 3], [2, 3], Conv2dGeometry::default())?;
    check_as_before(conv, &image)?;
    let geometry = Conv3dGeometry::default();
    check_as_before(Conv3d::new(&device, KEY, [4, 3], [2; 3], geometry)?, &volume)?;
    let geometry = ConvTranspose1dGeometry::default();
    check_as_before(ConvTranspose1d::new(&device, KEY, [4, 3], 3, geometry)?, &line)?;
    let geometry = ConvTranspose2dGeometry::default();
    check_as_before(ConvTranspose2d::new(&device, KEY, [4, 3], [2; 2], geometry)?, &image)?;
    let geometry = ConvTranspose3dGeometry::default();
    check_as_before(ConvTranspose3d::new(&device, KEY, [4, 3], [2; 3], geometry)?, &volume)
}

#[test]
fn normed_weights_have_pytorchs_names_and_shapes() -> Outcome {
    let device = cpu();
    let conv = || Conv2d::new(&device, KEY, [2, 3], [2, 3], Conv2dGeometry::default());
    let mut layer = WeightNorm::new(conv()?)?;
    let expected =
        ["bias", "parametrizations.weight.original0", "parametrizations.weight.original1"];
    assert_eq!(names(&mut layer), expected);
    let shapes = |layer: &mut dyn Parameters| {
        let mut shapes = Vec::new();
        layer.visit(&mut |_, parameter| shapes.push(parameter.value().shape().to_vec()));
        shapes
    };
    assert_eq!(shapes(&mut layer)[1..], [vec![3, 1, 1, 1], vec![3, 2, 2, 3]]);
    assert_eq!(shapes(&mut WeightNorm::along(conv()?, -3)?)[1], [1, 2, 1, 1]);
    let error = WeightNorm::along(conv()?, 4).expect_err("four dimensions").to_string();
    assert!(error.contains("weight_norm"), "{error}");
    Ok(())
}

#[test]
fn normed_weights_are_the_length_times_the_direction() -> Outcome {
    let device = cpu();
    let [x, g, v] =
        [f64s(&device, "x", [2, 3]), f64s(&device, "g", [4, 1]), f64s(&device, "v", [4, 3])];
    let of_parameters = |pass: &Pass, vars: Vec<Var>| -> lowtide_nn::NnResult<Var> {
        let mut layer = WeightNorm::new(Linear::without_bias(&device, KEY, 3, 4)?)?;
        widen(&mut layer);
        let set =
            |parameter: &mut Parameter, value: &Tensor| *parameter.value_mut() = value.clone();
        layer.visit(&mut |name, parameter| {
            set(parameter, if name.ends_with('0') { &g } else { &v });
        });
        layer.forward(pass, vars.into_iter().next().expect("an input"))
    };
    let pass = Pass::eval();
    let y = of_parameters(&pass, vec![pass.constant(x.clone())])?;
    let [gs, vs, xs] = [values("g", 4), values("v", 12), values("x", 6)];
    for (index, found) in y.value().to_vec::<f64>()?.into_iter().enumerate() {
        let (sample, output) = (index / 4, index % 4);
        let row = &vs[output * 3..][..3];
        let length = row.iter().map(|v| v * v).sum::<f64>().sqrt();
        let product: f64 = row.iter().zip(&xs[sample * 3..][..3]).map(|(v, x)| v * x).sum();
        let expected = gs[output] / length * product;
        assert!((found - expected).abs() < 1e-12, "{index}: {found}, not {expected}");
    }
    let of_input = |pass: &Pass, vars| of_parameters(pass, vars).map_err(NnError::into_autograd);
    Ok(check::gradients(of_input, &[x])?)
}
