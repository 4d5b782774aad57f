//! Every key of a recipe, with its default and what it says.

use std::fmt::Write;

use serde::Serialize;

use super::options::Key;
use super::{
    AugmentRecipe, CifarRecipe, CsvRecipe, DeepCnnRecipe, DigitsRecipe, GptRecipe,
    ImageFolderRecipe, JsonLinesRecipe, LstmRecipe, MlpRecipe, MnistRecipe, OptimizerRecipe,
    RandomImagesRecipe, RandomTokensRecipe, ResNetRecipe, SegmentationFolderRecipe, Seq2SeqRecipe,
    SimpleCnnRecipe, TextRecipe, TokenFileRecipe, TrainRecipe, UNetRecipe, ViTRecipe,
};

/// The kinds of optimizers.
const OPTIMIZERS: [&str; 9] =
    ["adam", "adamw", "sgd", "rms-prop", "adagrad", "lion", "lamb", "adafactor", "muon"];

/// The documentation of recipes: every table, kind and key, as the types have them.
pub fn help() -> String {
    let mut text = "\
A recipe says what is trained, on what, and how, in TOML. Every key has a default; `--set
TABLE.KEY=VALUE` changes one. `lowtide recipes` lists those that ship, which are called by name.

[data]
"
    .to_owned();
    table(&mut text, "digits", &DigitsRecipe::default(), DigitsRecipe::KEYS);
    table(&mut text, "mnist", &MnistRecipe::default(), MnistRecipe::KEYS);
    table(&mut text, "cifar", &CifarRecipe::default(), CifarRecipe::KEYS);
    table(&mut text, "image-folder", &ImageFolderRecipe::default(), ImageFolderRecipe::KEYS);
    table(
        &mut text,
        "segmentation-folder",
        &SegmentationFolderRecipe::default(),
        SegmentationFolderRecipe::KEYS,
    );
    table(&mut text, "csv", &CsvRecipe::default(), CsvRecipe::KEYS);
    table(&mut text, "text", &TextRecipe::default(), TextRecipe::KEYS);
    table(&mut text, "token-file", &TokenFileRecipe::default(), TokenFileRecipe::KEYS);
    table(&mut text, "json-lines", &JsonLinesRecipe::default(), JsonLinesRecipe::KEYS);
    table(&mut text, "random-images", &RandomImagesRecipe::default(), RandomImagesRecipe::KEYS);
    table(&mut text, "random-tokens", &RandomTokensRecipe::default(), RandomTokensRecipe::KEYS);
    text += "\n[augment]   images to train on only\n";
    keys(&mut text, &AugmentRecipe::default(), AugmentRecipe::KEYS);
    text += "\n[model]\n";
    table(&mut text, "simple-cnn", &SimpleCnnRecipe::default(), SimpleCnnRecipe::KEYS);
    table(&mut text, "deep-cnn", &DeepCnnRecipe::default(), DeepCnnRecipe::KEYS);
    table(&mut text, "mlp", &MlpRecipe::default(), MlpRecipe::KEYS);
    table(&mut text, "resnet", &ResNetRecipe::default(), ResNetRecipe::KEYS);
    table(&mut text, "vit", &ViTRecipe::default(), ViTRecipe::KEYS);
    table(&mut text, "unet", &UNetRecipe::default(), UNetRecipe::KEYS);
    table(&mut text, "gpt", &GptRecipe::default(), GptRecipe::KEYS);
    table(&mut text, "lstm", &LstmRecipe::default(), LstmRecipe::KEYS);
    table(&mut text, "seq2seq", &Seq2SeqRecipe::default(), Seq2SeqRecipe::KEYS);
    text += "\n[train]\n";
    keys(&mut text, &TrainRecipe::default(), TrainRecipe::KEYS);
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

fn table(text: &mut String, kind: &str, defaults: &impl Serialize, documented: &[Key]) {
    let _ = writeln!(text, "  kind = \"{kind}\"");
    keys(text, defaults, documented);
}

/// A line for each key: its default, and what it is.
fn keys(text: &mut String, defaults: &impl Serialize, documented: &[Key]) {
    let values = toml::Table::try_from(defaults).expect("plain values");
    for (key, about) in documented {
        let setting = match values.get(*key) {
            Some(value) => format!("{key} = {value}"),
            None => format!("{key} = .."),
        };
        let _ = writeln!(text, "    {setting:<28} {}", about.trim());
    }
}
