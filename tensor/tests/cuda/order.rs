use lowtide_tensor::{DType, QuantileRule, Side, SortOrder, Tensor, TensorError, UniqueOptions};

use crate::alike::{assert_alike, on};
use crate::elementwise::noise;
use crate::gpu::Gpu;
use crate::storage::cpu;

/// Few different values, so that most elements have equals. Some floats are NaN, -0 or infinite.
fn values(shape: &[usize], dtype: DType) -> Tensor {
    let x = noise(&cpu(), "x", shape, [-4.9, 4.9]).trunc().unwrap();
    let x = if dtype.is_float() { with_specials(&x) } else { x.abs().unwrap() };
    x.to_dtype(dtype).unwrap()
}

fn with_specials(x: &Tensor) -> Tensor {
    let special = |(at, x): (usize, f32)| match at % 7 {
        2 => f32::NAN,
        3 => -0.0,
        5 if at % 2 == 0 => f32::NEG_INFINITY,
        _ => x,
    };
    let values = x.to_vec::<f32>().unwrap();
    let values: Vec<f32> = values.into_iter().enumerate().map(special).collect();
    Tensor::from_slice(&cpu(), *x.shape(), &values).unwrap()
}

/// Ones with the signs of floats, which tell zeros apart; elements of other types unchanged.
fn bits(x: &Tensor) -> Result<Tensor, TensorError> {
    if !x.dtype().is_float() {
        return x.contiguous();
    }
    Tensor::ones(x.device(), *x.shape(), x.dtype())?.copysign(x)
}

#[test]
fn sorted_rows_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for dtype in DType::ALL {
            for shape in [[3, 7], [2, 1], [1, 33], [40, 2], [0, 3], [3, 0]] {
                let x = values(&shape, dtype);
                assert_alike(&device, &format!("{dtype} {shape:?}"), &[&x], 0.0, |operands| {
                    let x = &operands[0];
                    let k = shape[1].min(3);
                    let (a, places) = x.sort(1, SortOrder::Ascending)?;
                    let (d, downward) = x.transpose(0, 1)?.sort(0, SortOrder::Descending)?;
                    let (few, first) = x.topk(k, 1, SortOrder::Descending)?;
                    let argsort = x.argsort(0, SortOrder::Ascending)?;
                    let (a_bits, d_bits) = (bits(&a)?, bits(&d)?);
                    Ok(vec![a, places, d, downward, few, first, argsort, a_bits, d_bits])
                });
            }
        }
    });
}

#[test]
fn rows_longer_than_a_tile_are_sorted_as_on_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    for (dtype, shape) in [
        (DType::F32, [2, 2048]),
        (DType::F32, [2, 2049]),
        (DType::F64, [1, 5000]),
        (DType::I64, [1, 4097]),
        (DType::BF16, [3, 3000]),
    ] {
        let x = noise(&cpu(), "x", &shape, [-1e4, 1e4]).to_dtype(dtype).unwrap();
        assert_alike(&device, &format!("{dtype} {shape:?}"), &[&x], 0.0, |operands| {
            let (a, places) = operands[0].sort(1, SortOrder::Ascending)?;
            let (few, first) = operands[0].topk(50, 1, SortOrder::Descending)?;
            let (middle, at) = operands[0].median(1)?;
            Ok(vec![a, places, few, first, middle, at])
        });
    }
}

#[test]
fn elements_by_rank_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for dtype in DType::ALL {
            for shape in [[3, 9], [4, 1], [2, 40], [0, 3]] {
                let x = values(&shape, dtype);
                assert_alike(&device, &format!("{dtype} {shape:?}"), &[&x], 0.0, |operands| {
                    let x = &operands[0];
                    let results = [
                        x.kthvalue(shape[1].min(3), 1)?,
                        x.median(1)?,
                        x.nanmedian(1)?,
                        x.mode(1)?,
                        x.transpose(0, 1)?.contiguous()?.mode(0)?,
                    ];
                    Ok(results.into_iter().flat_map(|(value, place)| [value, place]).collect())
                });
            }
        }
    });
}

#[test]
fn rows_of_nan_alone_have_the_medians_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let nan = f32::NAN;
    let x = [nan, nan, nan, 1.0, nan, 2.0, 3.0, 1.0, 2.0];
    let x = Tensor::from_slice(&cpu(), [3, 3], &x).unwrap();
    assert_alike(&device, "nan", &[&x], 0.0, |operands| {
        let results = [operands[0].median(1)?, operands[0].nanmedian(1)?];
        Ok(results.into_iter().flat_map(|(value, place)| [value, place]).collect())
    });
}

#[test]
fn quantiles_are_those_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let x = noise(&cpu(), "x", &[4, 11], [-2.0, 2.0]);
    assert_alike(&device, "quantiles", &[&x], 1e-6, |operands| {
        Ok(vec![operands[0].quantile(&[0.0, 0.3, 1.0], 1, QuantileRule::Linear)?])
    });
}

#[test]
fn places_in_sorted_rows_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for dtype in DType::ALL {
            for len in [0, 1, 2, 13] {
                let (sorted, _) = values(&[3, len], dtype).sort(1, SortOrder::Ascending).unwrap();
                let sought = values(&[3, 30], dtype);
                let inputs = [&sorted, &sought];
                assert_alike(&device, &format!("{dtype} {len}"), &inputs, 0.0, |operands| {
                    let [sorted, sought] = operands else { unreachable!("as given") };
                    let row = sorted.select(0, 0)?;
                    let turned = sought.transpose(0, 1)?;
                    Ok(vec![
                        sorted.searchsorted(sought, Side::Left)?,
                        sorted.searchsorted(sought, Side::Right)?,
                        row.searchsorted(&turned, Side::Right)?,
                        turned.bucketize(&row, Side::Left)?,
                        sought.isin(&row)?,
                    ])
                });
            }
        }
    });
}

#[test]
fn counts_of_bins_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            for shape in [[6, 70], [0, 2]] {
                let x = noise(&cpu(), "x", &shape, [-2.0, 3.0]).to_dtype(dtype).unwrap();
                let specials = values(&[5, 9], dtype);
                let name = format!("{dtype} {shape:?}");
                assert_alike(&device, &name, &[&x, &specials], 0.0, |operands| {
                    let [x, specials] = operands else { unreachable!("as given") };
                    Ok(vec![
                        x.histc(7, -1.0..2.0)?,
                        x.transpose(0, 1)?.histc(5, 0.0..0.0)?,
                        x.histc(3000, -2.0..3.0)?,
                        specials.histc(4, -4.0..4.0)?,
                        specials.narrow(0, 0, 0)?.histc(2, 1.0..1.0)?,
                    ])
                });
            }
        }
    });
}

#[test]
fn occurrences_of_numbers_are_those_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let numbers: Vec<i64> = (0..700).map(|at| (at * at + 3 * at) % 11).collect();
    let numbers = Tensor::from_slice(&cpu(), [700], &numbers).unwrap();
    let weights = noise(&cpu(), "w", &[700], [0.0, 1.0]);
    let there = on(&device, &numbers);
    // The operation reads the largest number, which an NVIDIA device has no kernel for.
    let counts = Tensor::zeros(&device, [11], DType::I64).unwrap();
    let one = Tensor::ones(&device, [], DType::I64).unwrap().expand([700]).unwrap();
    let found = counts.index_add(0, &there, &one).unwrap();
    let expected = numbers.bincount(None, 0).unwrap();
    assert_eq!(found.to_vec::<i64>().unwrap(), expected.to_vec::<i64>().unwrap());
    assert_alike(&device, "weighted", &[&numbers, &weights], 1e-6, |operands| {
        let sums = Tensor::zeros(operands[0].device(), [11], DType::F32)?;
        Ok(vec![sums.index_add(0, &operands[0], &operands[1])?])
    });
}

#[test]
fn different_rows_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for dtype in DType::ALL {
            for shape in [[40, 2], [5, 1], [1, 3], [700, 2], [0, 2]] {
                let x = values(&shape, dtype);
                let there = on(&device, &x);
                for along in [None, Some(0.into())] {
                    let options = UniqueOptions { along, ..Default::default() };
                    let of = |x: &Tensor| {
                        let all = x.unique(options).unwrap();
                        let near = x.unique_consecutive(options).unwrap();
                        [all, near].map(|found| {
                            [found.values, found.inverse, found.counts].map(|found| {
                                let found = found.contiguous().unwrap();
                                (*found.shape(), found.to_bytes().unwrap())
                            })
                        })
                    };
                    let (found, expected) = (of(&there), of(&x));
                    let numbers = [0, 1].map(|way| [&found[way], &expected[way]]);
                    for [found, expected] in numbers {
                        assert_eq!(found[1..], expected[1..], "{dtype} {shape:?}");
                        assert_eq!(found[0].0, expected[0].0, "{dtype} {shape:?}");
                        assert_eq!(found[0].1, expected[0].1, "{dtype} {shape:?}");
                    }
                }
            }
        }
    });
}

#[test]
fn different_rows_take_the_memory_of_their_simulation() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let x = values(&[30, 2], DType::I32);
    let count = x.unique(UniqueOptions { along: Some(0.into()), ..Default::default() }).unwrap();
    let assumed_count = Some(count.counts.element_count());
    assert_alike(&device, "unique", &[&x], 0.0, |operands| {
        let options = UniqueOptions { along: Some(0.into()), assumed_count };
        let found = operands[0].unique(options)?;
        Ok(vec![found.values, found.inverse, found.counts])
    });
}
