use lowtide_tensor::{DType, Tensor, TensorError};

use crate::alike::{assert_alike, each_float, on};
use crate::elementwise::noise;
use crate::gpu::Gpu;
use crate::storage::cpu;

#[test]
fn distances_and_their_gradients_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for (dtype, tolerance) in each_float([1e-6, 1e-12]) {
            for [batch, m, r, len] in [[2, 3, 4, 5], [1, 17, 33, 18], [2, 1, 2, 0], [1, 0, 3, 2]] {
                let processor = cpu();
                let of = |name: &str, shape: &[usize]| {
                    noise(&processor, name, shape, [-2.0, 2.0]).to_dtype(dtype).unwrap()
                };
                let (x, y) = (of("x", &[batch, m, len]), of("y", &[batch, r, len]));
                let dy = of("dy", &[batch, m, r]);
                for order in [0.0, 1.0, 2.0, 1.5, 3.0, f64::INFINITY] {
                    let name = format!("{order} {dtype} {batch} {m} {r} {len}");
                    // Both devices are given these distances.
                    let d = x.cdist(&y, order).unwrap();
                    let inputs = [&x, &y, &dy, &d];
                    assert_alike(&device, &name, &inputs, 8.0 * tolerance, |operands| {
                        let [x, y, dy, d] = operands else { unreachable!("as given") };
                        let (dy_turned, d_turned) = (dy.transpose(1, 2)?, d.transpose(1, 2)?);
                        Ok(vec![
                            x.cdist(y, order)?,
                            x.cdist(x, order)?,
                            dy.cdist_backward(d, x, y, order)?,
                            dy_turned.cdist_backward(&d_turned, y, x, order)?,
                        ])
                    });
                }
            }
        }
    });
}

fn integers(shape: &[usize], values: &[i64]) -> Tensor {
    Tensor::from_slice(&cpu(), shape, values).unwrap()
}

#[test]
fn alignments_and_their_gradients_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    // Repeated labels, targets that are too long for the steps, and an empty target.
    let (steps, samples, classes) = (7, 5, 4);
    let targets = [1, 2, 3, 1, 1, 1, 2, 2, 2, 3, 1, 2, 3, 3, 3];
    let targets = integers(&[samples, 3], &targets);
    let lens = integers(&[samples], &[3, 2, 3, 0, 1]);
    let used = integers(&[samples], &[7, 5, 4, 3, 0]);
    gpu.in_every_order(|| {
        for (dtype, tolerance) in each_float([2e-6, 1e-12]) {
            let x = noise(&cpu(), "x", &[steps, samples, classes], [-2.0, 1.0]);
            let x = x.log_softmax(2).unwrap().to_dtype(dtype).unwrap();
            let dy = noise(&cpu(), "dy", &[samples], [0.5, 1.5]).to_dtype(dtype.computed());
            let dy = dy.unwrap();
            for blank in [0, 2] {
                let name = format!("{dtype} {blank}");
                let inputs = [&x, &targets, &used, &lens, &dy];
                assert_alike(&device, &name, &inputs, 4.0 * tolerance, |operands| {
                    let [x, targets, used, lens, dy] = operands else { unreachable!("as given") };
                    let lengths = [used, lens];
                    let turned = x.permute(&[1, 2, 0])?.contiguous()?.permute(&[2, 0, 1])?;
                    let none = dy.sub(dy)?;
                    Ok(vec![
                        x.ctc_loss(targets, lengths, blank)?,
                        turned.ctc_loss(targets, lengths, blank)?,
                        dy.ctc_loss_backward(x, targets, lengths, blank)?.contiguous()?,
                        none.ctc_loss_backward(&turned, targets, lengths, blank)?.contiguous()?,
                    ])
                });
            }
        }
    });
}

#[test]
fn long_targets_have_the_alignments_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let (steps, labels, classes) = (400, 150, 6);
    let x = noise(&cpu(), "x", &[steps, 2, classes], [-2.0, 1.0]).log_softmax(2).unwrap();
    let targets: Vec<i64> = (0..2 * labels as i64).map(|at| 1 + (at * at + at / 3) % 5).collect();
    let targets = integers(&[2, labels], &targets);
    let lens = integers(&[2], &[150, 140]);
    let used = integers(&[2], &[400, 390]);
    let dy = Tensor::ones(&cpu(), [2], DType::F32).unwrap();
    assert_alike(&device, "long", &[&x, &targets, &used, &lens, &dy], 1e-5, |operands| {
        let [x, targets, used, lens, dy] = operands else { unreachable!("as given") };
        let dx = dy.ctc_loss_backward(x, targets, [used, lens], 0)?;
        Ok(vec![x.ctc_loss(targets, [used, lens], 0)?, dx.contiguous()?])
    });
}

#[test]
fn bad_length_or_label_is_told_to_who_reads_next() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let x = Tensor::zeros(&device, [3, 2, 4], DType::F32).unwrap();
    let loss = |targets: [i64; 4], used: [i64; 2], lens: [i64; 2]| {
        let of = |shape: &[usize], values: &[i64]| on(&device, &integers(shape, values));
        let lengths = [&of(&[2], &used), &of(&[2], &lens)];
        x.ctc_loss(&of(&[2, 2], &targets), lengths, 0).unwrap()
    };
    let label = TensorError::Label { op: "ctc_loss", position: 2, label: 7, class_count: 4 };
    let used = TensorError::Index { op: "ctc_loss", index: 4, len: 4 };
    let len = TensorError::Index { op: "ctc_loss", index: -1, len: 3 };
    for (targets, used, lens, expected, bad) in [
        ([1, 2, 7, 9], [3, 3], [2, 1], label, [false, true]),
        ([1, 2, 3, 3], [4, 3], [1, 1], used, [true, false]),
        ([1, 2, 3, 3], [3, 3], [1, -1], len, [false, true]),
    ] {
        let found = loss(targets, used, lens);
        let error = found.to_vec::<f32>().unwrap_err();
        assert_eq!(error.to_string(), expected.to_string());
        let values = found.to_vec::<f32>().unwrap();
        assert_eq!([0, 1].map(|at| values[at].is_nan()), bad);
    }
}
