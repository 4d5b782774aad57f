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
fn place() -> Place {
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
    // 596,049,920 parameters: 16 bytes each with gradients and states of Adam, 12 in bf16.
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
    // The head is the frozen table of tokens: there is not much that adapters can do.
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
    place.run("generate llama --prompt after --tokens 4").check_done();

    // What the run learned is in the weights of the whole.
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
    refused("generate llama --prompt x --temperature -1", &["temperature"]);
    fs::remove_file(place.path("llama/model.safetensors")).expect("it was there");
    refused("finetune llama texts.jsonl --seq 16", &["model.safetensors"]);
    place.write(
        "llama/config.json",
        "{\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": -1}",
    );
    refused("plan llama", &["config.json", "hidden_size: missing"]);
}
