//! Models cut into stages, with one rank per stage. The training is that of one rank with the same
//! micro-batches.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;

use lowtide_allocator::{Fault, Repeat};
use lowtide_cli::recipe::{Recipe, RecipeData, RecipeTrainer};
use lowtide_nn::{Flatten, Linear, ReLU, Segment, Sequential};
use lowtide_ranks::{Collectives, Mirror, Rank};
use lowtide_tensor::{CpuOptions, Device, RandomKey};
use lowtide_trainer::{
    Classification, EvaluationReport, Fit, Flow, Knobs, Observer, Options, Parallelism, Result,
    StepReport, Task, TrainError, Trainer, Training,
};

use crate::common::Save;
use crate::common::on_ranks;
use crate::counting::Counting;
use crate::small_recipes::recipe;

/// A recipe of a model with four blocks that trains on batches of 24 samples.
pub(crate) const GPT: (&str, &[&str]) =
    ("text-gpt", &["model.width=16", "model.blocks=4", "data.context=16", "train.batch_size=24"]);
pub(crate) const VIT: (&str, &[&str]) =
    ("digits-vit", &["model.width=16", "model.blocks=4", "model.hidden=16", "train.batch_size=24"]);
const RESNET: (&str, &[&str]) =
    ("digits-resnet", &["model.width=2", "data.shape=[3, 16, 16]", "train.batch_size=24"]);

pub(crate) fn small((name, sets): (&str, &[&str])) -> Recipe {
    let mut recipe = recipe(name, sets);
    // The norm would be summed in another order.
    recipe.train.clip_norm = None;
    recipe.train.batch_size = 24;
    recipe
}

pub(crate) fn trainer(
    recipe: &Recipe,
    ranks: Option<Arc<dyn Collectives>>,
    zero: Parallelism,
) -> RecipeTrainer {
    let device = Device::cpu(CpuOptions { threads: Some(1), ..CpuOptions::default() });
    trainer_on(recipe, &device.expect("a device"), ranks, zero)
}

pub(crate) fn trainer_on(
    recipe: &Recipe,
    device: &Device,
    ranks: Option<Arc<dyn Collectives>>,
    zero: Parallelism,
) -> RecipeTrainer {
    let samples = recipe.open().expect("data").samples;
    let mut trainer = recipe.trainer(device, samples).expect("memory");
    trainer.set_ranks(ranks);
    trainer.set_parallelism(zero);
    trainer
}

/// An observer that watches a run and calls a function after each step.
pub(crate) struct Watch<F> {
    on_step: F,
    pub(crate) losses: Vec<f64>,
    scores: Vec<(f64, f64)>,
    norms: Vec<Option<f64>>,
}

impl<F: FnMut(&Device, u64)> Observer for Watch<F> {
    fn on_step(&mut self, report: &StepReport, training: &mut dyn Training) -> Result<Flow> {
        self.losses.push(report.loss);
        self.norms.push(report.gradient_norm);
        (self.on_step)(training.device(), report.step);
        Ok(Flow::Continue)
    }

    fn on_evaluation(&mut self, report: &EvaluationReport, _: &mut dyn Training) -> Result<Flow> {
        self.scores.extend(report.scores.iter().map(|(_, score)| (score.loss_sum, score.count)));
        Ok(Flow::Continue)
    }
}

pub(crate) fn watch<F>(on_step: F) -> Watch<F> {
    Watch { on_step, losses: Vec::new(), scores: Vec::new(), norms: Vec::new() }
}

/// The results of a run of a few steps.
#[derive(Debug, PartialEq)]
pub(crate) struct Ran {
    pub(crate) hash: u64,
    pub(crate) losses: Vec<f64>,
    pub(crate) scores: Vec<(f64, f64)>,
    pub(crate) norms: Vec<Option<f64>>,
    pub(crate) retried_steps: u64,
}

pub(crate) const STEPS: u64 = 2;

/// Runs a few steps and an evaluation, in micro-batches of `micro_batch` samples or as planned.
pub(crate) fn run(
    recipe: &Recipe,
    trainer: &mut RecipeTrainer,
    micro_batch: Option<usize>,
    on_step: impl FnMut(&Device, u64),
) -> Ran {
    let knobs = micro_batch.map(|micro_batch| Knobs { micro_batch, ..Knobs::default() });
    run_with(recipe, trainer, knobs, on_step)
}

/// Runs a few steps and an evaluation, with `knobs` or as planned.
pub(crate) fn run_with(
    recipe: &Recipe,
    trainer: &mut RecipeTrainer,
    knobs: Option<Knobs>,
    on_step: impl FnMut(&Device, u64),
) -> Ran {
    let RecipeData { train, test, .. } = recipe.open().expect("data");
    let fit = recipe.fit(&train, &test).steps(STEPS);
    let plan = match knobs {
        Some(knobs) => trainer.plan_run(&fit, &knobs.into()).unwrap(),
        None => trainer.plan_run(&fit, &Default::default()).unwrap(),
    };
    let allocator = trainer.device().allocator().clone();
    // Memory that the whole model took before its division is not counted.
    allocator.trim();
    allocator.reset_peaks();
    let mut watch = watch(on_step);
    (watch.on_step)(trainer.device(), 0);
    trainer.run(&fit, &mut [&mut watch]).unwrap();
    let peak_bytes = allocator.statistics().reserved.peak_bytes;
    let Watch { losses, scores, norms, .. } = watch;
    let (hash, retried_steps) = (trainer.state_hash().unwrap(), trainer.retried_steps());
    if retried_steps == 0 {
        assert_eq!(plan.predicted_peak_bytes(), peak_bytes, "{}", plan.knobs);
    }
    trainer.leave().unwrap();
    Ran { hash, losses, scores, norms, retried_steps }
}

fn in_stages(recipe: &Recipe, count: usize, micro_batch: Option<usize>) -> Vec<Ran> {
    on_ranks(count, |ranks| {
        run(
            recipe,
            &mut trainer(recipe, Some(ranks), Parallelism::Pipeline),
            micro_batch,
            |_, _| {},
        )
    })
}

/// The model has dropout and batch norm. The number of micro-batches is above, equal to and below
/// the number of stages.
#[test]
fn stages_have_the_bits_of_one_rank_in_the_planned_memory() {
    for (model, sizes) in [(VIT, &[6, 5, 12, 24][..]), (RESNET, &[24])] {
        let recipe = small(model);
        for &size in sizes {
            let one = run(
                &recipe,
                &mut trainer(&recipe, None, Parallelism::DataParallel),
                Some(size),
                |_, _| {},
            );
            for count in [2, 3, 4] {
                for ran in in_stages(&recipe, count, Some(size)) {
                    let place = format!("{}, {count} stages, parts of {size}", model.0);
                    assert_eq!((ran.hash, &ran.losses), (one.hash, &one.losses), "{place}");
                    assert_near(&ran.scores, &one.scores);
                }
            }
        }
    }
}

/// Checks that losses are close. Evaluations may use other parts, whose sums are added.
pub(crate) fn assert_near(own: &[(f64, f64)], whole: &[(f64, f64)]) {
    assert_eq!(own.len(), whole.len());
    for (own, whole) in own.iter().zip(whole) {
        assert!((own.0 - whole.0).abs() < 1e-6 * whole.0, "{own:?} {whole:?}");
        assert_eq!(own.1, whole.1);
    }
}

/// The embedding is also the output layer, so its gradient is a sum over two stages.
#[test]
fn parameters_in_several_stages_are_one() {
    let recipe = small(GPT);
    let one =
        run(&recipe, &mut trainer(&recipe, None, Parallelism::DataParallel), Some(6), |_, _| {});
    for count in [2, 4] {
        let found = in_stages(&recipe, count, Some(6));
        for ran in &found {
            assert_eq!(ran, &found[0]);
            for (own, whole) in ran.losses.iter().zip(&one.losses) {
                assert!((own - whole).abs() < 1e-6 * whole, "{own} {whole}");
            }
            assert_near(&ran.scores, &one.scores);
        }
        assert_eq!(found[0].losses[0], one.losses[0], "before the first update");
    }
}

/// The embedding is frozen, so there is no such sum, and the bits are those of one rank. A stage
/// sends no gradient below the first trained block.
#[test]
fn what_is_frozen_has_no_gradient_in_any_stage() {
    let recipe = small(GPT);
    for frozen in [&["tok."][..], &["tok.", "pos.", "blocks.0.", "blocks.1."]] {
        let run_frozen = |ranks: Option<Arc<dyn Collectives>>| {
            let zero =
                if ranks.is_some() { Parallelism::Pipeline } else { Parallelism::DataParallel };
            let mut trainer = trainer(&recipe, ranks, zero);
            trainer.task_mut().parameters().visit(&mut |name, parameter| {
                if frozen.iter().any(|prefix| name.contains(prefix)) {
                    parameter.freeze();
                }
            });
            run(&recipe, &mut trainer, Some(6), |_, _| {})
        };
        let one = run_frozen(None);
        for ran in on_ranks(3, |ranks| run_frozen(Some(ranks))) {
            assert_eq!((ran.hash, &ran.losses), (one.hash, &one.losses), "{frozen:?}");
        }
    }
}

/// The sums of squares of all stages are added, where one rank takes a single sum. A parameter in
/// two stages counts once.
#[test]
fn gradients_of_all_stages_are_clipped_together() {
    for model in [GPT, VIT] {
        let mut recipe = small(model);
        recipe.train.clip_norm = Some(1e-3);
        let one = run(
            &recipe,
            &mut trainer(&recipe, None, Parallelism::DataParallel),
            Some(6),
            |_, _| {},
        );
        let length = |ran: &Ran| ran.norms[0].expect("it is measured");
        assert!(length(&one) > 1e-3, "nothing is clipped");
        for ran in in_stages(&recipe, 3, Some(6)) {
            let (own, whole) = (length(&ran), length(&one));
            assert!((own - whole).abs() < 1e-6 * whole, "{own} {whole}");
            for (own, whole) in ran.losses.iter().zip(&one.losses) {
                assert!((own - whole).abs() < 1e-6 * whole, "{own} {whole}");
            }
        }
    }
}

/// All stages plan the same micro-batches, which are small enough that no stage waits long.
#[test]
fn stages_agree_on_their_micro_batches() {
    let recipe = small(VIT);
    let sizes = on_ranks(4, |ranks| {
        let mut trainer = trainer(&recipe, Some(ranks), Parallelism::Pipeline);
        run(&recipe, &mut trainer, None, |_, _| {});
        trainer.knobs().micro_batch
    });
    assert!(sizes.iter().all(|&size| size == sizes[0] && size < 24), "{sizes:?}");
}

/// Each stage is planned on a simulated device, without the other ranks.
#[test]
fn a_stage_alone_is_planned_as_among_others() {
    for model in [VIT, GPT] {
        let recipe = small(model);
        let planned = |trainer: &mut RecipeTrainer| {
            let RecipeData { train, test, .. } = recipe.open().expect("data");
            let fit = recipe.fit(&train, &test).steps(STEPS);
            let knobs = Knobs { micro_batch: 6, ..Knobs::default() };
            trainer.plan_run(&fit, &knobs.into()).unwrap().predicted_peak_bytes()
        };
        let found = on_ranks(3, |ranks| {
            let mut trainer = trainer(&recipe, Some(ranks), Parallelism::Pipeline);
            (planned(&mut trainer), trainer.device().spec())
        });
        for (index, (among_others, spec)) in found.into_iter().enumerate() {
            let mirror = Mirror::new(Rank { index, count: 3 }).expect("one of three");
            let device = Device::sim(spec).expect("a device");
            let mut alone =
                trainer_on(&recipe, &device, Some(Arc::new(mirror)), Parallelism::Pipeline);
            assert_eq!(planned(&mut alone), among_others, "{} stage {index}", model.0);
        }
    }
}

/// Each allocation of a step fails on each rank in turn.
#[test]
fn a_step_that_fails_in_one_stage_is_done_again_by_all_with_the_same_bits() {
    fail_on_each_rank(&small(GPT), Parallelism::Pipeline);
}

pub(crate) fn fail_on_each_rank(recipe: &Recipe, zero: Parallelism) {
    let calm = on_ranks(2, |ranks| {
        let counts = Cell::new([0; 1 + STEPS as usize]);
        let ran = run(recipe, &mut trainer(recipe, Some(ranks), zero), Some(6), |device, step| {
            let mut all = counts.get();
            all[step as usize] = device.allocator().request_count();
            counts.set(all);
        });
        (ran, counts.get())
    });
    for (faulty, (_, counts)) in calm.iter().enumerate() {
        // The first step also creates the states of the optimizer.
        for step in 0..STEPS as usize {
            let requests = counts[step + 1] - counts[step];
            assert!(requests > 100, "{requests} allocations are no step");
            let every = if crate::common::is_deep() { 1 } else { 1 + requests / 60 };
            for nth in (1..=requests).step_by(every as usize) {
                let place = format!("allocation {nth} of step {} on rank {faulty}", step + 1);
                let found = on_ranks(2, |ranks| {
                    let is_faulty = ranks.rank().index == faulty;
                    let on_step = |device: &Device, after: u64| {
                        if is_faulty && after == step as u64 {
                            let fault = Fault { nth, repeat: Repeat::Once };
                            device.allocator().inject_fault(fault);
                        }
                    };
                    let mut trainer = trainer(recipe, Some(ranks), zero);
                    run(recipe, &mut trainer, Some(6), on_step)
                });
                for (rank, ran) in found.iter().enumerate() {
                    let calm = &calm[rank].0;
                    assert_eq!((ran.hash, &ran.losses), (calm.hash, &calm.losses), "{place}");
                    assert_eq!(ran.retried_steps, u64::from(rank == faulty), "{place}");
                }
            }
        }
    }
}

/// The model has running statistics.
#[test]
fn what_one_stage_saves_is_the_whole_training_and_goes_on_in_any_way() {
    let folder = tempfile::tempdir().expect("a folder");
    for (model, size) in [(VIT, 6), (RESNET, 24)] {
        let recipe = small(model);
        let knobs = Knobs { micro_batch: size, ..Knobs::default() };
        let goes_on = |trainer: &mut RecipeTrainer, from: Option<&Path>, saves: Option<&Path>| {
            let RecipeData { train, test, .. } = recipe.open().expect("data");
            let fit = recipe.fit(&train, &test).steps(4);
            trainer.plan_run(&fit, &knobs.into()).unwrap();
            if let Some(path) = from {
                trainer.load(path).unwrap();
                assert_eq!(trainer.steps(), 2);
            }
            let fit = recipe.fit(&train, &test).steps(4 - trainer.steps());
            trainer.plan_run(&fit, &knobs.into()).unwrap();
            let mut save = Save { after: 2, path: saves };
            match from {
                Some(_) => trainer.run(&fit, &mut []).unwrap(),
                None => trainer.run(&fit, &mut [&mut save]).unwrap(),
            };
            trainer.leave().unwrap();
        };
        let one = folder.path().join(format!("{} one", model.0));
        goes_on(&mut trainer(&recipe, None, Parallelism::DataParallel), None, Some(&one));
        let mut whole = trainer(&recipe, None, Parallelism::DataParallel);
        goes_on(&mut whole, Some(&one), None);
        let whole = whole.state_hash().unwrap();
        let four = folder.path().join(format!("{} four", model.0));
        on_ranks(4, |ranks| {
            let saves = (ranks.rank().index == 1).then_some(&*four);
            goes_on(&mut trainer(&recipe, Some(ranks), Parallelism::Pipeline), None, saves);
        });
        for (from, count) in [(&one, 3), (&four, 1), (&four, 2), (&four, 4)] {
            let hashes = on_ranks(count, |ranks| {
                let ranks = (count > 1).then_some(ranks);
                let zero =
                    if count > 1 { Parallelism::Pipeline } else { Parallelism::DataParallel };
                let mut trainer = trainer(&recipe, ranks, zero);
                let RecipeData { train, test, .. } = recipe.open().expect("data");
                let fit = recipe.fit(&train, &test).steps(2);
                trainer.plan_run(&fit, &knobs.into()).unwrap();
                trainer.load(from).unwrap();
                trainer.plan_run(&fit, &knobs.into()).unwrap();
                trainer.run(&fit, &mut []).unwrap();
                let hash = trainer.state_hash().unwrap();
                trainer.leave().unwrap();
                hash
            });
            assert!(hashes.iter().all(|&hash| hash == whole), "{} by {count}", model.0);
        }
    }
}

/// Eight equal layers. Each of four stages has two, and no budget for more.
#[test]
fn a_model_that_fits_no_rank_trains_in_stages_with_the_losses_of_one_large_device() {
    let new = |place: &Device, device: &Device, options: Options| {
        let key = RandomKey::new(7);
        let first = Linear::new(place, key.op("first"), 64, 256).expect("memory");
        let mut net = Sequential::new().then(Flatten).then(first);
        for index in 0..8 {
            let layer = Linear::new(place, key.op(&format!("layer {index}")), 256, 256);
            let layer = Sequential::new().then(ReLU).then(layer.expect("memory"));
            net = net.then(Segment::new(layer));
        }
        let last = Linear::new(place, key.op("last"), 256, 10).expect("memory");
        let net = Classification::new(net.then(ReLU).then(last));
        let optimizer = crate::common::Kind::Adam.build(0.01);
        Trainer::new(device, net, optimizer, options)
    };
    let data = || recipe("digits", &["train.batch_size=24"]).open().expect("data").train;
    let device = |budget_bytes| {
        let options = CpuOptions { threads: Some(1), budget_bytes, ..CpuOptions::default() };
        Device::cpu(options).expect("a device")
    };
    let train = data();
    let fit = Fit::new(&train).steps(4);
    let ample = device(None);
    let mut large = new(&ample, &ample, Options::default());
    let least_bytes = large.least_bytes(&fit, &Default::default()).unwrap();
    let knobs = Knobs { micro_batch: 6, ..Knobs::default() };
    large.plan_run(&fit, &knobs.into()).unwrap();
    let mut whole = watch(|_: &_, _| {});
    large.run(&fit, &mut [&mut whole]).unwrap();
    let whole_hash = large.state_hash().unwrap();

    let budget_bytes = least_bytes * 2 / 5;
    let found = on_ranks(4, |ranks| {
        let options = Options {
            ranks: Some(ranks),
            parallelism: Parallelism::Pipeline,
            ..Options::default()
        };
        // The model is made without a limit, because the whole model does not fit the budget.
        let mut trainer = new(&device(None), &device(Some(budget_bytes)), options);
        let train = data();
        let fit = Fit::new(&train).steps(4);
        let plan = trainer.plan_run(&fit, &knobs.into()).unwrap();
        let mut watch = watch(|_: &_, _| {});
        trainer.run(&fit, &mut [&mut watch]).unwrap();
        let peak_bytes = trainer.device().allocator().statistics().reserved.peak_bytes;
        assert_eq!(plan.predicted_peak_bytes(), peak_bytes);
        assert!(peak_bytes <= budget_bytes);
        let hash = trainer.state_hash().unwrap();
        trainer.leave().unwrap();
        (watch.losses, hash)
    });
    assert!(found.iter().all(|own| *own == (whole.losses.clone(), whole_hash)), "{found:?}");
}

/// The output of each block is sent to the next stage, and its gradient comes back. The token table
/// is in the first stage and in the last.
#[test]
fn a_stage_sends_what_goes_between_blocks_and_the_gradient_of_the_table() {
    let recipe = small(GPT);
    let width = 16;
    let between = 24 * 16 * width * 4;
    for size in [24, 5] {
        let sent = on_ranks(3, |ranks| {
            let counting = Arc::new(Counting::new(ranks));
            let mut trainer = trainer(&recipe, Some(counting.clone()), Parallelism::Pipeline);
            let train = recipe.open().expect("data").train;
            let fit = Fit::new(&train).steps(STEPS);
            let knobs = Knobs { micro_batch: size, ..Knobs::default() };
            let plan = trainer.plan_run(&fit, &knobs.into()).unwrap();
            let planned_bytes = trainer.sent_bytes(&plan);
            trainer.run(&fit, &mut []).unwrap();
            assert_eq!(counting.given_bytes(), STEPS as usize * planned_bytes);
            let mut table = 0;
            trainer.task_mut().parameters().visit(&mut |name, parameter| {
                if name.ends_with("tok.weight") {
                    table = parameter.value().size_bytes();
                }
            });
            assert!(table >= width * 4, "{table}");
            (counting.given_bytes(), table)
        });
        let table = sent[0].1;
        for (index, (bytes, _)) in sent.into_iter().enumerate() {
            let ends = if index == 1 { 2 * between } else { between + table };
            assert_eq!(bytes, STEPS as usize * ends, "stage {index}, parts of {size}");
        }
    }
}

/// The refused settings, and the words of each error.
#[test]
fn what_cannot_be_a_pipeline_is_refused_before_the_first_step() {
    let refused = |recipe: &Recipe, count: usize, change: fn(&mut RecipeTrainer)| {
        let found = on_ranks(count, |ranks| {
            let mut trainer = trainer(recipe, Some(ranks), Parallelism::Pipeline);
            change(&mut trainer);
            let RecipeData { train, test, .. } = recipe.open().expect("data");
            match trainer.plan_run(&recipe.fit(&train, &test), &Default::default()) {
                Err(TrainError::Setting { place, problem }) => (place, problem),
                other => panic!("{other:?}"),
            }
        });
        let (place, problem) = found.into_iter().next().expect("a rank");
        assert_eq!(place, "pipeline");
        problem
    };
    let problem = refused(&recipe("digits", &[]), 2, |_| {});
    assert!(problem.contains("nowhere to cut"), "{problem}");
    let problem = refused(&small(GPT), 5, |_| {});
    assert!(problem.contains("4 blocks and can be cut at 3 places"), "{problem}");
    let mut leaves = small(VIT);
    leaves.train.leaf = std::num::NonZeroUsize::new(6);
    let problem = refused(&leaves, 2, |_| {});
    assert!(problem.contains("not of leaves"), "{problem}");
}
