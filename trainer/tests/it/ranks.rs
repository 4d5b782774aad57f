//! A training by several ranks equals the training of one rank with the same batches.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::sync::Arc;

use lowtide_allocator::{Fault, Repeat};
use lowtide_data::{Loader, LoaderOptions, Remainder, Sequential, Sharded, Shuffled, Subset};
use lowtide_nn::optim::Stateful;
use lowtide_ranks::{Collectives, RanksError};
use lowtide_tensor::Device;
use lowtide_trainer::{
    EvaluationReport, Fit, Flow, Knobs, MicroBatches, Observer, Options, Parallelism, Plan, Result,
    StepReport, TrainError, Trainer, Training,
};

use crate::buffers::{Middle, Net, trainer_with};
use crate::common::{KINDS, Run, digits, on_ranks};

pub(crate) type OneTrainer = Trainer<Net, Box<dyn Stateful>>;

/// The batches of `run`, or this rank's shares of them.
pub(crate) fn loader(run: &Run, ranks: Option<&dyn Collectives>) -> Loader {
    let (index, count) = ranks.map_or((0, 1), |ranks| (ranks.rank().index, ranks.rank().count));
    let data =
        Subset::new(digits(), (0..run.train_len).collect::<Vec<_>>()).expect("there are 1797");
    let shard = Sharded::new(Shuffled, index, count, Remainder::Drop).expect("a rank").in_blocks();
    let batch_size = run.batch_size / count;
    let options = LoaderOptions { batch_size, seed: run.seed, ..Default::default() };
    Loader::with_sampler(data, shard, options).expect("valid options")
}

fn trainer(run: &Run, middle: Middle, ranks: Option<Arc<dyn Collectives>>) -> OneTrainer {
    trainer_splitting(run, middle, ranks, MicroBatches::AsNeeded)
}

fn trainer_splitting(
    run: &Run,
    middle: Middle,
    ranks: Option<Arc<dyn Collectives>>,
    micro_batches: MicroBatches,
) -> OneTrainer {
    let options = Options { ranks, micro_batches, ..Options::default() };
    trainer_with(&run.device(None), run, middle, options)
}

pub(crate) fn leaves(samples: usize) -> MicroBatches {
    MicroBatches::Shards(NonZeroUsize::new(samples).expect("some"))
}

/// Results of a run: plan, hash of the state, measured peak, losses, and number of retried steps.
pub(crate) struct Ran {
    pub(crate) plan: Plan,
    pub(crate) hash: u64,
    pub(crate) peak_bytes: usize,
    pub(crate) losses: Vec<f64>,
    pub(crate) retried_steps: u64,
}

struct Watch<F> {
    on_step: F,
    losses: Vec<f64>,
}

impl<F: FnMut(&Device, u64) -> Result<Flow>> Observer for Watch<F> {
    fn on_step(&mut self, report: &StepReport, training: &mut dyn Training) -> Result<Flow> {
        self.losses.push(report.loss);
        (self.on_step)(training.device(), report.step)
    }
}

pub(crate) fn run_trainer(
    run: &Run,
    trainer: &mut OneTrainer,
    knobs: Option<Knobs>,
    on_step: impl FnMut(&Device, u64) -> Result<Flow>,
) -> Result<Ran> {
    let train = loader(run, trainer.options().ranks.as_deref());
    let fit = Fit::new(&train).epochs(run.epochs);
    let plan = match knobs {
        Some(knobs) => trainer.plan_run(&fit, &knobs.into())?,
        None => trainer.plan_run(&fit, &Default::default())?,
    };
    let mut watch = Watch { on_step, losses: Vec::new() };
    (watch.on_step)(trainer.device(), 0)?;
    trainer.run(&fit, &mut [&mut watch])?;
    let (hash, retried_steps) = (trainer.state_hash()?, trainer.retried_steps());
    let peak_bytes = trainer.device().allocator().statistics().reserved.peak_bytes;
    Ok(Ran { plan, hash, peak_bytes, losses: watch.losses, retried_steps })
}

pub(crate) fn calm(_: &Device, _: u64) -> Result<Flow> {
    Ok(Flow::Continue)
}

/// Random numbers depend on the sample, and the model contains dropout.
#[test]
fn two_ranks_have_the_bits_of_one_that_splits_its_batches() {
    for kind in KINDS {
        let run = Run { kind, epochs: 2, ..Run::default() };
        let split = Knobs { micro_batch: run.batch_size / 2, ..Knobs::default() };
        let one = run_trainer(&run, &mut trainer(&run, Middle::Dropout, None), Some(split), calm);
        let one = one.unwrap();
        let two = on_ranks(2, |ranks| {
            run_trainer(&run, &mut trainer(&run, Middle::Dropout, Some(ranks)), None, calm).unwrap()
        });
        for two in two {
            assert_eq!((two.hash, &two.losses), (one.hash, &one.losses));
        }
    }
}

#[test]
fn every_rank_ends_with_the_same_state_and_in_the_planned_memory() {
    let run = Run { epochs: 2, ..Run::default() };
    for middle in [Middle::BatchNorm, Middle::Dropout] {
        for count in [2, 3, 4] {
            let found = on_ranks(count, |ranks| {
                run_trainer(&run, &mut trainer(&run, middle, Some(ranks)), None, calm).unwrap()
            });
            for ran in &found {
                assert_eq!(ran.hash, found[0].hash, "{middle:?} on {count} ranks");
                assert_eq!(ran.losses, found[0].losses);
                assert_eq!(ran.plan.predicted_peak_bytes(), ran.peak_bytes);
            }
        }
    }
}

/// The model contains batch norm, whose statistics each shard computes on its own.
#[test]
fn with_leaves_one_two_four_and_eight_ranks_have_the_same_bits_in_the_planned_memory() {
    for kind in KINDS {
        for middle in [Middle::BatchNorm, Middle::Dropout] {
            let run = Run { kind, epochs: 2, ..Run::default() };
            let mut first = None;
            for count in [1, 2, 4, 8] {
                let found = on_ranks(count, |ranks| {
                    let ranks = (count > 1).then_some(ranks);
                    let trainer = &mut trainer_splitting(&run, middle, ranks, leaves(12));
                    run_trainer(&run, trainer, None, calm).unwrap()
                });
                for ran in found {
                    let place = format!("{kind:?} {middle:?} on {count} ranks");
                    assert_eq!(ran.plan.predicted_peak_bytes(), ran.peak_bytes, "{place}");
                    assert_eq!(ran.plan.knobs.micro_batch, 12, "{place}");
                    let (hash, losses) = first.get_or_insert((ran.hash, ran.losses.clone()));
                    assert_eq!((ran.hash, &ran.losses), (*hash, &*losses), "{place}");
                }
            }
        }
    }
}

/// Records the scores of an evaluation by all ranks.
struct Scores<'a> {
    set: &'a Loader,
    peaks: Vec<usize>,
}

impl Observer for Scores<'_> {
    fn on_evaluation(
        &mut self,
        report: &EvaluationReport,
        training: &mut dyn Training,
    ) -> Result<Flow> {
        let allocator = training.device().allocator().clone();
        self.peaks.push(allocator.statistics().reserved.peak_bytes);
        let alone = training.evaluate(self.set)?;
        assert_eq!(report.scores, [("test".to_owned(), alone)]);
        Ok(Flow::Continue)
    }
}

/// The evaluation has four batches; the last one is short. Of eight ranks, four have no batch.
#[test]
fn ranks_share_an_evaluation_and_have_the_score_of_one_in_the_planned_memory() {
    let run = Run::default();
    let options = LoaderOptions { batch_size: 192, ..Default::default() };
    let data = || Subset::new(digits(), (0..650).collect::<Vec<_>>()).expect("there are 1797");
    for count in [1, 2, 4, 8] {
        let found = on_ranks(count, |ranks| {
            let train = loader(&run, Some(&*ranks));
            let test = Loader::with_sampler(data(), Sequential, options).expect("valid options");
            let mut trainer = trainer_splitting(&run, Middle::Dropout, Some(ranks), leaves(12));
            let fit = Fit::new(&train).evaluate("test", &test).epochs(1);
            let plan = trainer.plan_run(&fit, &Default::default()).unwrap();
            let mut scores = Scores { set: &test, peaks: Vec::new() };
            trainer.run(&fit, &mut [&mut scores]).unwrap();
            assert_eq!(scores.peaks, [plan.predicted_peak_bytes()], "of {count} ranks");
            plan.forecast.events.iter().filter(|event| event.is_evaluation).count()
        });
        assert_eq!(found.iter().filter(|&&events| events == 0).count(), count.saturating_sub(4));
    }
}

#[test]
fn leaves_are_the_update_of_the_whole_batch_up_to_the_order_of_sums() {
    let run = Run { epochs: 1, ..Run::default() };
    let losses = |micro_batches| {
        let trainer = &mut trainer_splitting(&run, Middle::Dropout, None, micro_batches);
        let ran = run_trainer(&run, trainer, None, calm).unwrap();
        assert_eq!(ran.plan.predicted_peak_bytes(), ran.peak_bytes);
        ran.losses
    };
    let whole = losses(MicroBatches::AsNeeded);
    // A tree of three leaves has two of them on one side.
    for samples in [96, 32, 3, 1] {
        let own = losses(leaves(samples));
        assert_eq!(own.len(), whole.len());
        for (own, whole) in own.iter().zip(&whole) {
            assert!((own - whole).abs() < 1e-5 * whole.abs(), "leaves of {samples}: {own} {whole}");
        }
    }
}

#[test]
fn batches_that_are_not_made_of_leaves_are_refused() {
    let run = Run::default();
    let refused = |count, samples, knobs: Option<Knobs>| {
        let found = on_ranks(count, |ranks| {
            let ranks = (count > 1).then_some(ranks);
            let trainer = &mut trainer_splitting(&run, Middle::Dropout, ranks, leaves(samples));
            match run_trainer(&run, trainer, knobs, calm).err().expect("no such leaves") {
                TrainError::Setting { place, problem } => (place, problem),
                other => panic!("{other:?}"),
            }
        });
        found.into_iter().next().expect("a rank")
    };
    for (count, samples, words) in
        [(1, 36, "share of 96"), (2, 32, "share of 48"), (3, 16, "no common tree")]
    {
        let (place, problem) = refused(count, samples, None);
        assert_eq!(place, "leaves");
        assert!(problem.contains(words), "{problem}");
    }
    let knobs = Knobs { micro_batch: 48, ..Knobs::default() };
    let (place, problem) = refused(1, 12, Some(knobs));
    assert_eq!(place, "knobs");
    assert!(problem.contains("a leaf has 12 samples"), "{problem}");
    let fused = Knobs { micro_batch: 12, fused_update: true, ..Knobs::default() };
    assert_eq!(refused(1, 12, Some(fused)).0, "knobs");
}

/// Each allocation of a step fails on each rank in turn.
#[test]
fn a_step_that_fails_on_one_rank_is_done_again_by_all_with_the_same_bits() {
    fail_everywhere(MicroBatches::AsNeeded, Parallelism::DataParallel);
    fail_everywhere(leaves(24), Parallelism::DataParallel);
}

pub(crate) fn fail_everywhere(micro_batches: MicroBatches, zero: Parallelism) {
    let run = Run::default();
    let requests_of_step = |ranks: Arc<dyn Collectives>| {
        let counts = Cell::new([0; 3]);
        let on_step = |device: &Device, step: u64| {
            let mut all = counts.get();
            all[step as usize] = device.allocator().request_count();
            counts.set(all);
            Ok(Flow::Continue)
        };
        let mut trainer = trainer_splitting(&run, Middle::Dropout, Some(ranks), micro_batches);
        trainer.set_parallelism(zero);
        let ran = run_trainer(&run, &mut trainer, None, on_step).unwrap();
        let [start, first, second] = counts.get();
        (ran.hash, [first - start, second - first])
    };
    let calm = on_ranks(2, requests_of_step);
    for (faulty, (hash, requests)) in calm.into_iter().enumerate() {
        for step in 0..2 {
            assert!(requests[step] > 20, "{requests:?} allocations are no step");
            let mut is_written = false;
            for nth in 1..=requests[step] {
                let place = format!("allocation {nth} of step {} on rank {faulty}", step + 1);
                let found = on_ranks(2, |ranks| {
                    let is_faulty = ranks.rank().index == faulty;
                    let on_step = |device: &Device, after: u64| {
                        if is_faulty && after == step as u64 {
                            let fault = Fault { nth, repeat: Repeat::Once };
                            device.allocator().inject_fault(fault);
                        }
                        Ok(Flow::Continue)
                    };
                    let mut trainer =
                        trainer_splitting(&run, Middle::Dropout, Some(ranks), micro_batches);
                    trainer.set_parallelism(zero);
                    run_trainer(&run, &mut trainer, None, on_step).unwrap()
                });
                for (rank, ran) in found.into_iter().enumerate() {
                    assert_eq!(ran.hash, hash, "{place}");
                    // Promised allocations at the end of a step do not fail.
                    let is_promised = rank == faulty
                        && zero != Parallelism::DataParallel
                        && ran.retried_steps == 0;
                    assert!(rank != faulty || is_promised || !is_written, "{place}");
                    is_written |= is_promised;
                    let retried = u64::from(rank == faulty && !is_promised);
                    assert_eq!(ran.retried_steps, retried, "{place}");
                }
            }
        }
    }
}

/// One rank loses memory during a run and takes smaller parts; the other rank keeps its size.
#[test]
fn a_rank_with_less_memory_goes_on_with_smaller_parts() {
    for zero in [Parallelism::DataParallel, Parallelism::Zero1, Parallelism::Zero2] {
        lose_memory(zero);
    }
}

fn lose_memory(zero: Parallelism) {
    let run = Run { epochs: 3, ..Run::default() };
    let found = on_ranks(2, |ranks| {
        let is_poor = ranks.rank().index == 1;
        let on_step = |device: &Device, step: u64| {
            if is_poor && step == 2 {
                let allocator = device.allocator();
                allocator.trim();
                let reserved = allocator.statistics().reserved;
                let (live, peak) = (reserved.current_bytes, reserved.peak_bytes);
                allocator.set_capacity(live + (peak - live) * 2 / 3);
            }
            Ok(Flow::Continue)
        };
        let mut trainer = trainer(&run, Middle::Dropout, Some(ranks));
        trainer.set_parallelism(zero);
        let ran = run_trainer(&run, &mut trainer, None, on_step).unwrap();
        (ran.hash, trainer.knobs().micro_batch)
    });
    assert_eq!(found[0].0, found[1].0, "{zero:?}");
    assert_eq!(found[0].1, 48);
    assert!(found[1].1 < 48, "{found:?}");
}

#[test]
fn a_rank_that_fails_for_good_ends_the_others_with_its_reason() {
    let run = Run { epochs: 2, ..Run::default() };
    let found = on_ranks(3, |ranks| {
        let is_faulty = ranks.rank().index == 1;
        let on_step = |_: &Device, step: u64| {
            if is_faulty && step == 2 {
                let (place, problem) = ("disk".to_owned(), "is full".to_owned());
                return Err(TrainError::Setting { place, problem });
            }
            Ok(Flow::Continue)
        };
        let mut trainer = trainer(&run, Middle::Dropout, Some(ranks));
        let error = run_trainer(&run, &mut trainer, None, on_step).err().expect("one failed");
        (error, trainer.steps(), trainer.state_hash().unwrap())
    });
    for (rank, (error, steps, hash)) in found.iter().enumerate() {
        assert_eq!((*steps, *hash), (2, found[0].2));
        match (rank, error) {
            (1, TrainError::Setting { .. }) => {}
            (_, TrainError::Ranks(RanksError::Aborted { rank: 1, reason })) if rank != 1 => {
                assert_eq!(reason, "disk: is full");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn one_rank_that_wants_to_stop_stops_all_after_the_same_step() {
    let run = Run { epochs: 3, ..Run::default() };
    let found = on_ranks(3, |ranks| {
        let stops = ranks.rank().index == 2;
        let on_step = |_: &Device, step: u64| {
            Ok(if stops && step == 3 { Flow::Stop } else { Flow::Continue })
        };
        let mut trainer = trainer(&run, Middle::Dropout, Some(ranks));
        let ran = run_trainer(&run, &mut trainer, None, on_step).unwrap();
        (trainer.steps(), ran.hash)
    });
    assert!(found.iter().all(|found| *found == (3, found.1)), "{found:?}");
}
