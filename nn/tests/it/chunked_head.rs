//! The output layer and its cross-entropy in chunks, against logits as a whole tensor.

use lowtide_autograd::{Attempt, AutogradError, Pass};
use lowtide_nn::models::Gpt;
use lowtide_nn::{
    CrossEntropyOptions, LinearCrossEntropyOptions, Module, NnError, NnResult as Result,
    Parameters, cross_entropy_with, linear_cross_entropy,
};
use lowtide_tensor::{DType, Device, SimSpec, Tensor, TensorError};

use crate::common::{KEY, Outcome, cpu, f64s, widen};
use crate::zoo::{GPT, fill};

/// Sum, count, and the gradients in the order of the parameters.
type Found = (f64, f64, Vec<Vec<f64>>);

#[derive(Clone, Copy, PartialEq)]
enum Head {
    Whole,
    Chunked,
}

fn run(
    device: &Device,
    model: &mut Gpt,
    head: Head,
    options: LinearCrossEntropyOptions,
) -> Result<Found> {
    let tokens = Tensor::from_slice(device, [2, 3], &[0_i64, 3, 10, 4, 2, 7])?;
    let labels = Tensor::from_slice(device, [2, 3], &[5_i64, -100, 10, 3, 0, 2])?;
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let tokens = pass.constant(tokens);
    let loss = if head == Head::Chunked {
        model.loss(&pass, tokens, &labels, options)?
    } else {
        let LinearCrossEntropyOptions { ignore_index, label_smoothing } = options;
        let options = CrossEntropyOptions { ignore_index, label_smoothing, weight: None };
        let logits = model.forward(&pass, tokens)?.flatten(0..2)?;
        cross_entropy_with(logits, &labels.reshape([6])?, options)?
    };
    let (sum, count) = (loss.sum.value().item::<f64>()?, loss.count.item::<f64>()?);
    pass.backward(loss.mean()?)?;
    let gradients = attempt.into_gradients();
    let mut all = Vec::new();
    model.visit(&mut |name, parameter| {
        let gradient = gradients.get(parameter.id()).unwrap_or_else(|| panic!("{name}"));
        all.push(gradient.to_vec::<f64>().expect("f64"));
    });
    Ok((sum, count, all))
}

#[test]
fn a_language_models_loss_is_that_of_its_logits() -> Outcome {
    let device = cpu();
    let plain = LinearCrossEntropyOptions::default();
    let smooth = LinearCrossEntropyOptions { label_smoothing: 0.1, ignore_index: 3 };
    for mut model in [Gpt::new(&device, KEY, GPT)?, Gpt::gpt2(&device, KEY, GPT)?] {
        fill(&mut model);
        widen(&mut model);
        // Both options ignore the label -100. Below, `smooth` alone ignores another label instead.
        for options in [plain, LinearCrossEntropyOptions { ignore_index: -100, ..smooth }] {
            let expected = run(&device, &mut model, Head::Whole, options)?;
            let found = run(&device, &mut model, Head::Chunked, options)?;
            assert_eq!((found.1, expected.1), (5.0, 5.0));
            assert!((found.0 - expected.0).abs() <= 1e-12, "{} {}", found.0, expected.0);
            assert_eq!(found.2.len(), expected.2.len());
            for (found, expected) in found.2.iter().flatten().zip(expected.2.iter().flatten()) {
                assert!((found - expected).abs() <= 1e-12, "{found} {expected}");
            }
        }
        // The option `ignore_index` reaches the kernel: the label -100 is refused.
        let other = run(&device, &mut model, Head::Chunked, smooth);
        assert!(matches!(
            other,
            Err(NnError::Autograd(AutogradError::Tensor(TensorError::Label { .. })))
        ));
    }
    Ok(())
}

#[test]
fn a_layer_with_a_bias_takes_inputs_of_any_rank() -> Outcome {
    let device = cpu();
    let labels = Tensor::from_slice(&device, [2, 3], &[4_i64, 0, 1, -100, 2, 3])?;
    let (w, b) = (f64s(&device, "w", [5, 4]), f64s(&device, "b", [5]));
    let pass = Pass::eval();
    let x = f64s(&device, "x", [2, 3, 4]);
    let options = LinearCrossEntropyOptions::default();
    let constant = |tensor: &Tensor| pass.constant(tensor.clone());
    let chunked = |x, labels| {
        linear_cross_entropy(constant(x), constant(&w), Some(constant(&b)), labels, options)
    };
    let found = chunked(&x, &labels)?;
    let logits = constant(&x).linear(constant(&w), Some(constant(&b)))?.flatten(0..2)?;
    let expected = cross_entropy_with(logits, &labels.reshape([6])?, Default::default())?;
    let values = [&found, &expected].map(|loss| loss.sum.value().item::<f64>());
    let [found, expected] = [values[0].clone()?, values[1].clone()?];
    assert!((found - expected).abs() <= 1e-12, "{found} {expected}");

    let error = chunked(&x, &labels.reshape([3, 2])?).err().expect("other positions");
    let NnError::Autograd(AutogradError::Tensor(TensorError::Shape { op, left, right })) = error
    else {
        panic!("{error}");
    };
    assert_eq!((op, &left[..], &right[..]), ("linear_cross_entropy", &[2, 3, 4][..], &[3, 2][..]));
    Ok(())
}

#[test]
fn logits_are_never_there_as_a_whole() -> Outcome {
    let shape = lowtide_nn::models::GptShape { vocabulary: 10_000, context: 256, ..GPT };
    let device = Device::sim(SimSpec::like_this_machine(1 << 30))?;
    let model = Gpt::gpt2(&device, KEY, shape)?;
    let tokens = Tensor::zeros(&device, [4, 256], DType::I64)?;
    let logits_bytes = 4 * 256 * 10_000 * 4;
    let peak = |head: Head| -> Result<usize> {
        let memory = device.allocator();
        memory.reset_peaks();
        let before = memory.statistics().requested.current_bytes;
        let attempt = Attempt::new();
        let pass = Pass::train(KEY, &attempt);
        let x = pass.constant(tokens.clone());
        let loss = if head == Head::Chunked {
            model.loss(&pass, x, &tokens, LinearCrossEntropyOptions::default())?
        } else {
            let logits = model.forward(&pass, x)?.flatten(0..2)?;
            cross_entropy_with(logits, &tokens.reshape([1024])?, Default::default())?
        };
        pass.backward(loss.mean()?)?;
        Ok(memory.statistics().requested.peak_bytes - before)
    };
    let (whole, chunked) = (peak(Head::Whole)?, peak(Head::Chunked)?);
    assert!(whole > logits_bytes && chunked < logits_bytes / 4, "{whole} {chunked}");
    Ok(())
}
