use lowtide_tensor::cuda::gate::{Argument, Grid, Signature};
use proptest::prelude::*;

use super::{F64, Lab, Read, U32, U64, Words, Write, assert_close, noise};

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(16) }
}

const IGNORED: i64 = -100;

/// Loss, weight, log-sum-exp and gradient of one position, by the formulas.
fn twin(
    x: &[f32],
    label: i64,
    weights: Option<&[f32]>,
    smoothing: f64,
    dy: f64,
) -> (f64, f64, f64, Vec<f64>) {
    let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    let weight_of = |c: usize| weights.map_or(1.0, |weights| f64::from(weights[c]));
    let log_sum = x.iter().map(|x| x.exp()).sum::<f64>().ln();
    let Some(label) = usize::try_from(label).ok().filter(|&label| label < x.len()) else {
        return (0.0, 0.0, log_sum, vec![0.0; x.len()]);
    };
    let (a, b) = ((1.0 - smoothing) * weight_of(label), smoothing / x.len() as f64);
    let smooth: f64 = (0..x.len()).map(|c| weight_of(c) * (log_sum - x[c])).sum();
    let weight_sum: f64 = (0..x.len()).map(weight_of).sum();
    let gradient = (0..x.len()).map(|c| {
        let p = (x[c] - log_sum).exp();
        let hit = if c == label { a } else { 0.0 };
        dy * (p * (a + b * weight_sum) - hit - b * weight_of(c))
    });
    let loss = a * (log_sum - x[label]) + b * smooth;
    (loss, weight_of(label), log_sum, gradient.collect())
}

/// Fewer blocks than positions need, so that each block takes several.
const BLOCKS: u32 = 2;

/// Threads of a block.
const THREADS: u32 = 64;

const FORWARD: Signature = Signature {
    name: "cross_entropy_f32",
    parameters: &[Write, Write, Write, Read, Read, Read, F64, Words(4), U32],
};
const SUM: Signature = Signature {
    name: "cross_entropy_sum_f32",
    parameters: &[Write, Write, Write, Read, Read, U64, Read, Words(4), U64],
};
const BACKWARD: Signature = Signature {
    name: "cross_entropy_backward_f32",
    parameters: &[Write, Read, Read, Read, Read, Read, F64, Words(4), U32],
};

#[test]
fn cross_entropy_and_its_gradient_are_those_of_their_twins() {
    let Some(lab) = Lab::open() else { return };
    let sizes = (0..4_usize, 1..4_usize, prop_oneof![4 => 1..12_usize, 1 => 90..130_usize]);
    // Each position has a thread, a part of a warp, or a block.
    let lanes = prop_oneof![Just(1), Just(8), Just(THREADS)];
    let kinds = (any::<bool>(), prop_oneof![Just(0.0_f64), Just(0.1), Just(1.0)], lanes);
    proptest!(config(), |((outer, inner, classes) in sizes, kinds in kinds, seed in 0..100_u64)| {
        let (has_weights, smoothing, lanes) = kinds;
        let positions = outer * inner;
        let x = noise(positions * classes, seed);
        let weights: Vec<f32> = noise(classes, seed + 1).iter().map(|w| w.abs() + 0.5).collect();
        let labels: Vec<i64> = (0..positions)
            .map(|at| ((at as u64 * 7 + seed) % classes as u64) as i64)
            .map(|label| if label == 2 { IGNORED } else { label })
            .collect();
        let (mut losses, mut label_weights) = (Vec::new(), Vec::new());
        let (mut log_sums, mut gradients) = (Vec::new(), vec![0.0; x.len()]);
        for (at, &label) in labels.iter().enumerate() {
            let place = |c: usize| (at / inner * classes + c) * inner + at % inner;
            let row: Vec<f32> = (0..classes).map(|c| x[place(c)]).collect();
            let weights = has_weights.then_some(&weights[..]);
            let (loss, weight, log_sum, gradient) =
                twin(&row, label, weights, smoothing, 0.25);
            losses.push(loss);
            label_weights.push(weight);
            log_sums.push(log_sum);
            gradient.into_iter().enumerate().for_each(|(c, dx)| gradients[place(c)] = dx);
        }
        let totals = [&losses, &label_weights].map(|values| values.iter().sum::<f64>());
        let targets =
            [classes as u64, IGNORED.cast_unsigned(), positions as u64, inner as u64];
        let targets = Argument::Words(&targets);
        let (x, labels, weights) = (lab.floats(&x), lab.labels(&labels), lab.floats(&weights));
        let dy = lab.floats(&[0.25]);
        let class_weights = if has_weights { weights.read() } else { Argument::Nothing };
        lab.in_each_order(|| {
            let lse = lab.room(4 * positions);
            let [loss, weight] = [0; 2].map(|_| lab.room(4 * BLOCKS as usize));
            let results = [lse.write(), loss.write(), weight.write()];
            let sources = [x.read(), labels.read(), class_weights];
            let rest = [Argument::F64(smoothing), targets, Argument::U32(lanes)];
            let arguments = [&results[..], &sources, &rest].concat();
            lab.run("cross_entropy_f32", FORWARD, Grid::row(BLOCKS, THREADS), &arguments);
            assert_close(&lab.floats_of(&lse), &log_sums, classes, 2.0);

            let ([sum, count], bad) = ([0; 2].map(|_| lab.room(4)), lab.labels(&[0; 4]));
            let results = [sum.write(), count.write(), bad.write()];
            let parts = [loss.read(), weight.read(), Argument::U64(u64::from(BLOCKS))];
            let labels_read = [labels.read(), targets, Argument::U64(0)];
            let arguments = [&results[..], &parts, &labels_read].concat();
            lab.run("cross_entropy_f32", SUM, Grid::row(1, 64), &arguments);
            let found = [&sum, &count].map(|value| lab.floats_of(value)[0]);
            assert_close(&found, &totals, classes, 20.0 * positions as f64);
            assert_eq!(lab.words_of(&bad), [0; 8]);

            // The gradient has a block of its own, or overwrites the logits.
            let dx = lab.bytes(&lab.bytes_of(&x));
            let fresh = lab.room(4 * positions * classes);
            for (dx, x) in [(&fresh, &x), (&dx, &dx)] {
                let sources = [x.read(), lse.read(), labels.read(), class_weights, dy.read()];
                let arguments = [&[dx.write()], &sources[..], &rest].concat();
                lab.run("cross_entropy_f32", BACKWARD, Grid::row(BLOCKS, THREADS), &arguments);
                assert_close(&lab.floats_of(dx), &gradients, classes, 10.0);
            }
        });
    });
}

#[test]
fn first_label_that_is_no_class_is_told() {
    let Some(lab) = Lab::open() else { return };
    let targets = [3, IGNORED.cast_unsigned(), 5, 1];
    for (labels, expected) in [
        ([0, 1, 2, IGNORED, 0], [0; 4]),
        ([0, 3, 2, -1, 0], [2, 3, 3, 7]),
        ([0, 1, 2, -1, 7], [4, -1, 3, 7]),
    ] {
        let labels = lab.labels(&labels);
        lab.in_each_order(|| {
            let ([sum, count], bad) = ([0; 2].map(|_| lab.room(4)), lab.labels(&[0; 4]));
            // The loss of a wrong label is NaN.
            let loss = if expected[0] != 0 { f32::NAN } else { 0.0 };
            let parts = lab.floats(&[0.0, loss, 0.0]);
            let results = [sum.write(), count.write(), bad.write()];
            let (targets, op) = (Argument::Words(&targets), Argument::U64(7));
            let parts = [parts.read(), parts.read(), Argument::U64(3)];
            let sources = [&parts[..], &[labels.read(), targets, op]].concat();
            let arguments = [&results[..], &sources].concat();
            lab.run("cross_entropy_f32", SUM, Grid::row(1, 32), &arguments);
            let words = |bytes: Vec<u8>| -> Vec<i64> {
                let words = bytes.chunks_exact(8).map(|word| word.try_into().unwrap());
                words.map(i64::from_le_bytes).collect()
            };
            assert_eq!(words(lab.bytes_of(&bad)), expected);
            assert_eq!(lab.floats_of(&sum)[0].is_nan(), expected[0] != 0);
            // A record that names a label already keeps it.
            let (told, sum) = (lab.labels(&[9, 8, 7]), lab.room(4));
            let results = [sum.write(), count.write(), told.write()];
            let arguments = [&results[..], &sources].concat();
            lab.run("cross_entropy_f32", SUM, Grid::row(1, 32), &arguments);
            assert_eq!(words(lab.bytes_of(&told)), [9, 8, 7]);
            assert_eq!(lab.floats_of(&sum)[0].is_nan(), expected[0] != 0);
        });
    }
}
