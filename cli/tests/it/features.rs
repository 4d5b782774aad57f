//! Models whose heads, hidden features and vocabulary are shared by several ranks. The training is
//! that of one rank up to the order of sums.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use lowtide_cli::recipe::{Recipe, RecipeData, RecipeTrainer};
use lowtide_ranks::{Collectives, Mirror, Rank};
use lowtide_tensor::{CpuOptions, Device};
use lowtide_trainer::{Fit, Knobs, Parallelism, TrainError};

use crate::common::Save;
use crate::common::on_ranks;
use crate::counting::Counting;
use crate::pipeline::{
    Ran, STEPS, assert_near, fail_on_each_rank, run, run_with, small, trainer, trainer_on,
};

/// Four heads, and a vocabulary that no number of ranks divides.
const GPT: (&str, &[&str]) = (
    "text-gpt",
    &["model.width=16", "model.heads=4", "model.blocks=3", "model.dropout=0.0", "data.context=16"],
);
const VIT: (&str, &[&str]) = (
    "digits-vit",
    &["model.width=16", "model.heads=4", "model.blocks=3", "model.hidden=18", "model.dropout=0.0"],
);
const SEQ2SEQ: (&str, &[&str]) = (
    "text-seq2seq",
    &[
        "model.width=16",
        "model.heads=4",
        "model.hidden=18",
        "model.layers=[2, 2]",
        "model.dropout=0.0",
    ],
);

fn shared(recipe: &Recipe, count: usize, knobs: Option<Knobs>) -> Vec<Ran> {
    on_ranks(count, |ranks| {
        run_with(
            recipe,
            &mut trainer(recipe, Some(ranks), Parallelism::TensorParallel),
            knobs,
            |_, _| {},
        )
    })
}

fn parts_of(micro_batch: usize) -> Knobs {
    Knobs { micro_batch, ..Knobs::default() }
}

pub(crate) fn assert_close(own: &[f64], whole: &[f64], place: &str) {
    assert_eq!(own.len(), whole.len());
    for (own, whole) in own.iter().zip(whole) {
        assert!((own - whole).abs() < 2e-6 * whole, "{place}: {own} {whole}");
    }
}

/// The heads do not always divide evenly. Measured bytes equal planned bytes.
#[test]
fn ranks_that_share_features_have_the_losses_of_one_in_the_planned_memory() {
    for model in [GPT, VIT, SEQ2SEQ] {
        let recipe = small(model);
        for size in [24, 5] {
            let one = run(
                &recipe,
                &mut trainer(&recipe, None, Parallelism::DataParallel),
                Some(size),
                |_, _| {},
            );
            for count in [2, 3, 4] {
                let found = shared(&recipe, count, Some(parts_of(size)));
                for ran in &found {
                    let place = format!("{}, {count} ranks, parts of {size}", model.0);
                    assert_eq!(ran, &found[0], "{place}");
                    assert_close(&ran.losses, &one.losses, &place);
                    assert_near(&ran.scores, &one.scores);
                }
            }
        }
    }
}

/// The length of the gradients counts each rank's own parts, and shared gradients once.
#[test]
fn gradients_of_shared_features_are_clipped_together() {
    for model in [GPT, VIT] {
        let mut recipe = small(model);
        recipe.train.clip_norm = Some(1e-3);
        let one = run(
            &recipe,
            &mut trainer(&recipe, None, Parallelism::DataParallel),
            Some(6),
            |_, _| {},
        );
        let norms = |ran: &Ran| ran.norms.iter().map(|norm| norm.expect("measured")).collect();
        let whole: Vec<f64> = norms(&one);
        assert!(whole[0] > 1e-3, "nothing is clipped");
        for ran in shared(&recipe, 3, Some(parts_of(6))) {
            assert_close(&norms(&ran), &whole, model.0);
            assert_close(&ran.losses, &one.losses, model.0);
        }
    }
}

/// Recomputed blocks repeat their sums.
#[test]
fn recomputation_has_the_same_bits_and_needs_less() {
    let recipe = small(GPT);
    let found = |knobs: Knobs| shared(&recipe, 2, Some(knobs));
    let kept = found(parts_of(12));
    for knobs in [
        Knobs { recomputed_blocks: 3, ..parts_of(12) },
        Knobs { recomputed_blocks: 2, cheap_recomputed: true, ..parts_of(12) },
    ] {
        assert_eq!(found(knobs), kept, "{knobs}");
    }
}

/// Offloaded activations of blocks wait on the host, where they take the planned bytes.
#[test]
fn offloading_goes_with_everything_that_ranks_divide() {
    let recipe = small(GPT);
    for zero in
        [Parallelism::Zero1, Parallelism::Zero2, Parallelism::Zero3, Parallelism::TensorParallel]
    {
        let found = |knobs: Knobs| {
            on_ranks(2, |ranks| {
                let host = Device::cpu(CpuOptions { threads: Some(1), ..CpuOptions::default() });
                let host = host.expect("a device");
                let mut trainer = trainer(&recipe, Some(ranks), zero);
                trainer.set_offload(Some(host.clone()));
                let ran = run_with(&recipe, &mut trainer, Some(knobs), |_, _| {});
                let forecast = &trainer.current_plan().expect("it was planned").forecast;
                let offloaded_bytes = host.allocator().statistics().reserved.peak_bytes;
                assert_eq!(forecast.offloaded_peak_bytes, offloaded_bytes, "{zero:?}");
                assert_eq!(offloaded_bytes > 0, knobs.offloaded_blocks > 0);
                ran
            })
        };
        let kept = found(parts_of(12));
        let offloaded = Knobs { offloaded_blocks: 2, ..parts_of(12) };
        assert_eq!(found(offloaded), kept, "{zero:?}");
        let both = Knobs { recomputed_blocks: 1, ..offloaded };
        assert_eq!(found(both), kept, "{zero:?}");
    }
}

/// Ranks agree on a plan, even if the first ranks have one head more.
#[test]
fn ranks_that_share_features_have_one_plan() {
    let recipe = small(GPT);
    let least_bytes = {
        let device = Device::cpu(CpuOptions { threads: Some(1), ..CpuOptions::default() });
        let mirror = Mirror::new(Rank { index: 0, count: 3 }).expect("one of three");
        let device = device.expect("a device");
        let mut first =
            trainer_on(&recipe, &device, Some(Arc::new(mirror)), Parallelism::TensorParallel);
        first.divide().unwrap();
        let RecipeData { train, test, .. } = recipe.open().expect("data");
        first.least_bytes(&recipe.fit(&train, &test).steps(STEPS), &Default::default()).unwrap()
    };
    let knobs = on_ranks(3, |ranks| {
        let mut trainer = trainer(&recipe, Some(ranks), Parallelism::TensorParallel);
        trainer.divide().unwrap();
        trainer.device().allocator().trim();
        trainer.device().allocator().set_capacity(least_bytes + least_bytes / 10);
        run_with(&recipe, &mut trainer, None, |_, _| {});
        trainer.knobs()
    });
    assert!(knobs.iter().all(|own| *own == knobs[0] && *own != parts_of(24)), "{knobs:?}");
}

/// Each rank is planned on a simulated device, without the other ranks.
#[test]
fn a_rank_alone_is_planned_as_among_others() {
    for model in [GPT, VIT] {
        let recipe = small(model);
        let planned = |trainer: &mut RecipeTrainer| {
            let RecipeData { train, test, .. } = recipe.open().expect("data");
            let fit = recipe.fit(&train, &test).steps(STEPS);
            trainer.plan_run(&fit, &parts_of(6).into()).unwrap().predicted_peak_bytes()
        };
        let found = on_ranks(3, |ranks| {
            let mut trainer = trainer(&recipe, Some(ranks), Parallelism::TensorParallel);
            (planned(&mut trainer), trainer.device().spec())
        });
        // The first rank has one head more.
        assert!(found[0].0 >= found[2].0, "{} and {}", found[0].0, found[2].0);
        for (index, (among_others, spec)) in found.into_iter().enumerate() {
            let mirror = Mirror::new(Rank { index, count: 3 }).expect("one of three");
            let device = Device::sim(spec).expect("a device");
            let mut alone =
                trainer_on(&recipe, &device, Some(Arc::new(mirror)), Parallelism::TensorParallel);
            assert_eq!(planned(&mut alone), among_others, "{} rank {index}", model.0);
        }
    }
}

/// Each allocation of a step fails on each rank in turn.
#[test]
fn a_step_that_fails_on_a_rank_that_shares_features_is_done_again_by_all_with_the_same_bits() {
    fail_on_each_rank(&small(GPT), Parallelism::TensorParallel);
}

/// A checkpoint that one rank saves holds the whole training: any number of ranks that load it
/// have its hash.
#[test]
fn what_one_rank_of_shared_features_saves_goes_on_with_any_number() {
    let folder = tempfile::tempdir().expect("a folder");
    for model in [GPT, SEQ2SEQ] {
        let recipe = small(model);
        let new = |ranks: Arc<dyn Collectives>, zero: Parallelism| {
            let ranks = (ranks.rank().count > 1).then_some(ranks);
            trainer(&recipe, ranks, zero)
        };
        // Trains to the step of the save, and from the saved checkpoint to the end.
        let goes_on = |trainer: &mut RecipeTrainer, from: Option<&Path>, saves: Option<&Path>| {
            let RecipeData { train, test, .. } = recipe.open().expect("data");
            let fit = recipe.fit(&train, &test).steps(4);
            trainer.plan_run(&fit, &parts_of(6).into()).unwrap();
            if let Some(path) = from {
                trainer.load(path).unwrap();
            }
            let loaded = trainer.state_hash().unwrap();
            let fit = recipe.fit(&train, &test).steps(4 - trainer.steps());
            trainer.plan_run(&fit, &parts_of(6).into()).unwrap();
            let mut save = Save { after: 2, path: saves };
            // The rank that saves stops afterwards, and so do the others.
            match saves {
                Some(_) => trainer.run(&fit, &mut [&mut save]).unwrap(),
                None => trainer.run(&fit, &mut []).unwrap(),
            };
            let hash = trainer.state_hash().unwrap();
            trainer.leave().unwrap();
            (loaded, hash)
        };
        let saved = folder.path().join(format!("{} of two", model.0));
        let of_two = |saving: Option<usize>| {
            let hashes = on_ranks(2, |ranks| {
                let saves = (Some(ranks.rank().index) == saving).then_some(&*saved);
                goes_on(&mut new(ranks, Parallelism::TensorParallel), None, saves).1
            });
            assert_eq!(hashes[0], hashes[1]);
            hashes[0]
        };
        let (at_save, whole) = (of_two(Some(1)), of_two(None));
        for (count, zero) in [
            (1, Parallelism::DataParallel),
            (2, Parallelism::TensorParallel),
            (3, Parallelism::TensorParallel),
            (2, Parallelism::Zero1),
            (2, Parallelism::Pipeline),
        ] {
            if model == SEQ2SEQ && zero == Parallelism::Pipeline {
                // This model cannot be cut.
                continue;
            }
            let hashes =
                on_ranks(count, |ranks| goes_on(&mut new(ranks, zero), Some(&saved), None));
            let place = format!("{}, {count} ranks, {zero:?}", model.0);
            assert!(hashes.iter().all(|(loaded, _)| *loaded == at_save), "{place}");
            if (count, zero) == (2, Parallelism::TensorParallel) {
                assert!(hashes.iter().all(|(_, hash)| *hash == whole), "{place}");
            }
        }
    }
}

/// Each of four ranks has a fourth of the layers, and no budget for more.
#[test]
fn a_model_that_fits_no_rank_trains_shared_with_the_losses_of_one_large_device() {
    let recipe = crate::small_recipes::recipe(
        "text-gpt",
        &[
            "model.width=96",
            "model.heads=4",
            "model.blocks=2",
            "model.dropout=0.0",
            "data.context=8",
            "train.batch_size=8",
        ],
    );
    let mut large = trainer(&recipe, None, Parallelism::DataParallel);
    let RecipeData { train, test, .. } = recipe.open().expect("data");
    let fit = recipe.fit(&train, &test).steps(STEPS);
    let least_bytes = large.least_bytes(&fit, &Default::default()).unwrap();
    let one = run(&recipe, &mut large, Some(8), |_, _| {});
    let budget_bytes = least_bytes / 2;
    let found = on_ranks(4, |ranks| {
        // The trainer is made without a limit, because the whole model does not fit the budget.
        let mut trainer = trainer(&recipe, Some(ranks), Parallelism::TensorParallel);
        trainer.divide().unwrap();
        trainer.device().allocator().trim();
        trainer.device().allocator().set_capacity(budget_bytes);
        run(&recipe, &mut trainer, None, |_, _| {})
    });
    for ran in &found {
        assert_eq!(ran, &found[0]);
        assert_close(&ran.losses, &one.losses, "in half of the least budget");
    }
}

/// The refused settings, and the words of each error.
#[test]
fn what_cannot_be_shared_is_refused_before_the_first_step() {
    let refused = |recipe: &Recipe, count: usize| {
        let found = on_ranks(count, |ranks| {
            let mut trainer = trainer(recipe, Some(ranks), Parallelism::TensorParallel);
            let RecipeData { train, test, .. } = recipe.open().expect("data");
            let fit = recipe.fit(&train, &test).steps(1);
            let refused = trainer.plan_run(&fit, &Default::default()).map(drop);
            match refused.and_then(|()| trainer.run(&fit, &mut []).map(drop)) {
                Err(TrainError::Setting { place, problem }) => (place, problem),
                other => panic!("{other:?}"),
            }
        });
        found.into_iter().next().expect("a rank")
    };
    let (place, problem) = refused(&crate::small_recipes::recipe("digits", &[]), 2);
    assert_eq!(place, "tensor-parallel");
    assert!(problem.contains("no attention heads"), "{problem}");
    let mut leaves = small(VIT);
    leaves.train.leaf = NonZeroUsize::new(6);
    let (_, problem) = refused(&leaves, 2);
    assert!(problem.contains("not of leaves"), "{problem}");
    let lamb = crate::small_recipes::recipe("digits-vit", &["optimizer.kind=\"lamb\""]);
    let (place, problem) = refused(&lamb, 2);
    assert_eq!(place, "zero");
    assert!(problem.contains("as wholes"), "{problem}");
}

/// The batch has more parts than a rehearsal runs, and a shorter last part.
#[test]
fn what_ranks_add_up_in_a_step_is_what_was_planned() {
    for (size, recomputed_blocks) in [(24, 0), (4, 0), (5, 3)] {
        let recipe = small(GPT);
        let knobs = Knobs { recomputed_blocks, ..parts_of(size) };
        on_ranks(3, |ranks| {
            let counting = Arc::new(Counting::new(ranks));
            let mut trainer = trainer(&recipe, Some(counting.clone()), Parallelism::TensorParallel);
            let train = recipe.open().expect("data").train;
            let fit = Fit::new(&train).steps(STEPS);
            let plan = trainer.plan_run(&fit, &knobs.into()).unwrap();
            trainer.run(&fit, &mut []).unwrap();
            let planned = plan.forecast.summed_bytes * STEPS as usize;
            assert_eq!(planned, counting.summed_bytes(), "{knobs}");
            // Like each of the three ranks, a rank sends and receives two thirds of each sum.
            assert_eq!(trainer.sent_bytes(&plan), 2 * (plan.forecast.summed_bytes / 3 * 2));
        });
    }
}
