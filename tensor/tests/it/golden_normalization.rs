//! Softmax, normalisations and losses agree with PyTorch, see `tests/fixtures/normalization.py`.

use std::collections::BTreeMap;

use lowtide_tensor::{
    DType, Labelling, Normalized, NormalizedBackward, PairLoss, Statistics, Tensor,
    TensorResult as Result,
};

use crate::common::{download, shared};
use crate::golden::fixture;

const EPS: f64 = 1e-5;

struct Fixture(BTreeMap<String, Tensor>);

impl Fixture {
    fn of(&self, case: &str, name: &str) -> &Tensor {
        &self.0[&format!("{case}.{name}")]
    }

    /// Checks that `found` agrees with `case.name` within some roundings of f32; NaN with NaN, ∞
    /// with ∞.
    #[track_caller]
    fn check(&self, case: &str, name: &str, found: &Tensor, roundings: f64) {
        let expected = download(self.of(case, name));
        let found = download(found);
        assert_eq!(found.dims, expected.dims, "{case}.{name}");
        for (at, (x, y)) in found.values.iter().zip(&expected.values).enumerate() {
            let tolerance = roundings * f64::from(f32::EPSILON) * y.abs().max(1.0);
            let agrees = (x - y).abs() <= tolerance || x == y || (x.is_nan() && y.is_nan());
            assert!(agrees, "{case}.{name}[{at}]: {x}, PyTorch {y}");
        }
    }

    fn check_normalized(&self, case: &str, found: &Normalized, gradients: &NormalizedBackward) {
        // If x is constant, the gradient divides by a deviation of √eps.
        let roundings = if case.ends_with("constant") { 2048.0 } else { 16.0 };
        self.check(case, "y", &found.y, roundings);
        self.check(case, "dx", &gradients.dx, roundings);
        let [dweight, dbias] = gradients.parameters.as_ref().expect("there is a weight");
        self.check(case, "dw", dweight, roundings);
        if self.0.contains_key(&format!("{case}.db")) {
            self.check(case, "db", dbias, roundings);
        }
    }
}

#[test]
fn softmax_agrees_with_pytorch() {
    let fixture = Fixture(fixture("normalization"));
    type Forward = fn(&Tensor, usize) -> Result<Tensor>;
    type Backward = fn(&Tensor, &Tensor, usize) -> Result<Tensor>;
    let functions: [(&str, Forward, Backward); 2] = [
        ("softmax", Tensor::softmax, Tensor::softmax_backward),
        ("log_softmax", Tensor::log_softmax, Tensor::log_softmax_backward),
    ];
    for (name, forward, backward) in functions {
        for (suffix, axis) in [("0", 0), ("1", 1), ("corners", 1)] {
            let case = format!("{name}_{suffix}");
            let y = forward(fixture.of(&case, "x"), axis).unwrap();
            fixture.check(&case, "y", &y, 8.0);
            let dx = backward(fixture.of(&case, "dy"), &y, axis).unwrap();
            fixture.check(&case, "dx", &dx, 32.0);
        }
    }
}

#[test]
fn normalisations_agree_with_pytorch() {
    let fixture = Fixture(fixture("normalization"));
    for case in ["layer_norm", "layer_norm_constant"] {
        let [x, w, b, dy] = ["x", "w", "b", "dy"].map(|name| fixture.of(case, name));
        let found = x.layer_norm(1, Some(w), Some(b), EPS).unwrap();
        let mean = found.mean.as_ref().unwrap();
        let gradients = dy.layer_norm_backward(x, mean, &found.rstd, Some(w)).unwrap();
        fixture.check_normalized(case, &found, &gradients);
    }
    let [x, w, dy] = ["x", "w", "dy"].map(|name| fixture.of("rms_norm", name));
    let found = x.rms_norm(1, Some(w), EPS).unwrap();
    let gradients = dy.rms_norm_backward(x, &found.rstd, Some(w)).unwrap();
    fixture.check_normalized("rms_norm", &found, &gradients);

    let [x, w, b, dy] = ["x", "w", "b", "dy"].map(|name| fixture.of("group_norm", name));
    let found = x.group_norm(2, Some(w), Some(b), EPS).unwrap();
    let mean = found.mean.as_ref().unwrap();
    let gradients = dy.group_norm_backward(x, mean, &found.rstd, Some(w)).unwrap();
    fixture.check_normalized("group_norm", &found, &gradients);
}

#[test]
fn batch_normalisation_agrees_with_pytorch() {
    let fixture = Fixture(fixture("normalization"));
    let case = "batch_norm";
    let [x, w, b, dy] = ["x", "w", "b", "dy"].map(|name| fixture.of(case, name));
    let found = x.batch_norm(Some(w), Some(b), EPS).unwrap();
    fixture.check(case, "y", &found.y, 16.0);
    let mut running_mean = Tensor::zeros(shared(), [6], DType::F32).unwrap();
    let mut running_variance = Tensor::ones(shared(), [6], DType::F32).unwrap();
    let batch = [&found.mean, &found.variance];
    running_mean.update_running_(&mut running_variance, batch, 15, 0.1).unwrap();
    fixture.check(case, "running_mean", &running_mean, 4.0);
    fixture.check(case, "running_var", &running_variance, 4.0);
    let fixed =
        x.batch_norm_fixed(&running_mean, &running_variance, Some(w), Some(b), EPS).unwrap();
    fixture.check("batch_norm_fixed", "y", &fixed, 16.0);
    for (case, [mean, variance], statistics) in [
        (case, batch, Statistics::Batch),
        ("batch_norm_fixed", [&running_mean, &running_variance], Statistics::Fixed),
    ] {
        let found = dy.batch_norm_backward(x, mean, variance, Some(w), statistics, EPS).unwrap();
        fixture.check(case, "dx", &found.dx, 16.0);
        fixture.check(case, "dw", &found.dweight, 16.0);
        fixture.check(case, "db", &found.dbias, 16.0);
    }
}

#[test]
fn losses_of_pairs_agree_with_pytorch() {
    let fixture = Fixture(fixture("normalization"));
    let weight = fixture.of("bce_of_logits", "positive_weight");
    for (case, loss) in [
        ("squared_error", PairLoss::SquaredError),
        ("absolute_error", PairLoss::AbsoluteError),
        ("smooth_l1", PairLoss::SmoothL1 { beta: 0.5 }),
        ("huber", PairLoss::Huber { delta: 0.5 }),
        ("bce", PairLoss::BinaryCrossEntropy),
        ("bce_of_logits", PairLoss::BinaryCrossEntropyOfLogits),
        ("kl", PairLoss::KlDivergence),
        ("kl_of_log", PairLoss::KlDivergenceOfLog),
    ] {
        let weight = (case == "bce_of_logits").then_some(weight);
        let [x, t, dy] = ["x", "t", "dy"].map(|name| fixture.of(case, name));
        let sum = x.pair_loss_weighted(t, loss, weight).unwrap();
        fixture.check(case, "y", &sum, 8.0);
        let dx = dy.pair_loss_weighted_backward(x, t, loss, weight).unwrap();
        fixture.check(case, "dx", &dx, 8.0);
    }
}

#[test]
fn smoothed_and_weighted_cross_entropy_agrees_with_pytorch() {
    let fixture = Fixture(fixture("normalization"));
    let case = "cross_entropy";
    let [x, labels, weight, dy] =
        ["x", "labels", "weight", "dy"].map(|name| fixture.of(case, name));
    let labelling = Labelling { smoothing: 0.1, weight: Some(weight), ..Default::default() };
    let found = x.cross_entropy_with(labels, &labelling).unwrap();
    fixture.check(case, "y", &found.sum, 8.0);
    fixture.check(case, "mean", &found.sum.div(&found.count).unwrap(), 8.0);
    let dx = dy.cross_entropy_with_backward(x, labels, &found.log_sum_exp, &labelling).unwrap();
    fixture.check(case, "dx", &dx, 8.0);
}
