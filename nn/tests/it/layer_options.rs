//! What the options of layers change, against the layer that has none.

use lowtide_autograd::{Attempt, Pass, Var};
use lowtide_nn::{
    BatchNorm2d, Conv1d, Conv2d, Embedding, Gru, Lstm, Module, NnError, Parameters,
    RecurrentOptions, Rnn, RnnActivation, commit_buffers,
};
use lowtide_tensor::{Conv1dGeometry, Conv2dGeometry, DType, PadMode, Tensor, TensorError};

use crate::common::{KEY, Outcome, cpu, f32s, names};

fn numbers(y: &Var) -> Vec<f32> {
    y.value().contiguous().expect("memory").to_vec::<f32>().expect("f32")
}

#[test]
fn a_batch_without_samples_leaves_running_statistics_as_they_are() -> Outcome {
    let device = cpu();
    for mut layer in [BatchNorm2d::new(&device, 3)?, BatchNorm2d::without_parameters(&device, 3)?] {
        let attempt = Attempt::new();
        let pass = Pass::train(KEY, &attempt);
        let empty = Tensor::zeros(&device, [0, 3, 2, 2], DType::F32)?;
        let y = layer.forward(&pass, pass.constant(empty))?;
        assert_eq!(y.shape()[..], [0, 3, 2, 2]);
        let (_, buffers) = attempt.into_parts();
        commit_buffers(&mut layer, &buffers)?;
        let mut found = Vec::new();
        layer.visit_buffers(&mut |_, buffer| {
            let value = buffer.value().to_dtype(DType::F32).expect("memory");
            found.push(value.to_vec::<f32>().expect("f32"));
        });
        assert_eq!(found, [vec![0.0; 3], vec![1.0; 3], vec![1.0]]);
    }
    Ok(())
}

#[test]
fn padding_modes_are_pads_before_the_convolution() -> Outcome {
    let (device, pass) = (cpu(), Pass::eval());
    let geometry = Conv2dGeometry { padding: [1, 2], ..Default::default() };
    let bare = Conv2d::new(&device, KEY, [2, 3], [3, 2], Conv2dGeometry::default())?;
    let x = pass.constant(f32s(&device, "image", [2, 2, 4, 5]));
    for mode in [PadMode::Reflect, PadMode::Replicate, PadMode::Circular, PadMode::Constant(2.0)] {
        let layer = Conv2d::new(&device, KEY, [2, 3], [3, 2], geometry)?.with_padding_mode(mode);
        let y = layer.forward(&pass, x.clone())?;
        let padded = x.clone().pad(&[[1, 1], [2, 2]], mode)?;
        assert_eq!(numbers(&y), numbers(&bare.forward(&pass, padded)?), "{mode:?}");
    }
    Ok(())
}

#[test]
fn same_padding_keeps_the_size_and_puts_more_behind() -> Outcome {
    let (device, pass) = (cpu(), Pass::eval());
    let x = pass.constant(f32s(&device, "line", [2, 2, 7]));
    for (kernel, dilation) in [(1, 1), (2, 1), (3, 1), (4, 1), (2, 3), (3, 2)] {
        let geometry = Conv1dGeometry { dilation, ..Default::default() };
        let layer = || Conv1d::new(&device, KEY, [2, 3], kernel, geometry);
        let y = layer()?.with_same_padding()?.forward(&pass, x.clone())?;
        assert_eq!(y.shape()[..], [2, 3, 7]);
        let total = dilation * (kernel - 1);
        let amounts = [[total / 2, total - total / 2]];
        let padded = x.clone().pad(&amounts, PadMode::Constant(0.0))?;
        assert_eq!(numbers(&y), numbers(&layer()?.forward(&pass, padded)?), "{kernel} {dilation}");
    }
    let strided = Conv1dGeometry { stride: 2, ..Default::default() };
    let error = Conv1d::new(&device, KEY, [2, 3], 3, strided)?.with_same_padding().err();
    assert!(matches!(error, Some(NnError::Option { name: "stride", .. })), "{error:?}");
    Ok(())
}

#[test]
fn a_row_for_padding_is_zeros_and_has_no_gradient() -> Outcome {
    let device = cpu();
    let mut layer = Embedding::new(&device, KEY, 4, 2)?.with_padding(1)?;
    let index = Tensor::from_slice(&device, [5], &[1_i64, 0, 1, 3, 0])?;
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let y = layer.forward(&pass, pass.constant(index))?;
    assert_eq!(numbers(&y)[..2], [0.0, 0.0]);
    assert_ne!(numbers(&y)[2..4], [0.0, 0.0]);
    pass.backward(y.sum_all()?)?;
    let gradients = attempt.into_gradients();
    let mut found = Vec::new();
    layer.visit(&mut |_, parameter| {
        let gradient = gradients.get(parameter.id()).expect("a gradient");
        found = gradient.to_vec::<f32>().expect("f32");
    });
    assert_eq!(found, [2.0, 2.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]);
    let error = Embedding::new(&device, KEY, 4, 2)?.with_padding(4).err();
    let is_index = matches!(
        error,
        Some(NnError::Autograd(lowtide_autograd::AutogradError::Tensor(TensorError::Index {
            index: 4,
            len: 4,
            ..
        })))
    );
    assert!(is_index, "{error:?}");
    Ok(())
}

#[test]
fn an_rnn_is_its_recurrence() -> Outcome {
    let (device, pass) = (cpu(), Pass::eval());
    let (len, inputs, hidden) = (4, 3, 2);
    for (activation, bias) in [(RnnActivation::Tanh, true), (RnnActivation::Relu, false)] {
        let options = RecurrentOptions { bias, ..RecurrentOptions::new(inputs, hidden) };
        let mut layer = Rnn::new(&device, KEY, options, activation)?;
        layer.set_dtype(DType::F64)?;
        let mut parameters = std::collections::BTreeMap::new();
        layer.visit(&mut |name, parameter| {
            let numbers = parameter.value().to_vec::<f64>().expect("f64");
            parameters.insert(name.to_owned(), numbers);
        });
        assert_eq!(parameters.len(), if bias { 4 } else { 2 });
        let zeros = vec![0.0; hidden];
        let of = |name: &str| parameters.get(name).unwrap_or(&zeros);
        let x = f32s(&device, "sequence", [1, len, inputs]).to_dtype(DType::F64)?;
        let numbers = x.to_vec::<f64>()?;
        let (y, last) = layer.run(&pass, pass.constant(x), None)?;
        let mut h = vec![0.0; hidden];
        for (at, y) in y.value().to_vec::<f64>()?.chunks(hidden).enumerate() {
            let next = |unit: usize| {
                let mut sum = of("bias_ih_l0")[unit] + of("bias_hh_l0")[unit];
                for input in 0..inputs {
                    sum += numbers[at * inputs + input] * of("weight_ih_l0")[unit * inputs + input];
                }
                let row = &of("weight_hh_l0")[unit * hidden..][..hidden];
                sum += h.iter().zip(row).map(|(h, weight)| h * weight).sum::<f64>();
                if activation == RnnActivation::Tanh { sum.tanh() } else { sum.max(0.0) }
            };
            h = (0..hidden).map(next).collect();
            assert!(y.iter().zip(&h).all(|(a, b)| (a - b).abs() < 1e-14), "{at}: {y:?}, {h:?}");
        }
        assert_eq!(last.value().to_vec::<f64>()?.len(), hidden);
    }
    Ok(())
}

#[test]
fn cells_without_biases_do_as_those_whose_biases_are_zero() -> Outcome {
    let (device, pass) = (cpu(), Pass::eval());
    let plain = RecurrentOptions { layers: 2, ..RecurrentOptions::new(3, 2) };
    let bare = RecurrentOptions { bias: false, ..plain };
    let x = pass.constant(f32s(&device, "sequence", [2, 4, 3]));
    let check = |mut with: Box<dyn Module>, mut without: Box<dyn Module>| -> Outcome {
        with.visit(&mut |name, parameter| {
            if name.starts_with("bias") {
                parameter.value_mut().fill_(0.0).expect("not frozen");
            }
        });
        let kept: Vec<String> =
            names(&mut *with).into_iter().filter(|name| !name.starts_with("bias")).collect();
        assert_eq!(names(&mut *without), kept);
        let [y, z] = [with, without].map(|layer| layer.forward(&pass, x.clone()));
        assert_eq!(numbers(&y?), numbers(&z?));
        Ok(())
    };
    check(Box::new(Lstm::new(&device, KEY, plain)?), Box::new(Lstm::new(&device, KEY, bare)?))?;
    check(Box::new(Gru::new(&device, KEY, plain)?), Box::new(Gru::new(&device, KEY, bare)?))
}
