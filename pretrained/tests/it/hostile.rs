//! Untrusted files: wrong lengths, overlaps, depth. Each is refused with the name of the file and
//! the fault, takes no memory for claimed sizes, and changes nothing.

use std::fs;
use std::path::Path;

use lowtide_nn::{Parameters, load_adapters};
use lowtide_pretrained::{Config, Decoder, PretrainedResult as Result, load, save};
use lowtide_tensor::DType;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::common::{KEY, Outcome, config, cpu, folder};

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// A copy of a folder of the fixtures.
pub(crate) fn copy(case: &str) -> Outcome<TempDir> {
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

/// Checks that the text of an error names `file` and has all of `words`.
#[track_caller]
pub(crate) fn check_error(error: &dyn std::error::Error, file: &str, words: &[&str], what: &str) {
    let text = error.to_string();
    assert!(text.contains(file), "{what}: no {file} in {text}");
    for word in words {
        assert!(text.contains(word), "{what}: no {word:?} in {text}");
    }
    assert!(text.len() < 1200, "{what}: {} bytes: {text}", text.len());
}

/// The header of a safetensors file, and the bytes of the tensors.
fn split(file: &[u8]) -> Outcome<(Map<String, Value>, Vec<u8>)> {
    let len = u64::from_le_bytes(file[..8].try_into()?) as usize;
    Ok((serde_json::from_slice(&file[8..][..len])?, file[8 + len..].to_vec()))
}

fn joined(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header, data].concat()
}

/// A file with one changed entry of its header.
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
        // Loading fails before a model is made.
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
        // No tensor of the model is listed.
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
    // Tensors in two files.
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

/// Opening a pipe would wait for a writer.
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

/// A byte that differs from `byte` and depends on a seed.
fn other(byte: u8, seed: usize) -> u8 {
    let mixed = (seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
    byte ^ (mixed as u8).max(1)
}

/// Every prefix of a file, and the file with each of the bytes up to `changed_len` changed in a few
/// ways. Only a share of these files without `PROPTEST_CASES`, because all take minutes.
pub(crate) fn mutations(good: &[u8], changed_len: usize) -> impl Iterator<Item = Vec<u8>> + '_ {
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
    // 23 has no common divisor with the number of changes of a byte.
    cut.chain(changed).step_by(if is_deep { 1 } else { 23 })
}

/// Loads each mutation of a file: the result is an error that names the file or its folder, or a
/// model.
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

/// Number of bytes up to the end of a header.
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

#[test]
fn files_larger_than_any_of_their_kind_are_not_read() -> Outcome {
    let to = copy("llama")?;
    for (name, len) in [("config.json", 1_u64 << 40), (INDEX, 1 << 41)] {
        // The file has a size, but no blocks on the disk.
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

/// An error lists the names of unknown tensors up to a maximum length.
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
