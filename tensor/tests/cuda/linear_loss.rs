use lowtide_tensor::{LinearCrossEntropyOptions, Tensor, TensorError};

use crate::alike::{assert_alike, each_float, on};
use crate::elementwise::noise;
use crate::gpu::Gpu;
use crate::storage::cpu;

fn labels(rows: usize, classes: usize) -> Tensor {
    let label = |row: usize| match row * 7 % (classes + 1) {
        0 => -100,
        label => label as i64 - 1,
    };
    Tensor::from_slice(&cpu(), [rows], &(0..rows).map(label).collect::<Vec<i64>>()).unwrap()
}

#[test]
fn linear_cross_entropy_and_its_gradients_are_those_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let cases =
        [([5, 3, 4], true), ([300, 2, 70], false), ([129, 6, 300], true), ([0, 3, 4], true)];
    gpu.in_every_order(|| {
        for (([rows, dim, classes], has_bias), label_smoothing) in
            cases.into_iter().zip([0.0, 0.1, 0.0, 0.1])
        {
            let of = |name: &str, shape: &[usize]| noise(&cpu(), name, shape, [-1.5, 1.5]);
            let (x, w) = (of("x", &[rows, dim]), of("w", &[classes, dim]));
            let (b, dw) = (of("b", &[classes]), of("dw", &[dim, classes]));
            let (labels, dy) = (labels(rows, classes), of("dy", &[]));
            let options = LinearCrossEntropyOptions { label_smoothing, ..Default::default() };
            let name = format!("{rows} {dim} {classes}");
            let inputs = [&x, &w, &labels, &b, &dw, &dy, &of("db", &[classes])];
            // Gradients are sums over all rows.
            let tolerance = 2e-6 * (1 + rows / 4) as f64;
            assert_alike(&device, &name, &inputs, tolerance, |operands| {
                let [x, w, labels, b, dw, dy, db] = operands else { unreachable!("as given") };
                let b = has_bias.then_some(b);
                let loss = x.linear_cross_entropy(w, b, labels, &options)?;
                let (mut dw, mut db) = (dw.transpose(0, 1)?, db.clone());
                let db = has_bias.then_some(&mut db);
                let (again, dx) =
                    x.linear_cross_entropy_gradients(w, b, labels, &options, dy, &mut dw, db)?;
                Ok(vec![loss.sum, loss.count, again.sum, again.count, dx])
            });
        }
    });
}

#[test]
fn label_that_is_no_class_is_told_to_who_reads_next() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let (x, w) =
        (noise(&device, "x", &[4, 3], [-1.0, 1.0]), noise(&device, "w", &[5, 3], [0.0, 1.0]));
    let labels = Tensor::from_slice(&cpu(), [4], &[0_i64, -100, 5, -1]).unwrap();
    let found = x.linear_cross_entropy(&w, None, &on(&device, &labels), &Default::default());
    let error = found.unwrap().sum.to_vec::<f32>().unwrap_err();
    let (op, class_count) = ("linear_cross_entropy", 5);
    let expected = TensorError::Label { op, position: 2, label: 5, class_count };
    assert_eq!(error.to_string(), expected.to_string());
}

#[test]
fn linear_cross_entropy_of_every_type_is_that_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for (dtype, tolerance) in each_float([2e-5, 1e-13]) {
            // Gradients of parameters may be of the wider type.
            for sums in [dtype, dtype.computed()] {
                let of = |name: &str, shape: &[usize], dtype| {
                    noise(&cpu(), name, shape, [-1.0, 1.0]).to_dtype(dtype).unwrap()
                };
                let (x, w) = (of("x", &[9, 5], dtype), of("w", &[70, 5], dtype));
                let (b, dw) = (of("b", &[70], dtype), of("dw", &[70, 5], sums));
                let (dy, db) = (of("dy", &[], dtype.computed()), of("db", &[70], sums));
                let (labels, name) = (labels(9, 70), format!("{dtype}, sums of {sums}"));
                let inputs = [&x, &w, &labels, &b, &dw, &dy, &db];
                assert_alike(&device, &name, &inputs, tolerance, |operands| {
                    let [x, w, labels, b, dw, dy, db] = operands else { unreachable!() };
                    let (mut dw, mut db) = (dw.clone(), db.clone());
                    let (loss, dx) = x.linear_cross_entropy_gradients(
                        w,
                        Some(b),
                        labels,
                        &Default::default(),
                        dy,
                        &mut dw,
                        Some(&mut db),
                    )?;
                    Ok(vec![loss.sum, loss.count, dx])
                });
            }
        }
    });
}
