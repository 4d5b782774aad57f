//! Several models, each with an optimizer and a turn in every step, form one transaction.

use std::time::Duration;

use lowtide_allocator::{Fault, Repeat};
use lowtide_amp::{LossScaler, LossScalerOptions};
use lowtide_autograd::{Attempt, Pass, Turn, Var};
use lowtide_data::{Batch, BatchView, Loader, LoaderOptions, Sequential, Subset};
use lowtide_nn::models::Mlp;
use lowtide_nn::optim::{
    Adam, AdamOptions, Averaged, ByModel, OneModel, Sgd, SgdOptions, Stateful, clip_norm,
};
use lowtide_nn::{
    BatchNorm1d, Loss, Module, Parameters, bce_with_logits, commit_buffers, parameters,
};
use lowtide_tensor::{DType, Device, RandomKey, Tensor};
use lowtide_trainer::{
    MicroBatches, NonFinite, NotFiniteWhat, Options, Result, Score, Task, TrainError, Trainer,
    field, upload,
};

use crate::common::{Kind, Run, digits, first_batch};

/// Two models with batch normalisation, and an average of the generator. A turn writes parameters,
/// states, averages and the other model's buffers.
#[derive(Clone)]
struct Gan {
    discriminator: Mlp,
    norm: BatchNorm1d,
    generator: Mlp,
    /// True if the generator's loss is NaN.
    is_bad: bool,
}

parameters!(Gan { discriminator, norm, generator });

fn gan(device: &Device) -> Gan {
    let key = RandomKey::new(3);
    let mlp =
        |name: &str, widths: &[usize]| Mlp::new(device, key.op(name), widths).expect("memory");
    Gan {
        discriminator: mlp("discriminator", &[64, 24, 1]),
        norm: BatchNorm1d::new(device, 64).expect("memory"),
        generator: mlp("generator", &[8, 24, 64]),
        is_bad: false,
    }
}

impl Gan {
    fn judge(&self, pass: &Pass, images: Var, truth: f64) -> Result<Loss> {
        let logits = self.discriminator.forward(pass, images)?;
        let truth = Tensor::full(logits.value().device(), [], DType::F32, truth)?;
        Ok(bce_with_logits(logits, &truth, None)?)
    }
}

impl Task for Gan {
    fn parameters(&mut self) -> &mut dyn Parameters {
        self
    }

    fn turns(&self) -> Vec<String> {
        ["discriminator", "generator"].map(str::to_owned).to_vec()
    }

    fn count(&self, batch: &BatchView<'_>) -> Result<f64> {
        Ok(batch.len() as f64)
    }

    fn loss(&self, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Loss> {
        let noise = pass.constant(pass.normal(device, [part.len(), 8])?);
        let made_up = self.norm.forward(pass, self.generator.forward(pass, noise)?)?;
        if pass.turn().is_some_and(|turn| turn.model() == "generator") {
            let made_up = if self.is_bad { made_up.mul_scalar(f64::NAN)? } else { made_up };
            return self.judge(pass, made_up, 1.0);
        }
        let real = upload(device, field(part, "images")?)?.reshape([part.len(), 64])?;
        let real = self.judge(pass, pass.constant(real), 1.0)?;
        let made_up = self.judge(pass, made_up, 0.0)?;
        Ok(Loss { sum: real.sum.add(made_up.sum)?, count: real.count })
    }

    fn score(&self, device: &Device, part: &BatchView<'_>) -> Result<Score> {
        let loss = self.loss(&Pass::eval(), device, part)?;
        Ok(Score::new(f64::from(loss.sum.value().item_assuming(0.0_f32)?), self.count(part)?))
    }
}

fn adam(learning_rate: f64) -> Adam {
    Adam::new(AdamOptions { learning_rate, ..Default::default() }).expect("in range")
}

fn averaged() -> Averaged<Adam> {
    Averaged::new(adam(2e-3), 0.9).expect("in range")
}

fn optimizer() -> ByModel {
    ByModel::new().with("discriminator", adam(1e-3)).with("generator", averaged())
}

fn trainer(device: &Device, options: Options) -> Trainer<Gan, ByModel> {
    Trainer::new(device, gan(device), optimizer(), options)
}

fn options() -> Options {
    Options { seed: 7, clip_norm: Some(0.5), ..Default::default() }
}

const RUN: Run = Run {
    channels: 0,
    train_len: 96,
    test_len: 20,
    batch_size: 32,
    drop_last: false,
    workers: 0,
    threads: 1,
    seed: 7,
    epochs: 1,
    kind: Kind::Plain,
};

/// The three batches of an epoch, in one list.
fn batches() -> Vec<Batch> {
    let data = Subset::new(digits(), (0..96).collect::<Vec<_>>()).expect("there are 1797");
    let options = LoaderOptions { batch_size: 32, prefetch: 3, ..Default::default() };
    let loader = Loader::with_sampler(data, Sequential, options).expect("valid options");
    loader.epoch(0).collect::<std::result::Result<_, _>>().expect("readable")
}

#[test]
fn each_turn_sees_the_update_before_it_as_in_a_loop_by_hand() {
    let device = RUN.device(None);
    let mut trainer = trainer(&device, options());
    let mut twin = gan(&RUN.device(None));
    let twin_device = twin.discriminator_device();
    let (mut discriminator, mut generator) = (adam(1e-3), averaged());
    let optimizers: [(&str, &mut dyn Stateful); 2] =
        [("discriminator", &mut discriminator), ("generator", &mut generator)];
    let mut optimizers = optimizers;
    for (step, batch) in batches().iter().enumerate() {
        let report = trainer.step(batch).expect("memory");
        let key = RandomKey::new(7).step(step as u64 + 1);
        let mut losses = Vec::new();
        for (model, optimizer) in &mut optimizers {
            let mut leaves = Vec::new();
            OneModel { parameters: &mut twin, model }
                .visit(&mut |_, parameter| leaves.push(parameter.id()));
            let attempt = Attempt::new();
            let pass = Pass::train(key.op(model), &attempt).with_turn(Turn::new(model, leaves));
            let loss = twin.loss(&pass, &twin_device, &batch.view()).expect("memory");
            let sum = f64::from(loss.sum.value().item::<f32>().expect("cpu"));
            losses.push(((*model).to_owned(), sum / batch.len() as f64));
            pass.backward_seeded(loss.sum, 1.0 / batch.len() as f64).expect("memory");
            let (mut gradients, buffers) = attempt.into_parts();
            clip_norm(&twin_device, &mut gradients, 0.5).expect("memory");
            let mut own = OneModel { parameters: &mut twin, model };
            optimizer.prepare(&mut own, gradients).expect("memory").commit().expect("writable");
            commit_buffers(&mut twin, &buffers).expect("writable");
        }
        assert_eq!(report.turn_losses, losses, "step {step}");
        assert_eq!(report.loss, losses.iter().map(|(_, loss)| loss).sum::<f64>(), "step {step}");
    }
    assert_eq!(bits(trainer.task_mut()), bits(&mut twin));
    assert_eq!(trainer.steps(), 3);
}

impl Gan {
    fn discriminator_device(&mut self) -> Device {
        let mut device = None;
        self.visit(&mut |_, parameter| device = Some(parameter.value().device().clone()));
        device.expect("parameters")
    }
}

fn bits(model: &mut dyn Parameters) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    model.visit_tensors(&mut |name, tensor| {
        all.push((name.to_owned(), tensor.to_bytes().expect("cpu")));
    });
    all
}

/// A training after `steps` steps, and the number of requests of each step.
fn calm_run(steps: usize) -> (Trainer<Gan, ByModel>, Vec<u64>) {
    let device = RUN.device(None);
    let mut trainer = trainer(&device, options());
    let mut requests = Vec::new();
    for batch in &batches()[..steps] {
        let before = device.allocator().request_count();
        trainer.step(batch).expect("memory");
        requests.push(device.allocator().request_count() - before);
    }
    (trainer, requests)
}

#[test]
fn step_survives_the_failure_of_any_allocation_of_any_turn() {
    let batches = batches();
    let (mut calm, requests) = calm_run(2);
    let calm_hash = calm.state_hash().expect("cpu");
    let mut faults = 0;
    for (step, &requests) in requests.iter().enumerate() {
        for nth in 1..=requests {
            let device = RUN.device(None);
            let mut trainer = trainer(&device, options());
            batches[..step].iter().for_each(|batch| drop(trainer.step(batch).expect("memory")));
            let place = format!("allocation {nth} of step {}", step + 1);
            trainer.set_wait(Some(Duration::ZERO));
            let before = trainer.state_hash().expect("cpu");
            let blocks = device.allocator().live_blocks();
            device.allocator().inject_fault(Fault { nth, repeat: Repeat::Forever });
            let error = trainer.step(&batches[step]).expect_err("no memory");
            assert!(error.out_of_memory().is_some(), "{place}: {error}");
            faults += 1;
            assert_eq!(trainer.state_hash().expect("cpu"), before, "{place}");
            assert_eq!(device.allocator().live_blocks(), blocks, "{place}");
            device.allocator().clear_fault();
            device.allocator().inject_fault(Fault { nth, repeat: Repeat::Once });
            for batch in &batches[step..2] {
                trainer.step(batch).expect("once more is enough");
            }
            assert_eq!(trainer.state_hash().expect("cpu"), calm_hash, "{place}");
        }
    }
    assert!(faults > 60, "{faults} faults are no two steps of two turns");
}

#[test]
fn value_that_is_not_finite_in_the_second_turn_takes_the_first_back() {
    let batches = batches();
    let (mut calm, _) = calm_run(1);
    let before = calm.state_hash().expect("cpu");
    calm.task_mut().is_bad = true;
    let error = calm.step(&batches[1]).expect_err("not a number");
    let TrainError::NotFinite(error) = error else { panic!("{error}") };
    assert_eq!((error.step, error.what), (2, NotFiniteWhat::Loss));
    assert_eq!(calm.state_hash().expect("cpu"), before);
    calm.task_mut().is_bad = false;
    calm.step(&batches[1]).expect("finite");
    assert_eq!(calm.state_hash().expect("cpu"), calm_run(2).0.state_hash().expect("cpu"));

    let skipping = Options { non_finite: NonFinite::Skip(3), ..options() };
    let mut trainer = trainer(&RUN.device(None), skipping);
    trainer.step(&batches[0]).expect("finite");
    let values = bits(trainer.task_mut());
    trainer.task_mut().is_bad = true;
    let report = trainer.step(&batches[1]).expect("may be skipped");
    assert!(report.skipped && report.loss.is_nan());
    assert_eq!(bits(trainer.task_mut()), values);
}

#[test]
fn plan_is_the_run_and_a_checkpoint_goes_on_in_the_same_bits() {
    let (train, test) = RUN.loaders();
    let scaler = LossScaler::new(LossScalerOptions::default()).expect("in range");
    for options in [options(), Options { scaler: Some(scaler), ..options() }] {
        let device = RUN.device(None);
        let mut whole = trainer(&device, options.clone());
        let plan = whole.plan(&train, &test, 2).expect("fits");
        whole.fit(&train, &test, 2, &mut []).expect("memory");
        let measured = device.allocator().statistics().reserved.peak_bytes;
        assert_eq!(plan.predicted_peak_bytes(), measured);
        let folder = tempfile::tempdir().expect("a folder");
        let mut first = trainer(&RUN.device(None), options.clone());
        first.fit(&train, &test, 1, &mut []).expect("memory");
        first.save(&folder.path().join("one")).expect("room");
        let mut second = trainer(&RUN.device(None), options);
        second.load(&folder.path().join("one")).expect("whole");
        second.fit(&train, &test, 1, &mut []).expect("memory");
        let hash = whole.state_hash().expect("cpu");
        assert_eq!(second.state_hash().expect("cpu"), hash);
        assert_eq!(bits(second.task_mut()), bits(whole.task_mut()));
    }
}

#[test]
fn batches_are_split_without_another_result() {
    /// The models without the norm, which couples samples.
    #[derive(Clone)]
    struct Uncoupled(Gan);
    impl Task for Uncoupled {
        fn parameters(&mut self) -> &mut dyn Parameters {
            &mut self.0
        }
        fn turns(&self) -> Vec<String> {
            self.0.turns()
        }
        fn count(&self, batch: &BatchView<'_>) -> Result<f64> {
            self.0.count(batch)
        }
        fn loss(&self, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Loss> {
            let noise = pass.constant(pass.normal(device, [part.len(), 8])?);
            let made_up = self.0.generator.forward(pass, noise)?;
            let is_real = pass.turn().is_some_and(|turn| turn.model() == "generator");
            self.0.judge(pass, made_up, f64::from(u8::from(is_real)))
        }
        fn score(&self, _: &Device, part: &BatchView<'_>) -> Result<Score> {
            Ok(Score::new(0.0, part.len() as f64))
        }
    }
    let losses = |micro_batch: Option<usize>| {
        let device = RUN.device(None);
        let task = Uncoupled(gan(&device));
        let options = Options { micro_batches: MicroBatches::AsNeeded, ..options() };
        let mut trainer = Trainer::new(&device, task, optimizer(), options);
        let (train, test) = Run { train_len: 768, batch_size: 768, ..RUN }.loaders();
        if let Some(micro_batch) = micro_batch {
            let mut plan = trainer.plan(&train, &test, 1).expect("fits");
            while plan.knobs.micro_batch > micro_batch {
                device.allocator().set_capacity(plan.predicted_peak_bytes() - 1);
                plan = trainer.plan(&train, &test, 1).expect("fits in parts");
            }
        }
        let mut losses = Vec::new();
        for _ in 0..3 {
            let batch = first_batch(&train);
            losses.extend(trainer.step(&batch).expect("fits").turn_losses);
        }
        assert!(trainer.micro_batch() <= micro_batch.unwrap_or(768));
        losses
    };
    let (whole, split) = (losses(None), losses(Some(192)));
    assert_eq!(whole.len(), 6);
    for ((model, whole), (_, split)) in whole.iter().zip(&split) {
        assert!((whole - split).abs() < 1e-6, "{model}: {whole} and {split} in parts");
    }
}

#[test]
fn models_without_an_optimizer_or_parameters_are_refused_by_name() {
    let batch = batches().remove(0);
    let refused = |result: Result<_>, words: &[&str]| {
        let text = result.map(drop).expect_err("refused").to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    let device = RUN.device(None);
    let mut single = Trainer::new(&device, gan(&device), adam(1e-3), options());
    refused(single.step(&batch).map(drop), &["discriminator", "no optimizer of its own"]);
    let sgd = Sgd::new(SgdOptions::new(0.1)).expect("in range");
    let half = ByModel::new().with("discriminator", sgd);
    let mut half = Trainer::new(&device, gan(&device), half, options());
    let before = half.state_hash().expect("cpu");
    refused(half.step(&batch).map(drop), &["generator", "no optimizer of its own"]);
    assert_eq!(half.state_hash().expect("cpu"), before);
}
