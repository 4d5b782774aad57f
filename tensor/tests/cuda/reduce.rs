use lowtide_tensor::{DType, Tensor, TensorResult as Result};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::alike::{assert_alike, each_float};
use crate::elementwise::noise;
use crate::gpu::Gpu;
use crate::storage::cpu;

/// Tolerance of f32. Both devices accumulate in f64; exponentials differ by a few roundings of f32.
const TOLERANCE: f64 = 1e-6;
const TOLERANCE_OF_F64: f64 = 1e-13;

type Reduction = fn(&Tensor, &[usize]) -> Result<Tensor>;

/// All reductions, by every fold and every finish; the first ones need elements.
const REDUCTIONS: [(&str, Reduction); 17] = [
    ("amax", |x, axes| x.amax(axes)),
    ("amin", |x, axes| x.amin(axes)),
    ("norm inf", |x, axes| x.norm(axes, f64::INFINITY)),
    ("norm -inf", |x, axes| x.norm(axes, f64::NEG_INFINITY)),
    ("sum", |x, axes| x.sum(axes)),
    ("prod", |x, axes| x.prod(axes)),
    ("mean", |x, axes| x.mean(axes)),
    ("any", |x, axes| x.any(axes)),
    ("all", |x, axes| x.all(axes)),
    ("count", |x, axes| x.count_nonzero(axes)),
    ("logsumexp", |x, axes| x.logsumexp(axes)),
    ("var", |x, axes| x.var(axes, 1.0)),
    ("std", |x, axes| x.std(axes, 0.0)),
    ("norm 0", |x, axes| x.norm(axes, 0.0)),
    ("norm 1", |x, axes| x.norm(axes, 1.0)),
    ("norm 2", |x, axes| x.norm(axes, 2.0)),
    ("norm 3", |x, axes| x.norm(axes, 3.0)),
];
const NEED_ELEMENTS: usize = 4;

/// A tensor with some zeros, and one NaN if asked for.
fn spotted(shape: &[usize], has_nan: bool) -> Tensor {
    let x = noise(&cpu(), "x", shape, [-2.0, 2.0]);
    let mut values = x.to_vec::<f32>().unwrap();
    values.iter_mut().step_by(7).for_each(|x| *x = 0.0);
    if let (true, Some(last)) = (has_nan, values.last_mut()) {
        *last = f32::NAN;
    }
    Tensor::from_slice(&cpu(), shape, &values).unwrap()
}

#[test]
fn reductions_are_those_of_the_processor_over_generated_shapes() {
    let Some(gpu) = Gpu::take() else { return };
    let size = || prop_oneof![1 => 0..2_usize, 6 => 2..9_usize];
    let shapes = prop::collection::vec((size(), any::<bool>()), 0..=5);
    let config = Config { cases: 160, failure_persistence: None, ..Config::default() };
    let cases = (shapes, 0..REDUCTIONS.len(), 0..4_usize, any::<bool>(), any::<bool>());
    TestRunner::new(config)
        .run(&cases, |(dims, which, of, is_turned, has_nan)| {
            let (dtype, tolerance) = each_float([TOLERANCE, TOLERANCE_OF_F64])[of];
            let shape: Vec<usize> = dims.iter().map(|dim| dim.0).collect();
            let axes: Vec<usize> = (0..dims.len()).filter(|&axis| dims[axis].1).collect();
            if which < NEED_ELEMENTS && axes.iter().any(|&axis| shape[axis] == 0) {
                return Ok(());
            }
            let (name, reduce) = REDUCTIONS[which];
            let x = spotted(&shape, has_nan).to_dtype(dtype).unwrap();
            let name = format!("{name} {dtype}");
            assert_alike(&gpu.device(), &name, &[&x], tolerance, |inputs| {
                let x = &inputs[0];
                let turned: Vec<usize> = (0..shape.len()).rev().collect();
                let x = if is_turned {
                    x.permute(&turned)?.copied()?.permute(&turned)?
                } else {
                    x.clone()
                };
                Ok(vec![reduce(&x, &axes)?])
            });
            Ok(())
        })
        .unwrap();
}

#[test]
fn each_reduction_is_that_of_the_processor_without_zeros_and_with_infinities() {
    let Some(gpu) = Gpu::take() else { return };
    let positive = noise(&cpu(), "positive", &[3, 5, 4], [0.5, 2.0]);
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let corners = [[-inf; 3], [inf, 1.0, -inf], [-inf, 1.0, 2.0], [nan, inf, 0.0], [inf; 3]];
    let corners = Tensor::from_slice(&cpu(), [5, 3], corners.as_flattened()).unwrap();
    gpu.in_every_order(|| {
        for (name, reduce) in REDUCTIONS {
            let inputs = [&positive, &positive.neg().unwrap(), &corners];
            assert_alike(&gpu.device(), name, &inputs, TOLERANCE, |inputs| {
                let [positive, negative, corners] = inputs else { unreachable!() };
                Ok(vec![
                    reduce(positive, &[1])?,
                    reduce(positive, &[0, 2])?,
                    reduce(negative, &[2])?,
                    reduce(corners, &[1])?,
                    reduce(corners, &[0])?,
                ])
            });
        }
    });
}

#[test]
fn integers_and_truth_values_are_reduced_as_by_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let numbers: Vec<i64> = (0..2 * 7 * 70).map(|i| (i * i + 3 * i) % 5 - 1).collect();
    let numbers = Tensor::from_slice(&cpu(), [2, 7, 70], &numbers).unwrap();
    let far = [i64::MAX, i64::MIN, 3, i64::MAX, 1, i64::MIN];
    let far = Tensor::from_slice(&cpu(), [3, 2], &far).unwrap();
    let reduce = |x: &Tensor| -> Result<Vec<Tensor>> {
        let mut found = Vec::new();
        let last = x.shape().len() - 1;
        for axes in [&[last][..], &[0], &(0..=last).collect::<Vec<_>>()] {
            found.extend([x.sum(axes)?, x.prod(axes)?, x.amax(axes)?, x.amin(axes)?]);
            found.extend([x.any(axes)?, x.all(axes)?, x.count_nonzero(axes)?]);
        }
        let (max, at) = x.max(0)?;
        let (min, from) = x.min(last)?;
        found.extend([max, at, min, from, x.argmax_all()?, x.argmin_all()?]);
        Ok(found)
    };
    gpu.in_every_order(|| {
        for dtype in [DType::I64, DType::I32, DType::U8, DType::Bool] {
            let x = numbers.abs().unwrap().to_dtype(dtype).unwrap();
            let name = format!("{dtype}");
            assert_alike(&gpu.device(), &name, &[&x], 0.0, |inputs| reduce(&inputs[0]));
        }
        let inputs = [&numbers, &far];
        assert_alike(&gpu.device(), "below 0", &inputs, 0.0, |inputs| {
            Ok([reduce(&inputs[0])?, reduce(&inputs[1])?].concat())
        });
    });
}

#[test]
fn long_reductions_go_part_by_part_in_every_order() {
    let Some(gpu) = Gpu::take() else { return };
    // Rows longer than a part, and columns longer than a part, with and without whole packs.
    let rows = noise(&cpu(), "rows", &[2, 70_000], [-1.0, 1.0]);
    let columns = noise(&cpu(), "columns", &[1500, 130], [-1.0, 1.0]);
    let packs = noise(&cpu(), "packs", &[1500, 136], [-1.0, 1.0]);
    gpu.in_every_order(|| {
        assert_alike(&gpu.device(), "parts", &[&rows, &columns, &packs], TOLERANCE, |inputs| {
            let [rows, columns, packs] = inputs else { unreachable!() };
            Ok(vec![
                rows.sum(&[1])?,
                rows.sum_all()?,
                rows.logsumexp(&[1])?,
                columns.sum(&[0])?,
                columns.var(&[0], 1.0)?,
                rows.argmax()?,
                rows.argmin_all()?,
                columns.argmax_axis(0)?,
                packs.sum(&[0])?,
                packs.amax(&[0])?,
                packs.norm(&[0], 2.0)?,
            ])
        });
    });
}

#[test]
fn positions_are_the_first_ones_and_those_of_nan() {
    let Some(gpu) = Gpu::take() else { return };
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let rows = [
        [1.0, 3.0, 3.0, -1.0, -1.0],
        [1.0, nan, 5.0, nan, -2.0],
        [-inf, -inf, -inf, -inf, -inf],
        [inf, 0.0, inf, -0.0, 0.0],
    ];
    let x = Tensor::from_slice(&cpu(), [4, 5], rows.as_flattened()).unwrap();
    gpu.in_every_order(|| {
        assert_alike(&gpu.device(), "positions", &[&x], 0.0, |inputs| {
            let x = &inputs[0];
            let (max, at) = x.max(1)?;
            let (min, from) = x.min(0)?;
            let turned = x.transpose(0, 1)?;
            Ok(vec![max, at, min, from, turned.argmax()?, turned.argmin()?, x.argmax_all()?])
        });
    });
}
