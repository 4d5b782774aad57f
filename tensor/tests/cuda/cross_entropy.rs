use lowtide_allocator::Repeat;
use lowtide_tensor::{
    CrossEntropy, DType, Device, Labelling, Tensor, TensorError, TensorResult as Result,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::alike::{assert_alike, each_float, on};
use crate::elementwise::noise;
use crate::gpu::Gpu;
use crate::storage::cpu;

/// Dimensions of the logits, and the reading of the labels.
#[derive(Clone, Debug)]
struct Case {
    dims: Vec<usize>,
    ignore_index: i64,
    smoothing: f64,
    has_weight: bool,
    turned: bool,
}

fn cases() -> impl Strategy<Value = Case> {
    let classes = prop_oneof![5 => 1..=12_usize, 1 => 255..=300_usize];
    let rest = prop::collection::vec(0..=4_usize, 0..=2);
    let smoothing = prop::sample::select(vec![0.0, 0.1, 1.0]);
    let ignore_index = prop::sample::select(vec![-100, 0, 1]);
    let flags = any::<[bool; 2]>();
    (0..=5_usize, classes, rest, (ignore_index, smoothing), flags).prop_map(
        |(batch, classes, rest, (ignore_index, smoothing), [has_weight, turned])| {
            let dims = [&[batch, classes], &rest[..]].concat();
            Case { dims, ignore_index, smoothing, has_weight, turned }
        },
    )
}

/// Results of a case on a device.
struct Found {
    loss: CrossEntropy,
    dx: Tensor,
    /// The gradient that overwrites the logits.
    in_place: Tensor,
}

fn run(device: &Device, case: &Case) -> Result<Found> {
    let Case { dims, ignore_index, smoothing, has_weight, turned } = case;
    let cpu = cpu();
    let x = noise(&cpu, "x", dims, [-6.0, 6.0]);
    let here = |x: &Tensor| {
        let last = x.shape().len() - 1;
        if *turned {
            on(device, &x.transpose(0, last)?).transpose(0, last)
        } else {
            Ok(on(device, x))
        }
    };
    let label_dims = [&dims[..1], &dims[2..]].concat();
    let len = label_dims.iter().product::<usize>();
    let label = |at: usize| match (at * 7 + 3) % (dims[1] + 1) {
        // A label to ignore.
        0 => *ignore_index,
        label => label as i64 - 1,
    };
    let labels: Vec<i64> = (0..len).map(label).collect();
    // A label to ignore may be no class at all.
    let labels = Tensor::from_slice(&cpu, &label_dims[..], &labels)?;
    let weight = noise(&cpu, "weight", &dims[1..2], [-0.5, 2.0]).relu()?;
    let (x, labels, weight) = (here(&x)?, here(&labels)?, on(device, &weight));
    let weight = has_weight.then_some(&weight);
    let labelling = Labelling { ignore_index: *ignore_index, smoothing: *smoothing, weight };
    let loss = x.cross_entropy_with(&labels, &labelling)?;
    let dy = on(device, &Tensor::from_slice(&cpu, [], &[0.75_f32])?);
    let dx = dy.cross_entropy_with_backward(&x, &labels, &loss.log_sum_exp, &labelling)?;
    let mut in_place = x.contiguous()?.copied()?;
    let labels = labels.contiguous()?;
    in_place.cross_entropy_backward_(&labels, &loss.log_sum_exp, &dy, &labelling)?;
    Ok(Found { loss, dx, in_place })
}

fn near(name: &str, found: &Tensor, expected: &Tensor, tolerance: f32) {
    assert_eq!(found.shape(), expected.shape(), "{name}");
    let [found, expected] = [found, expected].map(|x| x.to_vec::<f32>().unwrap());
    for (index, (a, b)) in found.iter().zip(&expected).enumerate() {
        let is_same = a == b || (a.is_nan() && b.is_nan());
        assert!(is_same || (a - b).abs() <= tolerance, "{name}[{index}]: {a}, not {b}");
    }
}

/// Checks that both devices find the same. Logits are at most 6 and weights at most 2. On either
/// side, a sum over the classes is rounded once for each term, by a unit in the last place of the
/// term.
fn compare(found: &Found, expected: &Found, case: &Case) {
    let unit = f32::EPSILON * (case.dims[1] + 8) as f32;
    let positions = found.loss.log_sum_exp.element_count() as f32;
    let [a, b] = [&found.loss, &expected.loss];
    near("log_sum_exp", &a.log_sum_exp, &b.log_sum_exp, 2.0 * unit);
    near("sum", &a.sum, &b.sum, 2.0 * 12.0 * 2.0 * unit * positions);
    near("count", &a.count, &b.count, f32::EPSILON * 2.0 * positions);
    near("dx", &found.dx, &expected.dx, 2.0 * 2.0 * unit);
    near("in place", &found.in_place, &expected.in_place, 2.0 * 2.0 * unit);
    assert_eq!(found.dx.to_bytes().unwrap(), found.in_place.to_bytes().unwrap());
}

#[test]
fn cross_entropy_and_its_gradient_are_those_of_the_processor_over_generated_shapes() {
    let Some(gpu) = Gpu::take() else { return };
    let (device, cpu) = (gpu.device(), cpu());
    gpu.in_every_order(|| {
        let config = Config { cases: 20, failure_persistence: None, ..Config::default() };
        let checked = TestRunner::new(config).run(&cases(), |case| {
            compare(&run(&device, &case).unwrap(), &run(&cpu, &case).unwrap(), &case);
            Ok(())
        });
        checked.unwrap();
    });
}

#[test]
fn cross_entropy_and_its_gradient_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let labels = Tensor::from_slice(&cpu(), [2, 3], &[0_i64, 129, -100, 7, 64, 128]).unwrap();
    gpu.in_every_order(|| {
        for (dtype, tolerance) in each_float([4e-5, 1e-12]) {
            let make = |name: &str, shape: &[usize]| {
                noise(&cpu(), name, shape, [-3.0, 3.0]).to_dtype(dtype).unwrap()
            };
            let (x, weight) = (make("x", &[2, 130, 3]), make("weight", &[130]).abs().unwrap());
            let name = format!("cross_entropy {dtype}");
            assert_alike(&device, &name, &[&x, &weight, &labels], tolerance, |operands| {
                let [x, weight, labels] = operands else { unreachable!() };
                let labelling =
                    Labelling { smoothing: 0.1, weight: Some(weight), ..Default::default() };
                let CrossEntropy { sum, count, log_sum_exp } =
                    x.cross_entropy_with(labels, &labelling)?;
                let dy = Tensor::ones(x.device(), [], dtype.computed())?;
                let dx = dy.cross_entropy_with_backward(x, labels, &log_sum_exp, &labelling)?;
                Ok(vec![sum, count, log_sum_exp, dx])
            });
        }
    });
}

#[test]
fn logits_that_are_not_finite_give_what_the_processor_gives() {
    let Some(gpu) = Gpu::take() else { return };
    let (device, cpu) = (gpu.device(), cpu());
    let (low, high, nan) = (f32::NEG_INFINITY, f32::INFINITY, f32::NAN);
    let rows = [[low; 3], [high, 0.0, 1.0], [0.0, nan, 1.0], [low, 0.5, 1.0], [high; 3]];
    let run = |device: &Device,
               row: &[f32; 3],
               label: i64,
               smoothing: f64|
     -> Result<Vec<Tensor>> {
        let (x, labels) =
            (Tensor::from_slice(device, [1, 3], row)?, Tensor::from_slice(device, [1], &[label])?);
        let weight = Tensor::from_slice(device, [3], &[0.0_f32, 1.0, 0.5])?;
        let labelling = Labelling { smoothing, weight: Some(&weight), ..Default::default() };
        let CrossEntropy { sum, count, log_sum_exp } = x.cross_entropy_with(&labels, &labelling)?;
        let dy = Tensor::ones(device, [], DType::F32)?;
        let dx = dy.cross_entropy_with_backward(&x, &labels, &log_sum_exp, &labelling)?;
        Ok(vec![sum, count, log_sum_exp, dx])
    };
    for row in rows {
        for (label, smoothing) in [(0, 0.0), (1, 0.0), (1, 0.25), (2, 1.0), (-100, 0.25)] {
            let [found, expected] =
                [&device, &cpu].map(|device| run(device, &row, label, smoothing).unwrap());
            for (found, expected) in found.iter().zip(&expected) {
                near(&format!("{row:?} {label} {smoothing}"), found, expected, 1e-6);
            }
        }
    }
}

#[test]
fn first_label_that_is_no_class_is_the_error_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let (device, cpu) = (gpu.device(), cpu());
    let x = noise(&cpu, "x", &[600, 3], [-1.0, 1.0]);
    let x_there = on(&device, &x);
    for bad in [&[(599, 3)][..], &[(300, -1), (2, 1 << 40)], &[(70, -101), (71, 3), (0, i64::MIN)]]
    {
        let mut labels = vec![1_i64; 600];
        labels[1] = -100;
        bad.iter().for_each(|&(at, label)| labels[at] = label);
        let loss = |x: &Tensor| {
            let labels = Tensor::from_slice(x.device(), [600], &labels).unwrap();
            x.cross_entropy(&labels, -100)
        };
        let expected = loss(&x).unwrap_err();
        assert!(matches!(expected, TensorError::Label { op: "cross_entropy", .. }), "{expected}");
        // The device reports no error where it computes: the next read does.
        let found = loss(&x_there).unwrap();
        let error = x_there.to_vec::<f32>().unwrap_err();
        assert_eq!(error.to_string(), expected.to_string());
        assert!(found.sum.item::<f32>().unwrap().is_nan(), "and nobody after that");
    }
}

#[test]
fn of_several_bad_labels_the_first_is_told_and_the_next_loss_has_its_own() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let x = noise(&device, "x", &[2, 3], [-1.0, 1.0]);
    let loss = |labels: [i64; 2]| {
        let labels = Tensor::from_slice(&device, [2], &labels).unwrap();
        x.cross_entropy(&labels, -100).unwrap()
    };
    let text = |error: TensorError| error.to_string();
    gpu.in_every_order(|| {
        let sums = [[0, 5], [7, 1], [0, 1]].map(|labels| loss(labels).sum);
        let error = sums[2].item::<f32>().unwrap_err();
        assert_eq!(text(error), "cross_entropy: label 5 at position 1 is none of 3 classes");
        let found = sums.map(|sum| sum.item::<f32>().unwrap().is_finite());
        assert_eq!(found, [false, false, true]);
        let bad = loss([-1, 0]);
        // A write that needs a read reports the error, and writes nothing.
        let mut part = x.narrow(1, 0, 2).unwrap();
        let error = part.set_bytes_(&[0; 16]).unwrap_err();
        assert_eq!(text(error), "cross_entropy: label -1 at position 0 is none of 3 classes");
        assert!(x.to_vec::<f32>().unwrap().iter().all(|x| *x != 0.0));
        assert!(bad.sum.item::<f32>().unwrap().is_nan());
    });
}

#[test]
fn gradient_of_a_label_that_is_no_class_is_no_number() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let mut x = noise(&device, "x", &[3, 2], [-1.0, 1.0]);
    let labels = Tensor::from_slice(&device, [3], &[-100_i64, 2, 0]).unwrap();
    let lse = Tensor::zeros(&device, [3], DType::F32).unwrap();
    let dy = Tensor::ones(&device, [], DType::F32).unwrap();
    let dx = dy.cross_entropy_backward(&x, &labels, &lse, -100).unwrap();
    x.cross_entropy_backward_(&labels, &lse, &dy, &Labelling::default()).unwrap();
    for dx in [dx, x] {
        let dx = dx.to_vec::<f32>().unwrap();
        assert_eq!(dx[..2], [0.0, 0.0]);
        assert!(dx[2].is_nan() && dx[3].is_nan());
        assert!(dx[4].is_finite() && dx[5].is_finite());
    }
}

#[test]
fn loss_that_the_driver_refuses_is_a_typed_error_and_writes_nothing() {
    let Some(gpu) = Gpu::pretend() else { return };
    let device = gpu.device();
    let labels = Tensor::from_slice(&device, [3], &[0_i64, 1, 1]).unwrap();
    let mut x = noise(&device, "x", &[3, 2], [-1.0, 1.0]);
    let expected = x.cross_entropy(&labels, -100).unwrap();
    let lse = expected.log_sum_exp;
    let dy = Tensor::ones(&device, [], DType::F32).unwrap();
    let before = device.allocator().live_blocks();
    /// `CUDA_ERROR_UNKNOWN`.
    const UNKNOWN: i32 = 999;
    for nth in [1, 2] {
        gpu.pretend.fail("cuLaunchKernel", UNKNOWN, nth, Repeat::Once);
        let error = x.cross_entropy(&labels, -100).unwrap_err();
        assert!(matches!(error, TensorError::Launch(_)), "{error}");
    }
    let logits = x.to_bytes().unwrap();
    gpu.pretend.fail("cuLaunchKernel", UNKNOWN, 1, Repeat::Once);
    let error = x.cross_entropy_backward_(&labels, &lse, &dy, &Labelling::default()).unwrap_err();
    assert!(matches!(error, TensorError::Launch(_)), "{error}");
    assert_eq!(x.to_bytes().unwrap(), logits);
    assert_eq!(device.allocator().live_blocks(), before);
    let again = x.cross_entropy(&labels, -100).unwrap();
    assert_eq!(again.sum.to_bytes().unwrap(), expected.sum.to_bytes().unwrap());
}

#[test]
fn neither_the_loss_nor_its_gradient_is_waited_for() {
    let Some(gpu) = Gpu::pretend() else { return };
    let device = gpu.device();
    let x = noise(&device, "x", &[3, 2], [-1.0, 1.0]);
    let labels = Tensor::from_slice(&device, [3], &[0_i64, 1, 1]).unwrap();
    let dy = Tensor::ones(&device, [], DType::F32).unwrap();
    let waits = || ["cuStreamSynchronize", "cuCtxSynchronize"].map(|call| gpu.pretend.calls(call));
    let before = waits();
    let loss = x.cross_entropy(&labels, -100).unwrap();
    dy.cross_entropy_backward(&x, &labels, &loss.log_sum_exp, -100).unwrap();
    assert_eq!(waits(), before);
}
