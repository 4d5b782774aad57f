//! Initial values have PyTorch's distributions and depend only on the key.

use lowtide_nn::init::{self, Fan, Nonlinearity, default_bound};
use lowtide_nn::models::{SimpleCnn, SimpleCnnShape};
use lowtide_nn::{Conv2d, Linear, NnError, NnResult as Result, Parameters};
use lowtide_tensor::{Conv2dGeometry, DType, Device, RandomKey, Tensor};

use crate::common::{KEY, Outcome, all_bits, cpu, f64s};

/// Layers, each with its fan in.
fn layers(device: &Device, key: RandomKey) -> Result<Vec<(Box<dyn Parameters>, usize)>> {
    let grouped = Conv2dGeometry { groups: 4, ..Default::default() };
    let conv = |geometry| Conv2d::new(device, key, [16, 64], [3, 5], geometry);
    Ok(vec![
        (Box::new(Linear::new(device, key, 200, 100)?), 200),
        (Box::new(Linear::new(device, key, 1, 1000)?), 1),
        (Box::new(conv(Conv2dGeometry::default())?), 16 * 3 * 5),
        (Box::new(conv(grouped)?), 4 * 3 * 5),
    ])
}

fn all_values(model: &mut dyn Parameters) -> Vec<(String, Vec<f64>)> {
    let mut all = Vec::new();
    model.visit(&mut |name, parameter| {
        let values = parameter.value().to_vec::<f32>().expect("f32 on the CPU");
        all.push((name.to_owned(), values.into_iter().map(f64::from).collect()));
    });
    all
}

#[test]
fn the_bound_is_one_over_the_root_of_the_fan_in() {
    assert_eq!([1, 4, 100].map(default_bound), [1.0, 0.5, 0.1]);
    assert_eq!(default_bound(0), 1.0, "a layer without inputs still has a bias");
}

#[test]
fn weights_and_biases_stay_within_the_bound_and_fill_it() -> Outcome {
    for (mut layer, fan_in) in layers(&cpu(), KEY)? {
        let bound = f64::from((1.0 / (fan_in as f64).sqrt()) as f32);
        for (name, values) in all_values(&mut *layer) {
            let [low, high] =
                [f64::min, f64::max].map(|pick| values.iter().copied().fold(0.0, pick));
            assert!(-bound <= low && high <= bound, "{name}, fan-in {fan_in}: {low}..{high}");
            // With probability 0.95^n, none of n values is in the outer tenth: below 4% for n = 64.
            assert!(low < -0.9 * bound && 0.9 * bound < high, "{name}: {low}..{high}, {bound}");
        }
    }
    Ok(())
}

#[test]
fn mean_and_variance_are_those_of_the_uniform_distribution() -> Outcome {
    for (mut layer, fan_in) in layers(&cpu(), KEY)? {
        let square = 1.0 / fan_in as f64;
        for (name, values) in all_values(&mut *layer) {
            let n = values.len() as f64;
            let mean = values.iter().sum::<f64>() / n;
            let variance = values.iter().map(|x| x * x).sum::<f64>() / n;
            // U(-b, b) has the variance b²/3, and the variance of x² is b⁴/5 - b⁴/9 = 4b⁴/45.
            let mean_error = mean.abs() / (square / 3.0 / n).sqrt();
            let variance_error =
                (variance - square / 3.0).abs() / (square * (4.0 / 45.0 / n).sqrt());
            assert!(mean_error <= 5.0, "{name}: mean {mean}, {mean_error} sigma");
            assert!(variance_error <= 5.0, "{name}: {variance}, {variance_error} sigma");
        }
    }
    Ok(())
}

#[test]
fn the_same_key_gives_the_same_bits_and_another_others() -> Outcome {
    let shape = SimpleCnnShape { image: [1, 8, 8], channels: 4, classes: 10 };
    let bits = |device: &Device, key| -> Result<_> {
        Ok(all_bits(&mut SimpleCnn::new(device, key, shape)?))
    };
    let device = cpu();
    let first = bits(&device, KEY)?;
    assert_eq!(first, bits(&device, KEY)?);
    assert_eq!(first, bits(&cpu(), KEY)?);
    for other in [KEY.op("other"), RandomKey::new(4)] {
        for ((name, a), (_, b)) in first.iter().zip(bits(&device, other)?) {
            assert_ne!(*a, b, "{name}");
        }
    }
    Ok(())
}

#[test]
fn parameters_of_one_model_are_independent() -> Outcome {
    // Initial values depend on the path: one layer at two paths starts differently.
    let device = cpu();
    let mut layer = Linear::new(&device, KEY, 3, 12)?;
    let [(_, weight), (_, bias)] = all_values(&mut layer).try_into().expect("two parameters");
    assert_ne!(weight[..bias.len()], bias[..]);
    let mut other = Linear::new(&device, KEY.op("other"), 3, 12)?;
    assert_ne!(weight, all_values(&mut other)[0].1);
    Ok(())
}

#[test]
fn leaving_the_bias_out_does_not_change_the_weight() -> Outcome {
    let device = cpu();
    let with = all_bits(&mut Linear::new(&device, KEY, 5, 4)?);
    let without = all_bits(&mut Linear::without_bias(&device, KEY, 5, 4)?);
    assert_eq!(with[..1], without);
    let plain = Conv2dGeometry::default();
    let with = all_bits(&mut Conv2d::new(&device, KEY, [2, 3], [3, 3], plain)?);
    let without = all_bits(&mut Conv2d::without_bias(&device, KEY, [2, 3], [3, 3], plain)?);
    assert_eq!(with[..1], without);
    Ok(())
}

/// Mean and standard deviation of the values.
fn moments(tensor: &Tensor) -> [f64; 2] {
    let values = tensor.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    [mean, (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count).sqrt()]
}

fn blank<const N: usize>(shape: [usize; N], dtype: DType) -> Tensor {
    Tensor::zeros(&cpu(), shape, dtype).unwrap()
}

#[test]
fn glorots_and_hes_deviations_are_pytorchs() -> Outcome {
    // 60 inputs and 200 outputs, each times a window of 6.
    let shape = [200, 60, 2, 3];
    type Case = (&'static str, f64, fn(&mut Tensor) -> lowtide_nn::NnResult<()>);
    let cases: [Case; 5] = [
        ("xavier uniform", 1.5 * (2.0 / 1560.0_f64).sqrt(), |w| init::xavier_uniform_(w, KEY, 1.5)),
        ("xavier normal", (2.0 / 1560.0_f64).sqrt(), |w| init::xavier_normal_(w, KEY, 1.0)),
        ("kaiming uniform", (2.0 / 360.0_f64).sqrt(), |w| {
            init::kaiming_uniform_(w, KEY, Fan::In, Nonlinearity::Relu)
        }),
        ("kaiming normal", (2.0 / 1200.0_f64).sqrt(), |w| {
            init::kaiming_normal_(w, KEY, Fan::Out, Nonlinearity::Relu)
        }),
        ("leaky", (2.0 / 1.25 / 360.0_f64).sqrt(), |w| {
            init::kaiming_uniform_(w, KEY, Fan::In, Nonlinearity::LeakyRelu(0.5))
        }),
    ];
    for (name, expected, fill) in cases {
        let mut weight = blank(shape, DType::F32);
        fill(&mut weight)?;
        let [mean, deviation] = moments(&weight);
        // 72,000 values: the bounds are six standard errors of the mean and of the deviation.
        assert!(mean.abs() < expected * 6.0 / 268.0, "{name}: {mean}");
        assert!((deviation / expected - 1.0).abs() < 6.0 / 379.0, "{name}: {deviation}");
    }
    assert_eq!(Nonlinearity::Relu.gain(), 2f64.sqrt());
    assert_eq!([Nonlinearity::Tanh.gain(), Nonlinearity::Selu.gain()], [5.0 / 3.0, 0.75]);
    Ok(())
}

#[test]
fn truncated_normals_stay_inside_in_the_middle_and_in_a_tail() -> Outcome {
    for dtype in [DType::F64, DType::F32, DType::BF16] {
        let mut x = blank([20_000], dtype);
        init::truncated_normal_(&mut x, KEY, [1.0, 0.5], [0.0, 2.0])?;
        let [mean, deviation] = moments(&x);
        // A standard normal between -2 and 2 has the deviation 0.8796.
        assert!((mean - 1.0).abs() < 0.02 && (deviation - 0.4398).abs() < 0.02, "{dtype}");
        let values = x.to_dtype(DType::F64)?.to_vec::<f64>()?;
        assert!(values.iter().all(|x| (0.0..=2.0).contains(x)), "{dtype}");
    }
    for range in [[8.0, 9.0], [-9.0, -8.0]] {
        let mut x = blank([500], DType::F64);
        init::truncated_normal_(&mut x, KEY, [0.0, 1.0], range)?;
        assert!(x.to_vec::<f64>()?.iter().all(|x| (range[0]..=range[1]).contains(x)));
        // By Mills' ratio, the mean excess beyond 8 is nearly 1/8.
        let [mean, _] = moments(&x);
        assert!((mean.abs() - 8.12).abs() < 0.03, "{mean}");
    }
    let error = init::truncated_normal_(&mut blank([2], DType::F32), KEY, [0.0, 1.0], [2.0, 1.0]);
    assert!(matches!(error, Err(NnError::Option { name: "high", .. })));
    Ok(())
}

#[test]
fn orthogonal_weights_have_orthogonal_rows_or_columns() -> Outcome {
    for shape in [[7, 12], [12, 7], [5, 5], [1, 4]] {
        let mut w = blank(shape, DType::F64);
        init::orthogonal_(&mut w, KEY, 2.0)?;
        let turned = w.transpose(0, 1)?;
        let gram = if shape[0] <= shape[1] { w.matmul(&turned)? } else { turned.matmul(&w)? };
        let count = gram.shape()[0];
        for (index, value) in gram.to_vec::<f64>()?.into_iter().enumerate() {
            let expected = if index / count == index % count { 4.0 } else { 0.0 };
            assert!((value - expected).abs() < 1e-12, "{shape:?} {index}: {value}");
        }
    }
    let mut window = blank([4, 2, 3, 3], DType::F32);
    init::orthogonal_(&mut window, KEY, 1.0)?;
    let square: f64 = window.to_vec::<f32>()?.iter().map(|&x| f64::from(x).powi(2)).sum();
    assert!((square - 4.0).abs() < 1e-5, "{square}");
    Ok(())
}

#[test]
fn dirac_is_the_convolution_that_copies() -> Outcome {
    let device = cpu();
    let x = f64s(&device, "x", [2, 4, 5, 6]);
    let geometry = Conv2dGeometry { padding: [1, 1], groups: 2, ..Default::default() };
    let mut w = Tensor::zeros(&device, [4, 2, 3, 3], DType::F64)?;
    init::dirac_(&mut w, 2)?;
    assert_eq!(x.conv2d(&w, None, geometry)?.to_vec::<f64>()?, x.to_vec::<f64>()?);
    assert!(init::dirac_(&mut blank([4, 2], DType::F32), 1).is_err());
    assert!(init::dirac_(&mut blank([4, 2, 3], DType::F32), 3).is_err());
    Ok(())
}

#[test]
fn eye_is_the_layer_that_copies() -> Outcome {
    for dtype in [DType::F64, DType::BF16] {
        let mut w = blank([2, 3], dtype);
        w.fill_(5.0)?;
        init::eye_(&mut w)?;
        let found = w.to_dtype(DType::F64)?.to_vec::<f64>()?;
        assert_eq!(found, [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    }
    assert!(init::eye_(&mut blank([2], DType::F32)).is_err());
    Ok(())
}

#[test]
fn sparse_columns_have_their_zeros() -> Outcome {
    let mut w = blank([10, 30], DType::F32);
    init::sparse_(&mut w, KEY, 0.25, 0.01)?;
    let columns = w.transpose(0, 1)?.to_vec::<f32>()?;
    let places = |column: &[f32]| -> Vec<usize> {
        (0..column.len()).filter(|&row| column[row] == 0.0).collect()
    };
    let all: Vec<Vec<usize>> = columns.chunks(10).map(places).collect();
    assert!(all.iter().all(|zeros| zeros.len() == 3), "{all:?}");
    assert!(all.iter().any(|zeros| *zeros != all[0]));
    Ok(())
}

#[test]
fn what_cannot_be_filled_is_refused() {
    assert!(init::xavier_normal_(&mut blank([3], DType::F32), KEY, 1.0).is_err());
    assert!(init::orthogonal_(&mut blank([3, 3], DType::I64), KEY, 1.0).is_err());
    let mut turned = blank([3, 2], DType::F32).transpose(0, 1).unwrap();
    let error = init::orthogonal_(&mut turned, KEY, 1.0).unwrap_err();
    assert!(error.to_string().contains("orthogonal"), "{error}");
}
