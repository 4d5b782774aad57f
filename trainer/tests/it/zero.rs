//! Ranks that each keep only a part of some state have the bits of ranks that keep all of it.

use std::sync::Arc;

use lowtide_allocator::Category;
use lowtide_autograd::SavedPolicy;
use lowtide_nn::optim::{Adam, AdamOptions, Averaged, Lamb, LambOptions, Stateful};
use lowtide_nn::{Flatten, Linear, ReLU, Segment, Sequential};
use lowtide_ranks::Collectives;
use lowtide_tensor::RandomKey;
use lowtide_trainer::{
    Classification, Fit, Flow, Knobs, MicroBatches, Observer, Options, Parallelism, Result,
    StepReport, Task, TrainError, Trainer, Training,
};

use crate::buffers::{Middle, trainer_with};
use crate::common::{KINDS, Kind, Run, Save, on_ranks};
use crate::ranks::{OneTrainer, calm, fail_everywhere, leaves, loader, run_trainer};

fn trainer(
    run: &Run,
    middle: Middle,
    ranks: Option<Arc<dyn Collectives>>,
    micro_batches: MicroBatches,
    zero: Parallelism,
) -> OneTrainer {
    let options = Options { ranks, micro_batches, parallelism: zero, ..Options::default() };
    trainer_with(&run.device(None), run, middle, options)
}

#[test]
fn divided_states_have_the_same_bits_in_the_planned_memory() {
    for kind in KINDS {
        for (middle, micro_batches) in
            [(Middle::BatchNorm, leaves(12)), (Middle::Dropout, MicroBatches::AsNeeded)]
        {
            let run = Run { kind, epochs: 2, ..Run::default() };
            for count in [2, 3, 4] {
                if count == 3 && middle == Middle::BatchNorm {
                    // Deterministic shards need a power of two of ranks.
                    continue;
                }
                let ran = |zero| {
                    on_ranks(count, |ranks| {
                        let mut trainer = trainer(&run, middle, Some(ranks), micro_batches, zero);
                        let ran = run_trainer(&run, &mut trainer, None, calm).unwrap();
                        let peaks = &ran.plan.forecast.category_peaks;
                        let states = peaks.iter().find(|(of, _)| *of == Category::OptimizerState);
                        let state_bytes = states.expect("a category").1;
                        let place = format!("{kind:?} {middle:?} {zero:?} on {count} ranks");
                        assert_eq!(ran.plan.predicted_peak_bytes(), ran.peak_bytes, "{place}");
                        (ran.hash, ran.losses, state_bytes)
                    })
                };
                let whole = ran(Parallelism::DataParallel);
                for zero in [Parallelism::Zero1, Parallelism::Zero2, Parallelism::Zero3] {
                    for (whole, divided) in whole.iter().zip(ran(zero)) {
                        let place = format!("{kind:?} {middle:?} {zero:?} on {count} ranks");
                        assert_eq!((divided.0, &divided.1), (whole.0, &whole.1), "{place}");
                        let is_less = divided.2 < whole.2 || kind == Kind::Plain;
                        assert!(is_less, "{place}: {} of {}", divided.2, whole.2);
                    }
                }
            }
        }
    }
}

/// A linear layer of 327 680 weights holds nearly all parameters.
#[test]
fn states_on_each_of_n_ranks_are_one_nth() {
    let run = Run { channels: 2048, train_len: 16, batch_size: 8, ..Run::default() };
    let states = |count: usize, zero| {
        on_ranks(count, |ranks| {
            let ranks = (count > 1).then_some(ranks);
            let trainer = &mut trainer(&run, Middle::Dropout, ranks, MicroBatches::AsNeeded, zero);
            let ran = run_trainer(&run, trainer, None, calm).unwrap();
            assert_eq!(ran.plan.predicted_peak_bytes(), ran.peak_bytes);
            let peaks = trainer.device().allocator().statistics().by_category;
            peaks[Category::OptimizerState].peak_bytes
        })
    };
    let whole = states(1, Parallelism::DataParallel)[0];
    for count in [2, 4] {
        assert!(states(count, Parallelism::DataParallel).iter().all(|&own| own == whole));
        for own in states(count, Parallelism::Zero1) {
            let share = whole as f64 / count as f64;
            assert!((own as f64 - share).abs() < 0.01 * share, "{own} of {whole}, {count} ranks");
        }
    }
}

/// The peak of a category on each rank in a run of [`deep`], and the state hash after the run.
fn peaks(
    category: Category,
    count: usize,
    zero: Parallelism,
    policy: Option<SavedPolicy>,
) -> Vec<(usize, u64)> {
    let run = Run { train_len: 16, batch_size: 8, kind: Kind::Plain, ..Run::default() };
    on_ranks(count, |ranks| {
        let options =
            Options { ranks: Some(ranks.clone()), parallelism: zero, ..Options::default() };
        let mut trainer = deep(&run, options);
        trainer.task_mut().parameters().set_policy(policy.clone());
        let train = loader(&run, Some(&*ranks));
        let fit = Fit::new(&train).evaluate("test", &train).epochs(1);
        let plan = trainer.plan_run(&fit, &Default::default()).unwrap();
        let allocator = trainer.device().allocator().clone();
        // The cache still holds memory of the model from before the division.
        allocator.trim();
        allocator.reset_peaks();
        trainer.run(&fit, &mut []).unwrap();
        let statistics = allocator.statistics();
        assert_eq!(plan.predicted_peak_bytes(), statistics.reserved.peak_bytes);
        (statistics.by_category[category].peak_bytes, trainer.state_hash().unwrap())
    })
}

/// Each rank holds its share of the gradients or parameters, and a tensor that is whole for a
/// moment. For parameters this requires recomputed blocks.
#[test]
fn gradients_and_parameters_that_are_divided_take_their_share() {
    let recompute = Some(SavedPolicy::Recompute);
    for (category, [less, more], policy) in [
        (Category::Gradient, [Parallelism::Zero1, Parallelism::Zero2], None),
        (Category::Parameter, [Parallelism::Zero2, Parallelism::Zero3], recompute),
    ] {
        for count in [2, 4] {
            let whole = peaks(category, count, less, policy.clone());
            for (own, whole) in peaks(category, count, more, policy.clone()).iter().zip(&whole) {
                assert_eq!(own.1, whole.1, "{count} ranks");
                // The model has eight layers of equal size.
                let most = whole.0 / count + 2 * (whole.0 / 8);
                assert!(own.0 < most, "{category:?}: {} of {}, {count}", own.0, whole.0);
            }
        }
    }
}

/// Eight layers of 65,536 numbers.
fn deep(run: &Run, options: Options) -> Trainer<Classification<Sequential>, Box<dyn Stateful>> {
    let (device, key) = (run.device(None), RandomKey::new(run.seed));
    let first = Linear::new(&device, key.op("first"), 64, 256).expect("memory");
    let mut net = Sequential::new().then(Flatten).then(first);
    for index in 0..8 {
        let key = key.op(&format!("layer {index}"));
        let layer = Linear::new(&device, key, 256, 256).expect("memory");
        net = net.then(Segment::new(Sequential::new().then(ReLU).then(layer)));
    }
    let last = Linear::new(&device, key.op("last"), 256, 10).expect("memory");
    let net = net.then(ReLU).then(last);
    Trainer::new(&device, Classification::new(net), run.kind.build(0.01), options)
}

/// Gradients of each micro-batch are summed over the ranks, and then over the micro-batches.
#[test]
fn gradients_are_divided_after_each_micro_batch_of_all_ranks() {
    let run = Run { epochs: 2, ..Run::default() };
    let split = Knobs { micro_batch: 12, ..Knobs::default() };
    let losses = |zero| {
        on_ranks(2, |ranks| {
            let micro_batches = MicroBatches::AsNeeded;
            let clip_norm = Some(0.1);
            let options = Options {
                ranks: Some(ranks),
                micro_batches,
                parallelism: zero,
                clip_norm,
                ..Options::default()
            };
            let mut trainer = trainer_with(&run.device(None), &run, Middle::Dropout, options);
            let ran = run_trainer(&run, &mut trainer, Some(split), calm).unwrap();
            assert_eq!(ran.plan.predicted_peak_bytes(), ran.peak_bytes);
            (ran.hash, ran.losses)
        })
    };
    let (whole, divided) = (losses(Parallelism::DataParallel), losses(Parallelism::Zero2));
    assert_eq!(divided[0], divided[1]);
    for (divided, whole) in divided[0].1.iter().zip(&whole[0].1) {
        assert!((divided - whole).abs() < 1e-4 * whole.abs(), "{divided} {whole}");
    }
}

/// Each allocation of a step fails on each rank in turn.
#[test]
fn a_divided_step_that_fails_is_done_again_with_the_same_bits() {
    for zero in [Parallelism::Zero1, Parallelism::Zero2, Parallelism::Zero3] {
        fail_everywhere(MicroBatches::AsNeeded, zero);
        fail_everywhere(leaves(24), zero);
    }
}

#[test]
fn what_one_rank_saves_has_the_states_of_all_and_goes_on_with_any_number() {
    let folder = tempfile::tempdir().expect("a folder");
    let saving = [Parallelism::Zero1, Parallelism::Zero3];
    for (kind, saved) in
        [Kind::Adam, Kind::Momentum].into_iter().flat_map(|kind| saving.map(|zero| (kind, zero)))
    {
        let run = Run { kind, epochs: 3, ..Run::default() };
        let whole = run_trainer(
            &run,
            &mut trainer(&run, Middle::BatchNorm, None, leaves(12), Parallelism::DataParallel),
            None,
            calm,
        );
        let whole = whole.unwrap().hash;
        let path = folder.path().join(format!("{kind:?} {saved:?}"));
        on_ranks(4, |ranks| {
            let saves = ranks.rank().index == 1;
            let train = loader(&run, Some(&*ranks));
            let mut trainer = trainer(&run, Middle::BatchNorm, Some(ranks), leaves(12), saved);
            let mut save = Save { after: 3, path: saves.then_some(&*path) };
            trainer.run(&Fit::new(&train).epochs(run.epochs), &mut [&mut save]).unwrap();
            trainer.leave().unwrap();
        });
        for (count, zero) in [
            (1, Parallelism::DataParallel),
            (2, Parallelism::Zero1),
            (2, Parallelism::DataParallel),
            (4, Parallelism::Zero1),
            (2, Parallelism::Zero3),
        ] {
            let hashes = on_ranks(count, |ranks| {
                let ranks = (count > 1).then_some(ranks);
                let train = loader(&run, ranks.as_deref());
                let mut trainer = trainer(&run, Middle::BatchNorm, ranks, leaves(12), zero);
                trainer.load(&path).unwrap();
                assert_eq!(trainer.steps(), 3);
                let left = run.epochs - trainer.position().epoch;
                trainer.run(&Fit::new(&train).epochs(left), &mut []).unwrap();
                trainer.state_hash().unwrap()
            });
            assert!(hashes.iter().all(|hash| *hash == whole), "{kind:?}, {count} {zero:?}");
        }
    }
}

/// A rank that hashes during the run is served by the ranks that go on.
#[test]
fn ranks_that_want_the_state_at_different_times_get_it() {
    let run = Run { epochs: 2, ..Run::default() };
    let found = on_ranks(3, |ranks| {
        let index = ranks.rank().index as u64;
        let train = loader(&run, Some(&*ranks));
        let mut trainer =
            trainer(&run, Middle::Dropout, Some(ranks), MicroBatches::AsNeeded, Parallelism::Zero1);
        let mut hash = Snapshots { after: index + 1, bytes: 0 };
        trainer.run(&Fit::new(&train).epochs(2), &mut [&mut hash]).unwrap();
        let own = (index == 2).then(|| trainer.state_hash().unwrap());
        trainer.leave().unwrap();
        (hash.bytes, own)
    });
    assert!(found.iter().all(|(bytes, _)| *bytes > 0 && *bytes == found[0].0), "{found:?}");
    assert!(found[2].1.is_some());
}

struct Snapshots {
    after: u64,
    bytes: usize,
}

impl Observer for Snapshots {
    fn on_step(&mut self, report: &StepReport, training: &mut dyn Training) -> Result<Flow> {
        if report.step == self.after {
            training.snapshot()?;
            self.bytes = training.snapshot_bytes();
        }
        Ok(Flow::Continue)
    }
}

#[test]
fn an_optimizer_that_cannot_be_divided_is_refused_before_the_first_step() {
    let run = Run::default();
    let optimizers: [fn() -> Box<dyn Stateful>; 3] = [
        || Box::new(Lamb::new(LambOptions::default()).expect("in range")),
        || Box::new(Adam::new(AdamOptions::default()).expect("in range").with_8bit_states()),
        || {
            let adam = Adam::new(AdamOptions::default()).expect("in range");
            Box::new(Averaged::new(adam, 0.9).expect("a share"))
        },
    ];
    for optimizer in optimizers {
        let errors = on_ranks(2, |ranks| {
            let train = loader(&run, Some(&*ranks));
            let (ranks, zero) = (Some(ranks), Parallelism::Zero1);
            let options = Options { ranks, parallelism: zero, ..Options::default() };
            let device = run.device(None);
            let task = crate::buffers::net(&device, &run, Middle::Dropout);
            let mut trainer = Trainer::new(&device, task, optimizer(), options);
            trainer.run(&Fit::new(&train).epochs(1), &mut []).expect_err("cannot be divided")
        });
        for error in errors {
            let TrainError::Setting { place, problem } = error else { panic!("{error:?}") };
            assert_eq!(place, "zero");
            assert!(problem.contains("divided among ranks"), "{problem}");
        }
    }
}
