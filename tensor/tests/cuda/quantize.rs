use lowtide_tensor::{DType, QuantFormat, Quantized, Tensor, TensorError};

use crate::alike::{assert_alike, each_float, on};
use crate::elementwise::noise;
use crate::gpu::Gpu;
use crate::storage::cpu;

const FORMATS: [QuantFormat; 5] = [
    QuantFormat::Int8Rows,
    QuantFormat::Nf4 { double: false },
    QuantFormat::Nf4 { double: true },
    QuantFormat::Q8_0,
    QuantFormat::Q4_0,
];

/// A weight with small scales, too, which are subnormal in f16.
fn weight(rows: usize, columns: usize) -> Tensor {
    let device = cpu();
    let w = noise(&device, "w", &[rows, columns], [-2.0, 2.0]).to_dtype(DType::F32).unwrap();
    let sizes: Vec<f32> = (0..rows).map(|row| 10f32.powi(-((row % 5) as i32))).collect();
    w.mul(&Tensor::from_slice(&device, [rows, 1], &sizes).unwrap()).unwrap()
}

#[test]
fn matrices_decode_to_the_bits_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for format in FORMATS {
            for [rows, columns] in [[5, 64], [1, 32], [9, 1888]] {
                let w = weight(rows, columns);
                let here = Quantized::encode(&w, format).unwrap();
                let there = Quantized::encode(&on(&device, &w), format).unwrap();
                for (found, expected) in there.parts().iter().zip(here.parts()) {
                    assert_eq!(found.to_bytes().unwrap(), expected.to_bytes().unwrap());
                }
                for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
                    let [found, expected] = [&there, &here].map(|w| w.decode(dtype).unwrap());
                    assert_eq!(found.to_bytes().unwrap(), expected.to_bytes().unwrap());
                    let [found, expected] =
                        [&there, &here].map(|w| w.decode_rows(rows - 1, 1, dtype).unwrap());
                    assert_eq!(found.to_bytes().unwrap(), expected.to_bytes().unwrap());
                }
            }
        }
    });
}

#[test]
fn products_are_those_of_the_processor_in_every_type() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        for format in FORMATS {
            let w = weight(40, 96);
            for (dtype, tolerance) in each_float([1e-5, 1e-12]) {
                let x = noise(&cpu(), "x", &[3, 96], [-1.0, 1.0]).to_dtype(dtype).unwrap();
                let dy = noise(&cpu(), "dy", &[3, 40], [-1.0, 1.0]).to_dtype(dtype).unwrap();
                let bias = noise(&cpu(), "bias", &[40], [-1.0, 1.0]).to_dtype(dtype).unwrap();
                // Encodes on the host: on the device, reading the weight would be a wait.
                let encoded = Quantized::encode(&w, format).unwrap();
                let inputs: Vec<&Tensor> =
                    [&x, &dy, &bias].into_iter().chain(encoded.parts()).collect();
                let name = format!("{format:?} {dtype}");
                assert_alike(&device, &name, &inputs, 4.0 * tolerance, |operands| {
                    let [x, dy, bias, parts @ ..] = operands else { unreachable!("as given") };
                    let w = Quantized::from_parts(format, *encoded.shape(), parts.to_vec())?;
                    Ok(vec![
                        x.linear_quantized(&w, Some(bias))?,
                        x.linear_quantized(&w, None)?,
                        dy.linear_quantized_backward(&w)?,
                    ])
                });
            }
        }
    });
}

#[test]
fn products_of_integers_have_no_kernel() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    let w = Quantized::encode(&on(&device, &weight(5, 64)), QuantFormat::Int8Rows).unwrap();
    let x = Tensor::zeros(&device, [2, 64], DType::F32).unwrap();
    let found = x.linear_int8(&w, None);
    let expected = TensorError::NoKernel { op: "linear_int8", device: "cuda" };
    assert_eq!(found.unwrap_err().to_string(), expected.to_string());
}
