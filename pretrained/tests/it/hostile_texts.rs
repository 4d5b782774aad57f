//! Untrusted configurations and tokenizers: the result is a model or a file, or an error with a
//! name.

use std::fs;

use lowtide_pretrained::{
    BertConfig, Config, Decoder, GgufOptions, ModelConfig, PretrainedError, ResNetConfig, Shape,
    T5Config, ViTConfig, save_gguf,
};
use lowtide_tensor::{DType, Device, RandomKey};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::common::{CASES, KEY, Outcome, cpu, folder, sim};
use crate::hostile::{check_error, copy, mutations};

/// Odd values for an entry.
fn odd_values() -> Vec<Value> {
    vec![
        json!(0),
        json!(-1),
        json!(1),
        json!(3),
        json!(1_u64 << 31),
        json!((1_u64 << 31) + 1),
        json!(u64::MAX),
        json!(0.5),
        json!(1e308),
        json!(-1e308),
        json!(5e-324),
        json!("x"),
        json!(""),
        json!([]),
        json!([1, 2]),
        json!({}),
        json!({ "0": "a" }),
        json!(true),
        json!(false),
        Value::Null,
    ]
}

/// Checks each entry of a configuration, changed to each odd value or left out: the result is an
/// error that names the file, or a model that a simulated device can make.
fn check_entries<S: Shape>(case: &str) -> Outcome<[usize; 2]> {
    let text = fs::read_to_string(folder(case).join("config.json"))?;
    let good: Map<String, Value> = serde_json::from_str(&text)?;
    let mut counts = [0; 2];
    let mut texts = Vec::new();
    for name in good.keys() {
        let mut without = good.clone();
        without.remove(name);
        texts.push((name, Value::Object(without).to_string()));
        for value in odd_values() {
            let mut changed = good.clone();
            changed.insert(name.clone(), value);
            texts.push((name, Value::Object(changed).to_string()));
        }
    }
    for (name, text) in texts {
        match ModelConfig::<S>::from_text("place", text) {
            Ok(config) => {
                counts[0] += 1;
                let made = config.model(&sim(1, isize::MAX as usize), KEY, DType::BF16);
                if let Err(error) = made {
                    assert!(!error.to_string().is_empty(), "{case}: {name}");
                }
            }
            Err(error) => {
                counts[1] += 1;
                check_error(&error, "config.json", &[], name);
            }
        }
    }
    Ok(counts)
}

#[test]
fn entries_of_any_value_are_a_model_or_an_error() -> Outcome {
    let mut counts = Vec::new();
    for &case in CASES.iter() {
        counts.push(check_entries::<lowtide_pretrained::DecoderShape>(case)?);
    }
    for case in ["bert", "bert-classes"] {
        counts.push(check_entries::<lowtide_pretrained::BertShape>(case)?);
    }
    counts.push(check_entries::<lowtide_pretrained::T5Shape>("t5-1.1")?);
    counts.push(check_entries::<lowtide_pretrained::ViTShape>("vit")?);
    for case in ["resnet-basic", "resnet-bottleneck"] {
        counts.push(check_entries::<lowtide_pretrained::ResNetShape>(case)?);
    }
    let sum = |at: usize| counts.iter().map(|it| it[at]).sum::<usize>();
    println!("{} models, {} errors", sum(0), sum(1));
    assert!(sum(0) > 1000 && sum(1) > 1000);
    Ok(())
}

#[test]
fn configurations_of_other_models_that_lie_are_errors_by_name() -> Outcome {
    let with = |case: &str, name: &str, value: Value| -> Outcome<String> {
        let text = fs::read_to_string(folder(case).join("config.json"))?;
        let mut entries: Value = serde_json::from_str(&text)?;
        entries[name] = value;
        Ok(entries.to_string())
    };
    let error = |case: &str, text: String| match case {
        "bert-classes" => BertConfig::from_text(case, text).err(),
        "t5" => T5Config::from_text(case, text).err(),
        "vit" => ViTConfig::from_text(case, text).err(),
        _ => ResNetConfig::from_text(case, text).err(),
    };
    for (case, name, value) in [
        ("bert-classes", "num_attention_heads", json!(0)),
        ("bert-classes", "num_hidden_layers", json!(1 << 20)),
        ("bert-classes", "id2label", json!({})),
        ("t5", "num_decoder_layers", json!(-1)),
        ("t5", "d_kv", json!(0)),
        ("vit", "patch_size", json!(1 << 30)),
        ("vit", "patch_size", json!(0)),
        ("vit", "id2label", json!({})),
        ("resnet-basic", "depths", json!([1 << 30, 1 << 30])),
        ("resnet-basic", "depths", json!([])),
        ("resnet-basic", "hidden_sizes", json!([u64::MAX])),
    ] {
        let error = error(case, with(case, name, value)?).expect("it lies");
        check_error(&error, "config.json", &[name], case);
    }
    Ok(())
}

/// Searching thousands of entries for each of thousands of layers would take minutes.
#[test]
fn entries_inside_an_entry_are_few() -> Outcome {
    let many: Map<String, Value> =
        (0..200_000).map(|at| (format!("entry {at}"), Value::Null)).collect();
    for (case, name) in
        [("llama", "rope_scaling"), ("llama", "rope_parameters"), ("gemma3", "rope_parameters")]
    {
        let text = fs::read(folder(case).join("config.json"))?;
        let mut entries: Value = serde_json::from_slice(&text)?;
        entries["num_hidden_layers"] = json!(4096);
        entries[name] = Value::Object(many.clone());
        let error = Config::from_text("place", entries.to_string()).expect_err("too many");
        check_error(&error, "config.json", &[name, "at most 256"], name);
    }
    let text = fs::read(folder("gemma3").join("config.json"))?;
    let mut entries: Value = serde_json::from_slice(&text)?;
    entries["x".repeat(1 << 20)] = json!(1);
    let error = Config::from_text("place", entries.to_string()).expect_err("not known");
    check_error(&error, "config.json", &["xxx", "not supported"], "a long name");
    Ok(())
}

/// A folder with a tokenizer of the fixtures, and a model with a row for each of its tokens.
fn with_tokenizer(kind: &str, device: &Device) -> Outcome<(TempDir, Config, Decoder)> {
    let place = copy(&format!("gguf/{kind}"))?;
    let text = r#"{"architectures": ["LlamaForCausalLM"], "vocab_size": 500, "hidden_size": 2,
        "model_type": "llama", "intermediate_size": 2, "num_hidden_layers": 1,
        "num_attention_heads": 1, "hidden_act": "silu"}"#;
    fs::write(place.path().join("config.json"), text)?;
    let config = Config::open(place.path())?;
    let model = config.decoder(device, RandomKey::new(1), DType::F32)?;
    Ok((place, config, model))
}

#[test]
fn tokenizers_that_lie_make_no_gguf_file() -> Outcome {
    for kind in ["bytes", "characters"] {
        let (place, config, mut model) = with_tokenizer(kind, &cpu(1))?;
        let file = place.path().join("tokenizer.json");
        let good: Value = serde_json::from_slice(&fs::read(&file)?)?;
        let deep = |depth: usize| (0..depth).fold(json!([]), |inner, _| json!([inner]));
        let vocabulary = |name: &str, id: Value| {
            let mut changed = good.clone();
            changed["model"]["vocab"][name] = id;
            changed
        };
        let first = good["model"]["vocab"].as_object().and_then(|it| it.keys().next().cloned());
        let first = first.ok_or("no tokens")?;
        let with = |pointer: &str, value: Value| {
            let mut changed = good.clone();
            *changed.pointer_mut(pointer).expect("an entry") = value;
            changed
        };
        let added = json!([{ "id": 7, "content": "a" }, { "id": 7, "content": "b" }]);
        for (what, json, entry) in [
            ("a number twice", vocabulary("a new token", json!(3)), "model.vocab"),
            ("a negative number", vocabulary(&first, json!(-1)), "model.vocab"),
            ("a half", vocabulary(&first, json!(0.5)), "model.vocab"),
            ("a text", vocabulary(&first, json!("x".repeat(100_000))), "model.vocab"),
            ("depth", vocabulary(&first, deep(100)), "model.vocab"),
            ("no vocabulary", with("/model/vocab", json!([])), "model.vocab"),
            ("no merges", with("/model/merges", json!(3)), "model.merges"),
            ("no pair", with("/model/merges", json!([["a"]])), "model.merges"),
            ("merges of no token", with("/model/merges", json!(["qq zz"])), "model.merges"),
            ("merges of no text", with("/model/merges", json!([[1, 2]])), "model.merges"),
            ("another kind", with("/model/type", json!("Unigram")), "model.type"),
            ("an added number twice", with("/added_tokens", added), "added_tokens"),
            ("no content", with("/added_tokens", json!([{ "id": 7 }])), "added_tokens"),
        ] {
            fs::write(&file, json.to_string())?;
            let to = place.path().join("m.gguf");
            match save_gguf(&mut model, &config, &to, &GgufOptions::default()) {
                Err(error @ PretrainedError::Entry { .. }) => {
                    check_error(&error, "tokenizer.json", &[entry], what);
                }
                other => panic!("{kind}, {what}: {other:?}"),
            }
            let is_left = |entry: std::io::Result<fs::DirEntry>| {
                entry.is_ok_and(|entry| entry.file_name().display().to_string().contains("lowtide"))
            };
            assert!(!to.exists() && !fs::read_dir(place.path())?.any(is_left), "{what}");
        }
    }
    Ok(())
}

#[test]
fn no_cut_and_no_changed_byte_of_a_tokenizer_makes_export_panic() -> Outcome {
    let out = tempfile::tempdir()?;
    let to = out.path().join("m.gguf");
    let mut count = 0;
    for (kind, name) in [
        ("bytes", "tokenizer.json"),
        ("characters", "tokenizer.json"),
        ("bytes", "tokenizer_config.json"),
    ] {
        let (place, config, mut model) = with_tokenizer(kind, &cpu(1))?;
        let path = place.path().join(name);
        let good = fs::read(&path)?;
        // The file of the tokenizer of characters is twice as long and has the same parts.
        let stride = if kind == "bytes" { 1 } else { 7 };
        for bytes in mutations(&good, good.len()).step_by(stride) {
            fs::write(&path, bytes)?;
            count += 1;
            match save_gguf(&mut model, &config, &to, &GgufOptions::default()) {
                Ok(_) => fs::remove_file(&to)?,
                Err(error) => check_error(&error, name, &[], kind),
            }
            assert_eq!(fs::read_dir(out.path())?.count(), 0, "{kind}");
        }
    }
    println!("{count} tokenizers");
    Ok(())
}

/// Every proper prefix of a configuration is an error.
#[test]
fn no_cut_of_a_configuration_is_one() -> Outcome {
    for &case in CASES.iter() {
        let text = fs::read_to_string(folder(case).join("config.json"))?;
        for len in 0..text.trim_end().len() {
            let Some(cut) = text.get(..len) else { continue };
            let error = Config::from_text("place", cut).expect_err("it is cut off");
            assert!(matches!(error, PretrainedError::Json { .. }), "{case}: {error}");
        }
    }
    Ok(())
}
