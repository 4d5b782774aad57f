//! Offloading: saved tensors of blocks wait in host memory.

use lowtide_data::{ElementType, Field, Loader, LoaderOptions, Random};
use lowtide_nn::optim::{Sgd, SgdOptions};
use lowtide_nn::{Flatten, Linear, NnResult, ReLU, Segment, Sequential};
use lowtide_tensor::{CpuOptions, Device, RandomKey};
use lowtide_trainer::{Classification, Fit, Knobs, Options, Trainer};

use crate::gpu::Gpu;

const WIDTH: usize = 64;
const BLOCKS: usize = 4;

fn model(device: &Device) -> NnResult<Sequential> {
    let linear =
        |name: &str, outputs| Linear::new(device, RandomKey::new(1).op(name), WIDTH, outputs);
    let mut model = Sequential::new().then(Flatten);
    for index in 0..BLOCKS {
        let block = Sequential::new().then(linear(&index.to_string(), WIDTH)?).then(ReLU);
        model = model.then(Segment::new(block));
    }
    Ok(model.then(linear("classes", 10)?))
}

/// Trains two steps with these knobs. Returns the planned peaks of device and host, the measured
/// peaks, and the hash of the state.
fn run(gpu: &Gpu, knobs: Knobs) -> ([[usize; 2]; 2], u64) {
    let (device, host) = (gpu.device(), Device::cpu(CpuOptions::default()).expect("addresses"));
    let fields = vec![
        Field::new("images", ElementType::F32, &[1, 8, 8]),
        Field::new("labels", ElementType::I64, &[]),
    ];
    let options = LoaderOptions { batch_size: knobs.micro_batch, ..Default::default() };
    let samples = Random::new(2 * knobs.micro_batch, fields, 10);
    let loader = Loader::new(samples, options).expect("valid options");
    let task = Classification::new(model(&device).expect("memory"));
    let sgd = Sgd::new(SgdOptions { momentum: 0.9, ..SgdOptions::new(0.1) }).expect("in range");
    let options = Options { offload: Some(host.clone()), ..Options::default() };
    let mut trainer = Trainer::new(&device, task, sgd, options);
    let fit = Fit::new(&loader);
    let plan = trainer.plan_run(&fit, &knobs.into()).expect("no limit");
    trainer.run(&fit, &mut []).expect("as planned");
    let peak = |device: &Device| device.allocator().statistics().reserved.peak_bytes;
    let planned = [plan.predicted_peak_bytes(), plan.forecast.offloaded_peak_bytes];
    ([planned, [peak(&device), peak(&host)]], trainer.state_hash().expect("readable"))
}

#[test]
fn plan_that_offloads_is_the_run_to_the_byte_on_both_devices() {
    let Some(gpu) = Gpu::take() else { return };
    let kept = Knobs { micro_batch: 4096, ..Knobs::default() };
    let ([planned, measured], expected) = run(&gpu, kept);
    assert_eq!((planned, measured[1]), (measured, 0));
    for recomputed_blocks in [0, BLOCKS] {
        let knobs = Knobs { recomputed_blocks, offloaded_blocks: BLOCKS, ..kept };
        let ([planned, found], hash) = run(&gpu, knobs);
        assert_eq!((planned, hash), (found, expected), "{knobs}");
        assert!(found[0] < measured[0] && found[1] > 0, "{knobs}: {found:?} of {measured:?}");
    }
}
