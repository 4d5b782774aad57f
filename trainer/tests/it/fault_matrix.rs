//! Every division of a training among ranks, and every kind of work in which ranks call each other:
//! steps, evaluations, the whole state for a checkpoint, for a hash and for a model file. An
//! allocation that fails anywhere leaves the bits of the undisturbed run.

use std::hash::{DefaultHasher, Hasher};
use std::path::Path;
use std::sync::Arc;

use lowtide_allocator::{Fault, Repeat};
use lowtide_data::{
    ElementType, Field, Loader, LoaderOptions, Random, Remainder, Sequential, Sharded, Shuffled,
};
use lowtide_nn::models::{Gpt, GptShape};
use lowtide_nn::optim::{Adam, AdamOptions, Stateful};
use lowtide_ranks::Collectives;
use lowtide_tensor::{CpuOptions, Device, RandomKey};
use lowtide_trainer::{
    EvaluationReport, Every, Fit, Flow, LanguageModel, Observer, Options, Parallelism, Recovery,
    Result, StepReport, Trainer, Training,
};

use crate::common::{is_deep, on_ranks};

const DIVISIONS: [Parallelism; 6] = [
    Parallelism::DataParallel,
    Parallelism::Zero1,
    Parallelism::Zero2,
    Parallelism::Zero3,
    Parallelism::Pipeline,
    Parallelism::TensorParallel,
];

const VOCABULARY: usize = 12;
const STEPS: u64 = 2;

/// The training that all runs repeat: two steps of a small GPT with dropout, an evaluation after
/// each, a checkpoint between them, and at the end a hash and a model file.
fn trainer(ranks: Option<Arc<dyn Collectives>>, parallelism: Parallelism) -> GptTrainer {
    let device = Device::cpu(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
    let shape = GptShape { vocabulary: VOCABULARY, context: 8, width: 8, heads: 2, blocks: 2 };
    let model = Gpt::gpt2(&device, RandomKey::new(5), shape).unwrap().with_dropout(0.2).unwrap();
    let adam = Adam::new(AdamOptions { learning_rate: 0.01, ..AdamOptions::adamw() }).unwrap();
    let optimizer: Box<dyn Stateful> = Box::new(adam);
    let options = Options { ranks, parallelism, clip_norm: Some(0.5), ..Options::default() };
    Trainer::new(&device, LanguageModel::new(model), optimizer, options)
}

type GptTrainer = Trainer<LanguageModel<Gpt>, Box<dyn Stateful>>;

/// Rows of tokens; the share of a rank, if ranks share batches.
fn rows(len: usize, ranks: Option<&dyn Collectives>, parallelism: Parallelism) -> Loader {
    let tokens = Field::new("tokens", ElementType::I64, &[9]);
    let data = Random::new(len, vec![tokens], VOCABULARY as u64);
    let rank = ranks.filter(|_| parallelism.shares_batches()).map(|ranks| ranks.rank());
    let (index, count) = rank.map_or((0, 1), |rank| (rank.index, rank.count));
    let sharded = Sharded::new(Shuffled, index, count, Remainder::Drop).unwrap().in_blocks();
    let options = LoaderOptions { batch_size: 4 / count, ..LoaderOptions::default() };
    Loader::with_sampler(data, sharded, options).unwrap()
}

fn test_rows() -> Loader {
    let tokens = Field::new("tokens", ElementType::I64, &[9]);
    let data = Random::new(6, vec![tokens], VOCABULARY as u64);
    let options = LoaderOptions { batch_size: 3, ..LoaderOptions::default() };
    Loader::with_sampler(data, Sequential, options).unwrap()
}

/// Everything about a run that a failure must not change.
#[derive(Clone, Debug, Default, PartialEq)]
struct Outcome {
    losses: Vec<f64>,
    scores: Vec<(f64, f64)>,
    /// Hashes of the checkpoint after the first step and of the model at the end, on the rank that
    /// writes them.
    files: Vec<u64>,
    hash: Option<u64>,
}

fn hash_of(path: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(&std::fs::read(path).unwrap());
    hasher.finish()
}

struct Watch<'a> {
    outcome: Outcome,
    retried: usize,
    has_changed_plan: bool,
    /// The folder for the checkpoint of the first step, on the rank that writes.
    folder: Option<&'a Path>,
}

impl Observer for Watch<'_> {
    fn on_step(&mut self, report: &StepReport, training: &mut dyn Training) -> Result<Flow> {
        self.outcome.losses.push(report.loss);
        self.retried += report.retries.len();
        self.has_changed_plan |=
            report.retries.iter().any(|retry| retry.recovery != Recovery::SamePlan);
        if let Some(folder) = self.folder.filter(|_| report.step == 1) {
            let path = folder.join("checkpoint");
            training.snapshot()?.write(&path)?;
            for name in ["model.safetensors", "optimizer.safetensors"] {
                self.outcome.files.push(hash_of(&path.join(name)));
            }
        }
        Ok(Flow::Continue)
    }

    fn on_evaluation(&mut self, report: &EvaluationReport, _: &mut dyn Training) -> Result<Flow> {
        let scores = report.scores.iter().map(|(_, score)| (score.loss_sum, score.count));
        self.outcome.scores.extend(scores);
        Ok(Flow::Continue)
    }
}

/// A run of one rank: its outcome, and its number of requests after the plan.
fn run(
    ranks: Option<Arc<dyn Collectives>>,
    parallelism: Parallelism,
    fault: Option<(usize, Fault)>,
) -> (Outcome, u64) {
    let index = ranks.as_ref().map_or(0, |ranks| ranks.rank().index);
    let mut trainer = trainer(ranks.clone(), parallelism);
    let (train, test) = (rows(8, ranks.as_deref(), parallelism), test_rows());
    let fit = Fit::new(&train).steps(STEPS).evaluate("test", &test).every(Every::Steps(1));
    trainer.plan_run(&fit, &Default::default()).unwrap();
    let allocator = trainer.device().allocator().clone();
    let before = allocator.request_count();
    if let Some((_, fault)) = fault.filter(|(faulty, _)| *faulty == index) {
        allocator.inject_fault(fault);
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = (index == 0).then_some(folder.path());
    let mut watch =
        Watch { outcome: Outcome::default(), retried: 0, has_changed_plan: false, folder };
    trainer.run(&fit, &mut [&mut watch]).unwrap();
    let mut outcome = watch.outcome;
    if let Some(folder) = folder {
        let path = folder.join("model.safetensors");
        trainer.save_model(&path).unwrap();
        outcome.files.push(hash_of(&path));
        outcome.hash = Some(trainer.state_hash().unwrap());
    }
    trainer.leave().unwrap();
    assert!(!watch.has_changed_plan, "{parallelism:?}");
    (outcome, allocator.request_count() - before)
}

/// The outcomes of all ranks with a fault on one of them.
fn run_all(
    count: usize,
    parallelism: Parallelism,
    fault: Option<(usize, Fault)>,
) -> Vec<(Outcome, u64)> {
    if count == 1 {
        return vec![run(None, parallelism, fault)];
    }
    on_ranks(count, |ranks| run(Some(ranks), parallelism, fault))
}

/// Fails allocations all over the run, `tried` of them on each rank, each `repeat`. Returns the
/// number of runs.
fn sweep(count: usize, parallelism: Parallelism, tried: u64, repeat: Repeat) -> usize {
    let calm = run_all(count, parallelism, None);
    let mut runs = 0;
    for (faulty, &(_, requests)) in calm.iter().enumerate() {
        assert!(requests > 100, "{requests} allocations are no run");
        let step = requests.div_ceil(tried).max(1);
        // Another rank begins at another allocation.
        for nth in (1 + faulty as u64 % step..=requests).step_by(step as usize) {
            let place = format!("{parallelism:?}, {count} ranks, {nth} of {requests} on {faulty}");
            let found = run_all(count, parallelism, Some((faulty, Fault { nth, repeat })));
            for ((found, _), (calm, _)) in found.iter().zip(&calm) {
                assert_eq!(found, calm, "{place}, {repeat:?}");
            }
            runs += 1;
        }
    }
    runs
}

#[test]
fn allocation_that_fails_anywhere_leaves_the_bits_of_every_division() {
    let tried = if is_deep() { u64::MAX } else { 24 };
    let mut runs = sweep(1, Parallelism::DataParallel, tried, Repeat::Once);
    for parallelism in DIVISIONS {
        let counts: &[usize] = if is_deep() { &[2, 4] } else { &[2] };
        for &count in counts {
            // The model has two heads to share, and two blocks for stages.
            let divides = count == 2 || parallelism.shares_batches();
            if divides {
                runs += sweep(count, parallelism, tried, Repeat::Once);
            }
        }
    }
    println!("{runs} runs with one failed allocation");
}

#[test]
fn allocations_that_fail_in_a_row_leave_the_bits_and_the_plan() {
    let ks: &[u64] = if is_deep() { &[2, 3, 5, 8, 12, 50] } else { &[2, 5, 8] };
    for &k in ks {
        let tried = if k > 8 { 6 } else { 3 };
        sweep(1, Parallelism::DataParallel, tried, Repeat::Times(k));
        for parallelism in [Parallelism::Zero2, Parallelism::Zero3, Parallelism::Pipeline] {
            sweep(2, parallelism, tried, Repeat::Times(k));
        }
    }
}

#[test]
fn one_rank_that_divides_nothing_trains_as_without_ranks() {
    let alone = run(None, Parallelism::DataParallel, None).0;
    for parallelism in DIVISIONS {
        let found = on_ranks(1, |ranks| run(Some(ranks), parallelism, None).0);
        assert_eq!(found, std::slice::from_ref(&alone), "{parallelism:?}");
    }
}
