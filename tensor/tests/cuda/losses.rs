use lowtide_tensor::{DType, Labelling, PairLoss, Tensor, TensorError};

use crate::alike::{assert_alike, each_float, on};
use crate::elementwise::noise;
use crate::gpu::Gpu;
use crate::storage::cpu;

const PAIR_LOSSES: [PairLoss; 9] = [
    PairLoss::SquaredError,
    PairLoss::AbsoluteError,
    PairLoss::SmoothL1 { beta: 0.4 },
    PairLoss::SmoothL1 { beta: 0.0 },
    PairLoss::Huber { delta: 0.3 },
    PairLoss::BinaryCrossEntropy,
    PairLoss::BinaryCrossEntropyOfLogits,
    PairLoss::KlDivergence,
    PairLoss::KlDivergenceOfLog,
];

/// Results of the three kernels for x, a target and a weight.
fn pair_losses(operands: &[Tensor], loss: PairLoss) -> Result<Vec<Tensor>, TensorError> {
    let [x, target, weight] = operands else { unreachable!("as given") };
    let turned = x.transpose(0, 1)?;
    let row = target.narrow(0, 0, 1)?;
    let mut results = Vec::new();
    for weight in [None, Some(weight)] {
        let sum = x.pair_loss_weighted(target, loss, weight)?;
        results.push(sum.pair_loss_weighted_backward(x, &row, loss, weight)?);
        results.push(x.pair_loss_terms(target, loss, weight)?);
        results.push(sum);
    }
    let narrow = turned.narrow(0, 1, 3)?;
    let target = target.transpose(0, 1)?.narrow(0, 0, 3)?;
    results.push(narrow.pair_loss(&target, loss)?);
    results.push(narrow.pair_loss_terms(&target, loss, None)?);
    let dy = Tensor::full(x.device(), [], x.dtype().computed(), 0.75)?;
    results.push(dy.pair_loss_backward(&narrow, &target, loss)?);
    Ok(results)
}

#[test]
fn pair_losses_and_their_gradients_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for (dtype, tolerance) in each_float([4e-6, 1e-13]) {
            let of = |name: &str, shape: &[usize]| {
                noise(&cpu(), name, shape, [0.02, 0.98]).to_dtype(dtype).unwrap()
            };
            let (x, target, weight) = (of("x", &[7, 5]), of("t", &[7, 5]), of("w", &[5]));
            for loss in PAIR_LOSSES {
                let name = format!("{loss:?} {dtype}");
                assert_alike(
                    &device,
                    &name,
                    &[&x, &target, &weight],
                    8.0 * tolerance,
                    |operands| pair_losses(operands, loss),
                );
            }
        }
    });
}

#[test]
fn pair_losses_of_many_parts_and_of_nothing_are_those_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    // Lengths around the number of elements that a block adds up, and around its threads.
    for len in [0, 1, 255, 257, (1 << 14) - 1, 1 << 14, (1 << 14) + 1, 40_000] {
        let [x, target] = ["x", "t"].map(|name| noise(&cpu(), name, &[len], [-1.0, 1.0]));
        assert_alike(&device, &format!("{len}"), &[&x, &target], 1e-6, |operands| {
            let sum = operands[0].pair_loss(&operands[1], PairLoss::SquaredError)?;
            let loss = PairLoss::SquaredError;
            Ok(vec![sum.pair_loss_backward(&operands[0], &operands[1], loss)?, sum])
        });
    }
}

#[test]
fn pair_losses_at_the_ends_of_their_domains_are_those_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let values =
        [0.0, -0.0, 1.0, 0.5, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-30, -2.0, 100.0];
    let count = values.len();
    let all = Tensor::from_slice(&cpu(), [count, 1], &values).unwrap();
    let x = all.expand([count, count]).unwrap().contiguous().unwrap();
    let target = x.transpose(0, 1).unwrap().contiguous().unwrap();
    for dtype in [DType::F32, DType::F64, DType::F16] {
        let [x, target] = [&x, &target].map(|x| x.to_dtype(dtype).unwrap());
        for loss in PAIR_LOSSES {
            assert_alike(&device, &format!("{loss:?} {dtype}"), &[&x, &target], 2e-3, |operands| {
                let [x, target] = operands else { unreachable!("as given") };
                let dy = Tensor::full(x.device(), [], dtype.computed(), 2.0)?;
                let gradient = dy.pair_loss_backward(x, target, loss)?;
                Ok(vec![x.pair_loss_terms(target, loss, None)?, gradient])
            });
        }
    }
}

fn labels(shape: &[usize], classes: usize, ignore_index: i64) -> Tensor {
    let count: usize = shape.iter().product();
    let label = |at: usize| match at % 5 {
        3 => ignore_index,
        _ => ((at * at + 2 * at) % classes) as i64,
    };
    let labels: Vec<i64> = (0..count).map(label).collect();
    Tensor::from_slice(&cpu(), shape, &labels).unwrap()
}

#[test]
fn likelihoods_of_labels_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for (dtype, tolerance) in each_float([4e-6, 1e-13]) {
            for [outer, classes, inner] in
                [[6, 5, 1], [3, 7, 40], [600, 2, 1], [0, 4, 3], [2, 1, 0]]
            {
                let of = |name: &str, shape: &[usize]| {
                    noise(&cpu(), name, shape, [-3.0, 0.5]).to_dtype(dtype).unwrap()
                };
                let x = of("x", &[outer, classes, inner]);
                let weight = of("w", &[classes]);
                let ids = labels(&[outer, inner], classes, -100);
                let classes_alone = labels(&[outer, inner], classes, 0);
                let name = format!("{dtype} {outer} {classes} {inner}");
                let scale = 1.0 + (outer * inner) as f64 / 16.0;
                let inputs = [&x, &weight, &ids, &classes_alone];
                assert_alike(&device, &name, &inputs, scale * tolerance, |operands| {
                    let [x, weight, ids, classes_alone] = operands else {
                        unreachable!("as given")
                    };
                    // Classes are last in memory.
                    let turned = x.transpose(1, 2)?.contiguous()?.transpose(1, 2)?;
                    let (sum, count) = turned.nll_loss(ids, -100, None)?;
                    let (weighted, weights) = x.nll_loss(classes_alone, 0, Some(weight))?;
                    let shape = *x.shape();
                    let dx = sum.nll_loss_backward(shape, dtype, ids, -100, None)?;
                    let weighted_dx =
                        weighted.nll_loss_backward(shape, dtype, ids, -100, Some(weight))?;
                    Ok(vec![sum, count, weighted, weights, dx, weighted_dx])
                });
            }
        }
    });
}

#[test]
fn bad_label_of_a_likelihood_is_told_to_who_reads_next() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let x = noise(&device, "x", &[4, 3], [-2.0, 0.0]);
    let ids = on(&device, &Tensor::from_slice(&cpu(), [4], &[0_i64, -100, 3, -7]).unwrap());
    let (sum, _) = x.nll_loss(&ids, -100, None).unwrap();
    let error = sum.to_vec::<f32>().unwrap_err();
    let expected = TensorError::Label { op: "nll_loss", position: 2, label: 3, class_count: 3 };
    assert_eq!(error.to_string(), expected.to_string());
    assert!(sum.to_vec::<f32>().unwrap()[0].is_nan());
    let dy = Tensor::ones(&device, [], DType::F32).unwrap();
    let dx = dy.nll_loss_backward(*x.shape(), DType::F32, &ids, -100, None).unwrap();
    let dx = dx.to_vec::<f32>().unwrap();
    assert_eq!(dx[..6], [-1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    assert!(dx[6..].iter().all(|value| value.is_nan()));
}

#[test]
fn cross_entropy_with_probabilities_is_that_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for (dtype, tolerance) in each_float([8e-6, 1e-13]) {
            for [outer, classes, inner] in
                [[5, 3, 1], [2, 300, 1], [3, 4, 70], [1, 2, 300], [0, 3, 2], [2, 3, 0]]
            {
                let of = |name: &str, shape: &[usize], bounds: [f64; 2]| {
                    noise(&cpu(), name, shape, bounds).to_dtype(dtype).unwrap()
                };
                let shape = [outer, classes, inner];
                let (x, target) = (of("x", &shape, [-4.0, 4.0]), of("t", &shape, [0.0, 1.0]));
                let weight = of("w", &[classes], [0.0, 2.0]);
                let name = format!("{dtype} {shape:?}");
                let scale = 1.0 + classes as f64 / 8.0;
                let inputs = [&x, &target, &weight];
                assert_alike(&device, &name, &inputs, scale * tolerance, |operands| {
                    let [x, target, weight] = operands else { unreachable!("as given") };
                    let mut results = Vec::new();
                    for (smoothing, weight) in [(0.0, None), (0.2, Some(weight))] {
                        let labelling = Labelling { smoothing, weight, ..Default::default() };
                        let found = x.soft_cross_entropy(target, &labelling)?;
                        let lse = &found.log_sum_exp;
                        // A large dy would enlarge the differences of exponentials.
                        let dy = &found.sum.div(&found.sum)?;
                        let dx = dy.soft_cross_entropy_backward(x, target, lse, &labelling)?;
                        let mut in_place = x.copied()?;
                        in_place.soft_cross_entropy_backward_(target, lse, dy, &labelling)?;
                        results.extend([found.sum, found.count, found.log_sum_exp, dx, in_place]);
                    }
                    Ok(results)
                });
            }
        }
    });
}

#[test]
fn infinite_logits_beside_probabilities_are_as_on_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let (inf, none) = (f32::INFINITY, f32::NEG_INFINITY);
    let x = [1.0, none, 2.0, none, none, none, inf, 0.0, 1.0, f32::NAN, 0.0, 1.0];
    let target = [0.5, 0.0, 0.5, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0];
    let [x, target] = [x, target].map(|x| Tensor::from_slice(&cpu(), [4, 3], &x).unwrap());
    for inner in [1, 2] {
        let [x, target] = [&x, &target].map(|x| {
            let x = x.reshape([4, 3, 1]).unwrap().expand([4, 3, inner]).unwrap();
            x.contiguous().unwrap()
        });
        assert_alike(&device, "infinite", &[&x, &target], 1e-6, |operands| {
            let labelling = Labelling::default();
            let found = operands[0].soft_cross_entropy(&operands[1], &labelling)?;
            Ok(vec![found.log_sum_exp, found.count])
        });
    }
}
