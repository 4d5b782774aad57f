//! Recipes: complete, and with mistakes that are named.

use std::fs;

use lowtide_trainer::TrainError;
use lowtide_trainer::recipe::{OptimizerRecipe, Recipe};

fn load(text: &str) -> Result<Recipe, TrainError> {
    let file = tempfile::NamedTempFile::new().expect("a folder");
    fs::write(file.path(), text).expect("a file");
    Recipe::load(file.path())
}

/// The mistake is told in one line with the file, the line and the key.
#[track_caller]
fn check_mistake(text: &str, line: usize, key: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("mistaken.toml");
    fs::write(&path, text).expect("a file");
    let error = Recipe::load(&path).expect_err("a mistake");
    assert!(matches!(error, TrainError::Setting { .. }), "{error:?}");
    let message = error.to_string();
    assert!(!message.contains('\n'), "{message}");
    assert!(message.contains(&path.display().to_string()), "no file: {message}");
    assert!(message.contains(&format!("line {line} ")), "not in line {line}: {message}");
    assert!(message.contains(key), "no {key}: {message}");
}

#[test]
fn defaults_round_trip() {
    let recipe = Recipe::default();
    assert_eq!(load(&recipe.to_toml()).expect("complete"), recipe);
    assert_eq!(load("").expect("everything has a default"), recipe);
    recipe.check().expect("the defaults are in range");
}

#[test]
fn every_optimizer_round_trips() {
    let kinds = [
        "kind = \"adam\"\nlearning_rate = 0.003\nbetas = [0.8, 0.99]\nweight_decay = 0.1",
        "kind = \"adamw\"\neps = 1e-6",
        "kind = \"sgd\"\nmomentum = 0.5\nnesterov = true\nweight_decay = 1e-4",
    ];
    let mut seen = Vec::new();
    for kind in kinds {
        let recipe = load(&format!("[optimizer]\n{kind}\n")).expect("valid");
        recipe.optimizer().expect("in range");
        assert_eq!(load(&recipe.to_toml()).expect("complete"), recipe);
        seen.push(recipe);
    }
    assert!(matches!(&seen[0].optimizer, OptimizerRecipe::Adam(adam) if adam.betas == [0.8, 0.99]));
    assert!(matches!(&seen[1].optimizer, OptimizerRecipe::Adamw(adam) if adam.eps == 1e-6));
    assert!(matches!(&seen[2].optimizer, OptimizerRecipe::Sgd(sgd) if sgd.nesterov));
}

#[test]
fn every_setting_round_trips() {
    let text = "[data]\nworkers = 3\n[model]\nchannels = 5\n[train]\nepochs = 2\nbatch_size = 9\n\
                seed = 11\nclip_norm = 0.5\nsplit_batches = false\n";
    let recipe = load(text).expect("valid");
    assert_eq!((recipe.data.workers, recipe.model.channels), (3, 5));
    assert_eq!((recipe.train.epochs, recipe.train.batch_size, recipe.train.seed), (2, 9, 11));
    assert_eq!((recipe.train.clip_norm, recipe.train.split_batches), (Some(0.5), false));
    assert_eq!(load(&recipe.to_toml()).expect("complete"), recipe);
}

#[test]
fn unknown_keys_and_tables_are_named() {
    check_mistake("[train]\nepochs = 3\nepoch = 3\n", 3, "epoch");
    check_mistake("\n\n[model]\nchanels = 3\n", 4, "chanels");
    check_mistake("[trian]\nepochs = 3\n", 1, "trian");
    check_mistake("epochs = 3\n", 1, "epochs");
}

#[test]
fn wrong_types_are_named() {
    check_mistake("[train]\nseed = 1\nepochs = \"three\"\n", 3, "epochs");
    check_mistake("[train]\nbatch_size = 2.5\n", 2, "batch_size");
    check_mistake("[train]\nbatch_size = -1\n", 2, "batch_size");
    check_mistake("[train]\nsplit_batches = 1\n", 2, "split_batches");
    check_mistake("train = 3\n", 1, "train");
}

#[test]
fn unknown_choices_are_named() {
    check_mistake("[model]\nkind = \"resnet\"\n", 2, "resnet");
    check_mistake("[data]\nkind = \"mnist\"\n", 2, "mnist");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("recipe.toml");
    fs::write(&path, "[optimizer]\nkind = \"lion\"\n").expect("a file");
    let message = Recipe::load(&path).expect_err("no such optimizer").to_string();
    assert!(message.contains("lion") && message.contains("sgd"), "{message}");
}

#[test]
fn keys_of_another_optimizer_are_named() {
    check_mistake("[optimizer]\nkind = \"sgd\"\nbetas = [0.9, 0.99]\n", 3, "betas");
    check_mistake("[optimizer]\nkind = \"adam\"\n\nmomentum = 0.9\n", 4, "momentum");
}

#[test]
fn numbers_out_of_range_are_named() {
    check_mistake("[train]\nseed = 1\nepochs = 0\n", 3, "epochs");
    check_mistake("[train]\nbatch_size = 0\n", 2, "batch_size");
    check_mistake("[train]\nclip_norm = 0.0\n", 2, "clip_norm");
    check_mistake("[train]\nclip_norm = nan\n", 2, "clip_norm");
    check_mistake("[model]\nchannels = 0\n", 2, "channels");
    check_mistake("[optimizer]\nkind = \"sgd\"\nlearning_rate = -1.0\n", 3, "learning_rate");
    check_mistake("[optimizer]\nkind = \"adam\"\nbetas = [0.9, 1.0]\n", 3, "betas");
}

#[test]
fn what_is_not_toml_is_named() {
    check_mistake("[train]\nepochs = = 3\n", 2, "epochs");
    check_mistake("[train\nepochs = 3\n", 1, "[train");
}

#[test]
fn missing_recipe_is_a_file_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("missing.toml");
    let error = Recipe::load(&missing).expect_err("it is not there");
    assert!(matches!(&error, TrainError::File { path, .. } if *path == missing), "{error:?}");
}
