//! Distillation: the loss of a student with a teacher, the unchanged teacher, and the memory.

use lowtide_autograd::{Attempt, Pass};
use lowtide_data::{Batch, BatchView, InMemory, Loader, LoaderOptions, Sequential};
use lowtide_nn::models::{Gpt, GptShape, Mlp, ResNet, ResNetBlock, ResNetShape};
use lowtide_nn::{Module, NnError, Parameters};
use lowtide_tensor::{DType, Device, RandomKey};
use lowtide_trainer::{
    Classification, Distillation, DistillationOptions, LanguageModel, Options, Precision,
    Regression, Task, TrainError, Trainer,
};

use crate::common::{Cnn, KINDS, Kind, Outcome, Run, cnn, first_batch, labelled, values};

fn distilled(run: &Run, device: &Device, options: DistillationOptions) -> Distillation<Cnn, Cnn> {
    let (student, teacher) = (cnn(device, run.channels, run.seed), cnn(device, 64, 99));
    Distillation::new(student, teacher, options).expect("in range")
}

fn fit(run: &Run, weight: f64) -> (Outcome, Distillation<Cnn, Cnn>) {
    let device = run.device(None);
    let options = DistillationOptions { weight, ..Default::default() };
    let task = distilled(run, &device, options);
    let optimizer = run.kind.build(run.kind.learning_rate());
    let options = Options { seed: run.seed, ..Options::default() };
    let mut trainer = Trainer::new(&device, task, optimizer, options);
    let outcome = run.fit_trainer(&device, &mut trainer, |_, _| {}).expect("fits");
    (outcome, trainer.task().clone())
}

fn teacher_values(task: &Distillation<Cnn, Cnn>) -> Vec<f32> {
    values(&mut task.teacher().clone())
}

#[test]
fn weight_of_zero_gives_the_bits_of_plain_training() {
    for kind in KINDS {
        let run = Run { kind, epochs: 2, ..Run::default() };
        let (plain, (taught, _)) = (run.fit(None), fit(&run, 0.0));
        assert_eq!(taught.state_hash, plain.state_hash, "{kind:?}");
        assert_eq!(taught.losses(), plain.losses());
        assert_eq!(taught.score, plain.score);
        assert_ne!(fit(&run, 0.5).0.state_hash, plain.state_hash);
    }
}

#[test]
fn teacher_stays_and_its_memory_is_in_the_plan() {
    for (weight, channels) in [(0.3, 16), (1.0, 16), (0.0, 16), (0.5, 64)] {
        let run = Run { channels, epochs: 2, ..Run::default() };
        let (outcome, task) = fit(&run, weight);
        assert_eq!(outcome.measured_peak_bytes, outcome.plan.predicted_peak_bytes());
        let untouched = values(&mut cnn(&run.device(None), 64, 99));
        assert_eq!(teacher_values(&task), untouched, "weight {weight}");
        let plain = run.fit(None);
        let teacher_bytes = 4 * untouched.len();
        assert!(outcome.measured_peak_bytes >= plain.measured_peak_bytes);
        let category = |outcome: &Outcome| {
            let peaks = &outcome.plan.forecast.category_peaks;
            let of = |name: &str| {
                let found = peaks.iter().find(|(category, _)| format!("{category:?}") == name);
                found.expect("every category").1
            };
            (of("Parameter"), of("OptimizerState"))
        };
        let (taught, alone) = (category(&outcome), category(&plain));
        assert!(taught.0 >= alone.0 + teacher_bytes, "{taught:?} {alone:?}");
        assert_eq!(taught.1, alone.1, "it has no state");
    }
}

#[test]
fn student_comes_closer_to_the_teacher_than_without_it() {
    let run = Run { train_len: 400, epochs: 8, channels: 8, ..Run::default() };
    // A trained teacher.
    let device = run.device(None);
    let mut trainer = Run { channels: 32, ..run }.trainer(&device);
    let (train, test) = run.loaders();
    trainer.fit(&train, &test, 20, &mut []).expect("fits");
    let batch = first_batch(&test);
    let divergence = |weight: f64| {
        let options = DistillationOptions { weight, temperature: 3.0 };
        let (student, teacher) = (cnn(&device, run.channels, run.seed), trainer.task().clone());
        let task = Distillation::new(student, teacher, options).expect("in range");
        let optimizer = run.kind.build(run.kind.learning_rate());
        let mut own = Trainer::new(&device, task, optimizer, Options::default());
        own.fit(&train, &test, run.epochs, &mut []).expect("fits");
        let task = own.task();
        let [p, q] = [
            probabilities(task.teacher(), &device, &batch),
            probabilities(task.student(), &device, &batch),
        ];
        p.iter().zip(&q).map(|(p, q)| p * (p.max(1e-30) / q.max(1e-30)).ln()).sum::<f64>()
    };
    let (alone, taught) = (divergence(0.0), divergence(0.9));
    assert!(taught < alone, "{taught} {alone}");
}

fn probabilities(task: &impl Task, device: &Device, batch: &Batch) -> Vec<f64> {
    let pass = Pass::eval();
    let outputs = task.outputs(&pass, device, &batch.view()).expect("memory").expect("classes");
    let logits = outputs.logits.whole().expect("memory").value().to_dtype(DType::F64);
    logits.and_then(|logits| logits.softmax(1)).and_then(|p| p.to_vec()).expect("memory")
}

/// A perceptron over samples of five numbers, in f64.
fn mlp(device: &Device, seed: u64, widths: &[usize]) -> Mlp {
    let mut model = Mlp::new(device, RandomKey::new(seed), widths).expect("memory");
    model.set_dtype(DType::F64).expect("memory");
    model
}

fn features(labels: &[i64]) -> Loader {
    let key = RandomKey::new(5);
    let inputs: Vec<f64> =
        (0..5 * labels.len() as u64).map(|at| 2.0 * f64::from(key.uniform(at)) - 1.0).collect();
    let data = InMemory::new(labels.len()).with("inputs", &[5], inputs);
    let data = data.and_then(|data| data.with("labels", &[], labels.to_vec())).expect("columns");
    let options = LoaderOptions { batch_size: labels.len(), ..Default::default() };
    Loader::with_sampler(data, Sequential, options).expect("valid options")
}

/// `(1 - a) CE + a T² KL(teacher ‖ student)` of logits in rows of three, element by element.
fn formula([student, teacher]: [&[f64]; 2], labels: &[i64], t: f64, a: f64) -> f64 {
    let soft = |row: &[f64], t: f64| -> Vec<f64> {
        let sum: f64 = row.iter().map(|x| (x / t).exp()).sum();
        row.iter().map(|x| (x / t).exp() / sum).collect()
    };
    let mut sum = 0.0;
    for (index, &label) in labels.iter().enumerate().filter(|(_, label)| **label >= 0) {
        let row = 3 * index..3 * index + 3;
        let (own, taught) = (soft(&student[row.clone()], t), soft(&teacher[row.clone()], t));
        let kl: f64 = taught.iter().zip(&own).map(|(p, q)| p * (p / q).ln()).sum();
        sum += a * t * t * kl - (1.0 - a) * soft(&student[row], 1.0)[label as usize].ln();
    }
    sum
}

#[test]
fn loss_is_the_formula_and_its_gradient_that_of_differences() -> Result<(), TrainError> {
    let device = Run::default().device(None);
    let labels = [0, 2, -100, 1, 1, 2, 0];
    let loader = features(&labels);
    let batch = first_batch(&loader);
    for (temperature, weight) in [(1.0, 0.5), (2.0, 0.3), (4.0, 1.0), (0.7, 0.0)] {
        let (student, teacher) = (mlp(&device, 1, &[5, 4, 3]), mlp(&device, 2, &[5, 6, 3]));
        let options = DistillationOptions { temperature, weight };
        let of = |model: &Mlp| Classification::new(model.clone()).with_input("inputs");
        let task = Distillation::new(of(&student), of(&teacher), options)?;
        let logits = |model: &Mlp| -> Result<Vec<f64>, NnError> {
            let pass = Pass::eval();
            let x = lowtide_trainer::upload(&device, batch.view().field("inputs").expect("it is"));
            let x = pass.constant(x.expect("memory"));
            Ok(model.forward(&pass, x)?.value().to_vec()?)
        };
        let expected = |student: &Mlp| -> Result<f64, NnError> {
            let logits = [logits(student)?, logits(&teacher)?];
            Ok(formula([&logits[0], &logits[1]], &labels, temperature, weight))
        };
        assert_eq!(task.count(&batch.view())?, 6.0);
        let attempt = Attempt::new();
        let pass = Pass::train(RandomKey::new(0), &attempt);
        let loss = task.loss(&pass, &device, &batch.view())?;
        let (found, formula) = (loss.sum.value().item::<f64>()?, expected(&student)?);
        assert!((found - formula).abs() < 1e-12 * formula.abs(), "{found} {formula}");
        assert_eq!(loss.count.to_dtype(DType::F64)?.item::<f64>()?, 6.0);
        pass.backward(loss.sum)?;
        let gradients = attempt.into_gradients();
        let mut checked = 0;
        let mut moved = student.clone();
        moved.visit(&mut |name, parameter| {
            let gradient = gradients.get(parameter.id()).expect("trained").to_vec::<f64>();
            let value = parameter.value_mut();
            for (at, gradient) in gradient.expect("f64").into_iter().enumerate() {
                let mut values = value.to_vec::<f64>().expect("f64");
                let (step, before) = (1e-6, values[at]);
                let mut at_place = |place: f64| {
                    values[at] = place;
                    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
                    value.set_bytes_(&bytes).expect("fits");
                    expected(&student).expect("memory")
                };
                let [up, down] = [before + step, before - step].map(&mut at_place);
                at_place(before);
                let numeric = (up - down) / (2.0 * step);
                assert!((gradient - numeric).abs() < 1e-6, "{name} {at}: {gradient} {numeric}");
                checked += 1;
            }
        });
        assert_eq!(checked, 5 * 4 + 4 + 4 * 3 + 3);
        let mut teacher = teacher;
        teacher.visit(&mut |_, own| assert!(own.is_frozen() && gradients.get(own.id()).is_none()));
    }
    Ok(())
}

fn tokens(rows: usize, len: usize) -> Loader {
    let key = RandomKey::new(6);
    let tokens: Vec<i64> =
        (0..rows * len).map(|at| (key.uniform(at as u64) * 60.0) as i64).collect();
    let data = InMemory::new(rows).with("tokens", &[len], tokens).expect("a column");
    let options = LoaderOptions { batch_size: 8, ..Default::default() };
    Loader::with_sampler(data, Sequential, options).expect("valid options")
}

fn gpt(device: &Device, seed: u64, width: usize) -> Gpt {
    let shape = GptShape { vocabulary: 60, context: 24, width, heads: 2, blocks: 2 };
    Gpt::new(device, RandomKey::new(seed), shape).expect("memory")
}

#[test]
fn language_models_are_distilled_within_what_is_predicted_and_without_whole_logits() {
    let (train, test) = (tokens(24, 25), tokens(8, 25));
    let run = |weight: Option<f64>, budget_bytes: Option<usize>| {
        let device = Run::default().device(None);
        let (student, teacher) = (gpt(&device, 1, 8), gpt(&device, 2, 32));
        let student = LanguageModel::new(student);
        let optimizer = Kind::Adam.build(0.01);
        let (before, mut teacher) = (device.clone(), LanguageModel::new(teacher));
        let kept = values(&mut teacher);
        let task: Box<dyn Task> = match weight {
            Some(weight) => {
                let options = DistillationOptions { weight, temperature: 2.0 };
                Box::new(Distillation::new(student, teacher.clone(), options).expect("in range"))
            }
            None => Box::new(student),
        };
        if let Some(bytes) = budget_bytes {
            before.allocator().set_capacity(bytes);
        }
        let mut trainer = Trainer::new(&device, task, optimizer, Options::default());
        let plan = trainer.plan(&train, &test, 2).expect("fits");
        let score = trainer.fit(&train, &test, 2, &mut []).expect("fits");
        let peak_bytes = device.allocator().statistics().reserved.peak_bytes;
        assert_eq!(peak_bytes, plan.predicted_peak_bytes());
        assert_eq!(values(&mut teacher), kept);
        (peak_bytes, trainer.state_hash().expect("cpu"), score)
    };
    let plain = run(None, None);
    assert_eq!(run(Some(0.0), None).1, plain.1);
    let (bytes, hash, _) = run(Some(0.5), None);
    assert_ne!(hash, plain.1);
    // The tight run has smaller parts or more recomputation.
    let tight = run(Some(0.5), Some(bytes * 9 / 10));
    assert!(tight.0 <= bytes * 9 / 10);
}

#[test]
fn teacher_of_norms_keeps_its_running_statistics() {
    let device = Run::default().device(None);
    let shape =
        ResNetShape { block: ResNetBlock::Basic, blocks: [1, 1, 1, 1], width: 4, classes: 3 };
    let resnet = |seed| {
        let model = ResNet::new(&device, RandomKey::new(seed), shape).expect("memory");
        Classification::new(model)
    };
    let task = Distillation::new(resnet(1), resnet(2), DistillationOptions::default());
    let mut task = task.expect("in range");
    let pixels: Vec<f32> = (0..8 * 3 * 32 * 32).map(|at| RandomKey::new(8).uniform(at)).collect();
    let data = InMemory::new(8).with("images", &[3, 32, 32], pixels);
    let labels = [0_i64, 1, 2, 0, 1, 2, 0, 1];
    let data = data.and_then(|data| data.with("labels", &[], labels.to_vec())).expect("columns");
    let options = LoaderOptions { batch_size: 4, ..Default::default() };
    let loader = Loader::with_sampler(data, Sequential, options).expect("valid options");
    let statistics = |task: &mut Distillation<Classification<ResNet>, Classification<ResNet>>| {
        let mut all = Vec::new();
        task.parameters().visit_buffers(&mut |name, buffer| {
            all.push((name.to_owned(), buffer.value().to_bytes().expect("values")));
        });
        all
    };
    let before = statistics(&mut task);
    let optimizer = Kind::Momentum.build(0.01);
    let mut trainer = Trainer::new(&device, task, optimizer, Options::default());
    let plan = trainer.plan(&loader, &loader, 2).expect("fits");
    trainer.fit(&loader, &loader, 2, &mut []).expect("fits");
    let peak_bytes = device.allocator().statistics().reserved.peak_bytes;
    assert_eq!(peak_bytes, plan.predicted_peak_bytes());
    for ((name, before), (_, after)) in before.iter().zip(statistics(trainer.task_mut())) {
        assert_eq!(*before == after, name.starts_with("teacher."), "{name}");
    }
    assert!(before.iter().any(|(name, _)| name == "teacher.bn1.running_mean"));
}

#[test]
fn checkpoint_has_the_student_alone_and_goes_on_with_the_same_teacher() {
    let run = Run::default();
    let (train, test) = run.loaders();
    let trainer = |seed| {
        let device = run.device(None);
        let task = distilled(&Run { seed, ..run }, &device, DistillationOptions::default());
        let options = Options { seed: run.seed, ..Options::default() };
        Trainer::new(&device, task, Kind::Adam.build(0.01), options)
    };
    let (mut one, mut other) = (trainer(1), trainer(2));
    one.fit(&train, &test, 1, &mut []).expect("fits");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("checkpoint");
    one.save(&path).expect("a disk");
    let student_bytes = 4 * values(&mut one.task().student().clone()).len();
    let file_bytes = std::fs::metadata(path.join("model.safetensors")).expect("it is").len();
    assert!((file_bytes as usize) < student_bytes + 1024, "{file_bytes} {student_bytes}");
    other.load(&path).expect("whole");
    for trainer in [&mut one, &mut other] {
        trainer.fit(&train, &test, 1, &mut []).expect("fits");
    }
    assert_eq!(one.state_hash().expect("cpu"), other.state_hash().expect("cpu"));
}

#[test]
fn what_cannot_be_distilled_is_an_error_that_says_so() {
    let device = Run::default().device(None);
    let message = |task: &dyn Fn() -> Result<Box<dyn Task>, TrainError>, batch: &BatchView<'_>| {
        let attempt = Attempt::new();
        let pass = Pass::train(RandomKey::new(0), &attempt);
        let loss = task().and_then(|task| task.loss(&pass, &device, batch).map(drop));
        loss.expect_err("a mistake").to_string()
    };
    let images = labelled(&[0, 1, 2], 3);
    let batch = first_batch(&images);
    let options = DistillationOptions::default();
    for options in [
        DistillationOptions { temperature: 0.0, ..options },
        DistillationOptions { temperature: f64::NAN, ..options },
        DistillationOptions { weight: 1.1, ..options },
    ] {
        let task = || -> Result<Box<dyn Task>, TrainError> {
            Ok(Box::new(Distillation::new(cnn(&device, 4, 1), cnn(&device, 4, 2), options)?))
        };
        assert!(message(&task, &batch.view()).contains("distill."), "{options:?}");
    }
    let same = cnn(&device, 4, 1);
    let text = Distillation::new(same.clone(), same, options).unwrap_err().to_string();
    assert!(text.contains("conv.weight") && text.contains("would freeze"), "{text}");
    let features = features(&[0, 1]);
    let few = first_batch(&features);
    let of = |widths: &[usize]| Classification::new(mlp(&device, 1, widths)).with_input("inputs");
    let other_classes = || -> Result<Box<dyn Task>, TrainError> {
        Ok(Box::new(Distillation::new(of(&[5, 3]), of(&[5, 4]), options)?))
    };
    let text = message(&other_classes, &few.view());
    assert!(text.contains("has 3 classes, and its teacher 4"), "{text}");
    let no_classes = || -> Result<Box<dyn Task>, TrainError> {
        let teacher = Regression::new(mlp(&device, 1, &[5, 1]), "");
        Ok(Box::new(Distillation::new(of(&[5, 3]), teacher, options)?))
    };
    let text = message(&no_classes, &few.view());
    assert!(text.contains("teacher") && text.contains("not of classes"), "{text}");
}

#[test]
fn models_in_half_types_and_under_casts_are_distilled_as_planned() {
    for (dtype, precision) in
        [(DType::BF16, Precision::F32), (DType::F32, Precision::Bf16), (DType::F32, Precision::F16)]
    {
        let options = Options { precision, ..Options::default() };
        let taught = DistillationOptions::default();
        let device = Run::default().device(None);
        let [student, teacher] = [(1, 8), (2, 16)].map(|(seed, width)| {
            let mut model = gpt(&device, seed, width);
            model.set_dtype(dtype).expect("memory");
            LanguageModel::new(model)
        });
        let task = Distillation::new(student, teacher, taught).expect("in range");
        let train = tokens(16, 25);
        let mut trainer = Trainer::new(&device, task, Kind::Adam.build(0.01), options.clone());
        let plan = trainer.plan(&train, &train, 3).expect("fits");
        let score = trainer.fit(&train, &train, 3, &mut []).expect("fits");
        let peak_bytes = device.allocator().statistics().reserved.peak_bytes;
        assert_eq!(peak_bytes, plan.predicted_peak_bytes(), "{dtype} {precision:?}");
        assert!(score.loss() < 5.0, "{dtype} {precision:?}: {}", score.loss());

        let run = Run { epochs: 2, ..Run::default() };
        let device = run.device(None);
        let mut task = distilled(&run, &device, taught);
        task.parameters().set_dtype(dtype).expect("memory");
        let (student, teacher) = (task.student().model().clone(), task.teacher().model().clone());
        let [student, teacher] = [student, teacher].map(Classification::new);
        let task = Distillation::new(student, teacher, taught).expect("in range");
        let optimizer = run.kind.build(run.kind.learning_rate());
        let mut trainer = Trainer::new(&device, task, optimizer, options);
        let outcome = run.fit_trainer(&device, &mut trainer, |_, _| {}).expect("fits");
        assert_eq!(outcome.measured_peak_bytes, outcome.plan.predicted_peak_bytes());
        let losses = outcome.losses();
        assert!(losses.last() < losses.first(), "{dtype} {precision:?}: {losses:?}");
    }
}
