//! Pretrained models: `lowtide plan MODEL`, `finetune` and `generate`.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::place::Place;

/// A Llama of 30 thousand parameters with random weights; `fixtures/make_tiny_llama.py` made it.
fn tiny_llama() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-llama")
}

/// A place with the model `llama`, and questions with answers in `chats.jsonl`, `pairs.jsonl` and
/// `texts.jsonl`.
pub(crate) fn place() -> Place {
    let place = Place::new();
    fs::create_dir(place.path("llama")).expect("a folder");
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(tiny_llama().join(name), place.path("llama").join(name)).expect("the fixture");
    }
    let (mut chats, mut pairs, mut texts) = (String::new(), String::new(), String::new());
    for number in 0..60 {
        let (question, answer) = (format!("after {number}?"), format!("{}", number + 1));
        let turn = |role, content| serde_json::json!({ "role": role, "content": content });
        let messages = [turn("user", &question), turn("assistant", &answer)];
        let _ = writeln!(chats, "{}", serde_json::json!({ "messages": messages }));
        let pair = serde_json::json!({ "prompt": question, "completion": answer });
        let _ = writeln!(pairs, "{pair}");
        let text = serde_json::json!({ "text": format!("{question} {answer}") });
        let _ = writeln!(texts, "{text}");
    }
    for (name, lines) in [("chats", chats), ("pairs", pairs), ("texts", texts)] {
        place.write(&format!("{name}.jsonl"), lines);
    }
    place
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// The text as a terminal may get it.
fn visible(text: &str) -> String {
    let is_shown = |char: char| !char.is_control() || matches!(char, '\n' | '\t');
    let shown = text.chars().map(|char| match char {
        char if is_shown(char) => char.to_string(),
        char => format!("\\u{:04x}", u32::from(char)),
    });
    shown.collect()
}

#[test]
fn control_characters_that_a_model_says_do_not_reach_the_terminal() {
    let place = place();
    // A model of random weights says every byte.
    let generate = "generate llama --prompt after --tokens 200 --temperature 1 --seed 3";
    let answer = json(&place.run(&format!("{generate} --json")).check_done());
    let text = answer["text"].as_str().expect("a text");
    assert_ne!(visible(text), text, "the model has said no control character");
    assert_eq!(place.run(generate).check_done(), visible(text) + "\n");
}

#[test]
fn published_models_are_planned_by_their_names_for_each_method() {
    let place = Place::new();
    let peak = |options: &str| {
        let plan =
            format!("plan Qwen/Qwen3-0.6B --batch 2 --seq 128 --budget 64GiB --json {options}");
        let plan = json(&place.run(&plan).check_done());
        plan["predicted_peak_bytes"].as_u64().expect("bytes")
    };
    let [full, bf16] = ["", "--base bf16"].map(peak);
    let [lora, int8, nf4] =
        ["bf16", "int8", "nf4"].map(|base| peak(&format!("--lora 16 --base {base}")));
    // 596,049,920 parameters: 16 bytes each with gradients and Adam's states, or 12 in bf16.
    assert!(full > 16 * 596_049_920, "{full}");
    assert!((12 * 596_049_920..full).contains(&bf16), "{bf16}");
    assert!((2 * 596_049_920..bf16 / 2).contains(&lora), "{lora}");
    assert!(int8 < lora && nf4 < int8, "{lora} {int8} {nf4}");
    let longest = "plan Qwen/Qwen3-0.6B --batch 1 --lora 8 --base bf16 --budget 2GiB --longest";
    let found = json(&place.run(&format!("{longest} --json")).check_done());
    let context = found["longest"][0]["context"].as_u64().expect("tokens");
    let at = |context: u64| {
        let options = "--batch 1 --lora 8 --base bf16 --budget 2GiB";
        place.run(&format!("plan Qwen/Qwen3-0.6B {options} --seq {context}"))
    };
    at(context).check_done();
    at(context + 1).check_refused(2, &["does not fit"]);
    let words = place.run(longest).check_done();
    assert!(words.contains(&format!("2 GiB        {context} ")), "{words}");
}

#[test]
fn least_budget_has_a_plan_and_a_byte_less_has_none() {
    let place = Place::new();
    let model = "plan HuggingFaceTB/SmolLM2-135M --batch 2 --seq 256 --lora 16 --base nf4";
    for device in ["", "--device h100:80GiB"] {
        let least = json(&place.run(&format!("{model} {device} --least --json")).check_done());
        let bytes = least["budget_bytes"].as_u64().expect("bytes");
        // On an NVIDIA device, blocks that are copied ahead may improve the placement of others.
        // The peak is then below the budget.
        assert!(least["predicted_peak_bytes"].as_u64() <= Some(bytes), "{device}: {least}");
        let within = |options: &str| place.run(&format!("{model} {device} --budget {options}"));
        let mut plan = json(&within(&format!("{bytes}B --json")).check_done());
        plan["budget_from"] = least["budget_from"].clone();
        assert_eq!(plan, least, "{device}");
        let refused = within(&format!("{}B", bytes - 1));
        assert!(refused.code == Some(2) && refused.stderr.contains("does not fit"), "{refused:?}");
        // Rehearsals for one budget are reused for the next one.
        let several = within(&format!("{}B,{bytes}B,64GiB --json", bytes - 1));
        assert_eq!(several.code, Some(2), "{several:?}");
        let several = json(&several.stdout);
        let needed = &several["plans"][0]["does_not_fit"]["needed_bytes"];
        assert_eq!(needed.as_u64(), Some(bytes), "{device}");
        for name in ["micro_batch", "recomputed_blocks", "predicted_peak_bytes"] {
            assert_eq!(several["plans"][1][name], least[name], "{device}");
        }
        let words = place.run(&format!("{model} {device} --least")).check_done();
        assert!(words.contains(&format!("({bytes} bytes): the smallest that")), "{words}");
    }
    place.run(&format!("{model} --least --budget 1GiB")).check_refused(1, &["--least", "--budget"]);
}

#[test]
fn adapters_learn_within_the_plan_and_alone_are_saved() {
    let place = place();
    let options =
        "--lora 8 --seq 32 --batch 8 --epochs 20 --set optimizer.learning_rate=0.01 --quiet";
    let out = place.run(&format!("finetune llama chats.jsonl {options} --out run --json"));
    let summary = json(&out.check_done());
    assert_eq!(summary["predicted_peak_bytes"], summary["measured_peak_bytes"]);
    let model = fs::metadata(place.path("run/model.safetensors")).expect("a model").len();
    let base = fs::metadata(place.path("llama/model.safetensors")).expect("weights").len();
    assert!(model < base / 2, "{model} of {base} bytes: the base is not in it");
    let first = first_loss(&place);
    let last = summary["test_loss"].as_f64().expect("a loss");
    // The head is the frozen token table, so adapters can improve little.
    assert!(last < first - 0.2, "{first} to {last}");

    let evaluated = json(&place.run("eval run --json").check_done());
    assert_eq!(evaluated["test_loss"], summary["test_loss"]);
    let generate = "generate run --prompt after --tokens 8 --temperature 0.9 --seed 3 --json";
    let answer = json(&place.run(generate).check_done());
    assert_eq!(json(&place.run(generate).check_done()), answer);
    assert!((1..=8).contains(&answer["tokens"].as_u64().expect("a count")), "{answer}");
    let chat = json(&place.run("generate run --chat --prompt hi --tokens 4 --json").check_done());
    // The frame of a turn of Llama 3: two headers, of three tokens and line ends, and an end.
    assert!(chat["prompt_tokens"].as_u64().expect("a count") >= 12, "{chat}");
    // The text that is written step by step is the same.
    let written = place.run(&generate.replace(" --json", "")).check_done();
    assert_eq!(written, visible(answer["text"].as_str().expect("a text")) + "\n");
    place.run("generate llama --prompt after --tokens 4").check_done();

    // Exported weights of the whole model include the adapters that the run learned.
    fs::create_dir(place.path("merged.partial")).expect("a folder of the user's");
    place.run("export run merged").check_done();
    assert!(place.path("merged.partial").is_dir());
    let tokens = |model: &str| {
        let greedy = format!("generate {model} --prompt after --tokens 16 --json");
        json(&place.run(&greedy).check_done())["text"].clone()
    };
    assert_eq!(tokens("merged"), tokens("run"));
    assert_eq!(place.list("merged").len(), 3, "{:?}", place.list("merged"));
    place.run("export run merged").check_refused(1, &["merged"]);
    place.run("export none lost").check_refused(1, &["none"]);
    assert!(!place.list(".").iter().any(|name| name.contains("lost")), "nothing is left of it");
    place.run("export run adapters --format peft").check_done();
    assert_eq!(place.list("adapters"), ["adapter_config.json", "adapter_model.safetensors"]);
}

#[test]
fn models_and_runs_are_exported_as_gguf_files() {
    let place = place();
    let said = place.run("export llama plain.gguf --format gguf").check_done();
    assert!(said.contains("plain.gguf has the model"), "{said}");
    let plain = place.read("plain.gguf");
    assert!(plain.starts_with(b"GGUF\x03\0\0\0"));
    let has = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|it| it == text.as_bytes());
    for text in ["general.architecture", "llama.block_count", "tokenizer.ggml.merges", "gpt-2"] {
        assert!(has(&plain, text), "{text}");
    }
    let mut sizes = Vec::new();
    for kind in ["f32", "bf16", "q8_0", "q4_0"] {
        place.run(&format!("export llama {kind}.gguf --format gguf --type {kind}")).check_done();
        sizes.push(place.read(&format!("{kind}.gguf")).len());
    }
    assert!(sizes.windows(2).all(|pair| pair[1] < pair[0]), "{sizes:?}");
    assert!(place.read("f32.gguf") == plain);

    // An exported file has the weights that the run learned, and nothing else differs.
    let options = "--lora 4 --base int8 --seq 16 --batch 8 --epochs 1 --quiet --out run";
    place.run(&format!("finetune llama texts.jsonl {options}")).check_done();
    place.run("export run run.gguf --format gguf --type f32").check_done();
    let learned = place.read("run.gguf");
    assert!(learned.len() == plain.len() && learned != plain);
    place.run("export run merged").check_done();
    place.run("export merged merged.gguf --format gguf --type f32").check_done();
    let merged = place.read("merged.gguf");
    let tensors = |bytes: &[u8]| bytes[bytes.len() - 100_000..].to_vec();
    assert!(tensors(&merged) == tensors(&learned));

    fs::remove_file(place.path("llama/tokenizer.json")).expect("it was there");
    let said = place.run("export llama bare.gguf --format gguf").check_done();
    assert!(said.contains("no vocabulary"), "{said}");
    let refused = |arguments: &str, words: &[&str]| {
        let before = place.list(".");
        place.run(arguments).check_refused(1, words);
        assert_eq!(place.list("."), before, "{arguments}");
    };
    refused("export llama plain.gguf --format gguf", &["plain.gguf", "exists"]);
    refused("export llama lost.gguf --format gguf --type q5_1", &["q5_1", "q4_0"]);
    refused("export llama lost --type q8_0", &["--type", "--format gguf"]);
    refused("export llama lost --format onnx --type q8_0", &["--type", "f32 or f16"]);
    refused("export llama lost --format peft", &["llama", "no adapters"]);
    refused("export none lost.gguf --format gguf", &["none is no folder"]);
    place.train("digits --epochs 1 --set model.channels=4", "digits");
    refused("export digits lost.gguf --format gguf", &["not a pretrained one"]);
}

#[test]
fn models_and_runs_are_exported_as_onnx_graphs() {
    let place = place();
    let files = ["config.json", "model.onnx", "model.onnx.data", "tokenizer.json"];
    let mut sizes = Vec::new();
    for options in ["", "--type f32", "--type f16"] {
        let out = format!("onnx{}", sizes.len());
        place.run(&format!("export llama {out} --format onnx {options}")).check_done();
        assert_eq!(place.list(&out), files);
        sizes.push(place.read(&format!("{out}/model.onnx.data")).len());
    }
    assert!(sizes[0] == sizes[1] && sizes[2] < sizes[1], "{sizes:?}");
    let options = "--lora 4 --seq 16 --batch 8 --epochs 1 --quiet --out run";
    place.run(&format!("finetune llama texts.jsonl {options}")).check_done();
    place.run("export run learned --format onnx").check_done();
    let data = |folder: &str| place.read(&format!("{folder}/model.onnx.data"));
    assert!(data("learned").len() == sizes[0] && data("learned") != data("onnx0"));
    place.run("export run merged").check_done();
    place.run("export merged again --format onnx").check_done();
    assert!(data("again") == data("learned"));
}

fn first_loss(place: &Place) -> f64 {
    let metrics = place.read("run/metrics.jsonl");
    let metrics = String::from_utf8(metrics).expect("text");
    let losses = metrics.lines().filter_map(|line| json(line)["loss"].as_f64());
    losses.take(1).last().expect("a step")
}

#[test]
fn every_method_runs_as_planned_and_goes_on_to_the_same_bits() {
    let place = place();
    let methods = ["", "--lora 4", "--lora 4 --base int8", "--lora 4 --base nf4", "--base bf16"];
    for (index, method) in methods.into_iter().enumerate() {
        for data in ["pairs.jsonl", "texts.jsonl"] {
            let common = format!("{method} --seq 24 --batch 4 --quiet --json");
            let run = |options: &str| {
                json(&place.run(&format!("finetune llama {data} {common} {options}")).check_done())
            };
            let whole = run(&format!("--epochs 2 --out whole{index}{data}"));
            assert_eq!(whole["predicted_peak_bytes"], whole["measured_peak_bytes"], "{method}");
            let part = format!("part{index}{data}");
            run(&format!("--epochs 1 --checkpoint-every 1epoch --out {part}"));
            let resumed = format!("train --resume {part} --epochs 2 --quiet --json");
            let resumed = json(&place.run(&resumed).check_done());
            assert_eq!(resumed["final_state_hash"], whole["final_state_hash"], "{method} {data}");
        }
    }
}

#[test]
fn a_model_in_few_bits_is_trained_beside_from_its_files() {
    let place = place();
    for (bits, format) in [("nf4", 4), ("int8", 8)] {
        place.run(&format!("export llama few{bits} --type {bits}")).check_done();
        let config =
            json(&String::from_utf8(place.read(&format!("few{bits}/config.json"))).unwrap());
        assert_eq!(config["quantization_config"][format!("load_in_{format}bit")], true, "{config}");
        let common = "texts.jsonl --lora 4 --seq 24 --batch 4 --epochs 2 --quiet --json";
        let run = |model: &str| {
            let out = place.run(&format!("finetune {model} {common} --out run-{}", model.len()));
            json(&out.check_done())
        };
        let mapped = run(&format!("few{bits}"));
        assert_eq!(mapped["predicted_peak_bytes"], mapped["measured_peak_bytes"], "{bits}");
        let in_memory = run(&format!("llama --base {bits}"));
        // Besides the quantised weights, tables and norms are bf16 in one model and f32 in the
        // other.
        let loss = |summary: &Value| summary["test_loss"].as_f64().expect("a loss");
        let [x, y] = [loss(&mapped), loss(&in_memory)];
        assert!((x - y).abs() < 0.02 * y, "{bits}: {x} {y}");
        let trained = format!("run-{}", format!("few{bits}").len());
        place.run(&format!("export {trained} merged{bits}")).check_done();
        let text = |model: &str| {
            let greedy = format!("generate {model} --prompt after --tokens 8 --json");
            json(&place.run(&greedy).check_done())["text"].clone()
        };
        assert_eq!(text(&trained), text(&format!("merged{bits}")), "{bits}");
        place.run(&format!("finetune few{bits} texts.jsonl")).check_refused(1, &["model.lora"]);
        let again = format!("finetune few{bits} texts.jsonl --lora 4 --base int8");
        place.run(&again).check_refused(1, &["model.base", "already"]);
    }
    place.run("export llama other --type q8_0").check_refused(1, &["--type", "nf4"]);
}

/// Changes the file `name` by one bit.
fn flip(place: &Place, name: &str) {
    let mut bytes = place.read(name);
    *bytes.last_mut().expect("a weight") ^= 0x80;
    place.write(name, bytes);
}

#[test]
fn other_weights_of_the_base_of_adapters_are_noted_and_other_adapters_are_refused() {
    let place = place();
    let options = "--seq 16 --batch 8 --epochs 1 --quiet";
    place.run(&format!("finetune llama texts.jsonl --lora 4 {options} --out run")).check_done();
    place.run(&format!("finetune llama texts.jsonl {options} --out whole")).check_done();
    let commands = |run: &str, out: &str| {
        [
            format!("eval {run}"),
            format!("generate {run} --prompt after --tokens 2"),
            format!("export {run} {run}{out}"),
            format!("export {run} {run}{out}.gguf --format gguf"),
        ]
    };
    let check = |run: &str, out: &str, note: &str| {
        for command in commands(run, out) {
            let outcome = place.run(&command);
            assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), note), "{command}");
        }
    };
    check("run", "-same", "");
    flip(&place, "llama/model.safetensors");
    let note = "lowtide: note: the weights in llama are not those that run was trained beside: \
                with them it gives other results\n";
    check("run", "-other", note);
    // All weights of this run are in its own file.
    check("whole", "-other", "");
    flip(&place, "llama/model.safetensors");
    check("run", "-again", "");

    flip(&place, "run/model.safetensors");
    let before = place.list(".");
    for command in commands("run", "-lost") {
        let words = ["run/model.safetensors", "is not the file that the run wrote"];
        place.run(&command).check_refused(1, &words);
    }
    assert_eq!(place.list("."), before);
}

#[test]
fn a_model_is_trained_from_its_configuration_alone() {
    let place = place();
    fs::remove_file(place.path("llama/model.safetensors")).expect("it was there");
    place.write(
        "fresh.toml",
        r#"
            model = { kind = "pretrained", folder = "llama", fresh = true }
            optimizer = { kind = "adamw", learning_rate = 3e-3 }
            train = { epochs = 4, batch_size = 4 }
            [data]
            kind = "json-lines"
            file = "texts.jsonl"
            tokenizer = "llama/tokenizer.json"
            context = 24
        "#,
    );
    let run = |options: &str| {
        json(&place.run(&format!("train fresh.toml --quiet --json {options}")).check_done())
    };
    let whole = run("--out run");
    assert_eq!(whole["predicted_peak_bytes"], whole["measured_peak_bytes"]);
    run("--epochs 2 --checkpoint-every 1epoch --out part");
    let resumed = json(&place.run("train --resume part --epochs 4 --quiet --json").check_done());
    assert_eq!(resumed["final_state_hash"], whole["final_state_hash"]);
    place.run("export run model").check_done();
    let tokens = |model: &str| {
        let greedy = format!("generate {model} --prompt after --tokens 8 --json");
        json(&place.run(&greedy).check_done())["text"].clone()
    };
    assert_eq!(tokens("run"), tokens("model"));
    place.run("finetune model texts.jsonl --lora 2 --seq 24 --epochs 1 --quiet").check_done();
}

#[test]
fn mistakes_are_told_by_name() {
    let place = place();
    place.run("plan nobody/nothing").check_refused(1, &["nobody/nothing is no folder"]);
    place.run("plan llama --lora 4 --set model.lora.targets=q").check_refused(1, &["`q`"]);
    place.run("plan digits --lora 4").check_refused(1, &["--lora", "model.lora"]);
    place.run("plan digits --longest").check_refused(1, &["--longest"]);
    place.run("plan llama --base nf4").check_refused(1, &["model.base", "model.lora"]);
    let refused =
        |arguments: &str, words: &[&str]| drop(place.run(arguments).check_refused(1, words));
    refused("finetune llama none.jsonl", &["none.jsonl: No such file"]);
    place.write("other.jsonl", "{\"question\": 1}\n");
    refused("finetune llama other.jsonl", &["other.jsonl, line 1", "messages"]);
    refused("finetune Qwen/Qwen3-0.6B texts.jsonl", &["Qwen/Qwen3-0.6B is no folder"]);
    for (arguments, words) in [
        ("--temperature -1", &["--temperature", "-1 is not 0 or more"][..]),
        ("--temperature nan", &["--temperature", "nan is not 0 or more"]),
        ("--temperature inf", &["--temperature", "inf is not 0 or more, and finite"]),
        ("--top-p 2", &["--top-p", "2 is not above 0 and up to 1"]),
        ("--top-p 0 --temperature 1", &["--top-p", "0 is not above 0 and up to 1"]),
        ("--top-p -1 --temperature 1", &["--top-p", "-1 is not above 0"]),
        ("--top-p 0.5", &["--top-p", "a --temperature above 0"]),
        ("--top-k 5", &["--top-k", "a --temperature above 0"]),
        ("--top-k 0 --temperature 1", &["--top-k", "from 1 to"]),
        ("--tokens 0", &["--tokens", "from 1 to"]),
        ("--seed -1", &["--seed", "expected a whole number from 0"]),
    ] {
        refused(&format!("generate llama --prompt x {arguments}"), words);
    }
    for arguments in ["plan llama --seq 1", "finetune llama texts.jsonl --seq 1"] {
        refused(arguments, &["--seq", "from 2 to"]);
    }
    fs::remove_file(place.path("llama/model.safetensors")).expect("it was there");
    refused("finetune llama texts.jsonl --seq 16", &["model.safetensors"]);
    place.write(
        "llama/config.json",
        "{\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": -1}",
    );
    refused("plan llama", &["config.json", "hidden_size: missing"]);
}
