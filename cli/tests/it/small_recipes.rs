//! The recipes with built-in data, for every kind of model, made small.

use std::path::Path;

use lowtide_cli::recipe::Recipe;

/// Names of recipes, with the settings that make them small.
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
