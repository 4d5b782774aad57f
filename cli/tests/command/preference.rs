//! Preferred answers: `lowtide finetune` and `plan --dpo`.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::place::Place;
use crate::pretrained;

/// The place of a small Llama, with data in which the same answer is always chosen: texts in
/// `preferred.jsonl`, and chats in `preferred-chats.jsonl`.
fn place() -> Place {
    let place = pretrained::place();
    let (mut texts, mut chats) = (String::new(), String::new());
    for number in 0..40 {
        let question = format!("after {number}?");
        let text = json!({ "prompt": question, "chosen": "yes", "rejected": "no" });
        let _ = writeln!(texts, "{text}");
        let turn = |role: &str, content: &str| json!({ "role": role, "content": content });
        let chat = |answer: &str| [turn("user", &question), turn("assistant", answer)];
        let line = json!({ "chosen": chat("yes"), "rejected": chat("no") });
        let _ = writeln!(chats, "{line}");
    }
    place.write("preferred.jsonl", texts);
    place.write("preferred-chats.jsonl", chats);
    place
}

fn summary(place: &Place, arguments: &str) -> Value {
    serde_json::from_str(&place.run(arguments).check_done()).expect("JSON")
}

#[test]
fn what_is_preferred_is_learned_as_planned_and_goes_on_to_the_same_bits() {
    let place = place();
    let methods = [("--lora 8", "preferred"), ("", "preferred"), ("--lora 8", "preferred-chats")];
    for (index, (method, data)) in methods.into_iter().enumerate() {
        let common = format!(
            "finetune llama {data}.jsonl {method} --seq 48 --batch 8 --quiet --json \
             --set optimizer.learning_rate=0.01 --set preference.beta=0.5"
        );
        let whole = summary(&place, &format!("{common} --epochs 6 --out whole{index}"));
        assert_eq!(whole["predicted_peak_bytes"], whole["measured_peak_bytes"], "{method} {data}");
        let loss = whole["test_loss"].as_f64().expect("a loss");
        assert!(loss < 2.0_f64.ln() - 0.01, "{method} {data}: {loss}");
        assert_eq!(whole["test_accuracy"], 1.0, "{method} {data}");
        summary(
            &place,
            &format!("{common} --epochs 3 --checkpoint-every 1epoch --out part{index}"),
        );
        let resumed = format!("train --resume part{index} --epochs 6 --quiet --json");
        let resumed = summary(&place, &resumed);
        assert_eq!(resumed["final_state_hash"], whole["final_state_hash"], "{method} {data}");

        let evaluated = summary(&place, &format!("eval whole{index} --json"));
        assert_eq!(evaluated["test_loss"], whole["test_loss"]);
        place.run(&format!("generate whole{index} --prompt after --tokens 4")).check_done();
        place.run(&format!("export whole{index} model{index}")).check_done();
        place.run(&format!("finetune model{index} texts.jsonl --epochs 1 --quiet")).check_done();
    }
    // The files of a run do not contain the reference.
    let bytes = |name: &str| place.read(name).len();
    let model = bytes("llama/model.safetensors");
    assert!(bytes("whole0/model.safetensors") < model / 2);
    assert!(bytes("whole1/model.safetensors") <= model + 4096);
}

#[test]
fn plans_of_preferences_have_both_answers_and_the_reference() {
    let place = Place::new();
    let peak = |options: &str| {
        let plan = "plan HuggingFaceTB/SmolLM2-135M --batch 2 --seq 128 --budget 64GiB --json";
        summary(&place, &format!("{plan} {options}"))["predicted_peak_bytes"].as_u64()
    };
    let peaks = ["--lora 8", "--lora 8 --dpo", "", "--dpo"].map(|options| peak(options).unwrap());
    let [lora, lora_of_pairs, full, full_of_pairs] = peaks;
    assert!(lora < lora_of_pairs && lora_of_pairs < full, "{peaks:?}");
    // The reference is a second model of 134,515,008 parameters in f32.
    assert!(full_of_pairs > full + 4 * 134_515_008, "{peaks:?}");
}

#[test]
fn layers_with_adapters_are_chosen_by_name() {
    let place = place();
    let trained = |targets: &str| {
        let options = "--lora 4 --seq 16 --batch 8 --epochs 1 --quiet";
        let out = format!("run-{}", place.list(".").len());
        let run = format!("finetune llama texts.jsonl {options} --lora-targets {targets}");
        place.run(&format!("{run} --out {out}")).check_done();
        place.run(&format!("export {out} {out}-adapters --format peft")).check_done();
        let config = place.json(&format!("{out}-adapters/adapter_config.json"));
        let file = place.read(&format!("{out}-adapters/adapter_model.safetensors"));
        let header = String::from_utf8_lossy(&file).into_owned();
        (config["target_modules"].clone(), header.matches("lora_A").count())
    };
    let (_, all) = trained("all-linear");
    let (some, count) = trained("q_proj,v_proj");
    assert_eq!(some, json!(["q_proj", "v_proj"]));
    // Two of the seven layers of a block have adapters.
    assert_eq!(2 * all, 7 * count);
    let (_, first) = trained(r"/.*layers\.0\..*_proj/");
    assert_eq!(2 * first, all, "of two blocks");
    let refused = |options: &str, words: &[&str]| {
        place.run(&format!("finetune llama texts.jsonl {options}")).check_refused(1, words);
    };
    refused("--lora 4 --lora-targets qq_proj", &["qq_proj", "q_proj"]);
    refused("--lora-targets q_proj", &["--lora"]);
    refused("--lora 4 --lora-targets //", &["names no layer"]);
}

#[test]
fn mistakes_with_preferences_are_told_by_name() {
    let place = place();
    let refused =
        |arguments: &str, words: &[&str]| drop(place.run(arguments).check_refused(1, words));
    refused("finetune llama texts.jsonl --dpo", &["--dpo", "texts.jsonl"]);
    let beta = "--set preference.beta";
    refused(&format!("finetune llama texts.jsonl {beta}=0.1"), &["preference", "data.format"]);
    refused(&format!("finetune llama preferred.jsonl {beta}=0.0"), &["beta", "above 0"]);
    refused("finetune llama preferred.jsonl --format chat-preference", &["line 1", "sequence"]);
    refused(
        "finetune llama preferred.jsonl --seq 2 --lora 4",
        &["data.context", "nothing to learn"],
    );
    place.write("few.jsonl", r#"{"prompt": "a", "chosen": "b", "rejected": "c"}"#);
    refused("finetune llama few.jsonl --lora 4", &["data.file", "has 1", "data.test"]);
    let gpt = "train --set model.kind=gpt --set data.kind=random-tokens --set data.preference=true";
    refused(gpt, &["gpt", "preferences"]);
    refused("plan digits --dpo", &["--dpo"]);
}
