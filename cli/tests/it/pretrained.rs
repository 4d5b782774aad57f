//! Published models, made narrow, with every method: planned bytes equal measured bytes.

use std::path::Path;

use lowtide_cli::recipe::{Base, FewBits, Recipe, RecipeData, StoredType, Tuning};
use lowtide_pretrained::{Config, save};
use lowtide_tensor::{CpuOptions, DType, Device, RandomKey};
use lowtide_trainer::{Parallelism, TrainError};
use serde_json::{Map, Value};

use crate::common::is_deep;
use crate::common::on_ranks;
use crate::features::assert_close;
use crate::pipeline::{run, trainer};

/// Settings that make a model narrow, with the keys of all model families.
const NARROW: [(&str, u64); 15] = [
    ("hidden_size", 64),
    ("n_embd", 64),
    ("intermediate_size", 96),
    ("num_hidden_layers", 3),
    ("n_layer", 3),
    ("num_attention_heads", 4),
    ("n_head", 4),
    ("head_dim", 16),
    ("vocab_size", 128),
    ("max_position_embeddings", 64),
    ("n_positions", 64),
    ("n_ctx", 64),
    ("sliding_window", 8),
    ("sliding_window_pattern", 2),
    ("query_pre_attn_scalar", 16),
];

/// One model of each family and of each form of attention. The deep tests use all models.
const SOME: [&str; 8] = [
    "EleutherAI/pythia-70m",
    "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen3-0.6B",
    "google/gemma-2-2b",
    "google/gemma-3-270m",
    "meta-llama/Llama-3.1-8B",
    "mistralai/Mistral-7B-v0.1",
    "openai-community/gpt2",
];

/// A narrow copy of a published model with random weights, in `folder`.
fn make(name: &str, folder: &Path) {
    let config = Config::published(name).expect("whole").expect("it is known");
    config.save(folder).expect("room");
    let path = folder.join("config.json");
    let text = std::fs::read_to_string(&path).expect("it was just written");
    let mut entries: Map<String, Value> = serde_json::from_str(&text).expect("JSON");
    for (key, value) in NARROW {
        if entries.get(key).is_some_and(Value::is_u64) {
            entries.insert(key.to_owned(), value.into());
        }
    }
    if let Some(groups) = entries.get_mut("num_key_value_heads") {
        *groups = groups.as_u64().map_or(1, |groups| groups.min(2)).into();
    }
    if let Some(layers) = entries.get_mut("layer_types").and_then(Value::as_array_mut) {
        layers.truncate(3);
    }
    if let Some(scaling) = entries.get_mut("rope_scaling").and_then(Value::as_object_mut) {
        scaling.insert("original_max_position_embeddings".to_owned(), 32.into());
    }
    std::fs::write(&path, serde_json::to_string(&entries).expect("JSON")).expect("room");
    let device = Device::cpu(CpuOptions::default()).expect("a device");
    let config = Config::open(folder).expect("a narrow model");
    let mut model = config.decoder(&device, RandomKey::new(1), DType::F32).expect("memory");
    save(&mut model, folder, 1 << 30).expect("room");
}

/// All parameters in f32 and bf16, adapters for both, and adapters for quantised weights.
const METHODS: [(Option<usize>, Base); 6] = [
    (None, Base::Floats(StoredType::F32)),
    (None, Base::Floats(StoredType::Bf16)),
    (Some(4), Base::Floats(StoredType::F32)),
    (Some(4), Base::Floats(StoredType::Bf16)),
    (Some(4), Base::FewBits(FewBits::Int8)),
    (Some(4), Base::FewBits(FewBits::Nf4)),
];

#[test]
fn published_models_made_narrow_take_what_is_planned_by_every_method() {
    let names: Vec<&str> =
        if is_deep() { Config::published_names().collect() } else { SOME.to_vec() };
    for name in names {
        let folder = tempfile::tempdir().expect("a folder");
        make(name, folder.path());
        for (lora, base) in METHODS {
            for context in [1, 12, 48] {
                let base = Some(base);
                let tuning = Tuning { lora, context: Some(context), base, ..Tuning::default() };
                check(name, folder.path(), &tuning);
            }
        }
    }
}

/// Runs without a budget, within the least budget that has a plan, and within one byte less.
fn check(name: &str, folder: &Path, tuning: &Tuning) {
    let recipe = Recipe::of_model(folder, tuning).expect("a recipe");
    let RecipeData { samples, train, test } = recipe.open().expect("data");
    let fit = recipe.fit(&train, &test);
    let run = |budget_bytes: Option<usize>| {
        let options = CpuOptions { budget_bytes, threads: Some(2), ..Default::default() };
        let device = Device::cpu(options).expect("a device");
        let mut trainer = recipe.trainer(&device, samples).expect("memory");
        let least_bytes = trainer
            .least_bytes(&fit, &Default::default())
            .expect("it does not depend on the budget");
        let plan = match trainer.plan_run(&fit, &Default::default()) {
            Err(TrainError::DoesNotFit(error)) => {
                assert!(error.needed_bytes >= least_bytes, "{name} {tuning:?}");
                return (least_bytes, None);
            }
            plan => plan.expect("a plan, or too little memory"),
        };
        trainer.run(&fit, &mut []).expect("as planned");
        let measured_bytes = device.allocator().statistics().reserved.peak_bytes;
        assert_eq!(plan.predicted_peak_bytes(), measured_bytes, "{name} {tuning:?}");
        assert_eq!(trainer.retried_steps(), 0, "{name} {tuning:?}");
        (least_bytes, Some(measured_bytes))
    };
    let (least_bytes, whole_bytes) = run(None);
    assert!(whole_bytes >= Some(least_bytes), "{name} {tuning:?}");
    assert_eq!(run(Some(least_bytes)), (least_bytes, Some(least_bytes)), "{name} {tuning:?}");
    assert_eq!(run(Some(least_bytes - 1)), (least_bytes, None), "{name} {tuning:?}");
}

/// Models with grouped heads, every form of packed weights, own norms, gates and caps. Each of two
/// ranks has one group of heads, unless there is only one group.
#[test]
fn decoders_that_ranks_share_have_the_losses_of_one() {
    for name in SOME {
        let folder = tempfile::tempdir().expect("a folder");
        make(name, folder.path());
        // Without dropout, because ranks drop different weights of their heads.
        let path = folder.path().join("config.json");
        let text = std::fs::read_to_string(&path).expect("it was written");
        let mut entries: Map<String, Value> = serde_json::from_str(&text).expect("JSON");
        for (key, value) in &mut entries {
            if key.ends_with("pdrop") || key.ends_with("dropout") {
                *value = 0.0.into();
            }
        }
        std::fs::write(&path, serde_json::to_string(&entries).expect("JSON")).expect("room");
        let base = Some(Base::Floats(StoredType::F32));
        let tuning = Tuning { context: Some(12), base, ..Tuning::default() };
        let recipe = Recipe::of_model(folder.path(), &tuning).expect("a recipe");
        let one =
            run(&recipe, &mut trainer(&recipe, None, Parallelism::DataParallel), None, |_, _| {});
        let found = on_ranks(2, |ranks| {
            run(
                &recipe,
                &mut trainer(&recipe, Some(ranks), Parallelism::TensorParallel),
                None,
                |_, _| {},
            )
        });
        for ran in &found {
            assert_eq!(ran, &found[0], "{name}");
            assert_close(&ran.losses, &one.losses, name);
        }
    }
}
