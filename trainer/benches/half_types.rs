//! Peaks, times and losses of four workloads in f32, bf16 and f16, each planned and run: a CNN with
//! 16 channels on batches of 128 images of 32x32 (w1), a CNN with 32, 64 and 128 channels on
//! batches of 64 images of 64x64 (w2), an MLP 784-512-512-10 on batches of 128 samples (w3), and a
//! GPT of 4 blocks and width 128 on batches of 16 sequences of 128 bytes of the license's text
//! (w4).
//!
//! `cargo bench -p lowtide-trainer --bench half_types -- FOLDER` writes initial values and data to
//! `FOLDER`. `python3 trainer/benches/half_types.py FOLDER` then computes the same with PyTorch.

use std::fs;
use std::path::{Path, PathBuf};

use lowtide_allocator::Category;
use lowtide_data::{self as data, InMemory, Loader, LoaderOptions};
use lowtide_nn::models::{Gpt, GptShape};
use lowtide_nn::optim::{Adam, AdamOptions, Sgd, SgdOptions, Stateful};
use lowtide_nn::{Conv2d, Flatten, Linear, MaxPool2d, ReLU, Sequential, save};
use lowtide_tensor::{Conv2dGeometry, CpuOptions, Device, RandomKey};
use lowtide_trainer::{
    Classification, Fit, Flow, LanguageModel, Observer, Options, Precision, Result, StepReport,
    Task, TrainError, Trainer, Training,
};

const KEY: RandomKey = RandomKey::new(0);
const TEXT: &[u8] = include_bytes!("../LICENSE-APACHE");
const CONTEXT: usize = 128;
const TYPES: [Precision; 3] = [Precision::F32, Precision::Bf16, Precision::F16];

/// Name, samples per batch, batches per epoch, and steps of each workload.
const WORKLOADS: [(&str, usize, usize, u64); 4] =
    [("w1", 128, 4, 12), ("w2", 64, 2, 4), ("w3", 128, 4, 40), ("w4", 16, 100, 100)];

fn file_error(path: &Path) -> impl FnOnce(std::io::Error) -> TrainError + '_ {
    move |source| TrainError::File { path: path.to_owned(), source }
}

/// Blocks of convolution 3x3, ReLU and max pool 2x2, and a linear head for 10 classes.
fn cnn(device: &Device, side: usize, channels: &[usize]) -> Result<Sequential> {
    let geometry = Conv2dGeometry { padding: [1, 1], ..Default::default() };
    let (mut model, mut inputs, mut side) = (Sequential::new(), 3, side);
    for &outputs in channels {
        let key = KEY.op(&outputs.to_string());
        let conv = Conv2d::new(device, key, [inputs, outputs], [3, 3], geometry)?;
        model = model.then(conv).then(ReLU).then(MaxPool2d::square(2));
        (inputs, side) = (outputs, side / 2);
    }
    Ok(model.then(Flatten).then(Linear::new(device, KEY, inputs * side * side, 10)?))
}

fn mlp(device: &Device) -> Result<Sequential> {
    let linear = |name: &str, inputs| Linear::new(device, KEY.op(name), inputs, 512);
    let model = Sequential::new().then(linear("first", 784)?).then(ReLU);
    Ok(model.then(linear("second", 512)?).then(ReLU).then(Linear::new(device, KEY, 512, 10)?))
}

fn task(device: &Device, name: &str) -> Result<Box<dyn Task>> {
    Ok(match name {
        "w1" => Box::new(Classification::new(cnn(device, 32, &[16])?)),
        "w2" => Box::new(Classification::new(cnn(device, 64, &[32, 64, 128])?)),
        "w3" => Box::new(Classification::new(mlp(device)?)),
        _ => {
            let shape =
                GptShape { vocabulary: 128, context: CONTEXT, width: 128, heads: 4, blocks: 4 };
            Box::new(LanguageModel::new(Gpt::new(device, KEY, shape)?))
        }
    })
}

fn optimizer(name: &str) -> Result<Box<dyn Stateful>> {
    Ok(match name {
        "w3" => Box::new(Sgd::new(SgdOptions { momentum: 0.9, ..SgdOptions::new(0.05) })?),
        _ => Box::new(Adam::new(AdamOptions::default())?),
    })
}

/// Noise with labels, or pieces of a text. The data is also written to `folder`, if given.
fn samples_of(name: &str, samples: usize, folder: Option<&Path>) -> Result<InMemory> {
    let write = |what: &str, bytes: Vec<u8>| match folder {
        None => Ok(()),
        Some(folder) => {
            let path = folder.join(format!("{name}.{what}"));
            fs::write(&path, bytes).map_err(file_error(&path))
        }
    };
    let to_bytes = |values: &[i64]| values.iter().flat_map(|value| value.to_le_bytes()).collect();
    if name == "w4" {
        let begin = |sample: usize| sample * (CONTEXT + 1) % (TEXT.len() - CONTEXT - 1);
        let piece = |sample| TEXT[begin(sample)..][..=CONTEXT].iter().map(|&byte| i64::from(byte));
        let tokens: Vec<i64> = (0..samples).flat_map(piece).collect();
        write("tokens", to_bytes(&tokens))?;
        return Ok(InMemory::new(samples).with("tokens", &[CONTEXT + 1], tokens)?);
    }
    let shape: &[usize] = match name {
        "w1" => &[3, 32, 32],
        "w2" => &[3, 64, 64],
        _ => &[784],
    };
    let len = samples * shape.iter().product::<usize>();
    let images: Vec<f32> = (0..len as u64).map(|at| KEY.uniform(at) * 2.0 - 1.0).collect();
    let class = |at: u64| (KEY.op("labels").uniform(at) * 10.0) as i64;
    let labels: Vec<i64> = (0..samples as u64).map(class).collect();
    write("images", images.iter().flat_map(|value| value.to_le_bytes()).collect())?;
    write("labels", to_bytes(&labels))?;
    Ok(InMemory::new(samples).with("images", shape, images)?.with("labels", &[], labels)?)
}

/// The loss and the seconds of each step.
#[derive(Default)]
struct Steps(Vec<[f64; 2]>);

impl Observer for Steps {
    fn on_step(&mut self, report: &StepReport, _: &mut dyn Training) -> Result<Flow> {
        self.0.push([report.loss, report.seconds]);
        Ok(Flow::Continue)
    }
}

fn main() -> Result<()> {
    // `cargo bench` passes `--bench`; `cargo test --benches` does not, and only needs a short run.
    let is_test = !std::env::args().any(|argument| argument == "--bench");
    let folder = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    let folder = folder.map(PathBuf::from);
    if let Some(folder) = &folder {
        fs::create_dir_all(folder).map_err(file_error(folder))?;
    }
    println!("workload type  peak MiB  activations MiB  ms a step  loss, at five places");
    for (name, batch_size, batches, steps) in WORKLOADS {
        let (batches, steps) = if is_test { (1, 1) } else { (batches, steps) };
        let options = LoaderOptions { batch_size, ..Default::default() };
        let set = samples_of(name, batches * batch_size, folder.as_deref())?;
        let loader = Loader::with_sampler(set, data::Sequential, options)?;
        for precision in TYPES {
            let device = Device::cpu(CpuOptions::default())?;
            let mut task = task(&device, name)?;
            if let Some(folder) = &folder {
                save(task.parameters(), &folder.join(format!("{name}.safetensors")))?;
            }
            let options = Options { precision, ..Options::default() };
            let mut trainer = Trainer::new(&device, task, optimizer(name)?, options);
            let fit = Fit::new(&loader).steps(steps);
            let plan = trainer.plan_run(&fit, &Default::default())?;
            let mut seen = Steps::default();
            trainer.run(&fit, &mut [&mut seen])?;
            let statistics = device.allocator().statistics();
            assert_eq!(statistics.reserved.peak_bytes, plan.predicted_peak_bytes(), "{name}");
            let mut times: Vec<f64> = seen.0.iter().map(|[_, seconds]| seconds * 1e3).collect();
            times.sort_by(f64::total_cmp);
            let last = seen.0.len() - 1;
            let losses = [0, 1, 2, 3, 4].map(|part| format!("{:.4}", seen.0[last * part / 4][0]));
            println!(
                "{name:8} {precision:4} {:9.2} {:16.2} {:10.2}  {}",
                statistics.reserved.peak_bytes as f64 / (1 << 20) as f64,
                statistics.by_category[Category::Activation].peak_bytes as f64 / (1 << 20) as f64,
                times[times.len() / 2],
                losses.join(" ")
            );
        }
    }
    Ok(())
}
