//! Activations and losses against PyTorch in f64, also at their kinks; see the fixtures' README.

use std::collections::BTreeSet;

use lowtide_autograd::{Attempt, LeafId, Pass, Var};
use lowtide_nn::{
    CrossEntropyOptions, ELU, GELU, GLU, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, LeakyReLU,
    LogSigmoid, LogSoftmax, Loss, Mish, Module, NllOptions, NnResult as Result, PReLU, ReLU, ReLU6,
    SELU, SiLU, Sigmoid, Softmax, Softmin, Softplus, Softshrink, Softsign, Tanh, TanhGELU,
    Tanhshrink, Threshold, bce, bce_with_logits, cosine_embedding, cross_entropy,
    cross_entropy_with, huber, kl_divergence, l1, mse, nll, smooth_l1, soft_cross_entropy,
};
use lowtide_tensor::{Device, Tensor};

use crate::common::{KEY, Outcome, cpu, widen};

const ACTIVATIONS: &str = include_str!("../fixtures/activations.txt");
const LOSSES: &str = include_str!("../fixtures/losses.txt");

/// The numbers of the line that starts with `head`.
fn numbers(text: &str, head: &str) -> Vec<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(head)?.strip_prefix(' '));
    let words = line.unwrap_or_else(|| panic!("no {head} in the fixture")).split(' ');
    words.map(|word| word.parse().expect("a number")).collect()
}

fn assert_close(what: &str, found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    // PyTorch's formulas use 1/6 or a smallest divisor, rounded to f32.
    let tolerance = match what {
        "Hardsigmoid dx" | "Hardswish dx" | "bce dx" => 1e-7,
        _ => 1e-12,
    };
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let allowed = tolerance * expected.abs().max(1.0);
        assert!((found - expected).abs() <= allowed, "{what}[{index}]: {found}, not {expected}");
    }
}

fn activations(device: &Device) -> Result<Vec<(&'static str, Box<dyn Module>)>> {
    Ok(vec![
        ("ReLU", Box::new(ReLU)),
        ("ReLU6", Box::new(ReLU6)),
        ("GELU", Box::new(GELU)),
        ("TanhGELU", Box::new(TanhGELU)),
        ("SiLU", Box::new(SiLU)),
        ("Mish", Box::new(Mish)),
        ("Tanh", Box::new(Tanh)),
        ("Tanhshrink", Box::new(Tanhshrink)),
        ("Sigmoid", Box::new(Sigmoid)),
        ("LogSigmoid", Box::new(LogSigmoid)),
        ("Hardsigmoid", Box::new(Hardsigmoid)),
        ("Hardswish", Box::new(Hardswish)),
        ("Hardtanh", Box::new(Hardtanh::default())),
        ("Hardshrink", Box::new(Hardshrink::default())),
        ("Softshrink", Box::new(Softshrink::default())),
        ("Threshold", Box::new(Threshold(0.25, 7.0))),
        ("Softplus", Box::new(Softplus)),
        ("Softsign", Box::new(Softsign)),
        ("ELU", Box::new(ELU)),
        ("SELU", Box::new(SELU)),
        ("LeakyReLU", Box::new(LeakyReLU::default())),
        ("PReLU", Box::new(PReLU::new(device, 1)?)),
        ("GLU", Box::new(GLU(0))),
        ("Softmax", Box::new(Softmax(0))),
        ("Softmin", Box::new(Softmin(0))),
        ("LogSoftmax", Box::new(LogSoftmax(0))),
    ])
}

#[test]
fn activations_have_pytorchs_values_and_slopes_where_they_bend() -> Outcome {
    let device = cpu();
    let x = numbers(ACTIVATIONS, "x");
    let x = Tensor::from_slice(&device, [x.len()], &x)?;
    for (name, mut module) in activations(&device)? {
        widen(&mut *module);
        // With and without another handle to the value's buffer.
        for is_free in [false, true] {
            let (attempt, leaf) = (Attempt::new(), LeafId::new());
            let pass = Pass::train(KEY, &attempt);
            let mut input = pass.leaf(leaf, &x)?;
            if is_free {
                input = input.mul_scalar(1.0)?;
            }
            let y = module.forward(&pass, input)?;
            assert_close(
                name,
                &y.value().to_vec::<f64>()?,
                &numbers(ACTIVATIONS, &format!("{name} y")),
            );
            let len = y.value().element_count();
            let seeds: Vec<f64> = (1..=len).map(|seed| seed as f64).collect();
            let seeds = Tensor::from_slice(&device, [len], &seeds)?;
            pass.backward_from(vec![(y, seeds)])?;
            let gradients = attempt.into_gradients();
            let dx = gradients.get(leaf).expect("it counts").to_vec::<f64>()?;
            assert_close(&format!("{name} dx"), &dx, &numbers(ACTIVATIONS, &format!("{name} dx")));
        }
    }
    Ok(())
}

/// `((step · i) mod modulus - ⌊modulus / 2⌋) / 8` as a list for the shape `[6, 5]`.
fn pattern(step: i64, modulus: i64) -> Vec<f64> {
    (0..30).map(|i| ((step * i) % modulus - modulus / 2) as f64 / 8.0).collect()
}

struct Inputs {
    x: Tensor,
    t: Tensor,
    p: Tensor,
    q: Tensor,
    labels: Tensor,
    other_labels: Tensor,
    weight: Tensor,
    signs: Tensor,
}

/// The inputs of `make_layers.py`.
fn inputs(device: &Device) -> lowtide_tensor::TensorResult<Inputs> {
    let (x, mut t) = (pattern(7, 31), pattern(11, 29));
    t[0] = x[0];
    t[6] = x[6] + 1.0;
    t[12] = x[12] - 0.5;
    t[18] = x[18] + 0.5;
    let mut p: Vec<f64> = x.iter().map(|x| (x + 4.0) / 8.0).collect();
    let mut q: Vec<f64> = t.iter().map(|t| ((t + 4.0) / 8.0).clamp(0.0, 1.0)).collect();
    (p[1], p[2], p[5]) = (0.0, 1.0, 0.0);
    (q[1], q[2], q[5]) = (0.0, 1.0, 0.5);
    let matrix = |values: &[f64]| Tensor::from_slice(device, [6, 5], values);
    Ok(Inputs {
        x: matrix(&x)?,
        t: matrix(&t)?,
        p: matrix(&p)?,
        q: matrix(&q)?,
        labels: Tensor::from_slice(device, [6], &[0_i64, 4, -100, 2, 2, 1])?,
        other_labels: Tensor::from_slice(device, [6], &[0_i64, 4, 2, 3, 2, 1])?,
        weight: Tensor::from_slice(device, [5], &[0.5, 1.0, 2.0, 0.25, 3.0])?,
        signs: Tensor::from_slice(device, [6], &[1.0, -1.0, 1.0, -1.0, -1.0, 1.0])?,
    })
}

type Of = fn(Var, &Inputs) -> Result<Loss>;

/// Cases: the name, true if the input is a probability, and the loss.
const CASES: [(&str, bool, Of); 12] = [
    ("cross_entropy", false, |x, of| cross_entropy(x, &of.labels)),
    ("cross_entropy_all", false, |x, of| {
        let weight = Some(&of.weight);
        let options = CrossEntropyOptions { ignore_index: 2, label_smoothing: 0.2, weight };
        cross_entropy_with(x, &of.other_labels, options)
    }),
    ("soft_cross_entropy", false, |x, of| {
        let weight = Some(&of.weight);
        let options = CrossEntropyOptions { label_smoothing: 0.1, weight, ..Default::default() };
        soft_cross_entropy(x, &of.q, options)
    }),
    ("nll", false, |x, of| {
        let options = NllOptions { weight: Some(&of.weight), ..Default::default() };
        nll(x.log_softmax(1)?, &of.labels, options)
    }),
    ("mse", false, |x, of| mse(x, &of.t)),
    ("l1", false, |x, of| l1(x, &of.t)),
    ("smooth_l1", false, |x, of| smooth_l1(x, &of.t, 0.5)),
    ("huber", false, |x, of| huber(x, &of.t, 0.5)),
    ("bce", true, |x, of| bce(x, &of.q)),
    ("bce_with_logits", false, |x, of| bce_with_logits(x, &of.q, Some(&of.weight))),
    ("kl", false, |x, of| kl_divergence(x, &of.q)),
    ("cosine", false, |x, of| {
        let t = x.pass().constant(of.t.clone());
        cosine_embedding(x, t, &of.signs, 0.1)
    }),
];

#[test]
fn losses_have_pytorchs_means_and_gradients_where_they_bend() -> Outcome {
    let device = cpu();
    let inputs = inputs(&device)?;
    for (name, is_probability, loss) in CASES {
        let x = if is_probability { &inputs.p } else { &inputs.x };
        let (attempt, leaf) = (Attempt::new(), LeafId::new());
        let pass = Pass::train(KEY, &attempt);
        let mean = loss(pass.leaf(leaf, x)?, &inputs)?.mean()?;
        let expected = numbers(LOSSES, &format!("{name} mean"));
        assert_close(name, &[mean.value().item::<f64>()?], &expected);
        pass.backward(mean)?;
        let dx = attempt.into_gradients().get(leaf).expect("it counts").to_vec::<f64>()?;
        assert_close(&format!("{name} dx"), &dx, &numbers(LOSSES, &format!("{name} dx")));
    }
    Ok(())
}

#[test]
fn the_fixtures_have_no_others() -> Outcome {
    let names = |text: &'static str, suffix: &str| -> BTreeSet<&str> {
        let name = |line: &'static str| line.split_once(suffix).map(|(name, _)| name);
        text.lines().filter_map(name).collect()
    };
    let all: BTreeSet<&str> = activations(&cpu())?.iter().map(|(name, _)| *name).collect();
    assert_eq!(names(ACTIVATIONS, " y "), all);
    assert_eq!(names(LOSSES, " mean "), CASES.map(|(name, ..)| name).into());
    Ok(())
}
