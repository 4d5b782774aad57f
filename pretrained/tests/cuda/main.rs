//! Models on an NVIDIA device, or on the pretend driver in its place.

#[allow(dead_code, reason = "`it` uses the rest")]
#[path = "../it/common.rs"]
mod common;

use lowtide_allocator::cuda::CudaDevice;
use lowtide_allocator::cuda::pretend::{TestDriver, Turn};
use lowtide_autograd::{Attempt, Pass};
use lowtide_nn::optim::{Optimizer, Sgd, SgdOptions};
use lowtide_nn::{LinearCrossEntropyOptions, Parameters};
use lowtide_pretrained::{Decoder, GenerateOptions};
use lowtide_tensor::cuda::CudaOptions;
use lowtide_tensor::cuda::pretend::test_driver;
use lowtide_tensor::{DType, Device, Tensor};

use common::{CASES, KEY, Outcome, Run, config, cpu, error};

const DRIVER: TestDriver<'_> = test_driver(env!("CARGO_MANIFEST_DIR"), env!("CARGO_TARGET_TMPDIR"));

fn device(gpu: &Turn) -> Device {
    let device = CudaDevice::of(&gpu.driver, 0).expect("it is there");
    Device::cuda_on(&device, CudaOptions::default()).expect("it has memory")
}

fn wide(x: &Tensor) -> Outcome<Vec<f64>> {
    let here = Tensor::from_bytes(&cpu(1), *x.shape(), x.dtype(), &x.to_bytes()?)?;
    Ok(here.to_dtype(DType::F64)?.to_vec()?)
}

/// Trains two steps. Returns the losses and then the parameters, if values can be read.
fn train(model: &mut Decoder, device: &Device, run: &Run, is_real: bool) -> Outcome<Vec<f64>> {
    let (mut sgd, mut values) = (Sgd::new(SgdOptions::new(0.05))?, Vec::new());
    for step in 0..2 {
        let part = |name| -> Outcome<Tensor> {
            let all = run.tensor(&cpu(1), name)?.select(0, step)?.contiguous()?;
            Ok(Tensor::from_slice(device, *all.shape(), &all.to_vec::<i64>()?)?)
        };
        let (ids, mask, labels) = (part("ids")?, part("mask")?, part("labels")?);
        let attempt = Attempt::new();
        let pass = Pass::train(KEY.step(step as u64), &attempt);
        let options = LinearCrossEntropyOptions::default();
        let loss =
            model.loss_with_mask(&pass, pass.constant(ids), &labels, Some(&mask), options)?;
        let loss = loss.mean()?;
        if is_real {
            values.extend(wide(loss.value())?);
        }
        pass.backward(loss)?;
        sgd.step(model, attempt)?;
    }
    if is_real {
        model.visit(&mut |_, parameter| {
            values.extend(wide(parameter.value()).expect("readable"));
        });
    }
    Ok(values)
}

#[test]
fn decoders_train_as_on_the_processor_and_in_the_planned_memory() -> Outcome {
    let Some(gpu) = DRIVER.take() else { return Ok(()) };
    for &case in CASES.iter() {
        let (run, config) = (Run::read(case)?, config(case)?);
        for (dtype, tolerance) in [(DType::F32, 2e-5), (DType::F64, 1e-12), (DType::BF16, 6e-2)] {
            let of = |device: &Device, is_real| -> Outcome<Vec<f64>> {
                train(&mut config.load(device, dtype)?, device, &run, is_real)
            };
            let expected = of(&cpu(2), true)?;
            let there = device(&gpu);
            let error = error(&of(&there, true)?, &expected);
            assert!(error < tolerance, "{case} in {dtype}: {error:e}");
            let simulated = Device::sim(there.spec())?;
            of(&simulated, false)?;
            let [real, sim] =
                [&there, &simulated].map(|device| device.allocator().statistics().reserved);
            assert_eq!(real.peak_bytes, sim.peak_bytes, "{case} in {dtype}");
        }
    }
    Ok(())
}

#[test]
fn text_is_that_of_the_processor() -> Outcome {
    let Some(gpu) = DRIVER.take() else { return Ok(()) };
    let there = device(&gpu);
    for &case in CASES.iter() {
        let (config, options) = (config(case)?, GenerateOptions::greedy(8));
        let text = |device: &Device| -> Outcome<Vec<Vec<i64>>> {
            let model = config.load(device, DType::F32)?;
            Ok(model.generate(device, &[vec![3, 7, 1], vec![2, 9, 4]], &options)?)
        };
        assert_eq!(text(&there)?, text(&cpu(2))?, "{case}");
    }
    Ok(())
}
