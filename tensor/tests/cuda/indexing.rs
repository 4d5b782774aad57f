use lowtide_tensor::{DType, Tensor, TensorError};

use crate::alike::{assert_alike, each_float, on};
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

#[test]
fn what_indices_choose_is_what_the_processor_chooses_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let all = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::U8, DType::I64, DType::Bool];
    gpu.in_every_order(|| {
        for dtype in all {
            let x = noise(&cpu(), "x", &[11, 6, 5], [0.0, 9.0]).to_dtype(dtype).unwrap();
            let (ids, along) = (indices(&[4, 7], 11), indices(&[3, 6, 5], 11));
            let (few, none) = (indices(&[9], 6), indices(&[0], 6));
            let inputs = [&x, &ids, &along, &few, &none];
            assert_alike(&device, &format!("{dtype}"), &inputs, 0.0, |operands| {
                let [x, ids, along, few, none] = operands else { unreachable!("as given") };
                let turned = x.permute(&[1, 0, 2])?;
                Ok(vec![
                    x.reshape([11, 30])?.embedding(ids)?,
                    turned.narrow(2, 1, 3)?.index_select(0, few)?,
                    turned.index_select(2, &few.narrow(0, 0, 2)?)?,
                    x.gather(0, along)?,
                    turned.gather(1, &along.permute(&[1, 0, 2])?)?,
                    x.index_select(1, none)?,
                ])
            });
        }
    });
}

#[test]
fn gradient_of_a_table_is_that_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for (dtype, tolerance) in each_float([1e-5, 1e-13]) {
            for (shape, rows, columns) in
                [([3, 7], 5, 6), ([2, 300], 70, 3), ([1, 1], 1, 300), ([0, 4], 3, 4)]
            {
                let dims = [shape[0], shape[1], columns];
                let dy = noise(&cpu(), "dy", &dims, [-2.0, 2.0]).to_dtype(dtype).unwrap();
                let ids = indices(&shape, rows);
                let name = format!("{dtype} {shape:?}");
                assert_alike(&device, &name, &[&dy, &ids], tolerance, |operands| {
                    let turned = operands[1].transpose(0, 1)?.contiguous()?.transpose(0, 1)?;
                    let table = operands[0].embedding_backward(&operands[1], rows)?;
                    Ok(vec![table, operands[0].embedding_backward(&turned, rows)?])
                });
            }
        }
    });
}

#[test]
fn bad_index_is_told_to_who_reads_next_and_only_once() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let x = noise(&device, "x", &[5, 3], [1.0, 2.0]);
    let ids =
        |values: &[i64]| on(&device, &Tensor::from_slice(&cpu(), [values.len()], values).unwrap());
    for (bad, value) in [([0, 5, -1], 5), ([4, -3, 7], -3)] {
        let y = x.embedding(&ids(&bad)).unwrap();
        let error = y.to_vec::<f32>().unwrap_err();
        let expected = TensorError::Index { op: "embedding", index: value, len: 5 };
        assert_eq!(error.to_string(), expected.to_string());
        let values = y.to_vec::<f32>().unwrap();
        let is_zero = |row: usize| values[3 * row..][..3].iter().all(|&value| value == 0.0);
        assert_eq!([0, 1, 2].map(is_zero), bad.map(|index| !(0..5).contains(&index)));
        // A reported error is forgotten, and the device goes on.
        x.index_select(0, &ids(&[4, 0])).unwrap().to_vec::<f32>().unwrap();
    }
    let error = x.index_select(0, &ids(&[1, 6])).unwrap().to_vec::<f32>().unwrap_err();
    assert!(matches!(error, TensorError::Index { op: "index_select", index: 6, len: 5 }));
}

#[test]
fn rows_with_a_one_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for dtype in DType::ALL {
            for (shape, classes) in [([3, 7], 5), ([0, 4], 3), ([1, 300], 1)] {
                let ids = indices(&shape, classes);
                assert_alike(&device, &format!("{dtype} {shape:?}"), &[&ids], 0.0, |operands| {
                    let turned = operands[0].transpose(0, 1)?;
                    Ok(vec![operands[0].one_hot(classes, dtype)?, turned.one_hot(classes, dtype)?])
                });
            }
        }
    });
    let ids = on(&device, &Tensor::from_slice(&cpu(), [2], &[1_i64, 3]).unwrap());
    let y = ids.one_hot(3, DType::F32).unwrap();
    let error = y.to_vec::<f32>().unwrap_err();
    assert!(matches!(error, TensorError::Index { op: "one_hot", index: 3, len: 3 }), "{error}");
    assert_eq!(y.to_vec::<f32>().unwrap(), [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
}
