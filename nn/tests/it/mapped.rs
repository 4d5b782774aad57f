//! Models whose weights are mapped from a file.

use lowtide_autograd::{Attempt, Pass};
use lowtide_nn::Parameters;
use lowtide_nn::optim::{Adam, AdamOptions, Optimizer};
use lowtide_nn::{
    BatchNorm1d, Linear, LoraOptions, Module, NnError, NnResult as Result, Parameter, Sequential,
    Targets, WeightsProblem, adapt, commit_buffers, map, quantize, save,
};
use lowtide_tensor::{Device, QuantFormat, Tensor};

use crate::common::{KEY, Outcome, all_bits, cpu, f32s};

fn model(device: &Device, seed: u64) -> Result<Sequential> {
    let key = KEY.step(seed);
    Ok(Sequential::new()
        .then(Linear::new(device, key.op("0"), 64, 96)?)
        .then(BatchNorm1d::new(device, 96)?)
        .then(Linear::without_bias(device, key.op("2"), 96, 32)?))
}

fn output(model: &Sequential, x: &Tensor) -> Result<Vec<u8>> {
    let pass = Pass::eval();
    Ok(model.forward(&pass, pass.constant(x.clone()))?.value().to_bytes()?)
}

#[test]
fn mapped_model_is_the_saved_one_takes_no_memory_and_is_adapted() -> Outcome {
    for format in [None, Some(QuantFormat::Nf4 { double: true }), Some(QuantFormat::Int8Rows)] {
        let device = cpu();
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("base.safetensors");
        let make = |seed| -> Result<Sequential> {
            let mut model = model(&device, seed)?;
            if let Some(format) = format {
                quantize(&mut model, &Targets::AllLinear, format)?;
            }
            Ok(model)
        };
        let mut stored = make(0)?;
        save(&mut stored, &path)?;
        let x = f32s(&device, "x", [4, 64]);
        let before = device.allocator().statistics().requested.current_bytes;
        let mut mapped = make(1)?;
        assert_ne!(output(&mapped, &x)?, output(&stored, &x)?);
        map(&mut mapped, &path)?;
        assert_eq!(output(&mapped, &x)?, output(&stored, &x)?, "{format:?}");
        // Only the running statistics are copied.
        let after = device.allocator().statistics().requested.current_bytes;
        assert!(after - before < 2048, "{format:?}: {before} {after}");
        let few = if format.is_some() { 64 * 32 } else { 64 * 96 * 4 };
        assert!(device.mapped_bytes() > few, "{}", device.mapped_bytes());
        assert_eq!(all_bits(&mut mapped), all_bits(&mut stored));

        adapt(&mut mapped, KEY, &LoraOptions { rank: 2, ..Default::default() })?;
        let mut optimizer = Adam::new(AdamOptions::adamw())?;
        for _ in 0..2 {
            let attempt = Attempt::new();
            let pass = Pass::train(KEY, &attempt);
            let y = mapped.forward(&pass, pass.constant(x.clone()))?;
            pass.backward(y.clone().mul(y)?.mean_all()?)?;
            commit_buffers(&mut mapped, &attempt.take_buffer_updates())?;
            optimizer.step(&mut mapped, attempt)?;
        }
        assert_ne!(output(&mapped, &x)?, output(&stored, &x)?);
        let mut count = 0;
        mapped.visit(&mut |name, parameter: &mut Parameter| {
            let is_new = name.contains("lora_");
            assert_eq!(parameter.value().is_mapped(), !is_new, "{name}");
            assert_eq!(parameter.is_frozen(), !is_new, "{name}");
            count += usize::from(is_new);
        });
        assert_eq!(count, 4);
        drop(mapped);
        assert_eq!(device.mapped_bytes(), 0);
    }
    Ok(())
}

#[test]
fn file_that_does_not_fit_is_not_mapped() -> Outcome {
    let device = cpu();
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("base.safetensors");
    save(&mut Linear::new(&device, KEY, 8, 4)?, &path)?;
    let mut other = Linear::new(&device, KEY, 8, 5)?;
    let before = all_bits(&mut other);
    let Err(NnError::Weights { problem, .. }) = map(&mut other, &path) else { panic!("mapped") };
    assert!(matches!(problem, WeightsProblem::Shape { .. }));
    assert!(matches!(map(&mut other, folder.path()), Err(NnError::File { .. })));
    assert_eq!(all_bits(&mut other), before);
    other.visit(&mut |_, parameter| assert!(!parameter.is_frozen() && device.mapped_bytes() == 0));
    Ok(())
}
