//! Spectral normalisation against PyTorch 2.15's `torch.nn.utils.parametrizations.spectral_norm`.

use lowtide_autograd::{Attempt, Pass, SavedPolicy};
use lowtide_nn::{
    Buffer, ConvTranspose1d, Linear, Module, NnResult, Parameters, Segment, Sequential,
    SpectralNorm, SpectralNormOptions, commit_buffers,
};
use lowtide_tensor::{ConvTranspose1dGeometry, Device, Tensor};

use crate::common::{KEY, Outcome, cpu, names, widen};

/// Numbers that are exact in both libraries.
fn numbers(device: &Device, shape: &[usize], of: impl Fn(usize) -> f64) -> Tensor {
    let values: Vec<f64> = (0..shape.iter().product()).map(of).collect();
    Tensor::from_slice(device, shape, &values).expect("memory for a small tensor")
}

/// The layer with counted numbers as weight, no bias, and vectors of equal elements.
fn filled<M: Module>(mut layer: M) -> M {
    widen(&mut layer);
    layer.visit(&mut |name, parameter| {
        let value = parameter.value().clone();
        let of = |i: usize| if name == "bias" { 0.0 } else { ((i * 7 % 11) as f64 - 5.0) / 4.0 };
        *parameter.value_mut() = numbers(value.device(), value.shape(), of);
    });
    layer.visit_buffers(&mut |_, buffer: &mut Buffer| {
        let value = buffer.value().clone();
        let equal = 1.0 / (value.element_count() as f64).sqrt();
        *buffer.value_mut() = numbers(value.device(), value.shape(), |_| equal);
    });
    layer
}

fn near(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-12, "{what}: {found}, not {expected}");
    }
}

/// PyTorch's results: the sums of the outputs of two steps, the gradient of the weight, both
/// vectors, and the sum of squares in evaluation.
struct Expected<'a> {
    sums: [f64; 2],
    gradient: &'a [f64],
    vectors: [&'a [f64]; 2],
    squares: f64,
}

fn check_steps(mut layer: impl Module, x: &Tensor, expected: &Expected<'_>) -> Outcome {
    let mut gradient = Vec::new();
    for sum in expected.sums {
        let attempt = Attempt::new();
        let pass = Pass::train(KEY, &attempt);
        let y = layer.forward(&pass, pass.constant(x.clone()))?;
        near(&[y.value().sum_all()?.to_vec::<f64>()?[0]], &[sum], "sum");
        let dy = numbers(x.device(), y.shape(), |i| (i % 3) as f64 - 1.0);
        pass.backward_from(vec![(y, dy)])?;
        let updates = attempt.take_buffer_updates();
        commit_buffers(&mut layer, &updates)?;
        let gradients = attempt.into_gradients();
        layer.visit(&mut |name, parameter| {
            if name.ends_with("original") {
                let found = gradients.get(parameter.id()).expect("a gradient");
                gradient = found.contiguous().and_then(|x| x.to_vec()).expect("f64");
            }
        });
    }
    near(&gradient, expected.gradient, "gradient");
    let mut vectors = expected.vectors.into_iter();
    layer.visit_buffers(&mut |name, buffer| {
        let found = buffer.value().to_vec::<f64>().expect("f64");
        near(&found, vectors.next().expect("two vectors"), name);
    });
    let pass = Pass::eval();
    let y = layer.forward(&pass, pass.constant(x.clone()))?;
    let squares = y.value().mul(y.value())?.sum_all()?;
    near(&squares.to_vec::<f64>()?, &[expected.squares], "squares");
    Ok(())
}

#[test]
fn steps_are_those_of_pytorch() -> Outcome {
    let device = cpu();
    let x = |shape: &[usize]| numbers(&device, shape, |i| ((i * 5 % 7) as f64 - 3.0) / 2.0);
    let linear = SpectralNorm::new(Linear::new(&device, KEY, 3, 4)?, KEY)?;
    let expected = Expected {
        sums: [-3.6415585818588023, -2.451232744038916],
        gradient: &[
            0.2813994903819828,
            -0.42211001374596957,
            0.06477795424741212,
            -0.25306787139158904,
            0.7115956298725257,
            0.21719243893997375,
            -0.1059235729304635,
            -0.27624139714969964,
            -0.27134016479806694,
            0.795446185234944,
            -0.5098529644676429,
            -0.0056473088318256745,
        ],
        vectors: [
            &[-0.8508634127242124, 0.4494304180030454, 0.2618041269920653, 0.07417783598108522],
            &[0.9768752251024869, -0.1667434410057025, -0.1338335513335243],
        ],
        squares: 5.653006937907222,
    };
    check_steps(filled(linear), &x(&[2, 3]), &expected)?;
    let conv = ConvTranspose1d::new(&device, KEY, [2, 3], 2, ConvTranspose1dGeometry::default())?;
    let outputs = SpectralNormOptions { axis: 1, ..SpectralNormOptions::default() };
    let expected = Expected {
        sums: [0.4087422389693478, 0.339899575165284],
        gradient: &[
            1.2769736082627752,
            0.2175694226642224,
            -1.3065702244254218,
            0.6753587939486239,
            0.15443045232897235,
            -1.0972316942626925,
            -0.20435041184916644,
            0.24035028095195904,
            -0.1833871939115168,
            -0.6399946027548266,
            0.40702891061128105,
            0.2150930334198449,
        ],
        vectors: [
            &[0.33189177415250526, 0.6445990526892588, -0.6887233926054878],
            &[-0.4121146806838298, 0.6744682775115631, -0.06368649864998002, 0.6092602584160205],
        ],
        squares: 8.286191781445817,
    };
    check_steps(filled(SpectralNorm::with(conv, KEY, outputs)?), &x(&[1, 2, 4]), &expected)
}

#[test]
fn largest_singular_value_becomes_1_and_names_are_pytorchs() -> Outcome {
    let device = cpu();
    let mut layer = SpectralNorm::new(Linear::new(&device, KEY, 2, 2)?, KEY)?;
    assert_eq!(names(&mut layer), ["bias", "parametrizations.weight.original"]);
    let mut buffers = Vec::new();
    layer.visit_buffers(&mut |name, _| buffers.push(name.to_owned()));
    assert_eq!(buffers, ["parametrizations.weight.0._u", "parametrizations.weight.0._v"]);
    layer.visit(&mut |name, parameter| {
        let values: &[f32] = if name == "bias" { &[0.0, 0.0] } else { &[3.0, 0.0, 0.0, 0.5] };
        let shape = *parameter.value().shape();
        *parameter.value_mut() = Tensor::from_slice(&device, shape, values).expect("room");
    });
    for _ in 0..20 {
        let attempt = Attempt::new();
        let pass = Pass::train(KEY, &attempt);
        layer
            .forward(&pass, pass.constant(Tensor::from_slice(&device, [1, 2], &[1.0f32, 1.0])?))?;
        commit_buffers(&mut layer, &attempt.take_buffer_updates())?;
    }
    let pass = Pass::eval();
    let x = pass.constant(Tensor::from_slice(&device, [1, 2], &[1.0f32, 6.0])?);
    let y = layer.forward(&pass, x)?.value().to_vec::<f32>()?;
    assert!((y[0] - 1.0).abs() < 1e-5 && (y[1] - 1.0).abs() < 1e-5, "{y:?}");
    Ok(())
}

#[test]
fn options_that_say_nothing_are_errors() -> Outcome {
    let device = cpu();
    for options in [
        SpectralNormOptions { axis: 2, ..SpectralNormOptions::default() },
        SpectralNormOptions { iterations: 0, ..SpectralNormOptions::default() },
        SpectralNormOptions { eps: -1.0, ..SpectralNormOptions::default() },
    ] {
        let layer = Linear::new(&device, KEY, 3, 4)?;
        assert!(SpectralNorm::with(layer, KEY, options).is_err(), "{options:?}");
    }
    Ok(())
}

/// Gradients and buffers of a segment that runs one layer twice. The vectors start far from the
/// result.
fn bits_under(policy: SavedPolicy) -> NnResult<Vec<Vec<u8>>> {
    let device = cpu();
    let layer = filled(SpectralNorm::new(Linear::new(&device, KEY, 3, 3)?, KEY)?);
    let mut block = Segment::new(Sequential::new().then(layer.clone()).then(layer));
    block.set_policy(Some(policy));
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let x = numbers(&device, &[2, 3], |i| i as f64 - 2.5);
    let y = block.forward(&pass, pass.constant(x))?;
    pass.backward(y.clone().mul(y)?.sum_all()?)?;
    let (gradients, updates) = attempt.into_parts();
    let tensors = gradients.iter().chain(updates.iter().map(|(_, value)| value));
    tensors.map(|tensor| Ok(tensor.to_bytes()?)).collect()
}

#[test]
fn layer_that_is_computed_again_divides_by_the_same_number() -> Outcome {
    let kept = bits_under(SavedPolicy::Keep)?;
    // Gradients of weight and bias, and both vectors.
    assert_eq!(kept.len(), 4);
    assert_eq!(bits_under(SavedPolicy::Recompute)?, kept);
    Ok(())
}
