use lowtide_tensor::{Arrival, DType, Existing, ScatterReduction, Tensor, TensorError};

use crate::alike::{assert_alike, on};
use crate::elementwise::noise;
use crate::gpu::Gpu;
use crate::storage::cpu;

fn indices(shape: &[usize], len: usize) -> Tensor {
    let count: usize = shape.iter().product();
    // Some indices come often, some never.
    let index = |at: usize| (at * at + 3 * at + at / 5) % len;
    let indices: Vec<i64> = (0..count).map(|at| index(at) as i64).collect();
    Tensor::from_slice(&cpu(), shape, &indices).unwrap()
}

fn values(name: &str, shape: &[usize], dtype: DType) -> Tensor {
    noise(&cpu(), name, shape, [0.0, 3.9]).to_dtype(dtype).unwrap()
}

/// The tolerance of sums, which are added in the order of the processor and so have the same bits.
const EXACT: f64 = 0.0;

#[test]
fn what_is_sent_along_a_dimension_is_as_on_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for dtype in DType::ALL {
            // Elements arrive by lines here. If lines are few and long, their indices are sorted.
            for [a, n, m, c] in [[3, 5, 7, 4], [2, 9, 100, 1], [1, 6, 70, 40], [2, 3, 0, 2]] {
                let (x, source) = (values("x", &[a, n, c], dtype), values("s", &[a, m, c], dtype));
                let (index, along) = (indices(&[a, m, c], n), indices(&[m], n));
                let name = format!("{dtype} {a} {n} {m} {c}");
                let inputs = [&x, &source, &index, &along];
                assert_alike(&device, &name, &inputs, EXACT, |operands| {
                    let [x, source, index, along] = operands else { unreachable!("as given") };
                    let turned = x.transpose(0, 1)?;
                    let (turned_source, turned_index) =
                        (source.transpose(0, 1)?, index.transpose(0, 1)?);
                    let mut in_place = x.copied()?;
                    in_place.scatter_(1, index, source)?;
                    let mut results = vec![
                        x.scatter(1, index, source)?,
                        turned.scatter(0, &turned_index, &turned_source)?,
                        x.index_copy(1, along, source)?,
                        turned.index_copy(0, along, &turned_source)?,
                        x.index_fill(1, &along.narrow(0, 0, m.min(3))?, 2.0)?,
                        in_place.copied()?,
                    ];
                    if dtype == DType::Bool {
                        return Ok(results);
                    }
                    in_place.scatter_add_(1, index, source)?;
                    in_place.index_add_(1, along, source)?;
                    results.extend([
                        x.scatter_add(1, index, source)?,
                        turned.scatter_add(0, &turned_index, &turned_source)?,
                        x.index_add(1, along, source)?,
                        turned.contiguous()?.index_add(0, along, &turned_source.contiguous()?)?,
                        in_place,
                    ]);
                    Ok(results)
                });
            }
        }
    });
}

#[test]
fn what_is_reduced_where_indices_say_is_as_on_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let reductions = [
        ScatterReduction::Sum,
        ScatterReduction::Prod,
        ScatterReduction::Mean,
        ScatterReduction::Amax,
        ScatterReduction::Amin,
    ];
    gpu.in_every_order(|| {
        for dtype in DType::ALL {
            for [a, n, m] in [[4, 5, 7], [2, 9, 100]] {
                let (x, source) = (values("x", &[a, n], dtype), values("s", &[a, m], dtype));
                let (index, along) = (indices(&[a, m], n), indices(&[m], n));
                for reduction in reductions {
                    if reduction == ScatterReduction::Mean && dtype == DType::Bool {
                        continue;
                    }
                    for existing in [Existing::Included, Existing::Replaced] {
                        let name = format!("{reduction:?} {existing:?} {dtype} {m}");
                        let inputs = [&x, &source, &index, &along];
                        assert_alike(&device, &name, &inputs, EXACT, |operands| {
                            let [x, source, index, along] = operands else {
                                unreachable!("as given")
                            };
                            Ok(vec![
                                x.scatter_reduce(1, index, source, reduction, existing)?,
                                x.index_reduce(1, along, source, reduction, existing)?,
                            ])
                        });
                    }
                }
            }
        }
    });
}

#[test]
fn nan_is_reduced_as_on_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let x = Tensor::from_slice(&cpu(), [3], &[1.0_f32, f32::NAN, -1.0]).unwrap();
    let source = [f32::NAN, 2.0, 3.0, f32::INFINITY, f32::NAN, 0.5];
    let source = Tensor::from_slice(&cpu(), [6], &source).unwrap();
    let index = Tensor::from_slice(&cpu(), [6], &[0_i64, 0, 1, 2, 2, 2]).unwrap();
    for reduction in [ScatterReduction::Amax, ScatterReduction::Amin, ScatterReduction::Sum] {
        assert_alike(&device, "nan", &[&x, &source, &index], EXACT, |operands| {
            let [x, source, index] = operands else { unreachable!("as given") };
            Ok(vec![
                x.scatter_reduce(0, index, source, reduction, Existing::Included)?,
                x.scatter_reduce(0, index, source, reduction, Existing::Replaced)?,
            ])
        });
    }
}

#[test]
fn places_that_several_indices_name_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for dtype in DType::ALL {
            let x = values("x", &[5, 4, 6], dtype);
            let (i, j) = (indices(&[3, 7], 5), indices(&[7], 4));
            let (all, none) = (indices(&[50], 120), indices(&[0], 1));
            let source = values("s", &[3, 7, 6], dtype);
            let inputs = [&x, &i, &j, &all, &none, &source];
            assert_alike(&device, &format!("{dtype}"), &inputs, EXACT, |operands| {
                let [x, i, j, all, none, source] = operands else { unreachable!("as given") };
                let turned = x.permute(&[1, 0, 2])?.contiguous()?.permute(&[1, 0, 2])?;
                let taken = x.take(all)?;
                let mut results = vec![
                    x.index(&[i, j])?,
                    turned.index(&[i, j])?,
                    x.index(&[i])?,
                    x.index(&[none])?,
                    turned.take(all)?,
                    x.index_put(&[i, j], source, Arrival::Replace)?,
                    x.index_put(&[i, j], &source.narrow(2, 0, 1)?, Arrival::Replace)?,
                    x.put(all, &taken, Arrival::Replace)?,
                ];
                let mut in_place = turned.copied()?.permute(&[2, 0, 1])?;
                in_place.put_(all, &taken, Arrival::Replace)?;
                results.push(in_place.contiguous()?);
                if dtype != DType::Bool {
                    in_place.put_(all, &taken, Arrival::Add)?;
                    results.push(x.index_put(&[i, j], source, Arrival::Add)?);
                    results.push(x.put(all, &taken, Arrival::Add)?);
                    results.push(in_place.contiguous()?);
                }
                Ok(results)
            });
        }
    });
}

#[test]
fn many_places_are_put_to_as_on_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let (x, source) = (values("x", &[37], DType::F32), values("s", &[3000], DType::F32));
    let index = indices(&[3000], 37);
    assert_alike(&device, "many", &[&x, &source, &index], EXACT, |operands| {
        let [x, source, index] = operands else { unreachable!("as given") };
        Ok(vec![
            x.put(index, source, Arrival::Add)?,
            x.put(index, source, Arrival::Replace)?,
            x.index_add(0, index, source)?,
            x.index_copy(0, index, source)?,
        ])
    });
}

#[test]
fn bad_index_sends_nothing_and_is_told_to_who_reads_next() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let of =
        |values: &[i64]| on(&device, &Tensor::from_slice(&cpu(), [values.len()], values).unwrap());
    let x = Tensor::zeros(&device, [4], DType::F32).unwrap();
    let source = Tensor::ones(&device, [3], DType::F32).unwrap();
    let index = of(&[1, 4, -1]);
    type Sent<'a> = (&'static str, &'a dyn Fn() -> Result<Tensor, TensorError>);
    let all: [Sent<'_>; 6] = [
        ("scatter", &|| x.scatter(0, &index, &source)),
        ("index_add", &|| x.index_add(0, &index, &source)),
        ("scatter_reduce", &|| {
            let reduction = (ScatterReduction::Amax, Existing::Included);
            x.scatter_reduce(0, &index, &source, reduction.0, reduction.1)
        }),
        ("index_fill", &|| x.index_fill(0, &index, 1.0)),
        ("index_put", &|| x.index_put(&[&index], &source, Arrival::Add)),
        ("put", &|| x.put(&index, &source, Arrival::Replace)),
    ];
    for (op, run) in all {
        let y = run().unwrap();
        let error = y.to_vec::<f32>().unwrap_err();
        let expected = TensorError::Index { op, index: 4, len: 4 };
        assert_eq!(error.to_string(), expected.to_string());
        assert_eq!(y.to_vec::<f32>().unwrap(), [0.0, 1.0, 0.0, 0.0], "{op}");
    }
    let taken = x.add_scalar(2.0).unwrap().take(&index).unwrap();
    assert!(matches!(taken.to_vec::<f32>(), Err(TensorError::Index { op: "take", index: 4, .. })));
    assert_eq!(taken.to_vec::<f32>().unwrap(), [2.0, 0.0, 0.0]);
}
