//! Files of a stranger: lengths that lie, overlaps, depth. Each is refused with the name of the
//! file and what is wrong with it, takes no memory that it only claims, and changes nothing.

use std::fs;
use std::path::Path;

use lowtide_nn::{Parameters, load_adapters};
use lowtide_pretrained::{
    BertConfig, Config, Decoder, GgufOptions, ModelConfig, PretrainedError,
    PretrainedResult as Result, ResNetConfig, Shape, T5Config, ViTConfig, load, save, save_gguf,
};
use lowtide_tensor::{DType, Device, RandomKey};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::common::{CASES, KEY, Outcome, config, cpu, folder, sim};

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// A copy of a folder of the fixtures.
fn copy(case: &str) -> Outcome<TempDir> {
    let to = tempfile::tempdir()?;
    for file in fs::read_dir(folder(case))? {
        let path = file?.path();
        fs::copy(&path, to.path().join(path.file_name().expect("a file")))?;
    }
    Ok(to)
}

fn bits(model: &mut Decoder) -> Vec<Vec<u8>> {
    let mut bits = Vec::new();
    model.visit_tensors(&mut |_, value| bits.push(value.to_bytes().expect("of the processor")));
    bits
}

/// A line that names `file` and has all of `words`.
#[track_caller]
fn check_error(error: &dyn std::error::Error, file: &str, words: &[&str], what: &str) {
    let text = error.to_string();
    assert!(text.contains(file), "{what}: no {file} in {text}");
    for word in words {
        assert!(text.contains(word), "{what}: no {word:?} in {text}");
    }
    assert!(text.len() < 1200, "{what}: {} bytes: {text}", text.len());
}

/// The header and the tensors' bytes of a safetensors file.
fn split(file: &[u8]) -> Outcome<(Map<String, Value>, Vec<u8>)> {
    let len = u64::from_le_bytes(file[..8].try_into()?) as usize;
    Ok((serde_json::from_slice(&file[8..][..len])?, file[8 + len..].to_vec()))
}

fn joined(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header, data].concat()
}

/// A file with an entry of its header changed.
fn with_entry(file: &[u8], name: &str, change: impl FnOnce(&mut Value)) -> Outcome<Vec<u8>> {
    let (mut header, data) = split(file)?;
    change(header.get_mut(name).ok_or("no such tensor")?);
    Ok(joined(&serde_json::to_vec(&header)?, &data))
}

#[test]
fn safetensors_files_that_lie_are_errors_by_name() -> Outcome {
    const BIAS: &str = "transformer.h.0.attn.c_attn.bias";
    let good = fs::read(folder("gpt2").join(WEIGHTS))?;
    let (header, data) = split(&good)?;
    let header = serde_json::to_string(&header)?;
    let long = |len: u64| [&len.to_le_bytes()[..], &good[8..]].concat();
    let offsets = |from: Value, to: Value| {
        with_entry(&good, BIAS, |it| it["data_offsets"] = json!([from, to]))
    };
    let shaped = |shape: Value| with_entry(&good, BIAS, |it| it["shape"] = shape);
    let typed = |dtype: &str| with_entry(&good, BIAS, |it| it["dtype"] = json!(dtype));
    let nested = |depth: usize| {
        let value = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        joined(header.replacen('{', &format!("{{\"x\":{value},"), 1).as_bytes(), &data)
    };
    let twice = |name: &str| {
        let entry =
            format!("{{\"{name}\":{{\"dtype\":\"F32\",\"shape\":[24],\"data_offsets\":[0,96]}},");
        joined(header.replacen('{', &entry, 1).as_bytes(), &data)
    };
    let text = |header: &str| joined(header.as_bytes(), &data);
    let huge = 1_u64 << 40;
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("nothing", Vec::new(), &["header"]),
        ("no length", good[..7].to_vec(), &["header"]),
        ("a length of all bits", long(u64::MAX), &["header"]),
        ("a length of a terabyte", long(huge), &["header"]),
        ("a length beyond the end", long(good.len() as u64), &["header"]),
        ("a length that is short", long(header.len() as u64 - 1), &["header"]),
        ("no header", long(0), &["header"]),
        ("no JSON", text("not JSON at all"), &["header"]),
        ("a list", text("[]"), &["header"]),
        ("no UTF-8", joined(b"{\"\xff\":1}", &data), &["UTF-8"]),
        ("depth", nested(200), &["header"]),
        ("more depth", nested(1 << 20), &["header"]),
        ("depth that is closed nowhere", text(&"{\"a\":".repeat(1 << 18)), &["header"]),
        ("an overlap", offsets(json!(0), json!(192))?, &["invalid"]),
        ("offsets inside others", offsets(json!(48), json!(144))?, &["invalid"]),
        ("offsets beyond the end", offsets(json!(huge), json!(huge + 96))?, &["invalid"]),
        ("offsets that turn back", offsets(json!(96), json!(0))?, &["invalid"]),
        ("offsets of all bits", offsets(json!(0), json!(u64::MAX))?, &[]),
        ("negative offsets", offsets(json!(-96), json!(0))?, &["header"]),
        ("offsets that are none", offsets(json!("0"), json!(1e300))?, &["header"]),
        ("a shape that overflows", shaped(json!([huge, huge]))?, &["overflow"]),
        ("a shape of all bits", shaped(json!([u64::MAX]))?, &["overflow"]),
        ("a shape of another size", shaped(json!([25]))?, &["shape"]),
        ("no shape", shaped(json!([0]))?, &["shape"]),
        ("a shape of many", shaped(json!(vec![1; 10_000]))?, &["shape"]),
        ("a negative shape", shaped(json!([-24]))?, &["header"]),
        ("a type of another size", typed("F64")?, &["shape"]),
        ("a type of the same size", typed("I32")?, &[BIAS, "I32", "float"]),
        ("no type", typed("Q4_0")?, &["header"]),
        ("a name twice", twice(BIAS), &[BIAS, "more than once"]),
        ("a name twice, with an escape", twice(&BIAS.replace('h', "\\u0068")), &[BIAS]),
        ("bytes after the end", [&good[..], &[0]].concat(), &["not fully covered"]),
        ("bytes that are missing", good[..good.len() - 1].to_vec(), &["not fully covered"]),
        (
            "a name of many letters",
            text(&header.replace(BIAS, &"x".repeat(100_000))),
            &["not known"],
        ),
    ];
    let config = config("gpt2")?;
    let mut model = config.decoder(&cpu(1), KEY, DType::F32)?;
    let before = bits(&mut model);
    for (what, bytes, words) in cases {
        let to = copy("gpt2")?;
        fs::write(to.path().join(WEIGHTS), bytes)?;
        let of_tensor = words.contains(&"float") || words.contains(&"not known");
        let file = if of_tensor { to.path().to_str().ok_or("UTF-8")? } else { WEIGHTS };
        check_error(&load(&mut model, to.path()).expect_err(what), file, words, what);
        assert!(bits(&mut model) == before, "{what}");
        // A model is not even begun.
        let device = cpu(1);
        let opened = Config::open(to.path())?;
        check_error(&opened.load(&device, DType::F32).expect_err(what), file, words, what);
        assert_eq!(device.allocator().statistics().allocated.peak_bytes, 0, "{what}");
        let error = lowtide_nn::load(&mut model, &to.path().join(WEIGHTS)).expect_err(what);
        check_error(&error, WEIGHTS, &[], what);
        assert!(bits(&mut model) == before, "{what}");
    }
    Ok(())
}

#[test]
fn indexes_that_lie_are_errors_by_name() -> Outcome {
    const SHARD: &str = "model-00001-of-00002.safetensors";
    let deep = "[".repeat(100_000);
    let of = |file: Value| json!({ "weight_map": { "a": file } }).to_string();
    let mut cases: Vec<(String, &str)> = vec![
        (String::new(), INDEX),
        ("{".to_owned(), INDEX),
        ("[]".to_owned(), INDEX),
        ("{}".to_owned(), INDEX),
        (deep.clone(), INDEX),
        (format!("{{\"weight_map\": {deep}"), INDEX),
        (r#"{"weight_map": []}"#.to_owned(), INDEX),
        (of(json!("model-00003-of-00002.safetensors")), "model-00003-of-00002.safetensors"),
        // Nothing of what the model has.
        (r#"{"weight_map": {}}"#.to_owned(), "missing from the file"),
    ];
    let outside = ["../x", "/etc/passwd", "a/b", "./a", ".", "..", "", "a/", "a/..", "\u{0}/a"];
    cases.extend(outside.map(|name| (of(json!(name)), INDEX)));
    let odd =
        [json!(3), json!(null), json!([SHARD]), json!({ "a": SHARD }), json!("../x".repeat(9999))];
    cases.extend(odd.map(|value| (of(value), INDEX)));
    let config = config("llama")?;
    let mut model = config.decoder(&cpu(1), KEY, DType::F32)?;
    let before = bits(&mut model);
    for (text, file) in cases {
        let to = copy("llama")?;
        fs::write(to.path().join(INDEX), &text)?;
        let what = &text[..text.len().min(100)];
        check_error(&load(&mut model, to.path()).expect_err(what), file, &[], what);
        assert!(bits(&mut model) == before, "{what}");
    }
    // The same tensors in two files.
    let to = copy("llama")?;
    fs::copy(to.path().join(SHARD), to.path().join("again.safetensors"))?;
    let mut index: Value = serde_json::from_slice(&fs::read(to.path().join(INDEX))?)?;
    index["weight_map"]["again"] = json!("again.safetensors");
    fs::write(to.path().join(INDEX), index.to_string())?;
    let error = load(&mut model, to.path()).expect_err("it would depend on their order");
    check_error(&error, "model.embed_tokens.weight", &["more than once"], "two files");
    assert!(bits(&mut model) == before);
    Ok(())
}

/// Opening one would wait for a writer.
#[cfg(unix)]
#[test]
fn pipes_and_folders_in_place_of_files_are_errors() -> Outcome {
    let pipe = |path: &Path| -> Outcome {
        drop(fs::remove_file(path));
        let made = std::process::Command::new("mkfifo").arg(path).status()?;
        assert!(made.success());
        Ok(())
    };
    let folder_at = |path: &Path| -> Outcome {
        drop(fs::remove_file(path));
        Ok(fs::create_dir(path)?)
    };
    for make in [&pipe as &dyn Fn(&Path) -> Outcome, &folder_at] {
        for name in [WEIGHTS, "config.json"] {
            let to = copy("gpt2")?;
            make(&to.path().join(name))?;
            let loaded = Config::open(to.path()).and_then(|it| it.load(&cpu(1), DType::F32));
            check_error(&loaded.expect_err(name), name, &["not a regular file"], name);
        }
        let to = copy("llama")?;
        make(&to.path().join("model-00002-of-00002.safetensors"))?;
        let error = config("llama")?.decoder(&cpu(1), KEY, DType::F32);
        let error = load(&mut error?, to.path()).expect_err("a shard");
        check_error(&error, "model-00002", &["not a regular file"], "a shard");
        for name in ["adapter_config.json", "adapter_model.safetensors"] {
            let to = copy("lora-llama")?;
            make(&to.path().join(name))?;
            let mut model = config("llama")?.load(&cpu(1), DType::F32)?;
            let error = load_adapters(&mut model, to.path()).expect_err(name);
            check_error(&error, name, &["not a regular file"], name);
        }
    }
    Ok(())
}

/// A byte that differs from `byte`, by a seed.
fn other(byte: u8, seed: usize) -> u8 {
    let mixed = (seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    byte ^ (mixed as u8).max(1)
}

/// Every beginning of a file, and every file with one of the bytes up to `changed_len` changed in a
/// few ways; where tests may not take minutes, one of so many.
fn mutations(good: &[u8], changed_len: usize) -> impl Iterator<Item = Vec<u8>> + '_ {
    let cut = (0..good.len()).map(|len| good[..len].to_vec());
    let changed = (0..changed_len).flat_map(move |at| {
        let bytes = [other(good[at], at), b'"', b'{', b']', b'9'];
        bytes.into_iter().filter(move |byte| *byte != good[at]).map(move |byte| {
            let mut changed = good.to_vec();
            changed[at] = byte;
            changed
        })
    });
    let is_deep = std::env::var_os("PROPTEST_CASES").is_some();
    // Without a divisor that the ways to change a byte have.
    cut.chain(changed).step_by(if is_deep { 1 } else { 23 })
}

/// What is loaded of each mutation of a file: an error that names the file, or the folder that it
/// is in, and a model as before; or a model.
fn check_mutations(
    case: &str,
    name: &str,
    changed_len: usize,
    mut read: impl FnMut(&Path) -> Result<(), Box<dyn std::error::Error>>,
) -> Outcome {
    let to = copy(case)?;
    let good = fs::read(to.path().join(name))?;
    let place = to.path().to_str().ok_or("UTF-8")?;
    let (mut refused, mut count) = (0, 0);
    for bytes in mutations(&good, changed_len) {
        fs::write(to.path().join(name), bytes)?;
        count += 1;
        if let Err(error) = read(to.path()) {
            refused += 1;
            let text = error.to_string();
            assert!(text.contains(place), "{case}: {text}");
            assert!(text.len() < 1200, "{case}: {text}");
        }
    }
    assert!(refused > count / 2, "{case}, {name}: {refused} of {count}");
    println!("{case}, {name}: {refused} of {count} refused");
    Ok(())
}

/// Bytes up to the end of a header.
fn header_end(case: &str, name: &str) -> Outcome<usize> {
    let file = fs::read(folder(case).join(name))?;
    Ok(8 + u64::from_le_bytes(file[..8].try_into()?) as usize)
}

#[test]
fn no_cut_and_no_changed_byte_of_weights_makes_loading_panic() -> Outcome {
    for (case, name) in [("gpt2", WEIGHTS), ("llama", "model-00001-of-00002.safetensors")] {
        let mut model = config(case)?.decoder(&cpu(1), KEY, DType::F32)?;
        let mut before = bits(&mut model);
        check_mutations(case, name, header_end(case, name)?, |folder| {
            let loaded = load(&mut model, folder);
            let after = bits(&mut model);
            assert!(loaded.is_ok() || after == before, "{case}");
            before = after;
            Ok(loaded?)
        })?;
    }
    let len = fs::metadata(folder("llama").join(INDEX))?.len() as usize;
    let mut model = config("llama")?.decoder(&cpu(1), KEY, DType::F32)?;
    check_mutations("llama", INDEX, len, |folder| Ok(load(&mut model, folder)?))
}

/// The descriptions of weights in NF4 are JSON inside tensors.
#[test]
fn no_changed_byte_of_weights_in_few_bits_makes_loading_panic() -> Outcome {
    for case in ["quantized-nf4", "quantized-int8"] {
        let to = copy(case)?;
        let path = to.path().join(WEIGHTS);
        let (good, config) = (fs::read(&path)?, Config::open(to.path())?);
        let (header, _) = split(&good)?;
        let start = header_end(case, WEIGHTS)?;
        let mut places: Vec<usize> = (0..start).step_by(11).collect();
        for (name, entry) in header {
            let offset = |at: usize| entry["data_offsets"][at].as_u64().unwrap_or(0) as usize;
            if name.contains("quant_state") {
                places.extend(start + offset(0)..start + offset(1));
            }
        }
        let mut refused = 0;
        for at in places {
            let mut bytes = good.clone();
            bytes[at] = other(bytes[at], at);
            fs::write(&path, bytes)?;
            if let Err(error) = config.load(&cpu(1), DType::BF16) {
                refused += 1;
                check_error(&error, to.path().to_str().ok_or("UTF-8")?, &[], case);
            }
        }
        println!("{case}: {refused} refused");
        assert!(refused > start / 22, "{case}: {refused}");
    }
    Ok(())
}

#[test]
fn adapters_that_lie_are_errors_by_name_and_change_nothing() -> Outcome {
    let config_file = "adapter_config.json";
    let good: Value = serde_json::from_slice(&fs::read(folder("lora-llama").join(config_file))?)?;
    let mut model = config("llama")?.load(&cpu(1), DType::F32)?;
    let before = bits(&mut model);
    let deep = (0..120).fold(json!(1), |inner, _| json!([inner]));
    for (field, value) in [
        ("r", json!(0)),
        ("r", json!(-1)),
        ("r", json!(1.5)),
        ("r", json!(u64::MAX)),
        ("r", json!(1_u64 << 62)),
        ("r", json!("2")),
        ("lora_alpha", json!(0)),
        ("lora_alpha", json!(-3.0)),
        ("lora_alpha", json!([])),
        ("lora_dropout", json!(1.0)),
        ("lora_dropout", json!(-0.5)),
        ("use_rslora", json!(1)),
        ("target_modules", json!([1])),
        ("target_modules", deep),
        ("rank_pattern", json!({ "q_proj": 4 })),
        ("peft_type", json!("x".repeat(100_000))),
        ("peft_type", json!(null)),
    ] {
        let to = copy("lora-llama")?;
        let mut config = good.clone();
        config[field] = value;
        fs::write(to.path().join(config_file), config.to_string())?;
        let error = load_adapters(&mut model, to.path()).expect_err(field);
        check_error(&error, config_file, &[field], field);
        assert!(bits(&mut model) == before, "{field}");
    }
    // A rank that the file does not have allocates nothing.
    let to = copy("lora-llama")?;
    let mut config = good;
    config["r"] = json!(65_536);
    fs::write(to.path().join(config_file), config.to_string())?;
    let device = cpu(1);
    let mut fresh = self::config("llama")?.load(&device, DType::F32)?;
    let peak = || device.allocator().statistics().allocated.peak_bytes;
    let loaded_peak = peak();
    let error = load_adapters(&mut fresh, to.path()).expect_err("another rank");
    check_error(&error, "adapter_model.safetensors", &["lora_A", "65536"], "rank");
    assert_eq!(peak(), loaded_peak);
    for name in [config_file, "adapter_model.safetensors"] {
        let len = fs::metadata(folder("lora-llama").join(name))?.len() as usize;
        let len = if name == config_file { len } else { header_end("lora-llama", name)? };
        check_mutations("lora-llama", name, len, |folder| {
            let mut model = model.clone();
            load_adapters(&mut model, folder)?;
            Ok(())
        })?;
    }
    assert!(bits(&mut model) == before);
    Ok(())
}

/// Values that an entry may be changed to.
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

/// Each entry of a configuration, changed to each odd value or left out: an error that names the
/// file, or a model that a simulated device can make.
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
    for case in CASES {
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

/// Looking through so many entries for each of so many layers would take minutes.
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
    check_error(&error, "config.json", &["xxx", "not built"], "a long name");
    Ok(())
}

#[test]
fn files_larger_than_any_of_their_kind_are_not_read() -> Outcome {
    let to = copy("llama")?;
    for (name, len) in [("config.json", 1_u64 << 40), (INDEX, 1 << 41)] {
        // It has a size, and nothing on the disk.
        let before = fs::read(to.path().join(name))?;
        fs::File::create(to.path().join(name))?.set_len(len)?;
        let loaded = Config::open(to.path()).and_then(|it| it.load(&cpu(1), DType::F32));
        check_error(&loaded.expect_err("too large"), name, &["more than"], name);
        fs::write(to.path().join(name), before)?;
    }
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        let to = copy("lora-llama")?;
        fs::File::create(to.path().join(name))?.set_len(1 << 40)?;
        let mut model = config("llama")?.load(&cpu(1), DType::F32)?;
        let error = load_adapters(&mut model, to.path()).expect_err("no file of that kind");
        check_error(&error, name, &[], name);
    }
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
            assert!(!to.exists() && !place.path().join("m.gguf.partial").exists(), "{what}");
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
        // The characters' file is twice as long and has the same parts.
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

/// Every beginning of a configuration is an error.
#[test]
fn no_cut_of_a_configuration_is_one() -> Outcome {
    for case in CASES {
        let text = fs::read_to_string(folder(case).join("config.json"))?;
        for len in 0..text.trim_end().len() {
            let Some(cut) = text.get(..len) else { continue };
            let error = Config::from_text("place", cut).expect_err("it is cut off");
            assert!(matches!(error, PretrainedError::Json { .. }), "{case}: {error}");
        }
    }
    Ok(())
}

/// Names of another program's tensors in the line of an error: as many as there is room for.
#[test]
fn tensors_that_are_not_known_are_told_in_a_line() -> Outcome {
    let to = tempfile::tempdir()?;
    let mut model = config("llama")?.load(&cpu(1), DType::F32)?;
    save(&mut model, to.path(), 1 << 30)?;
    let (mut header, data) = split(&fs::read(to.path().join(WEIGHTS))?)?;
    for at in 0..1000 {
        let name = format!("{at}{}", "x".repeat(5000));
        header.insert(name, json!({ "dtype": "F32", "shape": [0], "data_offsets": [0, 0] }));
    }
    fs::write(to.path().join(WEIGHTS), joined(&serde_json::to_vec(&header)?, &data))?;
    let error = load(&mut model, to.path()).expect_err("they are not known");
    check_error(&error, to.path().to_str().ok_or("UTF-8")?, &["and 992 more"], "names");
    Ok(())
}
