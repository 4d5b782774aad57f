//! Writing of weights to files, and reading back.

use std::fs;
use std::path::Path;

use lowtide_nn::{Parameters, WeightsProblem};
use lowtide_pretrained::{Config, Decoder, PretrainedError, WeightProblem, load, save};
use lowtide_tensor::{DType, Device, Tensor};
use safetensors::SafeTensors;

use crate::common::{CASES, KEY, Outcome, config, cpu, f64s, folder, small_sim};

fn bits(model: &mut Decoder) -> Vec<Vec<u8>> {
    let mut bits = Vec::new();
    model.visit(&mut |_, parameter| {
        bits.push(parameter.value().to_bytes().expect("values of the processor"));
    });
    bits
}

/// Name, shape, type and bytes.
pub(crate) type Stored = (String, Vec<usize>, String, Vec<u8>);

/// Every tensor of a folder's files.
pub(crate) fn stored(folder: &Path) -> Outcome<Vec<Stored>> {
    let mut stored = Vec::new();
    for file in fs::read_dir(folder)? {
        let path = file?.path();
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        if !name.starts_with("model") || !name.ends_with(".safetensors") {
            continue;
        }
        let bytes = fs::read(&path)?;
        for (name, view) in SafeTensors::deserialize(&bytes)?.iter() {
            let dtype = format!("{:?}", view.dtype());
            stored.push((name.to_owned(), view.shape().to_vec(), dtype, view.data().to_vec()));
        }
    }
    stored.sort();
    Ok(stored)
}

#[test]
fn saved_files_have_the_tensors_of_those_that_were_read() -> Outcome {
    for &case in CASES.iter() {
        let to = tempfile::tempdir()?;
        let mut model = config(case)?.load(&cpu(2), DType::F32)?;
        save(&mut model, to.path(), 1 << 30)?;
        assert!(stored(to.path())? == stored(&folder(case))?, "{case}");
        assert_eq!(fs::read_dir(to.path())?.count(), 1, "{case}");
    }
    Ok(())
}

#[test]
fn what_is_saved_is_loaded_again_in_one_file_and_in_many() -> Outcome {
    for &case in CASES.iter() {
        for (dtype, shard_bytes_max) in
            [(DType::F32, 1 << 30), (DType::BF16, 0), (DType::F64, 3000)]
        {
            let (to, config) = (tempfile::tempdir()?, config(case)?);
            let mut model = config.load(&cpu(2), dtype)?;
            save(&mut model, to.path(), shard_bytes_max)?;
            config.save(to.path())?;
            let plain = to.path().join("plain");
            let permissions = fs::File::create(&plain)?.metadata()?.permissions();
            for file in fs::read_dir(to.path())? {
                // The file has the permissions of any new file.
                assert_eq!(file?.metadata()?.permissions(), permissions, "{case} {dtype:?}");
            }
            fs::remove_file(plain)?;
            let mut again = Config::open(to.path())?.load(&cpu(2), dtype)?;
            assert!(bits(&mut again) == bits(&mut model), "{case} {dtype:?}");
        }
    }
    Ok(())
}

#[test]
fn a_folder_holds_one_model_whatever_it_held_before() -> Outcome {
    let (to, config) = (tempfile::tempdir()?, config("llama")?);
    let mut model = config.load(&cpu(1), DType::F32)?;
    for shard_bytes_max in [0, 1 << 30, 2000, 1 << 30] {
        save(&mut model, to.path(), shard_bytes_max)?;
        let (one, index) = ("model.safetensors", "model.safetensors.index.json");
        let is_one = shard_bytes_max > 2000;
        assert_eq!(to.path().join(one).exists(), is_one);
        assert_eq!(to.path().join(index).exists(), !is_one);
        let mut again = config.decoder(&cpu(1), KEY, DType::F32)?;
        load(&mut again, to.path())?;
        assert!(bits(&mut again) == bits(&mut model));
    }
    Ok(())
}

#[test]
fn every_float_type_is_converted_to_every_other() -> Outcome {
    let types = [DType::F64, DType::F32, DType::F16, DType::BF16];
    for case in ["gpt2", "neox", "qwen2"] {
        for stored in types {
            let (to, config) = (tempfile::tempdir()?, config(case)?);
            let mut narrow = config.load(&cpu(2), stored)?;
            save(&mut narrow, to.path(), 1 << 30)?;
            for dtype in types {
                let mut model = config.decoder(&cpu(2), KEY, dtype)?;
                load(&mut model, to.path())?;
                let mut expected = Vec::new();
                narrow.visit(&mut |_, parameter| {
                    let value = parameter.value().to_dtype(dtype).and_then(|x| x.to_bytes());
                    expected.push(value.expect("values of the processor"));
                });
                assert!(bits(&mut model) == expected, "{case}: {stored:?} to {dtype:?}");
            }
        }
    }
    Ok(())
}

/// Each part is complete when `change` gets it, has the names of the whole model, and is the only
/// part in its original type.
#[test]
fn parts_may_be_changed_before_the_next_is_read() -> Outcome {
    for &case in CASES.iter() {
        let (device, config) = (cpu(2), config(case)?);
        let mut whole = config.load(&device, DType::F32)?;
        let (mut names, mut values) = (Vec::new(), Vec::new());
        let mut by_parts = config.load_with(&device, DType::F32, |part| {
            part.visit(&mut |name, parameter| {
                names.push(name.to_owned());
                values.push(parameter.value().to_bytes().expect("values of the processor"));
            });
            part.set_dtype(DType::BF16)
        })?;
        let mut expected = Vec::new();
        whole.visit(&mut |name, _| expected.push(name.to_owned()));
        assert_eq!(names, expected, "{case}");
        assert!(values == bits(&mut whole), "{case}");
        whole.set_dtype(DType::BF16)?;
        assert!(bits(&mut by_parts) == bits(&mut whole), "{case}");
        let mut outline = config.decoder_with(&device, KEY, DType::F32, |_| Ok(()))?;
        assert!(bits(&mut outline) == bits(&mut config.decoder(&device, KEY, DType::F32)?));
    }
    Ok(())
}

#[test]
fn a_model_that_is_made_smaller_part_by_part_is_never_there_as_a_whole() -> Outcome {
    let config = Config::published("meta-llama/Llama-3.2-3B")?.ok_or("not there")?;
    let device = crate::common::sim(2, 1 << 40);
    let halve = |part: &mut dyn Parameters| part.set_dtype(DType::BF16);
    let _model = config.decoder_with(&device, KEY, DType::F32, halve)?;
    let peak_bytes = device.allocator().statistics().allocated.peak_bytes as u128;
    // The table, in f32 and in bf16, is the largest part.
    let table = 128_256 * 3072 * 4;
    assert!(peak_bytes <= 2 * config.parameter_count() + table, "{peak_bytes}");
    Ok(())
}

#[test]
fn what_does_not_fit_is_known_before_the_first_part_is_read() -> Outcome {
    let (device, mut seen) = (cpu(1), 0);
    let other = config("llama")?;
    let text = fs::read_to_string(folder("llama").join("config.json"))?;
    let text = text.replace("\"vocab_size\": 20", "\"vocab_size\": 21");
    let larger = Config::from_text(other.folder(), text)?;
    let found = larger.load_with(&device, DType::F32, |_| {
        seen += 1;
        Ok(())
    });
    assert!(matches!(found, Err(PretrainedError::Weights { problems, .. }) if problems.len() == 2));
    assert_eq!((seen, device.allocator().statistics().allocated.peak_bytes), (0, 0));
    Ok(())
}

/// A model with a table of more elements than are converted at a time.
#[test]
fn tensors_larger_than_the_scratch_are_converted_in_pieces() -> Outcome {
    let text = r#"{"architectures": ["GPT2LMHeadModel"], "vocab_size": 9001, "n_positions": 3,
        "n_embd": 512, "n_layer": 1, "n_head": 4, "activation_function": "gelu_new",
        "n_inner": 8203}"#;
    let (to, config) = (tempfile::tempdir()?, Config::from_text("large", text)?);
    let device = Device::cpu(Default::default())?;
    let mut narrow = config.decoder(&device, KEY, DType::BF16)?;
    save(&mut narrow, to.path(), 1 << 30)?;
    let (before, mut model) = (bits(&mut narrow), config.decoder(&device, KEY, DType::F32)?);
    let bytes = device.allocator().statistics().allocated.current_bytes;
    load(&mut model, to.path())?;
    let peak_bytes = device.allocator().statistics().allocated.peak_bytes;
    assert!(peak_bytes <= bytes.max(4 * 9001 * 512 * 2) + (9 << 20), "{peak_bytes}, {bytes}");
    model.set_dtype(DType::BF16)?;
    assert!(bits(&mut model) == before);
    Ok(())
}

/// The problems of loading a folder into a model of a case, and true if the model has changed.
fn problems(case: &str, folder: &Path) -> Outcome<(Vec<WeightProblem>, bool)> {
    let mut model = config(case)?.decoder(&cpu(1), KEY, DType::F32)?;
    let before = bits(&mut model);
    match load(&mut model, folder) {
        Err(PretrainedError::Weights { problems, .. }) => {
            Ok((problems, bits(&mut model) != before))
        }
        other => Err(format!("{other:?}").into()),
    }
}

#[test]
fn a_simulated_device_loads_with_the_same_allocations() -> Outcome {
    for &case in CASES.iter() {
        let allocated = |device: Device| -> Outcome<_> {
            config(case)?.load(&device, DType::BF16)?;
            Ok(device.allocator().statistics().allocated)
        };
        assert_eq!(allocated(cpu(2))?, allocated(small_sim(2))?, "{case}");
    }
    Ok(())
}

#[test]
fn without_memory_for_a_conversion_a_model_stays_as_it_was() -> Outcome {
    let (device, config) = (cpu(1), config("gpt2")?);
    let mut model = config.decoder(&device, KEY, DType::BF16)?;
    let before = bits(&mut model);
    let mut filler = Vec::new();
    for len in [1 << 20, 1 << 14, 1 << 9, 1] {
        while let Ok(tensor) = Tensor::empty(&device, [len], DType::U8) {
            filler.push(tensor);
        }
    }
    let error = load(&mut model, folder("gpt2")).expect_err("there is no memory left");
    assert!(error.out_of_memory().is_some(), "{error}");
    drop(filler);
    assert!(bits(&mut model) == before);
    load(&mut model, folder("gpt2"))?;
    assert!(bits(&mut model) != before);
    Ok(())
}

#[test]
fn damaged_files_are_errors_that_name_the_file() -> Outcome {
    let (from, config) = (folder("llama"), config("llama")?);
    let shard = "model-00001-of-00002.safetensors";
    let index = "model.safetensors.index.json";
    let bytes = fs::read(from.join(shard))?;
    let outside = br#"{"weight_map": {"a": "../x.safetensors"}}"#.to_vec();
    let damages: [(&str, Vec<u8>); 8] = [
        (shard, Vec::new()),
        (shard, bytes[..bytes.len() - 1].to_vec()),
        (shard, bytes[..20].to_vec()),
        (shard, [&u64::MAX.to_le_bytes()[..], &bytes[8..]].concat()),
        (index, b"{".to_vec()),
        (index, b"{}".to_vec()),
        (index, outside),
        (index, br#"{"weight_map": {"a": 3, "b": []}}"#.to_vec()),
    ];
    for (name, damaged) in damages {
        let to = tempfile::tempdir()?;
        for file in fs::read_dir(&from)? {
            let path = file?.path();
            fs::copy(&path, to.path().join(path.file_name().expect("a file")))?;
        }
        fs::write(to.path().join(name), &damaged)?;
        let mut model = config.decoder(&cpu(1), KEY, DType::F32)?;
        let before = bits(&mut model);
        let error = load(&mut model, to.path()).expect_err("it is damaged").to_string();
        assert!(error.contains(name), "{error}");
        assert!(bits(&mut model) == before, "{error}");
    }
    Ok(())
}

#[test]
fn weights_that_are_not_there_are_looked_for_in_one_file() -> Outcome {
    let to = tempfile::tempdir()?;
    let mut model = config("llama")?.decoder(&cpu(1), KEY, DType::F32)?;
    let error = load(&mut model, to.path()).expect_err("there is none").to_string();
    assert!(error.contains("model.safetensors"), "{error}");
    Ok(())
}

/// Older files have masks and angles, a copy of the tied output layer, and no `base`.
#[test]
fn tensors_that_nothing_needs_are_left_alone() -> Outcome {
    for (case, base, extra) in [
        ("gpt2", "transformer.", "h.1.attn.bias"),
        ("llama", "", "model.layers.0.self_attn.rotary_emb.inv_freq"),
        ("qwen2", "", "lm_head.weight"),
        ("neox", "", "gpt_neox.layers.0.attention.masked_bias"),
    ] {
        let (to, tensors) = (tempfile::tempdir()?, stored(&folder(case))?);
        let mut views = Vec::new();
        for (name, shape, _, data) in &tensors {
            let view =
                safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), data)?;
            views.push((name.strip_prefix(base).unwrap_or(name).to_owned(), view));
        }
        let one = [0; 4];
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![1], &one)?;
        views.push((extra.to_owned(), view));
        fs::write(to.path().join("model.safetensors"), safetensors::serialize(views, None)?)?;
        let mut model = config(case)?.decoder(&cpu(1), KEY, DType::F32)?;
        load(&mut model, to.path())?;
        let mut expected = config(case)?.load(&cpu(1), DType::F32)?;
        assert!(bits(&mut model) == bits(&mut expected), "{case}");
    }
    Ok(())
}

#[test]
fn initial_weights_depend_on_the_key_and_on_the_name() -> Outcome {
    let values = |key: u64, case: &str| -> Outcome<Vec<(String, Vec<f64>)>> {
        let key = lowtide_tensor::RandomKey::new(key);
        let mut model = config(case)?.decoder(&cpu(2), key, DType::F64)?;
        let mut values = Vec::new();
        model.visit(&mut |name, parameter| {
            values.push((name.to_owned(), f64s(parameter.value()).expect("values")));
        });
        Ok(values)
    };
    for &case in CASES.iter() {
        let (first, again, other) = (values(1, case)?, values(1, case)?, values(2, case)?);
        assert_eq!(first, again);
        for ((name, values), (_, other)) in first.iter().zip(&other) {
            let is_norm = name.contains("norm") || name.contains("ln_");
            if name.ends_with("bias") || (is_norm && case.starts_with("gemma")) {
                assert!(values.iter().all(|x| *x == 0.0), "{case}: {name}");
            } else if is_norm {
                assert!(values.iter().all(|x| *x == 1.0), "{case}: {name}");
            } else {
                assert_ne!(values, other, "{case}: {name}");
                let square = values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64;
                let branch = name.contains("c_proj");
                let deviation = if branch { 0.02 / 2.0 } else { 0.02 };
                assert!((square.sqrt() / deviation - 1.0).abs() < 0.4, "{case}: {name} {square}");
            }
        }
    }
    Ok(())
}

#[test]
fn missing_unknown_and_misshapen_tensors_are_all_named() -> Outcome {
    let (to, tensors) = (tempfile::tempdir()?, stored(&folder("llama"))?);
    let mut views = Vec::new();
    for (name, shape, _, data) in &tensors {
        let (mut name, mut shape) = (name.clone(), shape.clone());
        match name.as_str() {
            "model.norm.weight" => name = "model.norm.scale".to_owned(),
            "lm_head.weight" => shape.reverse(),
            _ => {}
        }
        let of = safetensors::tensor::TensorView::new;
        let dtype = match name.as_str() {
            "model.embed_tokens.weight" => safetensors::Dtype::I32,
            _ => safetensors::Dtype::F32,
        };
        views.push((name, of(dtype, shape, data)?));
    }
    fs::write(to.path().join("model.safetensors"), safetensors::serialize(views, None)?)?;
    let (found, has_changed) = problems("llama", to.path())?;
    let found: Vec<(&str, &WeightsProblem)> =
        found.iter().map(|it| (it.name.as_str(), &it.problem)).collect();
    let shape = WeightsProblem::Shape { found: vec![8, 20], expected: [20, 8].into() };
    let (found_type, expected) = ("I32".to_owned(), "a float".to_owned());
    let expected = [
        ("model.embed_tokens.weight", &WeightsProblem::Type { found: found_type, expected }),
        ("model.norm.weight", &WeightsProblem::Missing),
        ("lm_head.weight", &shape),
        ("model.norm.scale", &WeightsProblem::Unknown),
    ];
    assert_eq!(found, expected);
    assert!(!has_changed);
    Ok(())
}
