//! Help on all keys of a recipe, with defaults and descriptions.

use std::fmt::Write;

use serde::Serialize;
use toml::Table;

use super::optimizer::OPTIMIZERS;
use super::options::{Key, Kind};
use super::{
    AugmentRecipe, DataRecipe, DistillRecipe, ModelRecipe, OptimizerRecipe, PreferenceRecipe,
    PruneRecipe, TrainRecipe,
};

/// The documentation of recipes: every table, kind and key, as the types have them.
pub fn help() -> String {
    let mut text = "\
A recipe says what is trained, on what, and how, in TOML. Every key has a default; `--set
TABLE.KEY=VALUE` changes one. `lowtide recipes` lists those that ship, which are called by name.

[data]
"
    .to_owned();
    kinds(&mut text, DataRecipe::kinds());
    text += "\n[augment]   images to train on only\n";
    keys(&mut text, &values(&AugmentRecipe::default()), AugmentRecipe::KEYS);
    text += "\n[model]\n";
    kinds(&mut text, ModelRecipe::kinds());
    text += "\n[train]\n";
    keys(&mut text, &values(&TrainRecipe::default()), TrainRecipe::KEYS);
    text += "\n[distill]   a teacher beside the data: none unless the table is there\n";
    keys(&mut text, &values(&DistillRecipe::default()), DistillRecipe::KEYS);
    text +=
        "\n[preference]   of a pretrained model, where the data has answers that are preferred\n";
    keys(&mut text, &values(&PreferenceRecipe::default()), PreferenceRecipe::KEYS);
    text += "\n[prune]   a model to begin with, made smaller: none unless the table is there\n";
    keys(&mut text, &values(&PruneRecipe::default()), PruneRecipe::KEYS);
    text += "\n[optimizer]   options and defaults are those of lowtide_nn::optim\n";
    for kind in OPTIMIZERS {
        let parsed = toml::from_str::<OptimizerRecipe>(&format!("kind = \"{kind}\""));
        let optimizer = parsed.expect("every option has a default");
        let defaults = toml::to_string(&optimizer).expect("plain values");
        let mut lines = defaults.lines();
        let _ = writeln!(text, "  {}", lines.next().unwrap_or_default());
        lines.for_each(|line| text += &format!("    {line}\n"));
    }
    text += "\
\n[schedule]    kind: constant, linear, cosine, cosine-restarts, step, milestones, exponential,
              polynomial, one-cycle, inverse-sqrt; steps, floor, factor, .. as each needs them
[warm_up]     steps = 0, from = 0.0: how the learning rate rises before the schedule begins
";
    text
}

fn kinds(text: &mut String, kinds: Vec<Kind>) {
    for Kind { name, about, keys: documented, defaults } in kinds {
        let _ = writeln!(text, "  {:<30} {}", format!("kind = \"{name}\""), about.trim());
        keys(text, &defaults, documented);
    }
}

fn values(defaults: &impl Serialize) -> Table {
    Table::try_from(defaults).expect("plain values")
}

/// Adds a line for each key with its default and description.
fn keys(text: &mut String, defaults: &Table, documented: &[Key]) {
    for (key, about) in documented {
        let setting = match defaults.get(*key) {
            Some(value) => format!("{key} = {value}"),
            None => format!("{key} = .."),
        };
        let _ = writeln!(text, "    {setting:<28} {}", about.trim());
    }
}
