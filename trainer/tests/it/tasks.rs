//! Tasks from closures, tasks behind a box, tasks with several terms, and the built-in tasks.

use lowtide_autograd::Pass;
use lowtide_data::{Batch, BatchView, Dataset, InMemory, Loader, LoaderOptions, Sequential};
use lowtide_nn::models::{Gpt, GptShape, Mlp, SimpleCnn, SimpleCnnShape};
use lowtide_nn::optim::{Adam, AdamOptions};
use lowtide_nn::{Loss, Module, Parameters, cross_entropy, l1, mse};
use lowtide_tensor::{DType, Device, RandomKey};
use lowtide_trainer::{
    Classification, FnTask, LanguageModel, Metric, Options, Regression, Result, Score, Task,
    Trainer, field, upload, upload_as, values,
};

use crate::common::{Run, first_batch};

fn simple_cnn(device: &Device, run: &Run) -> SimpleCnn {
    let shape = SimpleCnnShape { image: [1, 8, 8], channels: run.channels, classes: 10 };
    SimpleCnn::new(device, RandomKey::new(run.seed), shape).expect("memory")
}

/// The state hash and the score after a run of this task.
fn hash_of(run: &Run, task: impl FnOnce(&Device) -> Box<dyn Task>) -> (u64, Score) {
    let device = run.device(None);
    let options = Options { seed: run.seed, ..Options::default() };
    let optimizer = run.kind.build(run.kind.learning_rate());
    let mut trainer = Trainer::new(&device, task(&device), optimizer, options);
    let (train, test) = run.loaders();
    let plan = trainer.plan(&train, &test, run.epochs).expect("fits");
    let score = trainer.fit(&train, &test, run.epochs, &mut []).expect("fits");
    let peak_bytes = device.allocator().statistics().reserved.peak_bytes;
    assert_eq!(peak_bytes, plan.predicted_peak_bytes());
    (trainer.state_hash().expect("cpu"), score)
}

#[test]
fn closures_and_boxes_train_to_the_bits_of_the_task() {
    let run = Run { epochs: 2, ..Run::default() };
    let whole = run.fit(None);
    let boxed = hash_of(&run, |device| Box::new(Classification::new(simple_cnn(device, &run))));
    assert_eq!(boxed, (whole.state_hash, whole.score.clone()));
    let of_closures = hash_of(&run, |device| {
        let loss = |model: &SimpleCnn, pass: &Pass, device: &Device, part: &BatchView<'_>| {
            let images = upload(device, field(part, "images")?)?;
            let labels = upload(device, field(part, "labels")?)?;
            Ok(cross_entropy(model.forward(pass, pass.constant(images))?, &labels)?)
        };
        Box::new(FnTask::new(simple_cnn(device, &run), loss))
    });
    assert_eq!(of_closures.0, whole.state_hash);
    assert_eq!(of_closures.1.loss(), whole.score.loss());
    assert!(of_closures.1.accuracy().is_nan(), "it says nothing of accuracies");
}

#[test]
fn top_k_counts_the_likeliest_classes() {
    let run = Run { epochs: 2, ..Run::default() };
    let top = |k| {
        let task = |device: &Device| -> Box<dyn Task> {
            Box::new(Classification::new(simple_cnn(device, &run)).with_top(k))
        };
        let (_, score) = hash_of(&run, task);
        (score.accuracy(), score.value(&format!("top-{k} accuracy")).expect("it is counted"))
    };
    let (accuracy, top_1) = top(1);
    assert_eq!(accuracy, top_1);
    assert_eq!(top(10).1, 1.0);
    let top_3 = top(3).1;
    assert!(top_3 > accuracy && top_3 < 1.0, "{accuracy} {top_3}");
}

/// A loss of two terms: one over all targets, the other over the targets of samples with a weight.
#[derive(Clone)]
struct TwoTerms {
    model: Mlp,
}

impl Task for TwoTerms {
    fn parameters(&mut self) -> &mut dyn Parameters {
        &mut self.model
    }

    fn count(&self, batch: &BatchView<'_>) -> Result<f64> {
        Ok(2.0 * batch.len() as f64)
    }

    fn loss(&self, _: &Pass, _: &Device, _: &BatchView<'_>) -> Result<Loss> {
        unreachable!("it has several terms")
    }

    fn counts(&self, batch: &BatchView<'_>) -> Result<Vec<f64>> {
        let weights = values::<f32>(batch, "weights")?;
        Ok(vec![self.count(batch)?, 2.0 * f64::from(weights.iter().sum::<f32>())])
    }

    fn losses(&self, pass: &Pass, device: &Device, part: &BatchView<'_>) -> Result<Vec<Loss>> {
        let [inputs, targets, weights] = ["inputs", "targets", "weights"]
            .map(|name| upload_as(device, field(part, name)?, DType::F32));
        let (inputs, targets, weights) = (inputs?, targets?, weights?);
        let outputs = self.model.forward(pass, pass.constant(inputs))?;
        let weights = weights.reshape([part.len(), 1])?;
        let masked = outputs.clone().mul(pass.constant(weights.clone()))?;
        let masked_targets = targets.mul(&weights)?;
        Ok(vec![mse(outputs, &targets)?, l1(masked, &masked_targets)?])
    }

    fn score(&self, _: &Device, _: &BatchView<'_>) -> Result<Score> {
        Ok(Score::default().with(Metric::fraction("nothing", 0.0, 1.0)))
    }
}

/// Eight samples of three inputs and two targets; the first three have a weight.
fn data() -> Loader {
    let key = RandomKey::new(5);
    let draw = |name: &str, count: u64| -> Vec<f32> {
        (0..count).map(|index| key.op(name).uniform(index) - 0.5).collect()
    };
    let weights = (0..8).map(|index| if index < 3 { 1.0 } else { 0.0_f32 }).collect();
    let data = InMemory::new(8)
        .with("inputs", &[3], draw("inputs", 24))
        .and_then(|data| data.with("targets", &[2], draw("targets", 16)))
        .and_then(|data| data.with("weights", &[], weights));
    let options = LoaderOptions { batch_size: 8, ..Default::default() };
    Loader::with_sampler(data.expect("columns"), Sequential, options).expect("options")
}

#[test]
fn each_term_is_divided_by_its_own_count_of_the_whole_batch() {
    let device = Run::default().device(None);
    let mlp = || Mlp::new(&device, RandomKey::new(1), &[3, 4, 2]).expect("memory");
    let batch = first_batch(&data());
    // The means by hand: over 16 targets, and over the 6 targets of three samples.
    let pass = Pass::no_grad(RandomKey::new(0));
    let terms = TwoTerms { model: mlp() }.losses(&pass, &device, &batch.view());
    let sums: Vec<f32> = terms
        .expect("memory")
        .iter()
        .map(|term| term.sum.value().item::<f32>().expect("cpu"))
        .collect();
    let expected = f64::from(sums[0]) / 16.0 + f64::from(sums[1]) / 6.0;
    let adam = Adam::new(AdamOptions::default()).expect("in range");
    let mut trainer = Trainer::new(&device, TwoTerms { model: mlp() }, adam, Options::default());
    let losses: Vec<f64> = (0..3).map(|_| trainer.step(&batch).expect("memory").loss).collect();
    assert!((losses[0] - expected).abs() < 1e-6, "{losses:?} and {expected}");
    assert!(losses[2] < losses[0], "it learns: {losses:?}");
}

#[test]
fn regression_names_its_errors_in_their_unit() {
    let device = Run::default().device(None);
    let mlp = Mlp::new(&device, RandomKey::new(1), &[3, 2]).expect("memory");
    let task = Regression::new(mlp, "m");
    let score = lowtide_trainer::evaluate(&task, &device, &data(), 3).expect("memory");
    let (rmse, mae) = (score.value("rmse").expect("there"), score.value("mae").expect("there"));
    assert!((rmse - score.loss().sqrt()).abs() < 1e-12 && mae > 0.0 && mae <= rmse);
    assert!(score.metrics().iter().all(|metric| metric.unit() == "m"));
}

/// One batch of a dataset.
fn batch(data: InMemory) -> Batch {
    let options = LoaderOptions { batch_size: data.len(), ..Default::default() };
    first_batch(&Loader::with_sampler(data, Sequential, options).expect("options"))
}

fn loss_of(task: &impl Task, device: &Device, data: InMemory) -> (f64, f64) {
    let batch = batch(data);
    let loss = task.loss(&Pass::eval(), device, &batch.view()).expect("memory");
    let sum = loss.sum.value().item::<f32>().expect("cpu");
    (f64::from(sum), task.count(&batch.view()).expect("labels"))
}

#[test]
fn mixed_images_have_the_loss_of_both_labels_each_by_its_share() {
    let device = Run::default().device(None);
    let mlp = Mlp::new(&device, RandomKey::new(1), &[3, 8, 5]).expect("memory");
    let task = Classification::new(mlp);
    let images = [0.5_f32, -1.0, 2.0, 0.1, 0.2, -0.3, 1.5, -0.5, 0.0];
    let (labels, others, weights) = ([0_i64, 4, 2], [3_i64, 0, 2], [0.25_f32, 0.75, 0.5]);
    let data = |rows: std::ops::Range<usize>, labels: &[i64]| {
        let images = images[rows.start * 3..rows.end * 3].to_vec();
        let data = InMemory::new(rows.len()).with("images", &[3], images);
        data.and_then(|data| data.with("labels", &[], labels[rows].to_vec())).expect("columns")
    };
    let mut expected = 0.0;
    for (row, &weight) in weights.iter().enumerate() {
        let alone = |labels: &[i64]| loss_of(&task, &device, data(row..row + 1, labels)).0;
        let weight = f64::from(weight);
        expected += weight * alone(&labels) + (1.0 - weight) * alone(&others);
    }
    let mixed = data(0..3, &labels)
        .with("labels.other", &[], others.to_vec())
        .and_then(|data| data.with("labels.weight", &[], weights.to_vec()))
        .expect("columns");
    let (loss, count) = loss_of(&task, &device, mixed);
    assert!((loss - expected).abs() <= 1e-5 * expected, "{loss} {expected}");
    assert_eq!(count, 3.0);
}

#[test]
fn tokens_whose_label_is_masked_are_read_and_not_learned() {
    let device = Run::default().device(None);
    let shape = GptShape { vocabulary: 7, context: 4, width: 8, heads: 2, blocks: 1 };
    let gpt = Gpt::new(&device, RandomKey::new(1), shape).expect("memory");
    let task = LanguageModel::new(gpt);
    let rows = [1_i64, 2, 3, 4, 5, 6, 0, 1, 2, 3];
    let tokens = || InMemory::new(2).with("tokens", &[5], rows.to_vec()).expect("columns");
    let whole = loss_of(&task, &device, tokens());
    assert_eq!(whole.1, 8.0);
    let next = |at: usize| rows[at / 4 * 5 + at % 4 + 1];
    let with_labels = |counts: &dyn Fn(usize) -> bool| {
        let labels = (0..8).map(|at| if counts(at) { next(at) } else { -100 }).collect();
        loss_of(&task, &device, tokens().with("labels", &[4], labels).expect("columns"))
    };
    assert_eq!(with_labels(&|_| true), whole);
    let mut sum = 0.0;
    for at in 0..8 {
        let (loss, count) = with_labels(&|other| other == at);
        assert_eq!(count, 1.0);
        sum += loss;
    }
    assert!((sum - whole.0).abs() <= 1e-5 * whole.0, "{sum} {whole:?}");
}
