//! Losses are sums with counts, so that a batch can be split.

use lowtide_autograd::{Attempt, AutogradError, LeafId, Pass};
use lowtide_nn::{
    CrossEntropyOptions, NllOptions, NnError, NnResult as Result, cosine_embedding, cross_entropy,
    cross_entropy_with, dice, nll, soft_cross_entropy,
};
use lowtide_tensor::{DType, Device, Tensor, TensorError};

use crate::common::{KEY, Outcome, cpu, values};

const CLASSES: usize = 5;
const LABELS: [i64; 6] = [0, 4, -100, 2, 2, -100];

fn logits(device: &Device) -> Tensor {
    let values = values("logits", LABELS.len() * CLASSES);
    Tensor::from_slice(device, [LABELS.len(), CLASSES], &values).expect("memory")
}

fn labels(device: &Device) -> Tensor {
    Tensor::from_slice(device, [LABELS.len()], &LABELS).expect("memory")
}

/// `-log softmax(row)[label]`, written literally.
fn naive(row: &[f64], label: usize) -> f64 {
    -(row[label].exp() / row.iter().map(|x| x.exp()).sum::<f64>()).ln()
}

/// Tolerance for values below 4, with a few roundings each.
const TOLERANCE: f64 = 64.0 * f64::EPSILON;

#[test]
fn cross_entropy_is_the_formula_over_the_rows_that_count() -> Outcome {
    let device = cpu();
    let pass = Pass::eval();
    let loss = cross_entropy(pass.constant(logits(&device)), &labels(&device))?;
    let x = logits(&device).to_vec::<f64>()?;
    let rows = x.chunks(CLASSES).zip(LABELS).filter(|(_, label)| *label != -100);
    let expected: f64 = rows.map(|(row, label)| naive(row, label as usize)).sum();
    assert!((loss.sum.value().item::<f64>()? - expected).abs() <= TOLERANCE, "not {expected}");
    assert_eq!(loss.count.item::<f64>()?, 4.0);
    assert!((loss.mean()?.value().item::<f64>()? - expected / 4.0).abs() <= TOLERANCE);
    Ok(())
}

#[test]
fn another_ignore_index_leaves_out_other_rows() -> Outcome {
    let device = cpu();
    let labels = Tensor::from_slice(&device, [6], &[0_i64, 4, 2, 2, 2, 1])?;
    let options = CrossEntropyOptions { ignore_index: 2, ..Default::default() };
    let pass = Pass::eval();
    let loss = cross_entropy_with(pass.constant(logits(&device)), &labels, options)?;
    let x = logits(&device).to_vec::<f64>()?;
    let rows = [(0, 0), (1, 4), (5, 1)];
    let expected: f64 =
        rows.map(|(row, label)| naive(&x[row * CLASSES..][..CLASSES], label)).iter().sum();
    assert!((loss.sum.value().item::<f64>()? - expected).abs() <= TOLERANCE, "not {expected}");
    assert_eq!(loss.count.item::<f64>()?, 3.0);
    Ok(())
}

#[test]
fn the_mean_of_nothing_is_nan_and_moves_nothing() -> Outcome {
    let device = cpu();
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let leaf = LeafId::new();
    let ignored = Tensor::from_slice(&device, [6], &[-100_i64; 6])?;
    let loss = cross_entropy(pass.leaf(leaf, &logits(&device))?, &ignored)?;
    assert_eq!((loss.sum.value().item::<f64>()?, loss.count.item::<f64>()?), (0.0, 0.0));
    let mean = loss.mean()?;
    assert!(mean.value().item::<f64>()?.is_nan());
    pass.backward(mean)?;
    let gradient = attempt.into_gradients().remove(leaf).expect("x has a gradient");
    assert_eq!(gradient.to_vec::<f64>()?, [0.0; LABELS.len() * CLASSES]);
    Ok(())
}

/// Sum, count, and the gradient of `sum / total` for rows `start..start + len`.
fn part(device: &Device, start: usize, len: usize, total: f64) -> Result<(f64, f64, Vec<f64>)> {
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let leaf = LeafId::new();
    let x = pass.leaf(leaf, &logits(device))?.narrow(0, start, len)?;
    let loss = cross_entropy(x, &labels(device).narrow(0, start, len)?)?;
    let (sum, count) = (loss.sum.value().item::<f64>()?, loss.count.item::<f64>()?);
    pass.backward_seeded(loss.sum, 1.0 / total)?;
    let gradients = attempt.into_gradients();
    Ok((sum, count, gradients.get(leaf).expect("x counts").to_vec::<f64>()?))
}

#[test]
fn parts_add_up_to_the_whole() -> Outcome {
    let device = cpu();
    let (sum, count, gradient) = part(&device, 0, 6, 4.0)?;
    assert_eq!(count, 4.0);
    for cut in 1..6 {
        let (first, second) = (part(&device, 0, cut, 4.0)?, part(&device, cut, 6 - cut, 4.0)?);
        assert_eq!(first.1 + second.1, count, "cut at {cut}");
        assert!((first.0 + second.0 - sum).abs() <= TOLERANCE, "cut at {cut}");
        for (at, whole) in gradient.iter().enumerate() {
            let together = first.2[at] + second.2[at];
            assert!((together - whole).abs() <= TOLERANCE, "cut at {cut}, {at}");
        }
    }
    Ok(())
}

#[test]
fn the_gradient_of_the_mean_is_that_of_the_sum_over_the_count() -> Outcome {
    let device = cpu();
    let attempt = Attempt::new();
    let pass = Pass::train(KEY, &attempt);
    let leaf = LeafId::new();
    let mean = cross_entropy(pass.leaf(leaf, &logits(&device))?, &labels(&device))?.mean()?;
    pass.backward(mean)?;
    let of_mean = attempt.into_gradients().remove(leaf).expect("x counts").to_vec::<f64>()?;
    let (_, _, of_sum) = part(&device, 0, 6, 4.0)?;
    for (mean, sum) in of_mean.iter().zip(&of_sum) {
        assert!((mean - sum).abs() <= TOLERANCE, "{mean} {sum}");
    }
    assert!(of_mean[2 * CLASSES..3 * CLASSES].iter().all(|&x| x == 0.0), "an ignored row");
    assert!(of_mean[..CLASSES].iter().all(|&x| x != 0.0), "a row that counts");
    Ok(())
}

fn error_of(x: Tensor, labels: &Tensor) -> TensorError {
    match cross_entropy(Pass::eval().constant(x), labels).err().expect("a mistake") {
        NnError::Autograd(AutogradError::Tensor(error)) => error,
        error => panic!("{error}"),
    }
}

#[test]
fn labels_that_do_not_fit_are_errors() -> Outcome {
    let device = cpu();
    for wrong in [5_i64, 77, -1] {
        let labels = Tensor::from_slice(&device, [6], &[0, 1, wrong, 2, 3, 4])?;
        let error = error_of(logits(&device), &labels);
        let TensorError::Label { op: "cross_entropy", position: 2, label, class_count: CLASSES } =
            error
        else {
            panic!("{error}");
        };
        assert_eq!(label, wrong);
    }
    let few = Tensor::from_slice(&device, [5], &[0_i64; 5])?;
    let error = error_of(logits(&device), &few);
    assert!(matches!(error, TensorError::Shape { op: "cross_entropy", .. }), "{error}");
    let floats = Tensor::zeros(&device, [6], DType::F32)?;
    let error = error_of(logits(&device), &floats);
    assert!(matches!(error, TensorError::DType { op: "cross_entropy", .. }), "{error}");
    Ok(())
}

/// The value of `f` for f64 inputs. First checks the gradients by finite differences.
fn checked(
    f: impl Fn(Vec<lowtide_autograd::Var>) -> Result<lowtide_nn::Loss>,
    inputs: &[Tensor],
) -> std::result::Result<[f64; 2], Box<dyn std::error::Error>> {
    let run = |vars| f(vars).map_err(NnError::into_autograd);
    lowtide_autograd::check::gradients(|_, vars| Ok(run(vars)?.sum), inputs)?;
    let pass = Pass::eval();
    let loss = run(inputs.iter().map(|input| pass.constant(input.clone())).collect())?;
    Ok([loss.sum.value().item::<f64>()?, loss.count.item::<f64>()?])
}

fn assert_near(found: [f64; 2], expected: [f64; 2]) {
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= TOLERANCE * b.abs().max(1.0);
    assert!(found.iter().zip(&expected).all(near), "{found:?}, not {expected:?}");
}

#[test]
fn nll_is_the_formula_with_weights_and_ignored_labels() -> Outcome {
    let device = cpu();
    let weights = [0.5, 1.0, 2.0, 0.25, 3.0];
    let weight = Tensor::from_slice(&device, [CLASSES], &weights)?;
    let x = logits(&device).to_vec::<f64>()?;
    let picked: Vec<(f64, usize)> = (LABELS.iter().enumerate())
        .filter(|(_, label)| **label != -100)
        .map(|(row, &label)| (x[row * CLASSES + label as usize], label as usize))
        .collect();
    for weight in [None, Some(&weight)] {
        let of = |label: usize| if weight.is_some() { weights[label] } else { 1.0 };
        let options = NllOptions { weight, ..Default::default() };
        let found =
            checked(|mut vars| nll(vars.remove(0), &labels(&device), options), &[logits(&device)])?;
        let sum: f64 = picked.iter().map(|&(x, label)| -x * of(label)).sum();
        let count: f64 = picked.iter().map(|&(_, label)| of(label)).sum();
        assert_near(found, [sum, count]);
    }
    // The loss of log-probabilities equals the cross-entropy, also with more dimensions.
    let pass = Pass::eval();
    let images = logits(&device).reshape([2, 3, CLASSES])?.transpose(1, 2)?;
    let labels = labels(&device).reshape([2, 3])?;
    let logarithms = pass.constant(images.clone()).log_softmax(1)?;
    let found = nll(logarithms, &labels, NllOptions::default())?;
    let expected = cross_entropy(pass.constant(images), &labels)?;
    let of = |loss: lowtide_nn::Loss| -> Result<[f64; 2]> {
        Ok([loss.sum.value().item::<f64>()?, loss.count.item::<f64>()?])
    };
    assert_near(of(found)?, of(expected)?);
    Ok(())
}

#[test]
fn cosine_embedding_pulls_pairs_together_or_apart() -> Outcome {
    let device = cpu();
    let (a, b) = (values("a", 12), values("b", 12));
    let targets = [1.0, -1.0, -1.0, 1.0];
    let cosine = |row: usize| {
        let part = |x: &[f64]| -> Vec<f64> { x[3 * row..3 * row + 3].to_vec() };
        let dot = |x: &[f64], y: &[f64]| -> f64 { x.iter().zip(y).map(|(x, y)| x * y).sum() };
        let (a, b) = (part(&a), part(&b));
        dot(&a, &b) / ((dot(&a, &a) + 1e-12) * (dot(&b, &b) + 1e-12)).sqrt()
    };
    let inputs = [&a, &b].map(|x| Tensor::from_slice(&device, [4, 3], x).expect("memory"));
    let target = Tensor::from_slice(&device, [4], &targets)?;
    for margin in [0.0, -0.9] {
        let found = checked(
            |vars| {
                let [a, b] = <[_; 2]>::try_from(vars).unwrap_or_else(|_| panic!("two"));
                cosine_embedding(a, b, &target, margin)
            },
            &inputs,
        )?;
        let term = |(row, &target): (usize, &f64)| {
            if target == 1.0 { 1.0 - cosine(row) } else { (cosine(row) - margin).max(0.0) }
        };
        assert_near(found, [targets.iter().enumerate().map(term).sum(), 4.0]);
    }
    let pass = Pass::eval();
    let [a, b] = inputs.map(|x| pass.constant(x));
    let error = cosine_embedding(a, b, &target, 2.0).err();
    assert!(matches!(error, Some(NnError::Option { .. })));
    Ok(())
}

#[test]
fn dice_is_one_without_overlap_and_nothing_for_the_target_itself() -> Outcome {
    let device = cpu();
    let t: Vec<f64> = (0..24).map(|i| f64::from(u8::from(i % 3 == 0))).collect();
    let p: Vec<f64> = values("p", 24).iter().map(|x| 0.5 + 0.4 * x).collect();
    let tensor = |x: &[f64]| Tensor::from_slice(&device, [2, 3, 2, 2], x);
    let (target, input) = (tensor(&t)?, tensor(&p)?);
    let found = checked(|mut vars| dice(vars.remove(0), &target, 1.0), &[input])?;
    let term = |(p, t): (&[f64], &[f64])| {
        let shared: f64 = p.iter().zip(t).map(|(p, t)| p * t).sum();
        1.0 - (2.0 * shared + 1.0) / (p.iter().sum::<f64>() + t.iter().sum::<f64>() + 1.0)
    };
    assert_near(found, [p.chunks(4).zip(t.chunks(4)).map(term).sum(), 6.0]);
    let sum = |input: Tensor, smoothing| -> Result<f64> {
        let loss = dice(Pass::eval().constant(input), &target, smoothing)?;
        Ok(loss.sum.value().item::<f64>()?)
    };
    assert_eq!(sum(target.clone(), 0.0)?, 0.0);
    let others: Vec<f64> = t.iter().map(|t| 1.0 - t).collect();
    assert_eq!(sum(tensor(&others)?, 0.0)?, 6.0);
    Ok(())
}

#[test]
fn options_of_cross_entropy_that_cannot_be_meant_are_errors() {
    let device = cpu();
    let pass = Pass::eval();
    let x = || pass.constant(logits(&device));
    let shares = logits(&device);
    let refused = |error: Option<NnError>, name: &str| {
        let error = error.expect("an error");
        assert!(matches!(&error, NnError::Option { name: found, .. } if *found == name), "{error}");
    };
    for label_smoothing in [-0.1, 1.5, f64::NAN] {
        let options = CrossEntropyOptions { label_smoothing, ..Default::default() };
        let hard = cross_entropy_with(x(), &labels(&device), options).err();
        let soft = soft_cross_entropy(x(), &shares, options).err();
        refused(hard, "label_smoothing");
        refused(soft, "label_smoothing");
    }
    // With probabilities as targets, no label can be ignored.
    let options = CrossEntropyOptions { ignore_index: 1, ..Default::default() };
    refused(soft_cross_entropy(x(), &shares, options).err(), "ignore_index");
}
