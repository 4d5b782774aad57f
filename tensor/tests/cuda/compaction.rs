use lowtide_tensor::{DType, Device, RandomKey, Tensor, TensorError};

use crate::alike::{assert_alike, on};
use crate::elementwise::noise;
use crate::gpu::Gpu;
use crate::storage::cpu;

/// Lengths around the threads of a block and around its tile.
const LENS: [usize; 8] = [0, 1, 31, 256, 2047, 2048, 2049, 6000];

fn mask(device: &Device, shape: &[usize], probability: f64) -> Tensor {
    let mut mask = Tensor::empty(device, shape, DType::Bool).unwrap();
    mask.bernoulli_(RandomKey::new(3), probability).unwrap();
    mask
}

#[test]
fn what_masks_keep_is_that_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for dtype in DType::ALL {
            let x = noise(&cpu(), "x", &[9, 40], [-2.0, 2.0]).to_dtype(dtype).unwrap();
            let (mask, row) = (mask(x.device(), &[9, 40], 0.3), mask(x.device(), &[40], 0.5));
            let counts = [&mask, &row.expand([9, 40]).unwrap()]
                .map(|mask| x.masked_select(mask).unwrap().element_count());
            let (nonzero, wide) = (x.nonzero().unwrap().shape()[0], mask.transpose(0, 1).unwrap());
            let wide = wide.contiguous().unwrap();
            let inputs = [&x, &mask, &row, &wide];
            assert_alike(&device, &format!("{dtype}"), &inputs, 0.0, |operands| {
                let [x, mask, row, wide] = operands else { unreachable!("as given") };
                let source = x.transpose(0, 1)?;
                Ok(vec![
                    x.masked_select_assuming(mask, counts[0])?.contiguous()?,
                    x.masked_select_assuming(row, counts[1])?.contiguous()?,
                    x.masked_select_assuming(&wide.transpose(0, 1)?, counts[0])?.contiguous()?,
                    x.nonzero_assuming(nonzero)?.contiguous()?,
                    x.transpose(0, 1)?.nonzero_assuming(nonzero)?.contiguous()?,
                    x.nonzero_static(500, -1)?,
                    x.nonzero_static(3, -1)?,
                    x.masked_scatter(mask, &source)?,
                    x.masked_scatter(row, &source)?,
                ])
            });
        }
    });
}

#[test]
fn masks_beside_the_sizes_of_tiles_keep_what_the_processor_keeps() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    for len in LENS {
        for probability in [0.0, 0.4, 1.0] {
            let x = noise(&cpu(), "x", &[len], [1.0, 2.0]);
            let mask = mask(x.device(), &[len], probability);
            let count = x.masked_select(&mask).unwrap().element_count();
            assert_alike(&device, &format!("{len}"), &[&x, &mask], 0.0, |operands| {
                let [x, mask] = operands else { unreachable!("as given") };
                Ok(vec![
                    x.masked_select_assuming(mask, count)?.contiguous()?,
                    mask.nonzero_assuming(count)?.contiguous()?,
                    x.masked_scatter(mask, &x.neg()?)?,
                ])
            });
        }
    }
}

#[test]
fn nan_is_not_zero_and_negative_zero_is() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let x = [0.0, -0.0, f32::NAN, 1e-40, -1.0, f32::INFINITY];
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let x = Tensor::from_slice(&cpu(), [6], &x).unwrap().to_dtype(dtype).unwrap();
        let found = on(&device, &x).nonzero().unwrap();
        let expected = x.nonzero().unwrap().to_vec::<i64>().unwrap();
        assert_eq!(found.to_vec::<i64>().unwrap(), expected, "{dtype}");
    }
}

#[test]
fn source_with_too_few_elements_is_told_to_who_reads_next() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let x = Tensor::zeros(&device, [5], DType::F32).unwrap();
    let mask = Tensor::ones(&device, [5], DType::Bool).unwrap();
    let source = Tensor::ones(&device, [3], DType::F32).unwrap();
    let y = x.masked_scatter(&mask, &source).unwrap();
    let error = y.to_vec::<f32>().unwrap_err();
    let expected = TensorError::Index { op: "masked_scatter", index: 4, len: 3 };
    assert_eq!(error.to_string(), expected.to_string());
    assert_eq!(y.to_vec::<f32>().unwrap(), [1.0, 1.0, 1.0, 0.0, 0.0]);
}
