//! Memory that runs out at any allocation of loading, merging and exporting: a typed error, no
//! change, nothing left behind, and the same bytes at the next try.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs;
use std::path::Path;

use lowtide_allocator::{Fault, Repeat};
use lowtide_nn::{LoraOptions, Parameters, adapt, load_adapters, merge};
use lowtide_pretrained::{
    Config, Decoder, GgufOptions, GgufType, OnnxOptions, OnnxType, PretrainedError,
    PretrainedResult as Result, load, save, save_gguf, save_onnx,
};
use lowtide_tensor::{DType, Device, QuantFormat};

use crate::common::{KEY, Outcome, config, cpu, folder};

/// The bytes of files by their paths in a folder; `None` for folders.
type Files = BTreeMap<String, Option<Vec<u8>>>;

fn files(folder: &Path) -> Outcome<Files> {
    let mut files = Files::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() {
            let inside = self::files(&path)?;
            files.insert(name.clone(), None);
            files.extend(inside.into_iter().map(|(own, it)| (format!("{name}/{own}"), it)));
        } else {
            drop(files.insert(name, Some(fs::read(path)?)))
        }
    }
    Ok(files)
}

/// The values of all tensors, and a flag for frozen parameters.
fn state(model: &mut Decoder) -> Vec<(String, Vec<u8>, bool)> {
    let mut state = Vec::new();
    model.visit_tensors(&mut |name, value| {
        state.push((name.to_owned(), value.to_bytes().expect("of the processor"), false));
    });
    model.visit(&mut |name, parameter| {
        state.push((name.to_owned(), Vec::new(), parameter.is_frozen()));
    });
    state
}

/// Lets each request of `work` fail in turn, once and from then on. `check` is called after each
/// failure. Returns the number of requests.
fn fail_every_request<T: Debug>(
    device: &Device,
    what: &str,
    mut work: impl FnMut() -> Result<T>,
    mut check: impl FnMut(&str) -> Outcome,
) -> Outcome<u64> {
    let memory = device.allocator();
    let start = memory.request_count();
    drop(work()?);
    let requests = memory.request_count() - start;
    assert!(requests > 0, "{what}");
    for nth in 1..=requests {
        for repeat in [Repeat::Once, Repeat::Forever] {
            memory.inject_fault(Fault { nth, repeat });
            let outcome = work();
            memory.clear_fault();
            let place = format!("{what}: request {nth} of {requests}, {repeat:?}");
            match outcome {
                Err(error) => assert!(error.out_of_memory().is_some(), "{place}: {error}"),
                Ok(_) => panic!("{place}: done without memory"),
            }
            check(&place)?;
        }
    }
    Ok(requests)
}

/// Quantises the weights of linear layers, except output layers.
fn quantized(part: &mut dyn Parameters) -> lowtide_nn::NnResult<()> {
    let mut outcome = Ok(());
    part.visit_linears(&mut |name, layer| {
        if outcome.is_ok() && !lowtide_nn::is_output_layer(name) {
            outcome = layer.quantize(QuantFormat::Nf4 { double: true });
        }
    });
    outcome
}

/// A function that loads the model of a case for training.
type Method = fn(&str, &Device) -> Result<Decoder>;

const METHODS: [(&str, Method); 4] = [
    ("full", |case, device| Config::open(folder(case))?.load(device, DType::BF16)),
    ("new adapters", |case, device| {
        let mut model = Config::open(folder(case))?.load(device, DType::F32)?;
        adapt(&mut model, KEY, &LoraOptions::default())?;
        Ok(model)
    }),
    ("adapters of PEFT", |case, device| {
        let mut model = Config::open(folder(case))?.load(device, DType::F32)?;
        load_adapters(&mut model, &folder(&format!("lora-{case}")))?;
        Ok(model)
    }),
    ("adapters beside few bits", |case, device| {
        let config = Config::open(folder(case))?;
        let mut model = config.load_with(device, DType::BF16, quantized)?;
        adapt(&mut model, KEY, &LoraOptions::default())?;
        Ok(model)
    }),
];

#[test]
fn loading_without_memory_leaves_none_of_it_and_the_files_as_they_were() -> Outcome {
    let mut requests = 0;
    for case in ["llama", "gpt2", "neox"] {
        let before = files(&folder(case))?;
        for (method, load) in METHODS {
            let device = cpu(1);
            let expected = state(&mut load(case, &device)?);
            let blocks = device.allocator().live_blocks();
            let what = format!("{case}, {method}");
            requests += fail_every_request(
                &device,
                &what,
                || load(case, &device).map(drop),
                |place| {
                    assert!(device.allocator().live_blocks() == blocks, "{place}");
                    Ok(())
                },
            )?;
            assert!(state(&mut load(case, &device)?) == expected, "{what}");
        }
        assert!(files(&folder(case))? == before, "{case}");
    }
    println!("{requests} requests failed");
    Ok(())
}

/// Files with quantised weights are mapped, and other tensors are converted.
#[test]
fn mapping_without_memory_leaves_none_of_it() -> Outcome {
    for case in ["quantized-nf4", "quantized-int8"] {
        let (device, config) = (cpu(1), config(case)?);
        let expected = state(&mut config.load(&device, DType::BF16)?);
        let blocks = device.allocator().live_blocks();
        fail_every_request(
            &device,
            case,
            || {
                let mut model = config.load(&device, DType::BF16)?;
                adapt(&mut model, KEY, &LoraOptions::default())?;
                Ok(())
            },
            |place| {
                assert!(device.allocator().live_blocks() == blocks, "{place}");
                assert_eq!(device.mapped_bytes(), 0, "{place}");
                Ok(())
            },
        )?;
        assert!(state(&mut config.load(&device, DType::BF16)?) == expected, "{case}");
    }
    Ok(())
}

#[test]
fn weights_are_read_into_a_model_as_a_whole_or_not_at_all() -> Outcome {
    for (case, dtype) in [("llama", DType::BF16), ("gpt2", DType::F32), ("gpt2", DType::F16)] {
        let (device, from) = (cpu(1), folder(case));
        let mut model = config(case)?.decoder(&device, KEY, dtype)?;
        let before = state(&mut model);
        let memory = device.allocator();
        let start = memory.request_count();
        load(&mut config(case)?.decoder(&cpu(1), KEY, dtype)?, &from)?;
        assert_eq!(memory.request_count(), start);
        for nth in 1.. {
            memory.inject_fault(Fault { nth, repeat: Repeat::Once });
            let outcome = load(&mut model, &from);
            memory.clear_fault();
            let Err(error) = outcome else { break };
            assert!(error.out_of_memory().is_some(), "{case}: {error}");
            assert!(state(&mut model) == before, "{case}: request {nth}");
        }
        let mut whole = config(case)?.load(&device, dtype)?;
        assert!(state(&mut model) == state(&mut whole), "{case}");
    }
    Ok(())
}

/// A model whose adapters change its results.
fn adapted(case: &str, device: &Device) -> Outcome<Decoder> {
    let mut model = config(case)?.load(device, DType::F32)?;
    adapt(&mut model, KEY, &LoraOptions { rank: 2, dora: case == "llama", ..Default::default() })?;
    model.visit(&mut |name, parameter| {
        if name.ends_with("lora_B.weight") {
            parameter.value_mut().fill_(0.25).expect("writable");
        }
    });
    Ok(model)
}

#[test]
fn merging_without_memory_leaves_adapters_beside_weights_as_they_were() -> Outcome {
    for case in ["llama", "gpt2", "neox"] {
        let device = cpu(1);
        let mut expected = adapted(case, &device)?;
        let start = device.allocator().request_count();
        merge(&mut expected)?;
        let requests = device.allocator().request_count() - start;
        let mut model = adapted(case, &device)?;
        let (before, blocks) = (state(&mut model), device.allocator().live_blocks());
        for nth in 1..=requests {
            device.allocator().inject_fault(Fault { nth, repeat: Repeat::Once });
            let error = merge(&mut model).expect_err("a request failed");
            device.allocator().clear_fault();
            assert!(error.out_of_memory().is_some(), "{case}: {error}");
            assert!(device.allocator().live_blocks() == blocks, "{case}: request {nth}");
            assert!(state(&mut model) == before, "{case}: request {nth}");
        }
        merge(&mut model)?;
        assert!(state(&mut model) == state(&mut expected), "{case}");
    }
    Ok(())
}

/// An export to a path of a folder.
type Export = fn(&mut Decoder, &Config, &Path) -> Result<()>;

fn gguf(model: &mut Decoder, config: &Config, to: &Path, kind: GgufType) -> Result<()> {
    let options = GgufOptions { tensor_type: Some(kind), name: None };
    save_gguf(model, config, to, &options).map(drop)
}

fn onnx(model: &mut Decoder, config: &Config, to: &Path, kind: OnnxType) -> Result<()> {
    save_onnx(model, config, to, &OnnxOptions { tensor_type: Some(kind) })
}

const EXPORTS: [(&str, Export); 8] = [
    ("safetensors", |model, _, to| save(model, to, 1 << 30)),
    ("shards", |model, _, to| save(model, to, 2000)),
    ("shards in new folders", |model, _, to| save(model, to.join("a/b"), 2000)),
    ("gguf f32", |model, config, to| gguf(model, config, to, GgufType::F32)),
    ("gguf bf16", |model, config, to| gguf(model, config, to, GgufType::Bf16)),
    ("gguf q8_0", |model, config, to| gguf(model, config, to, GgufType::Q8_0)),
    ("onnx f32", |model, config, to| onnx(model, config, to, OnnxType::F32)),
    ("onnx f16", |model, config, to| onnx(model, config, to, OnnxType::F16)),
];

#[test]
fn exporting_without_memory_leaves_nothing_and_the_model_as_it_was() -> Outcome {
    let mut requests = 0;
    for case in ["llama-3.1", "gpt2", "neox"] {
        let (device, config) = (cpu(1), config(case)?);
        let mut model = config.load(&device, DType::F32)?;
        // Another model, exported before in half of the cases.
        let mut earlier = config.decoder(&cpu(1), KEY, DType::F32)?;
        let (before, blocks) = (state(&mut model), device.allocator().live_blocks());
        for (format, export) in EXPORTS {
            let what = format!("{case}, {format}");
            let whole = tempfile::tempdir()?;
            let out = |place: &tempfile::TempDir| place.path().join("out");
            if device_needs_nothing(&device, || export(&mut model, &config, &out(&whole)))? {
                // The values are written without a conversion.
                continue;
            }
            let expected = files(whole.path())?;
            for has_earlier in [false, true] {
                let place = tempfile::tempdir()?;
                if has_earlier {
                    export(&mut earlier, &config, &out(&place))?;
                }
                let was = files(place.path())?;
                let to = tempfile::tempdir()?;
                let mut is_first = true;
                requests += fail_every_request(
                    &device,
                    &what,
                    || {
                        // The first run, which counts requests without a fault, has another folder.
                        let to = if std::mem::take(&mut is_first) { &to } else { &place };
                        export(&mut model, &config, &out(to))
                    },
                    |at| {
                        assert!(files(place.path())? == was, "{at}");
                        assert!(device.allocator().live_blocks() == blocks, "{at}");
                        Ok(())
                    },
                )?;
                assert!(state(&mut model) == before, "{what}");
                export(&mut model, &config, &out(&place))?;
                assert!(files(place.path())? == expected, "{what}");
            }
        }
    }
    println!("{requests} requests failed");
    Ok(())
}

/// True if work that succeeds makes no request.
fn device_needs_nothing(device: &Device, work: impl FnOnce() -> Result<()>) -> Outcome<bool> {
    let start = device.allocator().request_count();
    work()?;
    Ok(device.allocator().request_count() == start)
}

/// On a simulated device no value can be read, so every export fails after its beginning.
#[test]
fn exports_that_fail_leave_no_folder_that_was_not_there() -> Outcome {
    let config = config("llama")?;
    let mut model = config.decoder(&crate::common::small_sim(1), KEY, DType::F32)?;
    for (format, export) in EXPORTS {
        let place = tempfile::tempdir()?;
        let outcome = export(&mut model, &config, &place.path().join("out"));
        assert!(matches!(outcome, Err(PretrainedError::Nn(_))), "{format}: {outcome:?}");
        assert_eq!(fs::read_dir(place.path())?.count(), 0, "{format}");
    }
    Ok(())
}
