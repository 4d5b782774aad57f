use lowtide_tensor::{DType, RandomKey, Tensor, TensorError, TensorResult as Result};

use crate::alike::{assert_alike, each_float, on};
use crate::elementwise::noise;
use crate::gpu::Gpu;
use crate::storage::cpu;

#[test]
fn every_type_becomes_every_other_one_as_on_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let values = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.7,
        -2.7,
        255.0,
        256.0,
        300.0,
        -129.0,
        65504.0,
        65520.0,
        70000.0,
        2147483647.0,
        2147483648.0,
        -2147483649.0,
        4294967301.0,
        16777217.0,
        9.3e18,
        -9.3e18,
        9007199254740993.0,
        1e300,
        -1e300,
        1e-46,
        6e-8,
        nan,
        inf,
        -inf,
    ];
    let x = Tensor::from_slice(&cpu(), [values.len()], &values).unwrap();
    gpu.in_every_order(|| {
        for from in DType::ALL {
            let x = x.to_dtype(from).unwrap();
            assert_alike(&device, &format!("{from}"), &[&x], 0.0, |operands| {
                let wide = operands[0].reshape([values.len(), 1])?.expand([values.len(), 3])?;
                let turned = wide.transpose(0, 1)?;
                let each = |to: DType| [operands[0].to_dtype(to), turned.to_dtype(to)];
                DType::ALL.into_iter().flat_map(each).collect()
            });
        }
    });
}

#[test]
fn triangles_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for dtype in DType::ALL {
            for shape in [[2, 5, 7], [1, 7, 4], [3, 1, 1], [2, 0, 3], [0, 2, 2]] {
                let x = noise(&cpu(), "x", &shape, [1.0, 9.0]).to_dtype(dtype).unwrap();
                assert_alike(&device, &format!("{dtype} {shape:?}"), &[&x], 0.0, |operands| {
                    let turned = operands[0].transpose(1, 2)?;
                    let mut results = Vec::new();
                    for diagonal in [-100, -2, 0, 1, 3, isize::MAX, isize::MIN] {
                        let mut part = operands[0].copied()?.transpose(1, 2)?;
                        part.triu_(diagonal)?;
                        part.tril_(diagonal.saturating_add(2))?;
                        results.push(part.contiguous()?);
                        results.push(operands[0].triu(diagonal)?);
                        results.push(turned.tril(diagonal)?);
                    }
                    Ok(results)
                });
            }
        }
    });
}

#[test]
fn special_functions_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for (dtype, tolerance) in each_float([1e-6, 1e-11]) {
            let of = |name: &str, bounds: [f64; 2]| {
                let x = noise(&cpu(), name, &[6, 11], bounds);
                x.to_dtype(dtype).unwrap()
            };
            let (unit, wide, dy) =
                (of("u", [-1.0, 1.0]), of("x", [0.1, 30.0]), of("dy", [0.0, 1.0]));
            let ends = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, f64::NAN, f64::INFINITY];
            let ends = Tensor::from_slice(&cpu(), [9], &ends).unwrap().to_dtype(dtype).unwrap();
            let inputs = [&unit, &wide, &dy, &ends];
            assert_alike(&device, &format!("{dtype}"), &inputs, 40.0 * tolerance, |operands| {
                let [unit, wide, dy, ends] = operands else { unreachable!("as given") };
                let turned = wide.transpose(0, 1)?;
                let mut in_place = turned.copied()?;
                in_place.lgamma_()?;
                Ok(vec![
                    unit.erfinv()?,
                    ends.erfinv()?,
                    turned.lgamma()?,
                    in_place,
                    ends.lgamma()?,
                    turned.digamma()?,
                    ends.digamma()?,
                    dy.transpose(0, 1)?.digamma_backward(&turned)?,
                ])
            });
        }
    });
}

#[test]
fn integers_are_divided_as_on_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    type Division = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let divisions: [(&str, Division, Division); 4] = [
        ("div_floor", |a, b| a.div_floor(b), |a, _| a.div_floor_scalar(-3.0)),
        ("div_trunc", |a, b| a.div_trunc(b), |a, _| a.div_trunc_scalar(-3.0)),
        ("remainder", |a, b| a.remainder(b), |a, _| a.remainder_scalar(-3.0)),
        ("fmod", |a, b| a.fmod(b), |a, _| a.fmod_scalar(-3.0)),
    ];
    let a = [7_i64, -7, 7, -7, 0, i64::MIN, i64::MAX, 9, -9];
    let b = [2_i64, 2, -2, -2, 5, -1, -1, 3, 3];
    for dtype in [DType::I64, DType::I32, DType::U8] {
        let [a, b] = [a, b].map(|values| {
            Tensor::from_slice(&cpu(), [9], &values).unwrap().to_dtype(dtype).unwrap()
        });
        for (name, divide, by_number) in divisions {
            assert_alike(&device, &format!("{name} {dtype}"), &[&a, &b], 0.0, |operands| {
                let mut results = vec![divide(&operands[0], &operands[1])?];
                if dtype != DType::U8 {
                    results.push(by_number(&operands[0], &operands[1])?);
                }
                Ok(results)
            });
            let [there, zeros] = [&a, &a.sub(&a).unwrap()].map(|x| on(&device, x));
            let y = divide(&there, &zeros).unwrap();
            let error = y.to_bytes().unwrap_err();
            let expected = TensorError::DivisionByZero { op: name };
            assert_eq!(error.to_string(), expected.to_string(), "{dtype}");
            y.to_bytes().unwrap();
        }
    }
}

#[test]
fn random_numbers_of_every_type_are_those_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let key = RandomKey::new(0x1234_5678_9abc_def0).op("weight").step(3);
    gpu.in_every_order(|| {
        for dtype in DType::ALL {
            for len in [0, 1, 7, 300] {
                let x = Tensor::zeros(&cpu(), [3, len], dtype).unwrap();
                assert_alike(&device, &format!("{dtype} {len}"), &[&x], 0.0, |operands| {
                    let filled = |fill: &dyn Fn(&mut Tensor) -> Result<()>| -> Result<Tensor> {
                        let x = operands[0].copied()?;
                        fill(&mut x.transpose(0, 1)?)?;
                        Ok(x)
                    };
                    let mut results = vec![filled(&|x| x.bernoulli_(key, 0.3))?];
                    if dtype.is_float() {
                        results.push(filled(&|x| x.uniform_(key, -0.3, 0.75))?);
                    }
                    if dtype != DType::Bool {
                        results.push(filled(&|x| x.random_integers_(key, 3..101))?);
                    }
                    if dtype == DType::I64 {
                        let all = i64::MIN..i64::MAX;
                        results.push(filled(&|x| x.random_integers_(key, all.clone()))?);
                    }
                    Ok(results)
                });
            }
        }
        for (dtype, tolerance) in each_float([2e-7, 1e-14]) {
            let x = Tensor::zeros(&cpu(), [301], dtype).unwrap();
            assert_alike(&device, &format!("normal {dtype}"), &[&x], tolerance, |operands| {
                let mut x = operands[0].copied()?;
                x.normal_(key, 1.0, 2.0)?;
                Ok(vec![x])
            });
        }
        for len in [0, 1, 2, 500] {
            let x = Tensor::zeros(&cpu(), [1], DType::F32).unwrap();
            assert_alike(&device, &format!("permutation {len}"), &[&x], 0.0, |operands| {
                let order = Tensor::permutation(operands[0].device(), len, key)?;
                // An operation on the permutation waits for it.
                Ok(vec![order.add_scalar(1.0)?, order])
            });
        }
    });
}

#[test]
fn pooled_windows_of_any_count_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for (dtype, tolerance) in each_float([1e-6, 1e-13]) {
            for (shape, out) in [
                ([2, 3, 7, 9], [3, 4]),
                ([1, 2, 4, 4], [4, 4]),
                ([1, 1, 2, 3], [5, 7]),
                ([0, 2, 3, 3], [2, 2]),
            ] {
                let x = noise(&cpu(), "x", &shape, [-2.9, 2.9]).trunc().unwrap();
                let x = x.to_dtype(dtype).unwrap();
                let dy_shape = [shape[0], shape[1], out[0], out[1]];
                let dy = noise(&cpu(), "dy", &dy_shape, [-1.0, 1.0]).to_dtype(dtype).unwrap();
                let name = format!("{dtype} {shape:?}");
                assert_alike(&device, &name, &[&x, &dy], tolerance, |operands| {
                    let [x, dy] = operands else { unreachable!("as given") };
                    let (y, winners) = x.adaptive_max_pool2d(out)?;
                    let dx = dy.adaptive_max_pool2d_backward(&winners, *x.shape())?;
                    Ok(vec![y, winners, dx])
                });
            }
        }
    });
    let x = [f32::NAN, 1.0, f32::NAN, 2.0, f32::NEG_INFINITY, f32::INFINITY, 0.0, -0.0, 5.0];
    let x = Tensor::from_slice(&cpu(), [1, 1, 3, 3], &x).unwrap();
    assert_alike(&device, "nan", &[&x], 0.0, |operands| {
        let (y, winners) = operands[0].adaptive_max_pool2d([2, 2])?;
        Ok(vec![y, winners])
    });
}
