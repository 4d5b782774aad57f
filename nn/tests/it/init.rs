//! Initial values are PyTorch's distribution and a function of the key.

use lowtide_nn::init::default_bound;
use lowtide_nn::models::{SimpleCnn, SimpleCnnShape};
use lowtide_nn::{Conv2d, Linear, Parameters, Result};
use lowtide_tensor::{Conv2dGeometry, Device, RandomKey};

use crate::common::{KEY, Outcome, all_bits, cpu};

/// Layers with their fan-in.
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
            // Of n values none is in the outer tenth with probability 0.95^n, below 4% for 64.
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
            // Of U(-b, b): variance b²/3, and the variance of x² is b⁴/5 - b⁴/9 = 4b⁴/45.
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
    // The stream is the parameter's path: the same layer at two places starts differently.
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
