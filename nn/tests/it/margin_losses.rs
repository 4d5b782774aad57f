//! Likelihoods, margins and distances: values against the definition, gradients against finite
//! differences.

use lowtide_autograd::{Attempt, LeafId, Pass, Var};
use lowtide_nn::{
    CrossEntropyOptions, CtcOptions, GaussianNllOptions, InstanceNorm1d, InstanceNorm2d,
    LocalResponseOptions, Module, MultiMarginOptions, NllOptions, NnError, NnResult as Result,
    Parameters, PoissonNllOptions, TripletMarginOptions, cosine_similarity, cross_entropy_with,
    ctc, gaussian_nll, local_response_norm, nll, normalize, pairwise_distance, terms,
    triplet_margin,
};
use lowtide_tensor::{DType, Device, Tensor};

use crate::common::{KEY, Outcome, cpu, values};

const ROWS: usize = 4;
const COLS: usize = 3;

/// The device of all tensors of a test. Each test has its own thread.
fn device() -> Device {
    thread_local!(static DEVICE: Device = cpu());
    DEVICE.with(Device::clone)
}

fn matrix(name: &str) -> Tensor {
    Tensor::from_slice(&device(), [ROWS, COLS], &values(name, ROWS * COLS)).expect("memory")
}

fn at(x: &Tensor) -> Vec<f64> {
    x.to_vec::<f64>().expect("f64")
}

/// Checks the values of `f` against `expected`, and its gradients against finite differences.
fn check(
    f: impl Fn(Vec<Var>) -> Result<Var>,
    inputs: &[&Tensor],
    expected: impl IntoIterator<Item = f64>,
) -> Outcome {
    let inputs: Vec<Tensor> = inputs.iter().map(|&x| x.clone()).collect();
    let run = |vars| f(vars).map_err(NnError::into_autograd);
    lowtide_autograd::check::gradients(|_, vars| run(vars)?.sum_all(), &inputs)?;
    let pass = Pass::eval();
    let found = run(inputs.into_iter().map(|input| pass.constant(input)).collect())?;
    let (found, expected) = (at(found.value()), Vec::from_iter(expected));
    assert_eq!(found.len(), expected.len());
    for (i, (a, b)) in found.iter().zip(&expected).enumerate() {
        assert!((a - b).abs() <= 64.0 * f64::EPSILON * b.abs().max(1.0), "{i}: {a}, not {b}");
    }
    Ok(())
}

fn two(vars: Vec<Var>) -> [Var; 2] {
    vars.try_into().unwrap_or_else(|_| panic!("two inputs"))
}

fn three(vars: Vec<Var>) -> [Var; 3] {
    vars.try_into().unwrap_or_else(|_| panic!("three inputs"))
}

/// Targets of 1, -1 and -1 in turn.
fn signs() -> (Tensor, Vec<f64>) {
    let signs: Vec<f64> = (0..ROWS * COLS).map(|i| [1.0, -1.0, -1.0][i % 3]).collect();
    (Tensor::from_slice(&device(), [ROWS, COLS], &signs).expect("memory"), signs)
}

fn norm(x: impl IntoIterator<Item = f64>, p: f64) -> f64 {
    let sizes = x.into_iter().map(f64::abs);
    if p.is_infinite() {
        return sizes.fold(0.0, f64::max);
    }
    sizes.map(|x| x.powf(p)).sum::<f64>().powf(1.0 / p)
}

#[test]
fn gaussian_nll_is_the_logarithm_of_the_density() -> Outcome {
    let (x, t) = (matrix("x"), matrix("t"));
    let variance = matrix("v").abs()?.add_scalar(0.1)?;
    let full = GaussianNllOptions { full: true, ..Default::default() };
    let density = |x: f64, t: f64, v: f64| {
        (-(x - t) * (x - t) / (2.0 * v)).exp() / (2.0 * std::f64::consts::PI * v).sqrt()
    };
    let expected =
        at(&x).into_iter().zip(at(&t)).zip(at(&variance)).map(|((x, t), v)| -density(x, t, v).ln());
    let run = |vars: Vec<Var>| {
        let [x, t, v] = three(vars);
        terms::gaussian_nll(x, t, v, full)
    };
    check(run, &[&x, &t, &variance], expected)?;
    // The variance can be one number for each row.
    let of_rows = variance.select(1, 0)?;
    let wide = of_rows.unsqueeze(1)?.expand([ROWS, COLS])?.contiguous()?;
    let expected = at(&x).into_iter().zip(at(&t)).zip(at(&wide));
    let expected = expected.map(|((x, t), v)| -density(x, t, v).ln());
    check(run, &[&x, &t, &of_rows], expected)?;
    // Negative variances are raised to ε.
    let options = GaussianNllOptions { eps: 0.5, ..full };
    let pass = Pass::eval();
    let [x, t] = [x, t].map(|x| pass.constant(x));
    let low = pass.constant(of_rows.neg()?);
    let loss = gaussian_nll(x, t, low, options)?;
    assert!(loss.sum.value().item::<f64>()?.is_finite());
    assert_eq!(loss.count.item::<f64>()?, (ROWS * COLS) as f64);
    Ok(())
}

#[test]
fn poisson_nll_is_the_formula_with_stirlings_approximation() -> Outcome {
    let (x, t) = (matrix("x"), matrix("t").abs()?.mul_scalar(4.0)?);
    let rate = matrix("rate").abs()?.add_scalar(0.2)?;
    let stirling = |t: f64| {
        let constant = 0.5 * (2.0 * std::f64::consts::PI * t).ln();
        if t > 1.0 { t * t.ln() - t + constant } else { 0.0 }
    };
    for full in [false, true] {
        let of_logarithms = PoissonNllOptions { full, ..Default::default() };
        let of_rates = PoissonNllOptions { log_input: false, ..of_logarithms };
        let rest = |t: f64| if full { stirling(t) } else { 0.0 };
        let run = |options| {
            move |vars: Vec<Var>| {
                let [x, t] = two(vars);
                terms::poisson_nll(x, t, options)
            }
        };
        let expected = at(&x).into_iter().zip(at(&t)).map(|(x, t)| x.exp() - t * x + rest(t));
        check(run(of_logarithms), &[&x, &t], expected)?;
        let expected = at(&rate).into_iter().zip(at(&t));
        let expected = expected.map(|(x, t)| x - t * (x + 1e-8).ln() + rest(t));
        check(run(of_rates), &[&rate, &t], expected)?;
    }
    Ok(())
}

#[test]
fn margins_of_elements_are_their_formulas() -> Outcome {
    let (a, b) = (matrix("a"), matrix("b"));
    let (target, signs) = signs();
    let zip = || at(&a).into_iter().zip(at(&b)).zip(&signs);
    let expected = zip().map(|((a, b), t)| (-t * (a - b) + 0.3).max(0.0));
    let rank = |vars| {
        let [a, b] = two(vars);
        terms::margin_ranking(a, b, &target, 0.3)
    };
    check(rank, &[&a, &b], expected)?;
    let expected = zip().map(|((a, _), t)| if *t == 1.0 { a } else { (0.4 - a).max(0.0) });
    let hinge = |mut vars: Vec<Var>| terms::hinge_embedding(vars.remove(0), &target, 0.4);
    check(hinge, &[&a], expected)?;
    let soft = |mut vars: Vec<Var>| terms::soft_margin(vars.remove(0), &target);
    check(soft, &[&a], zip().map(|((a, _), t)| (-t * a).exp().ln_1p()))?;
    // Large inputs do not overflow.
    let large = Pass::eval().constant(target.mul_scalar(-1e6)?);
    assert_eq!(at(terms::soft_margin(large, &target)?.value()), [1e6; ROWS * COLS]);
    Ok(())
}

#[test]
fn triplet_margin_compares_distances() -> Outcome {
    let inputs = [matrix("anchor"), matrix("positive"), matrix("negative")];
    let rows = inputs.each_ref().map(at);
    let distance = |a: usize, b: usize, row: usize, p: f64| {
        let places = row * COLS..(row + 1) * COLS;
        norm(places.map(|i| rows[a][i] - rows[b][i] + 1e-6), p)
    };
    for (order, swap) in [(2.0, false), (2.0, true), (3.0, false), (1.0, true)] {
        let options = TripletMarginOptions { order, swap, ..Default::default() };
        let term = |row| {
            let far = distance(0, 2, row, order);
            let far = if swap { far.min(distance(1, 2, row, order)) } else { far };
            (distance(0, 1, row, order) - far + 1.0).max(0.0)
        };
        let run = |vars| {
            let [a, p, n] = three(vars);
            terms::triplet_margin(a, p, n, options)
        };
        check(run, &inputs.each_ref(), (0..ROWS).map(term))?;
    }
    let pass = Pass::eval();
    let [a, p, n] = inputs.map(|x| pass.constant(x));
    let options = TripletMarginOptions { margin: 0.0, ..Default::default() };
    let error = triplet_margin(a, p, n, options).err();
    assert!(matches!(error, Some(NnError::Option { name: "margin", .. })));
    Ok(())
}

#[test]
fn margins_of_classes_and_labels_are_their_formulas() -> Outcome {
    let x = matrix("x");
    let labels = [0_usize, 2, 1, 1];
    let weights = [0.5, 2.0, 1.5];
    let rows = at(&x);
    let device = device();
    let of_i64 = Tensor::from_slice(&device, [ROWS], &labels.map(|label| label as i64))?;
    let weight = Tensor::from_slice(&device, [COLS], &weights)?;
    for order in [1.0, 2.0] {
        let options = MultiMarginOptions { margin: 0.7, order, weight: Some(&weight) };
        let term = |(row, &label): (usize, &usize)| {
            let x = &rows[row * COLS..][..COLS];
            let others = (0..COLS).filter(|&c| c != label);
            let sum: f64 = others.map(|c| (0.7 - x[label] + x[c]).max(0.0).powf(order)).sum();
            weights[label] * sum / COLS as f64
        };
        let run = |mut vars: Vec<Var>| terms::multi_margin(vars.remove(0), &of_i64, options);
        check(run, &[&x], labels.iter().enumerate().map(term))?;
    }
    let options = MultiMarginOptions { order: 3.0, ..Default::default() };
    let error = terms::multi_margin(Pass::eval().constant(x.clone()), &of_i64, options).err();
    assert!(matches!(error, Some(NnError::Option { name: "order", .. })));

    let target = matrix("t").gt_scalar(0.0)?.to_dtype(DType::F64)?;
    let t = at(&target);
    let logistic = |x: f64| 1.0 / (1.0 + (-x).exp());
    let term = |row: usize| {
        let places = row * COLS..(row + 1) * COLS;
        let part = |i: usize| {
            let p = logistic(rows[i]);
            -weights[i % COLS] * (t[i] * p.ln() + (1.0 - t[i]) * (1.0 - p).ln())
        };
        places.map(part).sum::<f64>() / COLS as f64
    };
    let run =
        |mut vars: Vec<Var>| terms::multilabel_soft_margin(vars.remove(0), &target, Some(&weight));
    check(run, &[&x], (0..ROWS).map(term))
}

#[test]
fn terms_add_up_to_the_sum() -> Outcome {
    let device = device();
    let x = matrix("logits");
    let labels = Tensor::from_slice(&device, [ROWS], &[2_i64, -100, 0, 1])?;
    let weight = Tensor::from_slice(&device, [COLS], &[0.5, 2.0, 1.5])?;
    let add_up = |terms: Var, sum: &Var| -> Outcome {
        assert_eq!(terms.shape()[..], [ROWS]);
        let values = at(terms.value());
        assert_eq!(values[1], 0.0, "an ignored label");
        let (found, expected) = (values.iter().sum::<f64>(), sum.value().item::<f64>()?);
        assert!((found - expected).abs() <= 64.0 * f64::EPSILON, "{found}, not {expected}");
        Ok(())
    };
    let pass = Pass::eval();
    let logits = || pass.constant(x.clone());
    for label_smoothing in [0.0, 0.3] {
        let options = CrossEntropyOptions {
            label_smoothing,
            weight: Some(&weight),
            ..CrossEntropyOptions::default()
        };
        let sum = cross_entropy_with(logits(), &labels, options)?.sum;
        add_up(terms::cross_entropy(logits(), &labels, options)?, &sum)?;
        let f = |mut vars: Vec<Var>| terms::cross_entropy(vars.remove(0), &labels, options);
        let values = at(f(vec![logits()])?.value());
        check(f, &[&x], values)?;
    }
    let options = NllOptions { weight: Some(&weight), ..NllOptions::default() };
    let sum = nll(logits(), &labels, options)?.sum;
    add_up(terms::nll(logits(), &labels, options)?, &sum)?;
    let wrong = labels.narrow(0, 0, 2)?;
    assert!(terms::nll(logits(), &wrong, options).is_err());
    let outside = Tensor::from_slice(&device, [ROWS], &[2_i64, 3, 0, 1])?;
    assert!(terms::nll(logits(), &outside, options).is_err());
    Ok(())
}

#[test]
fn distances_are_their_formulas() -> Outcome {
    let (a, b) = (matrix("a"), matrix("b"));
    let (x, y) = (at(&a), at(&b));
    let row = |x: &[f64], row: usize| x[row * COLS..][..COLS].to_vec();
    for order in [1.0, 2.0, 3.5, f64::INFINITY] {
        let distance =
            |i: usize| norm(row(&x, i).iter().zip(row(&y, i)).map(|(a, b)| a - b + 1e-6), order);
        let run = |vars| {
            let [a, b] = two(vars);
            pairwise_distance(a, b, order, 1e-6)
        };
        check(run, &[&a, &b], (0..ROWS).map(distance))?;
        let unit = |i: usize| x[i] / norm(row(&x, i / COLS), order);
        let run = |mut vars: Vec<Var>| normalize(vars.remove(0), order, 1, 1e-12);
        check(run, &[&a], (0..ROWS * COLS).map(unit))?;
    }
    let cosine = |i: usize| {
        let (x, y) = (row(&x, i), row(&y, i));
        let dot: f64 = x.iter().zip(&y).map(|(x, y)| x * y).sum();
        dot / (norm(x, 2.0) * norm(y, 2.0))
    };
    let run = |vars| {
        let [a, b] = two(vars);
        cosine_similarity(a, b, -1, 1e-8)
    };
    check(run, &[&a, &b], (0..ROWS).map(cosine))?;
    // Zero vectors are divided by ε.
    let zeros = Pass::eval().constant(Tensor::zeros(&device(), [2, COLS], DType::F64)?);
    let similar = cosine_similarity(zeros.clone(), zeros.clone(), 1, 1e-8)?;
    assert_eq!(at(similar.value()), [0.0; 2]);
    assert_eq!(at(normalize(zeros, 2.0, 1, 1e-12)?.value()), [0.0; 2 * COLS]);
    Ok(())
}

/// A rounded norm would change the quotient.
#[test]
fn cosine_similarity_of_half_types_rounds_once() -> Outcome {
    let run = |dtype: DType| -> Result<Vec<Vec<f64>>> {
        let (attempt, leaves) = (Attempt::new(), [LeafId::new(), LeafId::new()]);
        let pass = Pass::train(KEY, &attempt);
        let of = |name: &str| matrix(name).to_dtype(DType::BF16)?.to_dtype(dtype);
        let (a, b) = (pass.leaf(leaves[0], &of("a")?)?, pass.leaf(leaves[1], &of("b")?)?);
        let y = cosine_similarity(a, b, 1, 1e-8)?;
        let mut found = vec![y.value().clone()];
        pass.backward(y.sum_all()?)?;
        let gradients = attempt.into_gradients();
        found.extend(leaves.map(|leaf| gradients.get(leaf).expect("it has one").clone()));
        let rounded = |x: Tensor| Ok(at(&x.to_dtype(DType::BF16)?.to_dtype(DType::F64)?));
        found.into_iter().map(rounded).collect()
    };
    assert_eq!(run(DType::BF16)?, run(DType::F32)?);
    Ok(())
}

#[test]
fn local_response_norm_is_the_formula_at_the_edges_too() -> Outcome {
    let (channels, places) = (5_usize, 4);
    let x = Tensor::from_slice(&device(), [2, channels, 2, 2], &values("x", 40))?;
    let numbers = at(&x);
    let options = LocalResponseOptions { alpha: 0.5, beta: 0.6, k: 1.5 };
    for count in [1_usize, 2, 3, 4] {
        let term = |i: usize| {
            let (sample, c, place) = (i / (channels * places), i / places % channels, i % places);
            let window = (c + channels - count / 2..).take(count);
            let around = window.filter(|c| (channels..2 * channels).contains(c));
            let square =
                |c: usize| numbers[(sample * channels + c - channels) * places + place].powi(2);
            let mean = around.map(square).sum::<f64>() / count as f64;
            numbers[i] / (1.5 + 0.5 * mean).powf(0.6)
        };
        let run = |mut vars: Vec<Var>| local_response_norm(vars.remove(0), count, options);
        check(run, &[&x], (0..numbers.len()).map(term))?;
    }
    let flat = Pass::eval().constant(matrix("x"));
    assert!(local_response_norm(flat.clone(), 2, options).is_err());
    assert!(local_response_norm(flat, 0, options).is_err());
    Ok(())
}

/// Alignments of two steps: `b` is the blank, and the target is the single label a.
#[test]
fn ctc_divides_by_the_length_and_leaves_out_what_is_impossible() -> Outcome {
    let x = Tensor::from_slice(&device(), [2, 2, 3], &values("x", 12))?.log_softmax(2)?;
    let p = at(&x.exp()?);
    let targets = Tensor::from_slice(&device(), [2, 2], &[2_i64, 0, 1, 1])?;
    let steps = Tensor::from_slice(&device(), [2], &[2_i64, 2])?;
    let lens = Tensor::from_slice(&device(), [2], &[1_i64, 2])?;
    // Sample 0 at step t has p[6 t ..]; the repeated label of sample 1 needs three steps.
    let expected = -(p[2] * p[8] + p[0] * p[8] + p[2] * p[6]).ln();
    let options = CtcOptions { zero_infinity: true, ..CtcOptions::default() };
    let run = |mut vars: Vec<Var>| terms::ctc(vars.remove(0), &targets, [&steps, &lens], options);
    check(run, &[&x], [expected, 0.0])?;
    let infinite = CtcOptions::default();
    let found = terms::ctc(Pass::eval().constant(x.clone()), &targets, [&steps, &lens], infinite)?;
    assert_eq!(at(found.value())[1], f64::INFINITY);
    let twice = Tensor::from_slice(&device(), [2], &[1_i64, 0])?;
    let loss = ctc(Pass::eval().constant(x), &targets, [&steps, &twice], infinite)?;
    let found = loss.mean()?.value().item::<f64>()?;
    let expected = (expected - (p[3] * p[9]).ln()) / 2.0;
    assert!((found - expected).abs() <= 64.0 * f64::EPSILON, "{found}, not {expected}");
    Ok(())
}

#[test]
fn instance_norm_is_a_group_norm_of_single_channels() -> Outcome {
    let device = device();
    let pass = Pass::eval();
    let x = Tensor::from_slice(&device, [2, 3, 2, 2], &values("x", 24))?;
    let y = InstanceNorm2d::new(3).with_eps(0.1).forward(&pass, pass.constant(x.clone()))?;
    for (x, y) in at(&x).chunks(4).zip(at(y.value()).chunks(4)) {
        let mean = x.iter().sum::<f64>() / 4.0;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 4.0;
        for (x, y) in x.iter().zip(y) {
            let expected = (x - mean) / (variance + 0.1).sqrt();
            assert!((y - expected).abs() <= 64.0 * f64::EPSILON, "{y}, not {expected}");
        }
    }
    let flat = pass.constant(x.reshape([2, 3, 4])?);
    let mut affine = InstanceNorm1d::affine(&device, 3)?.with_eps(0.1);
    affine.set_dtype(DType::F64)?;
    assert_eq!(at(affine.forward(&pass, flat.clone())?.value()), at(y.value()));
    assert!(InstanceNorm1d::new(4).forward(&pass, flat.clone()).is_err());
    assert!(InstanceNorm2d::new(3).forward(&pass, flat).is_err());
    Ok(())
}
