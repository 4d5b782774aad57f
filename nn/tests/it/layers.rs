//! Shapes, errors and gradients of the layers.

use lowtide_autograd::{Attempt, AutogradError, Pass, check};
use lowtide_nn::models::SimpleCnn;
use lowtide_nn::{
    BatchNorm1d, Conv2d, Flatten, Hardtanh, Linear, MaxPool2d, Module, MultiHeadAttention,
    MultiHeadOptions, NnError, NnResult as Result, PReLU, Parameter, Parameters, ReLU, Sequential,
    Softshrink,
};
use lowtide_tensor::{Conv2dGeometry, Device, Tensor, TensorError};

use crate::common::{KEY, Outcome, bits, cpu, f32s, f64s, weighted_sum, widen};
use crate::layer_list::{CNN, Layer, all};

fn input(device: &Device, shape: &[usize]) -> Tensor {
    let flat = f64s(device, "input", [shape.iter().product()]);
    flat.reshape(shape).expect("the same elements")
}

#[test]
fn outputs_have_the_documented_shapes() -> Outcome {
    let device = cpu();
    for Layer { kind, module, input: shape, output } in all(&device)? {
        let x = input(&device, &shape).to_dtype(lowtide_tensor::DType::F32)?;
        for pass in [Pass::eval(), Pass::train(KEY, &Attempt::new())] {
            let y = module.forward(&pass, pass.constant(x.clone()))?;
            assert_eq!(y.shape()[..], output[..], "{kind}");
        }
    }
    Ok(())
}

/// The layout of an input in its storage.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lies {
    Contiguous,
    /// Every second element of a larger storage, from the second element on.
    Strided,
    /// The dimensions in reverse order.
    Reversed,
    /// A single slice, broadcast along the first dimension.
    Broadcast,
}

fn lying(device: &Device, shape: &[usize], lies: Lies) -> lowtide_tensor::TensorResult<Tensor> {
    let (x, rank) = (input(device, shape), shape.len());
    match lies {
        Lies::Contiguous => Ok(x),
        Lies::Strided => {
            let storage = Tensor::full(device, &[shape, &[2]].concat()[..], x.dtype(), 9.0)?;
            let mut part = storage.narrow(rank, 1, 1)?;
            part.copy_(&x.unsqueeze(rank)?)?;
            part.squeeze(rank)
        }
        Lies::Reversed => {
            let reverse: Vec<usize> = (0..rank).rev().collect();
            x.permute(&reverse)?.copied()?.permute(&reverse)
        }
        Lies::Broadcast => {
            let axis = shape.iter().position(|&len| len > 1).expect("a longer dimension");
            x.narrow(axis, 0, 1)?.expand(shape)
        }
    }
}

#[test]
fn gradients_of_inputs_agree_with_differences_however_they_lie() -> Outcome {
    let device = cpu();
    let mut wrong = Vec::new();
    for lies in [Lies::Contiguous, Lies::Strided, Lies::Reversed, Lies::Broadcast] {
        for Layer { kind, mut module, input: shape, .. } in all(&device)? {
            widen(&mut *module);
            let forward = |pass: &Pass, mut x: Vec<_>| {
                module.forward(pass, x.remove(0)).map_err(NnError::into_autograd)
            };
            let x = lying(&device, &shape, lies)?;
            assert_eq!(x.layout().is_contiguous(), lies == Lies::Contiguous, "{shape:?}");
            if let Err(error) = check::gradients(forward, &[x]) {
                wrong.push(format!("{kind} of {shape:?}, {lies:?}: {error}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Adds `by` to element `at` of the parameter `index`.
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

/// `Σ y · weight` after [`nudge`].
fn moved(model: &mut dyn Module, x: &Tensor, index: usize, at: usize, by: f64) -> Result<f64> {
    nudge(model, index, at, by);
    let sum = weighted_sum(model, &Pass::no_grad(KEY), x.clone())?;
    nudge(model, index, at, -by);
    Ok(sum.value().item::<f64>()?)
}

#[test]
fn gradients_of_parameters_agree_with_differences() -> Outcome {
    // The step and the tolerances of torch.autograd.gradcheck.
    const STEP: f64 = 1e-6;
    let device = cpu();
    let mut checked = 0;
    for Layer { kind: layer, module: mut model, input: shape, .. } in all(&device)? {
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
        assert_eq!(gradients.len(), ids.len(), "{layer}");
        for (index, (name, id)) in ids.into_iter().enumerate() {
            let gradient = gradients.get(id).expect("every parameter counts").to_vec::<f64>()?;
            for (at, &found) in gradient.iter().enumerate() {
                let above = moved(&mut *model, &x, index, at, STEP)?;
                let below = moved(&mut *model, &x, index, at, -STEP)?;
                let numeric = (above - below) / (2.0 * STEP);
                let allowed = 1e-5 + 1e-3 * numeric.abs();
                let error = (found - numeric).abs();
                assert!(error <= allowed, "{layer} {name}[{at}]: {found}, {numeric}");
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
    // A wrong number of channels, a wrong rank, and a kernel larger than the image.
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

/// The outputs for the samples of `x` in training, `part` samples at a time; and true if the pass
/// couples samples.
fn in_training(module: &dyn Module, x: &Tensor, part: usize) -> Result<(Vec<f32>, bool)> {
    let (attempt, mut values, mut couples) = (Attempt::new(), Vec::new(), false);
    for first in (0..x.shape()[0]).step_by(part) {
        let pass = Pass::train(KEY, &attempt).with_first_sample(first as u64);
        let y = module.forward(&pass, pass.constant(x.narrow(0, first, part)?))?;
        values.extend(y.value().to_vec::<f32>()?);
        couples |= pass.coupling().is_some();
    }
    Ok((values, couples))
}

#[test]
fn samples_alone_give_what_they_give_together_unless_the_pass_calls_them_coupled() -> Outcome {
    let device = cpu();
    let mut seen = [0; 2];
    for Layer { kind, module, input: shape, .. } in all(&device)? {
        let x = input(&device, &shape).to_dtype(lowtide_tensor::DType::F32)?;
        let (together, couples) = in_training(&*module, &x, shape[0])?;
        let is_coupling = kind.starts_with("BatchNorm") || kind == "SpectralNorm";
        assert_eq!(couples, is_coupling, "{kind}: only what follows batches couples");
        seen[usize::from(couples)] += 1;
        // Softmin in the list runs over axis 0, which is the axis of the samples.
        if !couples && kind != "Softmin" {
            let (alone, _) = in_training(&*module, &x, 1)?;
            let differs = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-5 * b.abs().max(1.0);
            assert!(!alone.iter().zip(&together).any(differs), "{kind}: {alone:?} {together:?}");
        }
    }
    assert!(seen[0] > 30 && seen[1] > 2, "{seen:?}");
    Ok(())
}

#[test]
fn dropout_in_attention_is_that_of_the_sample_in_the_logical_batch() -> Outcome {
    let device = cpu();
    let options = MultiHeadOptions { dropout: 0.5, ..MultiHeadOptions::new(4, 2) };
    let attention = MultiHeadAttention::new(&device, KEY, options)?;
    let x = f32s(&device, "x", [4, 5, 4]);
    let (together, couples) = in_training(&attention, &x, 4)?;
    assert!(!couples);
    let (alone, _) = in_training(&attention, &x, 1)?;
    let differs = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-5;
    assert!(!alone.iter().zip(&together).any(differs), "{alone:?} {together:?}");
    let pass = Pass::eval();
    let kept = attention.forward(&pass, pass.constant(x))?;
    assert_ne!(kept.value().to_vec::<f32>()?, together, "nothing was dropped");
    Ok(())
}

#[test]
fn activations_refuse_numbers_that_cannot_be_meant() {
    let device = cpu();
    let refused = |module: &dyn Module, name: &str| {
        let pass = Pass::eval();
        let outcome = module.forward(&pass, pass.constant(f64s(&device, "input", [3])));
        let error = outcome.err().expect("an error");
        assert!(matches!(&error, NnError::Option { name: found, .. } if *found == name), "{error}");
    };
    refused(&Hardtanh([0.5, -0.5]), "max_val");
    refused(&Hardtanh([f64::NAN, 1.0]), "max_val");
    refused(&Softshrink(-0.5), "lambd");
}

#[test]
fn batch_norm_refuses_an_eps_below_zero() -> Outcome {
    let device = cpu();
    for eps in [-1.0, f64::NAN] {
        let layer = BatchNorm1d::new(&device, 3)?.with_eps(eps);
        for pass in [Pass::eval(), Pass::train(KEY, &Attempt::new())] {
            let x = input(&device, &[2, 3]).to_dtype(lowtide_tensor::DType::F32)?;
            let error = layer.forward(&pass, pass.constant(x)).err().expect("an error");
            assert!(matches!(error, NnError::Option { name: "eps", .. }), "{error}");
        }
    }
    Ok(())
}

#[test]
fn prelu_with_one_slope_keeps_the_shape_of_its_input() -> Outcome {
    let device = cpu();
    let layer = PReLU::new(&device, 1)?;
    for shape in [&[][..], &[3], &[2, 3], &[2, 3, 4]] {
        let pass = Pass::eval();
        let x = input(&device, shape).to_dtype(lowtide_tensor::DType::F32)?;
        assert_eq!(layer.forward(&pass, pass.constant(x))?.shape()[..], *shape);
    }
    Ok(())
}
