//! Effects of layer options, compared with the plain layer.

use lowtide_autograd::{Attempt, Pass, Var};
use lowtide_nn::{
    AttentionMemory, BatchNorm2d, Conv1d, Conv2d, Embedding, Gru, Lstm, Module, MultiHeadAttention,
    MultiHeadOptions, NnError, NnResult, Parameters, RecurrentOptions, Rnn, RnnActivation,
    commit_buffers, key_padding_mask,
};
use lowtide_tensor::{Causal, Conv1dGeometry, Conv2dGeometry, DType, PadMode, Tensor, TensorError};

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

/// The buffers of a layer after a training pass on each of these inputs.
fn statistics(layer: &mut dyn Module, inputs: &[Tensor]) -> NnResult<Vec<(String, Vec<f32>)>> {
    for x in inputs {
        let attempt = Attempt::new();
        let pass = Pass::train(KEY, &attempt);
        layer.forward(&pass, pass.constant(x.clone()))?;
        let (_, buffers) = attempt.into_parts();
        commit_buffers(layer, &buffers)?;
    }
    let mut found = Vec::new();
    layer.visit_buffers(&mut |name, buffer| {
        let value = buffer.value().to_dtype(DType::F32).expect("memory");
        found.push((name.to_owned(), value.to_vec::<f32>().expect("f32")));
    });
    Ok(found)
}

#[test]
fn running_statistics_of_equal_batches_are_their_means() -> Outcome {
    let device = cpu();
    let inputs = ["a", "b", "c"].map(|name| f32s(&device, name, [4, 2, 3, 2]));
    let mut layer = BatchNorm2d::without_parameters(&device, 2)?.with_equal_batches();
    let found = statistics(&mut layer, &inputs)?;
    let each = inputs.map(|x| {
        // A momentum of 1 takes only the last batch.
        let mut layer = BatchNorm2d::without_parameters(&device, 2)?.with_momentum(1.0);
        statistics(&mut layer, &[x])
    });
    for (place, (name, found)) in found.iter().enumerate().take(2) {
        for (channel, found) in found.iter().enumerate() {
            let mut sum = 0.0;
            for each in &each {
                sum += each.as_ref().map_err(ToString::to_string)?[place].1[channel];
            }
            assert!((found - sum / 3.0).abs() < 1e-6, "{name}: {found}, not {}", sum / 3.0);
        }
    }
    assert_eq!(found[2], ("num_batches_tracked".to_owned(), vec![3.0]));
    Ok(())
}

#[test]
fn without_running_statistics_evaluation_takes_the_batchs() -> Outcome {
    let device = cpu();
    let x = f32s(&device, "x", [4, 2, 3, 2]);
    let mut layer = BatchNorm2d::new(&device, 2)?.without_running_statistics();
    assert!(statistics(&mut layer, std::slice::from_ref(&x))?.is_empty());
    assert_eq!(names(&mut layer), ["weight", "bias"]);
    let run = |layer: &dyn Module, pass: Pass| {
        layer.forward(&pass, pass.constant(x.clone())).map(|y| numbers(&y))
    };
    let usual = BatchNorm2d::new(&device, 2)?;
    let in_training = run(&usual, Pass::train(KEY, &Attempt::new()))?;
    assert_eq!(run(&layer, Pass::eval())?, in_training);
    assert_eq!(run(&layer, Pass::train(KEY, &Attempt::new()))?, in_training);
    Ok(())
}

/// Attention of one head by the definition, for keys and values `[B, S, D]`.
fn attention_by_hand([q, k, v]: [&Tensor; 3], open: impl Fn(usize, usize) -> bool) -> Vec<f32> {
    let read = |x: &Tensor| x.contiguous().expect("memory").to_vec::<f32>().expect("f32");
    let (batch, queries, width, keys) = (q.shape()[0], q.shape()[1], q.shape()[2], k.shape()[1]);
    let [q, k, v] = [q, k, v].map(read);
    let mut y = Vec::new();
    for (sample, query) in (0..batch).flat_map(|b| (0..queries).map(move |t| (b, t))) {
        let row = |x: &[f32], len: usize, at: usize| -> Vec<f32> {
            x[(sample * len + at) * width..][..width].to_vec()
        };
        let score = |key: usize| -> f32 {
            let product: f32 =
                row(&q, queries, query).iter().zip(row(&k, keys, key)).map(|(a, b)| a * b).sum();
            if open(query, key) { (product / (width as f32).sqrt()).exp() } else { 0.0 }
        };
        let weights: Vec<f32> = (0..keys).map(score).collect();
        let total: f32 = weights.iter().sum();
        for feature in 0..width {
            let sum: f32 =
                (0..keys).map(|key| weights[key] / total * row(&v, keys, key)[feature]).sum();
            y.push(sum);
        }
    }
    y
}

#[test]
fn keys_that_a_layer_adds_are_open_for_all_queries() -> Outcome {
    let (device, pass) = (cpu(), Pass::eval());
    let options = MultiHeadOptions {
        learned_key: true,
        zero_key: true,
        bias: false,
        causal: Causal::UpperLeft,
        ..MultiHeadOptions::new(3, 1)
    };
    let mut layer = MultiHeadAttention::new(&device, KEY, options)?;
    assert_eq!(names(&mut layer), ["in_proj_weight", "bias_k", "bias_v", "out_proj.weight"]);
    // All projections are the identity.
    let eye = Tensor::eye(&device, 3, 3, DType::F32)?;
    let mut learned = Vec::new();
    layer.visit(&mut |name, parameter| match name {
        "in_proj_weight" => {
            *parameter.value_mut() = Tensor::cat(&[&eye, &eye, &eye], 0).expect("memory");
        }
        "out_proj.weight" => *parameter.value_mut() = eye.clone(),
        _ => learned.push(parameter.value().clone()),
    });
    let x = f32s(&device, "x", [2, 4, 3]);
    let zeros = Tensor::zeros(&device, [2, 1, 3], DType::F32)?;
    let with = |row: &Tensor| Tensor::cat(&[&x, &row.expand([2, 1, 3])?, &zeros], 1);
    let (k, v) = (with(&learned[0])?, with(&learned[1])?);
    let padding = Tensor::from_slice(&device, [2, 4], &[false; 8])?;
    let open_mask = key_padding_mask(&padding)?;
    let numbers_mask = Tensor::zeros(&device, [4, 4], DType::F32)?;
    let expected = attention_by_hand([&x, &k, &v], |query, key| key <= query || key >= 4);
    for mask in [None, Some(&open_mask), Some(&numbers_mask)] {
        let y = layer.forward_masked(&pass, pass.constant(x.clone()), mask)?;
        let own = pass.constant(x.clone());
        let (again, weights) = layer.attend_with_weights(&pass, own.clone(), own, mask)?;
        assert_eq!(weights.shape()[..], [2, 1, 4, 6]);
        for y in [numbers(&y), numbers(&again)] {
            for (a, b) in y.iter().zip(&expected) {
                assert!((a - b).abs() < 1e-5, "{y:?}, not {expected:?}");
            }
        }
    }
    // A mask that broadcasts over the keys does not close the added keys.
    let closed = Tensor::from_slice(&device, [1, 1], &[false])?;
    let y = layer.forward_masked(&pass, pass.constant(x.clone()), Some(&closed))?;
    let expected = attention_by_hand([&x, &k, &v], |_, key| key >= 4);
    for (a, b) in numbers(&y).iter().zip(&expected) {
        assert!((a - b).abs() < 1e-5, "{a}, not {b}");
    }
    Ok(())
}

#[test]
fn weights_of_attention_are_those_of_its_result() -> Outcome {
    let (device, pass) = (cpu(), Pass::eval());
    let options = MultiHeadOptions { groups: 2, ..MultiHeadOptions::new(8, 4) };
    let layer = MultiHeadAttention::new(&device, KEY, options)?;
    let x = pass.constant(f32s(&device, "x", [2, 3, 8]));
    let [keys, values] = ["keys", "values"].map(|n| pass.constant(f32s(&device, n, [2, 5, 8])));
    let mask = Tensor::from_slice(&device, [1, 5], &[true, false, true, true, true])?;
    let parts = || AttentionMemory::parts(keys.clone(), values.clone());
    let plain = layer.attend(&pass, x.clone(), parts(), Some(&mask))?;
    let (y, weights) = layer.attend_with_weights(&pass, x.clone(), parts(), Some(&mask))?;
    for (a, b) in numbers(&plain).iter().zip(numbers(&y)) {
        assert!((a - b).abs() < 1e-5, "{a}, not {b}");
    }
    assert_eq!(weights.shape()[..], [2, 4, 3, 5]);
    let sums = weights.clone().sum(&[3])?;
    assert!(numbers(&sums).iter().all(|sum| (sum - 1.0).abs() < 1e-5));
    assert!(numbers(&weights.select(3, 1)?).iter().all(|&weight| weight == 0.0));
    // Equal sequences for keys and values give the result of one memory.
    let both = AttentionMemory::parts(keys.clone(), keys.clone());
    let both = numbers(&layer.attend(&pass, x.clone(), both, None)?);
    let one = numbers(&layer.attend(&pass, x.clone(), keys.clone(), None)?);
    assert!(both.iter().zip(one).all(|(a, b)| (a - b).abs() < 1e-6));
    for memory in [keys.clone().select(0, 0)?, keys.narrow(0, 0, 1)?] {
        assert!(layer.attend(&pass, x.clone(), memory, None).is_err());
    }
    Ok(())
}
