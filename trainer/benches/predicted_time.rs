//! Predicted and measured seconds of a step, by measured rates. The bench prints every plan of a
//! small set on three models, and then, for some budgets, the planner's choice and the fastest plan
//! of the set that fits: `cargo bench -p lowtide-trainer --bench predicted_time`.

use std::time::{Duration, Instant};

use lowtide_data::{Batch, ElementType, Field, Loader, LoaderOptions, Random, Sequential};
use lowtide_nn::models::{DeepCnn, DeepCnnShape, Gpt, GptShape, ResNet, ResNetShape};
use lowtide_nn::optim::{Adam, AdamOptions};
use lowtide_tensor::{CpuOptions, Device, OpClass, RandomKey, Rates};
use lowtide_trainer::{
    Classification, Fit, Knobs, LanguageModel, Options, Result, Task, Trainer, measure_rates,
};

const KEY: RandomKey = RandomKey::new(0);

/// The least time and number of steps for which each plan is run.
struct Patience {
    time: Duration,
    steps_min: usize,
}

/// A plan of the set.
struct Row {
    knobs: Knobs,
    peak_bytes: usize,
    predicted_seconds: f64,
    measured_seconds: f64,
}

/// A model, its data, and the plans to try.
struct Case<T> {
    name: &'static str,
    task: fn(&Device) -> Result<T>,
    loader: Loader,
    plans: Vec<Knobs>,
}

/// Micro-batches of this size, with cheap results and this number of blocks recomputed.
fn recomputing(micro_batch: usize, recomputed_blocks: usize) -> Knobs {
    Knobs { micro_batch, cheap_recomputed: true, recomputed_blocks, ..Knobs::default() }
}

/// Micro-batches of this size, with everything kept for backward.
fn keeping(micro_batch: usize) -> Knobs {
    Knobs { micro_batch, ..Knobs::default() }
}

fn loader(batch_size: usize, fields: Vec<Field>, bound: u64) -> Result<Loader> {
    let options = LoaderOptions { batch_size, ..Default::default() };
    Ok(Loader::with_sampler(Random::new(batch_size, fields, bound), Sequential, options)?)
}

fn images(batch_size: usize, shape: [usize; 3]) -> Result<Loader> {
    let images = Field::new("images", ElementType::F32, &shape);
    loader(batch_size, vec![images, Field::new("labels", ElementType::I64, &[])], 10)
}

fn deep_cnn() -> Result<Case<Classification<DeepCnn>>> {
    let task = |device: &Device| {
        let shape = DeepCnnShape { image: [3, 32, 32], ..DeepCnnShape::USUAL };
        Ok(Classification::new(DeepCnn::new(device, KEY, shape)?))
    };
    let plans = [64, 32, 22, 16, 13, 11, 8, 6, 4, 2, 1].map(keeping).to_vec();
    Ok(Case { name: "DeepCnn", task, loader: images(64, [3, 32, 32])?, plans })
}

fn resnet() -> Result<Case<Classification<ResNet>>> {
    let task = |device: &Device| {
        let shape = ResNetShape { width: 16, classes: 10, ..ResNetShape::RESNET18 };
        Ok(Classification::new(ResNet::new(device, KEY, shape)?))
    };
    let plans = std::iter::once(keeping(16)).chain((0..=8).map(|blocks| recomputing(16, blocks)));
    let plans = plans.collect();
    Ok(Case { name: "ResNet-18", task, loader: images(16, [3, 64, 64])?, plans })
}

fn gpt() -> Result<Case<LanguageModel<Gpt>>> {
    let task = |device: &Device| {
        let shape = GptShape { vocabulary: 256, context: 128, width: 128, heads: 4, blocks: 6 };
        Ok(LanguageModel::new(Gpt::gpt2(device, KEY, shape)?))
    };
    let sizes = [16, 8, 4, 2, 1].into_iter();
    let plans = sizes.flat_map(|size| {
        [keeping(size), recomputing(size, 0), recomputing(size, 3), recomputing(size, 6)]
    });
    let plans = plans.collect();
    let tokens = Field::new("tokens", ElementType::I64, &[129]);
    Ok(Case { name: "GPT", task, loader: loader(16, vec![tokens], 256)?, plans })
}

impl<T: Task + Clone> Case<T> {
    fn trainer(&self, device: &Device) -> Result<Trainer<T, Adam>> {
        let adam = Adam::new(AdamOptions::adamw())?;
        Ok(Trainer::new(device, (self.task)(device)?, adam, Options::default()))
    }

    /// The median seconds of a step with the trainer's plan.
    fn seconds(trainer: &mut Trainer<T, Adam>, batch: &Batch, patience: &Patience) -> Result<f64> {
        // The first step creates the optimizer's state and reserves memory.
        trainer.step(batch)?;
        let (started, mut seconds) = (Instant::now(), Vec::new());
        while seconds.len() < patience.steps_min || started.elapsed() < patience.time {
            seconds.push(trainer.step(batch)?.seconds);
        }
        seconds.sort_by(f64::total_cmp);
        Ok(seconds[seconds.len() / 2])
    }

    fn run(&self, knobs: Knobs, rates: Rates, patience: &Patience) -> Result<Row> {
        let device = Device::cpu(CpuOptions { rates: Some(rates), ..Default::default() })?;
        let mut trainer = self.trainer(&device)?;
        let batch = self.loader.epoch(0).next().expect("a batch")?;
        let plan = trainer.plan_run(&Fit::new(&self.loader), &knobs.into())?;
        Ok(Row {
            knobs,
            peak_bytes: plan.predicted_peak_bytes(),
            predicted_seconds: plan.forecast.step_seconds,
            measured_seconds: Self::seconds(&mut trainer, &batch, patience)?,
        })
    }

    /// Prints every plan of the case, and the planner's choices within some budgets.
    fn compare(&self, rates: Rates, patience: &Patience) -> Result<()> {
        println!("\n{}: predicted ms, measured ms, ratio, plan", self.name);
        let mut rows = Vec::new();
        for &knobs in &self.plans {
            let row = self.run(knobs, rates, patience)?;
            let [predicted, measured] = [row.predicted_seconds, row.measured_seconds];
            println!(
                "{:>9.2} {:>9.2}  {:.2}  {knobs}",
                predicted * 1e3,
                measured * 1e3,
                predicted / measured
            );
            rows.push(row);
        }
        let ratios = rows.iter().map(|row| row.predicted_seconds / row.measured_seconds);
        let within = ratios.filter(|ratio| (0.8..=1.25).contains(ratio)).count();
        println!("{within} of {} within a quarter, {}", rows.len(), order(&rows));
        let mut peaks: Vec<usize> = rows.iter().map(|row| row.peak_bytes).collect();
        peaks.sort_unstable();
        for part in 0..4 {
            self.choose(peaks[part * (peaks.len() - 1) / 4], &rows, rates, patience)?;
        }
        Ok(())
    }

    /// Prints the planner's choice within a budget, and the fastest plan that was measured.
    fn choose(
        &self,
        budget_bytes: usize,
        rows: &[Row],
        rates: Rates,
        patience: &Patience,
    ) -> Result<()> {
        let options = CpuOptions {
            budget_bytes: Some(budget_bytes),
            rates: Some(rates),
            ..Default::default()
        };
        let plan = self
            .trainer(&Device::cpu(options)?)?
            .plan_run(&Fit::new(&self.loader), &Default::default());
        let knobs = match plan {
            Ok(plan) => plan.knobs,
            Err(error) => {
                println!("{budget_bytes:>11} bytes: {error}");
                return Ok(());
            }
        };
        let chosen = self.run(knobs, rates, patience)?;
        let fitting = rows.iter().filter(|row| row.peak_bytes <= budget_bytes);
        let best = fitting.min_by(|a, b| a.measured_seconds.total_cmp(&b.measured_seconds));
        let best = best.expect("the budget is that of one of them");
        println!(
            "{budget_bytes:>11} bytes: {knobs}, {:.2} ms; best measured: {}, {:.2} ms; {:.2}",
            chosen.measured_seconds * 1e3,
            best.knobs,
            best.measured_seconds * 1e3,
            chosen.measured_seconds / best.measured_seconds
        );
        Ok(())
    }
}

/// Number of pairs of plans that are predicted in the measured order. Pairs within 5 % are left
/// out.
fn order(rows: &[Row]) -> String {
    let (mut right, mut all) = (0, 0);
    for (index, a) in rows.iter().enumerate() {
        for b in &rows[index + 1..] {
            let [measured, predicted] =
                [|row: &Row| row.measured_seconds, |row: &Row| row.predicted_seconds]
                    .map(|seconds| (seconds(a) / seconds(b)).ln());
            if measured.abs() > 0.05 {
                all += 1;
                right += usize::from(measured * predicted > 0.0);
            }
        }
    }
    format!("{right} of {all} pairs in the right order")
}

fn main() -> Result<()> {
    // `cargo bench` passes `--bench`; `cargo test --benches` does not, and only needs a short run.
    let is_test = !std::env::args().any(|argument| argument == "--bench");
    if is_test {
        let patience = Patience { time: Duration::ZERO, steps_min: 1 };
        let case = Case { plans: vec![keeping(64)], ..deep_cnn()? };
        return case.compare(Device::cpu(CpuOptions::default())?.spec().rates, &patience);
    }
    let started = Instant::now();
    let rates = measure_rates(None, &mut |_| {})?;
    println!("calibrated in {:.1} s", started.elapsed().as_secs_f64());
    for class in OpClass::ALL {
        println!("{class:?}: {:?}", rates.of(class));
    }
    let patience = Patience { time: Duration::from_millis(1500), steps_min: 5 };
    deep_cnn()?.compare(rates, &patience)?;
    resnet()?.compare(rates, &patience)?;
    gpt()?.compare(rates, &patience)
}
