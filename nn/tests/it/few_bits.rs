//! Whole models with quantised weights.

use lowtide_autograd::Pass;
use lowtide_nn::models::{DeepCnn, DeepCnnShape, Gpt, GptShape};
use lowtide_nn::{Linear, Module, Parameters, WeightNorm, load, quantize_all, save};
use lowtide_tensor::{DType, Device, QuantFormat, Quantized, Shape, SimSpec};

use crate::common::{KEY, Outcome, cpu, f32s};
use crate::zoo::{ZOO, fill};

const INT8: QuantFormat = QuantFormat::Int8Rows;

/// Bytes of all tensors that a model stores.
fn size_bytes(model: &mut dyn Parameters) -> usize {
    let mut bytes = 0;
    model.visit_tensors(&mut |_, tensor| bytes += tensor.size_bytes());
    bytes
}

/// All tensors that a model stores.
fn stored(model: &mut dyn Parameters) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    model.visit_tensors(&mut |name, tensor| {
        all.push((name.to_owned(), tensor.to_bytes().expect("values")));
    });
    all
}

#[test]
fn every_model_in_few_bits_is_the_one_with_its_weights_rounded() -> Outcome {
    let device = cpu();
    for format in [INT8, QuantFormat::Nf4 { double: true }] {
        for (name, build) in ZOO {
            let (mut few, mut rounded) = (build(&device, 0.0)?, build(&device, 0.0)?);
            fill(few.model());
            fill(rounded.model());
            let quantised = quantize_all(few.model(), format)?;
            rounded.model().visit(&mut |name, parameter| {
                if quantised.iter().any(|other| other == name) {
                    let value = parameter.value_mut();
                    let (shape, rows) = (*value.shape(), value.shape()[0]);
                    let matrix = [rows, shape.element_count() / rows];
                    let matrix = value.reshape(matrix).expect("a weight is contiguous");
                    let codes = Quantized::encode(&matrix, format).expect("a matrix of floats");
                    *value = codes.decode(DType::F32).and_then(|x| x.reshape(shape)).expect("f32");
                }
            });
            let [found, expected] = [few.loss(&Pass::eval())?, rounded.loss(&Pass::eval())?];
            assert_eq!(found.value().to_bytes()?, expected.value().to_bytes()?, "{name}");
            assert!(!quantised.is_empty(), "{name}");
        }
    }
    Ok(())
}

#[test]
fn model_in_8_bits_has_a_quarter_of_the_bytes_and_comes_back_from_its_file() -> Outcome {
    let device = cpu();
    let shape = DeepCnnShape { image: [1, 28, 28], channels: [32, 64, 128], classes: 10 };
    let make = |seed| DeepCnn::new(&device, KEY.step(seed), shape);
    let mut model = make(0)?;
    let whole_bytes = size_bytes(&mut model);
    let quantised = quantize_all(&mut model, INT8)?;
    assert_eq!(quantised.len(), 4, "{quantised:?}");
    assert!(size_bytes(&mut model) * 100 < whole_bytes * 28, "{}", size_bytes(&mut model));

    let path = tempfile::tempdir()?;
    let path = path.path().join("model.safetensors");
    save(&mut model, &path)?;
    let mut other = make(1)?;
    quantize_all(&mut other, INT8)?;
    assert_ne!(stored(&mut other), stored(&mut model));
    load(&mut other, &path)?;
    assert_eq!(stored(&mut other), stored(&mut model));
    let x = f32s(&device, "x", [3, 1, 28, 28]);
    let output = |model: &DeepCnn| -> lowtide_nn::NnResult<_> {
        let pass = Pass::eval();
        Ok(model.forward(&pass, pass.constant(x.clone()))?.value().to_bytes()?)
    };
    assert_eq!(output(&other)?, output(&model)?);
    Ok(())
}

#[test]
fn table_that_stands_in_two_places_is_encoded_once() -> Outcome {
    let shape = GptShape { vocabulary: 40, context: 8, width: 16, heads: 2, blocks: 1 };
    let mut tied = Gpt::gpt2(&cpu(), KEY, shape)?;
    let mut untied = Gpt::new(&cpu(), KEY, shape)?;
    let [tied, untied] = [&mut tied, &mut untied].map(|gpt| quantize_all(gpt, INT8));
    assert_eq!(tied?.len() + 1, untied?.len());
    Ok(())
}

#[test]
fn weights_that_others_are_computed_from_stay_and_so_do_rows_that_are_no_blocks() -> Outcome {
    let device = cpu();
    let mut normed = WeightNorm::new(Linear::new(&device, KEY, 64, 8)?)?;
    assert_eq!(quantize_all(&mut normed, INT8)?, Vec::<String>::new());
    let mut narrow = Linear::new(&device, KEY, 20, 8)?;
    assert_eq!(quantize_all(&mut narrow, QuantFormat::Q8_0)?, Vec::<String>::new());
    assert_eq!(quantize_all(&mut narrow, INT8)?, ["weight"]);
    // A second call changes nothing.
    let before = stored(&mut narrow);
    quantize_all(&mut narrow, INT8)?;
    assert_eq!(stored(&mut narrow), before);
    Ok(())
}

#[test]
fn model_in_few_bits_takes_on_a_simulated_device_what_it_takes() -> Outcome {
    let peak = |device: &Device| -> lowtide_nn::NnResult<usize> {
        let shape = DeepCnnShape { image: [1, 12, 12], channels: [8, 16, 32], classes: 10 };
        let mut model = DeepCnn::new(device, KEY, shape)?;
        quantize_all(&mut model, INT8)?;
        let shape = Shape::new(&[4, 1, 12, 12]);
        let x = lowtide_tensor::Tensor::zeros(device, shape, DType::F32)?;
        let pass = Pass::eval();
        model.forward(&pass, pass.constant(x))?;
        Ok(device.allocator().statistics().requested.peak_bytes)
    };
    let real = cpu();
    let spec = SimSpec { threads: 2, ..SimSpec::like_this_machine(64 << 20) };
    assert_eq!(peak(&real)?, peak(&Device::sim(spec)?)?);
    Ok(())
}
