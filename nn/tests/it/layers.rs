//! Shapes, errors and gradients of the layers.

use lowtide_autograd::{Attempt, AutogradError, Pass, check};
use lowtide_nn::models::{SimpleCnn, SimpleCnnShape};
use lowtide_nn::{
    AdaptiveAvgPool2d, AdaptiveMaxPool2d, AvgPool2d, BatchNorm1d, BatchNorm2d, Conv1d, Conv2d,
    ConvTranspose2d, Directions, Dropout, ELU, Flatten, GELU, GroupNorm, Gru, HiddenActivation,
    LayerNorm, LeakyReLU, Linear, Lstm, MaxPool2d, Module, MultiHeadAttention, MultiHeadOptions,
    NnError, NormPlace, Parameter, Parameters, ReLU, RecurrentOptions, Result, RmsNorm, Sequential,
    SiLU, Sigmoid, Softmax, Softplus, Tanh, TransformerEncoder, TransformerEncoderLayer,
    TransformerOptions, Upsample,
};
use lowtide_tensor::{
    AvgPool, Causal, Conv1dGeometry, Conv2dGeometry, ConvTranspose2dGeometry, Corners, Device,
    Interpolation, Pool2dGeometry, Resize, Tensor, TensorError,
};

use crate::common::{KEY, Outcome, bits, cpu, f32s, f64s, weighted_sum, widen};

const CNN: SimpleCnnShape = SimpleCnnShape { image: [2, 5, 4], channels: 3, classes: 4 };

/// A layer with the shape of an input for it and of its output.
type Layer = (Box<dyn Module>, Vec<usize>, Vec<usize>);

/// One of every kind.
fn all(device: &Device) -> Result<Vec<Layer>> {
    let grouped =
        Conv2dGeometry { stride: [2, 1], padding: [1, 0], groups: 2, ..Default::default() };
    let pool = Pool2dGeometry { kernel: [2, 3], stride: [1, 2], padding: [1, 1] };
    let chain = Sequential::new()
        .then(Linear::new(device, KEY.op("0"), 6, 5)?)
        .then(ReLU)
        .then(Linear::without_bias(device, KEY.op("2"), 5, 2)?);
    let conv = |geometry| Conv2d::new(device, KEY, [2, 4], [3, 2], geometry);
    let plain = Conv2dGeometry::default();
    let without_bias = Conv2d::without_bias(device, KEY, [2, 4], [1, 2], plain)?;
    let mut layers: Vec<Layer> = vec![
        (Box::new(Linear::new(device, KEY, 6, 4)?), vec![3, 6], vec![3, 4]),
        (Box::new(Linear::without_bias(device, KEY, 6, 4)?), vec![3, 6], vec![3, 4]),
        (Box::new(conv(plain)?), vec![2, 2, 5, 4], vec![2, 4, 3, 3]),
        (Box::new(conv(grouped)?), vec![2, 2, 5, 4], vec![2, 4, 3, 3]),
        (Box::new(without_bias), vec![1, 2, 2, 3], vec![1, 4, 2, 2]),
        (Box::new(MaxPool2d::square(2)), vec![2, 2, 5, 4], vec![2, 2, 2, 2]),
        (Box::new(MaxPool2d(pool)), vec![2, 2, 5, 4], vec![2, 2, 6, 2]),
        (Box::new(ReLU), vec![2, 3], vec![2, 3]),
        (Box::new(Flatten), vec![2, 3, 4, 5], vec![2, 60]),
        (Box::new(chain), vec![3, 6], vec![3, 2]),
        (Box::new(Sequential::new()), vec![3, 6], vec![3, 6]),
        (Box::new(SimpleCnn::new(device, KEY, CNN)?), vec![2, 2, 5, 4], vec![2, 4]),
    ];
    layers.extend(windows(device)?);
    for (layer, shape) in of_one_shape(device)? {
        layers.push((layer, shape.clone(), shape));
    }
    Ok(layers)
}

/// Convolutions of other kinds, pools and resizing.
fn windows(device: &Device) -> Result<Vec<Layer>> {
    let walked = Conv1dGeometry { stride: 2, padding: 1, dilation: 2, groups: 2 };
    let grouped = ConvTranspose2dGeometry {
        stride: [2, 1],
        padding: [1, 0],
        output_padding: [1, 0],
        groups: 2,
        ..Default::default()
    };
    let plain = ConvTranspose2dGeometry::default();
    let (sequence, image) = (vec![2, 2, 7], vec![2, 2, 5, 4]);
    let padded = Pool2dGeometry { kernel: [2, 3], stride: [1, 2], padding: [1, 1] };
    let mean = AvgPool2d { window: padded, options: AvgPool::default() };
    let smooth = Interpolation::Bilinear(Corners::Centers);
    let resize = Upsample { size: Resize::To([3, 7]), interpolation: smooth };
    let conv1d = Conv1d::new(device, KEY, [2, 4], 3, Conv1dGeometry::default())?;
    let conv1d_walked = Conv1d::without_bias(device, KEY, [2, 4], 2, walked)?;
    let transposed = ConvTranspose2d::new(device, KEY, [2, 4], [3, 2], grouped)?;
    let without_bias = ConvTranspose2d::without_bias(device, KEY, [2, 3], [1, 2], plain)?;
    Ok(vec![
        (Box::new(conv1d), sequence.clone(), vec![2, 4, 5]),
        (Box::new(conv1d_walked), sequence, vec![2, 4, 4]),
        (Box::new(transposed), vec![1, 2, 3, 2], vec![1, 4, 6, 3]),
        (Box::new(without_bias), vec![1, 2, 3, 2], vec![1, 3, 3, 3]),
        (Box::new(AvgPool2d::square(2)), image.clone(), vec![2, 2, 2, 2]),
        (Box::new(mean), image.clone(), vec![2, 2, 6, 2]),
        (Box::new(AdaptiveAvgPool2d([2, 3])), image.clone(), vec![2, 2, 2, 3]),
        (Box::new(AdaptiveMaxPool2d([1, 3])), image.clone(), vec![2, 2, 1, 3]),
        (Box::new(Upsample::by(2.0)), image.clone(), vec![2, 2, 10, 8]),
        (Box::new(resize), image, vec![2, 2, 3, 7]),
    ])
}

/// A layer and the shape of its input.
type Shaped = (Box<dyn Module>, Vec<usize>);

/// Layers whose output has the shape of the input.
fn of_one_shape(device: &Device) -> Result<Vec<Shaped>> {
    let plain = MultiHeadOptions::new(4, 2);
    let grouped = MultiHeadOptions { groups: 1, causal: Causal::UpperLeft, ..plain };
    let attention = |options| MultiHeadAttention::new(device, KEY, options);
    let options = TransformerOptions { hidden: 6, dropout: 0.0, ..TransformerOptions::new(4, 2) };
    let encoder = |norm, activation| {
        let options = TransformerOptions { norm, activation, ..options };
        TransformerEncoderLayer::new(device, KEY, options)
    };
    let lstm = RecurrentOptions { layers: 2, ..RecurrentOptions::new(3, 3) };
    let both = RecurrentOptions { directions: Directions::Both, ..RecurrentOptions::new(4, 2) };
    Ok(vec![
        (Box::new(encoder(NormPlace::After, HiddenActivation::Gelu)?), vec![2, 3, 4]),
        (Box::new(encoder(NormPlace::Before, HiddenActivation::Relu)?), vec![1, 3, 4]),
        (Box::new(TransformerEncoder::new(device, KEY, 2, options)?), vec![1, 2, 4]),
        (Box::new(Lstm::new(device, KEY, lstm)?), vec![2, 4, 3]),
        (Box::new(Lstm::new(device, KEY, both)?), vec![1, 3, 4]),
        (Box::new(Gru::new(device, KEY, lstm)?), vec![2, 4, 3]),
        (Box::new(Gru::new(device, KEY, both)?), vec![1, 3, 4]),
        (Box::new(LayerNorm::new(device, &[3])?), vec![2, 4, 3]),
        (Box::new(LayerNorm::without_bias(device, &[4, 3])?.with_eps(0.1)), vec![2, 4, 3]),
        (Box::new(RmsNorm::new(device, &[3])?), vec![4, 3]),
        (Box::new(GroupNorm::new(device, 2, 4)?), vec![2, 4, 3]),
        (Box::new(BatchNorm1d::new(device, 3)?), vec![4, 3]),
        (Box::new(BatchNorm1d::new(device, 3)?.with_eps(0.1)), vec![2, 3, 4]),
        (Box::new(BatchNorm2d::new(device, 2)?), vec![2, 2, 3, 2]),
        (Box::new(attention(plain)?), vec![2, 3, 4]),
        (Box::new(attention(grouped)?), vec![1, 3, 4]),
        (Box::new(Dropout::new(0.3)?), vec![3, 4]),
        (Box::new(GELU), vec![2, 3]),
        (Box::new(SiLU), vec![2, 3]),
        (Box::new(Tanh), vec![2, 3]),
        (Box::new(Sigmoid), vec![2, 3]),
        (Box::new(Softplus), vec![2, 3]),
        (Box::new(ELU), vec![2, 3]),
        (Box::new(LeakyReLU::default()), vec![2, 3]),
        (Box::new(Softmax(1)), vec![2, 3]),
    ])
}

fn input(device: &Device, shape: &[usize]) -> Tensor {
    let flat = f64s(device, "input", [shape.iter().product()]);
    flat.reshape(shape).expect("the same elements")
}

#[test]
fn outputs_have_the_documented_shapes() -> Outcome {
    let device = cpu();
    for (index, (model, shape, expected)) in all(&device)?.into_iter().enumerate() {
        let x = input(&device, &shape).to_dtype(lowtide_tensor::DType::F32)?;
        for pass in [Pass::eval(), Pass::train(KEY, &Attempt::new())] {
            let y = model.forward(&pass, pass.constant(x.clone()))?;
            assert_eq!(y.shape()[..], expected[..], "layer {index}");
        }
    }
    Ok(())
}

#[test]
fn gradients_of_inputs_agree_with_differences() -> Outcome {
    let device = cpu();
    for (index, (mut model, shape, _)) in all(&device)?.into_iter().enumerate() {
        widen(&mut *model);
        let forward = |pass: &Pass, mut x: Vec<_>| match model.forward(pass, x.remove(0)) {
            Ok(y) => Ok(y),
            Err(NnError::Autograd(error)) => Err(error),
            Err(error) => panic!("layer {index}: {error}"),
        };
        check::gradients(forward, &[input(&device, &shape)])
            .unwrap_or_else(|error| panic!("layer {index}: {error}"));
    }
    Ok(())
}

/// Moves element `at` of the `index`-th parameter by `by`.
fn nudge(model: &mut dyn Module, index: usize, at: usize, by: f64) {
    let mut count = 0;
    model.visit(&mut |_, parameter| {
        if count == index {
            let value = parameter.value().reshape([parameter.value().element_count()]);
            let mut element = value.and_then(|value| value.narrow(0, at, 1)).expect("a view");
            let moved = element.add_scalar(by).expect("memory");
            element.copy_(&moved).expect("not frozen");
        }
        count += 1;
    });
}

/// `Σ y · weight` with that element moved.
fn moved(model: &mut dyn Module, x: &Tensor, index: usize, at: usize, by: f64) -> Result<f64> {
    nudge(model, index, at, by);
    let sum = weighted_sum(model, &Pass::no_grad(KEY), x.clone())?;
    nudge(model, index, at, -by);
    Ok(sum.value().item::<f64>()?)
}

#[test]
fn gradients_of_parameters_agree_with_differences() -> Outcome {
    // Step and tolerances of torch.autograd.gradcheck.
    const STEP: f64 = 1e-6;
    let device = cpu();
    let mut checked = 0;
    for (layer, (mut model, shape, _)) in all(&device)?.into_iter().enumerate() {
        widen(&mut *model);
        let x = input(&device, &shape);
        let attempt = Attempt::new();
        let pass = Pass::train(KEY, &attempt);
        let mut ids = Vec::new();
        model.visit(&mut |name, parameter| ids.push((name.to_owned(), parameter.id())));
        if ids.is_empty() {
            continue;
        }
        pass.backward(weighted_sum(&*model, &pass, x.clone())?)?;
        let gradients = attempt.into_gradients();
        assert_eq!(gradients.len(), ids.len(), "layer {layer}");
        for (index, (name, id)) in ids.into_iter().enumerate() {
            let gradient = gradients.get(id).expect("every parameter counts").to_vec::<f64>()?;
            for (at, &found) in gradient.iter().enumerate() {
                let above = moved(&mut *model, &x, index, at, STEP)?;
                let below = moved(&mut *model, &x, index, at, -STEP)?;
                let numeric = (above - below) / (2.0 * STEP);
                let allowed = 1e-5 + 1e-3 * numeric.abs();
                let error = (found - numeric).abs();
                assert!(error <= allowed, "layer {layer} {name}[{at}]: {found}, {numeric}");
                checked += 1;
            }
        }
    }
    assert!(checked > 200, "only {checked} elements");
    Ok(())
}

fn shape_error(result: Result<lowtide_autograd::Var>) -> (&'static str, Vec<usize>, Vec<usize>) {
    match result.err().expect("shapes that do not fit") {
        NnError::Autograd(AutogradError::Tensor(TensorError::Shape { op, left, right })) => {
            (op, left.to_vec(), right.to_vec())
        }
        error => panic!("{error}"),
    }
}

#[test]
fn inputs_that_do_not_fit_are_errors_naming_the_operation() -> Outcome {
    let device = cpu();
    let pass = Pass::eval();
    let x = |shape: &[usize]| pass.constant(input(&device, shape));

    let mut linear = Linear::new(&device, KEY, 6, 4)?;
    widen(&mut linear);
    for wrong in [&[3, 5][..], &[5], &[2, 3, 5], &[]] {
        let (op, left, _) = shape_error(linear.forward(&pass, x(wrong)));
        assert_eq!((op, &left[..]), ("linear", wrong));
    }

    let mut conv = Conv2d::new(&device, KEY, [2, 4], [3, 3], Conv2dGeometry::default())?;
    widen(&mut conv);
    // Channels, rank, and a kernel larger than the image.
    for wrong in [&[1, 3, 5, 5][..], &[2, 5, 5], &[1, 2, 2, 5]] {
        let (op, left, right) = shape_error(conv.forward(&pass, x(wrong)));
        assert_eq!((op, &left[..], &right[..]), ("conv2d", wrong, &[4, 2, 3, 3][..]));
    }

    let (op, left, _) = shape_error(MaxPool2d::square(3).forward(&pass, x(&[1, 1, 2, 5])));
    assert_eq!((op, &left[..]), ("max_pool2d", &[1, 1, 2, 5][..]));

    let mut cnn = SimpleCnn::new(&device, KEY, CNN)?;
    widen(&mut cnn);
    let (op, left, right) = shape_error(cnn.forward(&pass, x(&[1, 2, 8, 8])));
    assert_eq!((op, left, right), ("linear", vec![1, 48], vec![12, 4]));

    let error = Flatten.forward(&pass, x(&[])).err().expect("nothing to flatten");
    let NnError::Autograd(AutogradError::Tensor(TensorError::Index { op: "flatten", .. })) = error
    else {
        panic!("{error}");
    };
    Ok(())
}

#[test]
fn another_element_type_is_an_error_naming_both() -> Outcome {
    let device = cpu();
    let linear = Linear::new(&device, KEY, 6, 4)?;
    let pass = Pass::eval();
    let error = linear.forward(&pass, pass.constant(input(&device, &[3, 6]))).err().unwrap();
    let text = error.to_string();
    assert!(text.contains("linear") && text.contains("f32") && text.contains("f64"), "{text}");
    Ok(())
}

#[test]
fn a_chain_is_its_layers_one_after_the_other() -> Outcome {
    let device = cpu();
    let (first, second) =
        (Linear::new(&device, KEY.op("a"), 6, 5)?, Linear::new(&device, KEY.op("b"), 5, 2)?);
    let chain = Sequential::new().then(first.clone()).then(ReLU).then(second.clone());
    let pass = Pass::eval();
    let x = || pass.constant(f32s(&device, "x", [3, 6]));
    let by_hand = second.forward(&pass, first.forward(&pass, x())?.relu()?)?;
    assert_eq!(bits(chain.forward(&pass, x())?.value()), bits(by_hand.value()));
    Ok(())
}

/// A module that says it couples samples, as batch normalisation would.
#[derive(Clone)]
struct Coupled;

impl Parameters for Coupled {}

impl Module for Coupled {
    fn forward(&self, _: &Pass, input: lowtide_autograd::Var) -> Result<lowtide_autograd::Var> {
        Ok(input)
    }

    fn couples_samples(&self) -> bool {
        true
    }
}

#[test]
fn a_chain_couples_samples_if_a_layer_does() {
    assert!(!Sequential::new().then(ReLU).couples_samples());
    let inner = Sequential::new().then(ReLU).then(Coupled);
    assert!(Sequential::new().then(Flatten).then(inner).couples_samples());
}

#[test]
fn a_layer_trains_the_parameters_it_was_given() -> Outcome {
    let device = cpu();
    let mut linear = Linear::without_bias(&device, KEY, 2, 1)?;
    let weight = Parameter::new(Tensor::from_slice(&device, [1, 2], &[2.0_f32, -1.0])?);
    linear.visit(&mut |_, parameter| *parameter = weight.clone());
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let x = pass.constant(Tensor::from_slice(&device, [1, 2], &[3.0_f32, 5.0])?);
    let y = linear.forward(&pass, x)?;
    assert_eq!(y.value().item::<f32>()?, 1.0);
    pass.backward(y)?;
    let gradients = attempt.into_gradients();
    assert_eq!(gradients.get(weight.id()).unwrap().to_vec::<f32>()?, [3.0, 5.0]);
    Ok(())
}

#[test]
fn only_normalisation_over_the_batch_couples_samples() -> Outcome {
    let device = cpu();
    for (index, (mut model, ..)) in all(&device)?.into_iter().enumerate() {
        let mut buffers = 0;
        model.visit_buffers(&mut |_, _| buffers += 1);
        assert_eq!(model.couples_samples(), buffers > 0, "layer {index}");
    }
    Ok(())
}
