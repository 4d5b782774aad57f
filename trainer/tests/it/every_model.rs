//! What holds for every reference model: pieces of a run are the run, and so is what goes on from
//! a checkpoint. With batch norm, dropout, clipping, warm-ups and schedules, as the recipes have
//! them.

use std::path::Path;

use lowtide_tensor::{CpuOptions, Device};
use lowtide_trainer::recipe::{Recipe, RecipeTrainer};

/// The recipes that train on data that ships, made small.
pub(crate) const RECIPES: [(&str, &[&str]); 9] = [
    ("digits", &["model.channels=4"]),
    ("digits-mlp", &["model.hidden=[16, 16]"]),
    ("digits-deep-cnn", &["model.channels=[4, 4, 8]"]),
    ("digits-resnet", &["model.width=2", "data.shape=[3, 16, 16]"]),
    ("digits-vit", &["model.width=16", "model.blocks=2", "model.hidden=16"]),
    ("digits-unet", &["model.width=2"]),
    ("text-gpt", &["model.width=16", "model.blocks=2", "data.context=16"]),
    ("text-lstm", &["model.width=8", "model.hidden=8", "data.context=16"]),
    ("text-seq2seq", &["model.width=16", "model.hidden=16", "data.context=8"]),
];

pub(crate) fn recipe(name: &str, sets: &[&str]) -> Recipe {
    let common = ["train.batch_size=40", "train.clip_norm=1.0"];
    let sets: Vec<String> = sets.iter().chain(&common).map(|&set| set.to_owned()).collect();
    Recipe::load_with(Some(Path::new(name)), &sets).unwrap_or_else(|e| panic!("{name}: {e}"))
}

pub(crate) fn trainer(recipe: &Recipe, threads: usize) -> RecipeTrainer {
    let options = CpuOptions { threads: Some(threads), ..Default::default() };
    recipe.trainer(&Device::cpu(options).expect("a device")).expect("memory")
}

#[test]
fn pieces_and_checkpoints_are_the_run_for_every_model() {
    for (name, sets) in RECIPES {
        let mut recipe = recipe(name, sets);
        let hash_after = |recipe: &Recipe, trainer: &mut RecipeTrainer, pieces: &[u64]| {
            let (train, test) = recipe.loaders().expect("data");
            for &steps in pieces {
                let fit = recipe.fit(&train, &test).steps(steps);
                trainer.run(&fit, &mut []).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
            trainer.state_hash().expect("cpu")
        };
        let whole = hash_after(&recipe, &mut trainer(&recipe, 2), &[5]);
        assert_eq!(hash_after(&recipe, &mut trainer(&recipe, 2), &[1, 2, 2]), whole, "{name}");
        let folder = tempfile::tempdir().expect("a folder");
        let mut first = trainer(&recipe, 2);
        hash_after(&recipe, &mut first, &[3]);
        first.save(&folder.path().join("three")).expect("room");
        // Other threads read and compute.
        *recipe.data.workers_mut() = 0;
        let mut second = trainer(&recipe, 1);
        second.load(&folder.path().join("three")).expect("whole");
        assert_eq!(hash_after(&recipe, &mut second, &[2]), whole, "{name} from a checkpoint");
    }
}
