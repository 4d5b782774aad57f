//! GGUF files: names, places and values, read by a small reader here, and by other programs if
//! Python has them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use lowtide_nn::{LoraOptions, Parameters, adapt};
use lowtide_pretrained::{
    Config, Decoder, DecoderShape, ExportProblem, GgufNote, GgufOptions, GgufType, PretrainedError,
    Residual, save_gguf,
};
use lowtide_tensor::{DType, QuantFormat, bf16, f16};
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::common::{CASES, KEY, Outcome, config, cpu, f64s, folder, sim};
use crate::python::Python;

/// A configuration of a case with the scale of scores that llama.cpp requires.
fn taken(case: &str) -> Outcome<Config> {
    let text = fs::read_to_string(folder(case).join("config.json"))?;
    let text = text.replace("\"query_pre_attn_scalar\": 10", "\"query_pre_attn_scalar\": 6");
    Ok(Config::from_text(folder(case), text)?)
}

/// The cases that GGUF can express.
fn cases() -> impl Iterator<Item = &'static str> {
    CASES.iter().copied().filter(|case| *case != "gpt2-by-layer")
}

/// A file that was read.
struct File {
    bytes: Vec<u8>,
    entries: BTreeMap<String, Value>,
    tensors: BTreeMap<String, Stored>,
}

struct Stored {
    /// Sizes in row-major order.
    shape: Vec<usize>,
    kind: u64,
    start: usize,
}

/// The unread bytes of a file.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take(&mut self, len: usize) -> &[u8] {
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }

    fn number(&mut self, len: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(self.take(len));
        u64::from_le_bytes(bytes)
    }

    fn text(&mut self) -> String {
        let len = self.number(8) as usize;
        String::from_utf8(self.take(len).to_vec()).expect("UTF-8")
    }

    fn value(&mut self, kind: u64) -> Value {
        match kind {
            4 => self.number(4).into(),
            5 => (self.number(4) as i32).into(),
            6 => f32::from_bits(self.number(4) as u32).into(),
            7 => (self.number(1) == 1).into(),
            8 => self.text().into(),
            9 => {
                let (of, len) = (self.number(4), self.number(8));
                (0..len).map(|_| self.value(of)).collect::<Vec<_>>().into()
            }
            other => panic!("no value of kind {other} is written"),
        }
    }
}

impl File {
    fn read(path: &Path) -> Outcome<Self> {
        let bytes = fs::read(path)?;
        let mut reader = Reader(&bytes);
        assert_eq!(reader.take(4), b"GGUF");
        assert_eq!(reader.number(4), 3);
        let [tensor_count, entry_count] = [reader.number(8), reader.number(8)];
        let (mut entries, mut tensors) = (BTreeMap::new(), BTreeMap::new());
        for _ in 0..entry_count {
            let (key, kind) = (reader.text(), reader.number(4));
            assert!(entries.insert(key.clone(), reader.value(kind)).is_none(), "{key} twice");
        }
        for _ in 0..tensor_count {
            let (name, rank) = (reader.text(), reader.number(4));
            let mut shape: Vec<usize> = (0..rank).map(|_| reader.number(8) as usize).collect();
            shape.reverse();
            let (kind, start) = (reader.number(4), reader.number(8) as usize);
            assert_eq!(start % 32, 0, "{name}");
            assert!(tensors.insert(name.clone(), Stored { shape, kind, start }).is_none());
        }
        let data = (bytes.len() - reader.0.len()).next_multiple_of(32);
        tensors.values_mut().for_each(|tensor| tensor.start += data);
        Ok(File { bytes, entries, tensors })
    }

    fn tensor(&self, name: &str) -> &Stored {
        self.tensors.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", self.tensors.keys()))
    }

    /// The elements of a tensor of floats.
    fn values(&self, name: &str) -> Vec<f32> {
        let tensor = self.tensor(name);
        let len: usize = tensor.shape.iter().product();
        let bytes = &self.bytes[tensor.start..];
        let halves = || bytes.chunks_exact(2).take(len).map(|it| [it[0], it[1]]);
        match tensor.kind {
            0 => bytes
                .chunks_exact(4)
                .take(len)
                .map(|it| f32::from_le_bytes([it[0], it[1], it[2], it[3]]))
                .collect(),
            1 => halves().map(|it| f16::from_le_bytes(it).to_f32()).collect(),
            30 => halves().map(|it| bf16::from_le_bytes(it).to_f32()).collect(),
            other => panic!("{name} is of type {other}"),
        }
    }
}

/// GGUF's name of a parameter.
fn name_in_file(name: &str) -> String {
    let parts = [
        // Longer names come first.
        ("model.embed_tokens.", "token_embd."),
        ("transformer.wte.", "token_embd."),
        ("gpt_neox.embed_in.", "token_embd."),
        ("transformer.wpe.", "position_embd."),
        ("transformer.ln_f.", "output_norm."),
        ("gpt_neox.final_layer_norm.", "output_norm."),
        ("model.norm.", "output_norm."),
        ("lm_head.", "output."),
        ("embed_out.", "output."),
        ("model.layers.", "blk."),
        ("transformer.h.", "blk."),
        ("gpt_neox.layers.", "blk."),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("attn.c_attn", "attn_qkv"),
        ("attn.c_proj", "attn_output"),
        ("attention.query_key_value", "attn_qkv"),
        ("attention.dense", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("mlp.c_fc", "ffn_up"),
        ("mlp.c_proj", "ffn_down"),
        ("mlp.dense_h_to_4h", "ffn_up"),
        ("mlp.dense_4h_to_h", "ffn_down"),
        ("input_layernorm", "attn_norm"),
        ("ln_1", "attn_norm"),
        ("ln_2", "ffn_norm"),
        ("pre_feedforward_layernorm", "ffn_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
    ];
    parts.into_iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
}

/// The row of a parameter in row `row` of the file.
fn source_row(config: &Config, name: &str, row: usize) -> usize {
    let attention = config.shape().attention;
    let width = attention.head_width;
    let (head, place) = (row / width, row % width);
    let is_llama = ["LlamaForCausalLM", "MistralForCausalLM"].contains(&config.architecture());
    if is_llama && (name.contains("attn_q.") || name.contains("attn_k.")) {
        // Neighbours in the file are half a head apart in the parameter.
        return head * width + place % 2 * (width / 2) + place / 2;
    }
    if config.architecture() == "GPTNeoXForCausalLM" && name.contains("attn_qkv") {
        let (kind, head) = (head / attention.heads, head % attention.heads);
        return (head * 3 + kind) * width + place;
    }
    row
}

fn saved(
    config: &Config,
    model: &mut Decoder,
    path: &Path,
    tensor_type: Option<GgufType>,
) -> Outcome<Vec<GgufNote>> {
    let options = GgufOptions { tensor_type, name: Some("a model".to_owned()) };
    Ok(save_gguf(model, config, path, &options)?)
}

#[test]
fn files_have_every_parameter_by_its_name_in_its_place_with_its_values() -> Outcome {
    let place = tempfile::tempdir()?;
    let path = place.path().join("model.gguf");
    let types = [
        (None, DType::F32, 0),
        (None, DType::BF16, 30),
        (None, DType::F64, 0),
        (Some(GgufType::F16), DType::F32, 1),
    ];
    for case in cases() {
        for (tensor_type, dtype, kind) in types {
            let config = taken(case)?;
            let mut model = config.load(&cpu(1), dtype)?;
            saved(&config, &mut model, &path, tensor_type)?;
            let file = File::read(&path)?;
            let mut expected_count = 0;
            let mut parameters = Vec::new();
            model.visit(&mut |name, it| parameters.push((name.to_owned(), it.value().clone())));
            for (name, value) in parameters {
                expected_count += 1;
                let is_gemma = config.architecture().starts_with("Gemma");
                let has_two = config.architecture() != "GemmaForCausalLM" && is_gemma;
                let after = if has_two { "post_attention_norm" } else { "ffn_norm" };
                let of_file = name_in_file(&name).replace("post_attention_layernorm", after);
                let stored = file.tensor(&of_file);
                assert_eq!(stored.shape, value.shape().to_vec(), "{case} {name}");
                let is_small = value.shape().len() == 1 || of_file.contains("position");
                assert_eq!(stored.kind, if is_small { 0 } else { kind }, "{case} {name}");
                let (found, values) = (file.values(&of_file), f64s(&value)?);
                let columns: usize = value.shape()[1..].iter().product();
                for (index, found) in found.iter().enumerate() {
                    let row = source_row(&config, &of_file, index / columns);
                    let mut expected = values[row * columns + index % columns] as f32;
                    if is_gemma && of_file.contains("norm") {
                        expected += 1.0;
                    }
                    if stored.kind == 1 {
                        expected = f16::from_f32(expected).to_f32();
                    }
                    assert_eq!(*found, expected, "{case} {name} {index}");
                }
            }
            let has_factors = file.tensors.contains_key("rope_freqs.weight");
            assert_eq!(has_factors, case == "llama-3.1");
            let count = expected_count + usize::from(has_factors);
            assert_eq!(file.tensors.len(), count, "{case}");
        }
    }
    Ok(())
}

#[test]
fn entries_say_what_the_model_is_made_of() -> Outcome {
    let place = tempfile::tempdir()?;
    let path = place.path().join("model.gguf");
    let expected = [
        ("llama", "llama.attention.head_count_kv", json!(2)),
        ("llama", "llama.rope.dimension_count", json!(2)),
        ("llama", "llama.vocab_size", json!(20)),
        ("llama", "llama.context_length", json!(64)),
        ("llama", "general.file_type", json!(0)),
        ("llama", "tokenizer.ggml.model", json!("none")),
        ("llama-linear", "llama.rope.scaling.type", json!("linear")),
        ("llama-linear", "llama.rope.scaling.factor", json!(4.0)),
        ("llama-yarn", "llama.rope.scaling.type", json!("yarn")),
        ("llama-yarn", "llama.rope.scaling.original_context_length", json!(64)),
        ("llama-yarn", "llama.rope.scaling.yarn_beta_fast", json!(8.0)),
        ("mistral", "llama.context_length", json!(4)),
        ("qwen2", "qwen2.context_length", json!(3)),
        ("qwen3", "qwen3.attention.key_length", json!(6)),
        ("gemma", "gemma.attention.value_length", json!(6)),
        ("gemma2", "gemma2.attn_logit_softcapping", json!(2.0)),
        ("gemma2", "gemma2.final_logit_softcapping", json!(3.0)),
        ("gemma2", "gemma2.attention.sliding_window", json!(4)),
        ("gemma2", "gemma2.context_length", json!(64)),
        ("gemma3", "gemma3.attention.sliding_window_pattern", json!(2)),
        ("gemma3", "gemma3.rope.freq_base", json!(1_000_000.0)),
        ("gemma3", "gemma3.rope.freq_base_swa", json!(10_000.0)),
        ("gemma3", "gemma3.rope.scaling.factor", json!(8.0)),
        ("gpt2", "gpt2.attention.layer_norm_epsilon", json!(1e-5_f32)),
        ("gpt2", "gpt2.feed_forward_length", json!(32)),
        ("neox", "gptneox.use_parallel_residual", json!(true)),
        ("neox", "gptneox.rope.dimension_count", json!(2)),
        ("neox-sequential", "gptneox.use_parallel_residual", json!(false)),
    ];
    for (case, key, value) in expected {
        let config = taken(case)?;
        let notes = saved(&config, &mut config.load(&cpu(1), DType::F32)?, &path, None)?;
        let file = File::read(&path)?;
        assert_eq!(file.entries.get(key), Some(&value), "{case} {key}");
        assert_eq!(file.entries["general.name"], "a model");
        assert!(notes.contains(&GgufNote::NoTokenizer), "{case}");
        let has_window = notes.iter().any(|note| matches!(note, GgufNote::Window { .. }));
        assert_eq!(has_window, ["mistral", "qwen2"].contains(&case), "{case}");
        // The usual period, which older readers assume.
        assert!(!file.entries.contains_key("gemma2.attention.sliding_window_pattern"));
    }
    Ok(())
}

#[test]
fn blocks_have_the_bytes_of_the_gguf_package() -> Outcome {
    let fixture = fs::read(folder("gguf").join("blocks.safetensors"))?;
    let fixture = SafeTensors::deserialize(&fixture)?;
    let text = r#"{"architectures": ["LlamaForCausalLM"], "vocab_size": 24, "hidden_size": 64,
        "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 2,
        "hidden_act": "silu"}"#;
    let place = tempfile::tempdir()?;
    let (path, config) = (place.path().join("m.gguf"), Config::from_text(place.path(), text)?);
    let mut model = config.decoder(&cpu(1), KEY, DType::F32)?;
    model.visit(&mut |name, parameter| {
        if name == "model.embed_tokens.weight" {
            let values = fixture.tensor("values").expect("rows");
            parameter.value_mut().set_bytes_(values.data()).expect("as many");
        }
    });
    for (kind, name, of_file) in [(GgufType::Q8_0, "q8_0", 8), (GgufType::Q4_0, "q4_0", 2)] {
        let notes = saved(&config, &mut model, &path, Some(kind))?;
        let file = File::read(&path)?;
        let (table, expected) = (file.tensor("token_embd.weight"), fixture.tensor(name)?);
        assert_eq!(table.kind, of_file);
        assert!(file.bytes[table.start..].starts_with(expected.data()), "{name}");
        // Rows of 40 are not whole blocks.
        assert_eq!(file.tensor("blk.0.ffn_down.weight").kind, 1);
        assert!(notes.contains(&GgufNote::NoBlocks { count: 1 }), "{notes:?}");
        assert_eq!(file.tensor("blk.0.attn_norm.weight").kind, 0);
    }
    Ok(())
}

/// A folder with a tokenizer of the fixtures, and a model with a table of `rows` rows.
fn with_tokenizer(kind: &str, rows: usize) -> Outcome<(tempfile::TempDir, Config)> {
    let place = tempfile::tempdir()?;
    for file in fs::read_dir(folder("gguf").join(kind))? {
        let path = file?.path();
        fs::copy(&path, place.path().join(path.file_name().expect("a file")))?;
    }
    let text = format!(
        r#"{{"architectures": ["LlamaForCausalLM"], "vocab_size": {rows}, "hidden_size": 8,
        "model_type": "llama", "intermediate_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "hidden_act": "silu", "pad_token_id": 1}}"#
    );
    fs::write(place.path().join("config.json"), &text)?;
    let config = Config::open(place.path())?;
    Ok((place, config))
}

#[test]
fn tokenizers_are_in_the_file_token_by_token() -> Outcome {
    for (kind, count) in [("characters", 497), ("bytes", 321)] {
        let (place, config) = with_tokenizer(kind, count + 3)?;
        let path = place.path().join("m.gguf");
        let mut model = config.decoder(&cpu(1), KEY, DType::F32)?;
        let notes = saved(&config, &mut model, &path, None)?;
        assert_eq!(notes, []);
        let file = File::read(&path)?;
        let entry = |key: &str| &file.entries[&format!("tokenizer.ggml.{key}")];
        let tokens = entry("tokens").as_array().expect("texts");
        let kinds = entry("token_type").as_array().expect("kinds");
        assert_eq!((tokens.len(), kinds.len()), (count + 3, count + 3));
        let text = fs::read_to_string(place.path().join("tokenizer.json"))?;
        let tokenizer: Value = serde_json::from_str(&text)?;
        let listed = tokenizer["model"]["vocab"].as_object().expect("a vocabulary");
        for (text, id) in listed {
            assert_eq!(&tokens[id.as_u64().expect("a number") as usize], text);
        }
        let is_llama = kind == "characters";
        assert_eq!(entry("model"), if is_llama { "llama" } else { "gpt2" });
        assert_eq!(entry("pre"), if is_llama { "default" } else { "gpt-2" });
        // The last token of the tokenizer was added, but is not special.
        let added = if is_llama { "<tool call>" } else { "[note]" };
        assert_eq!((&tokens[count - 1], &kinds[count - 1]), (&json!(added), &json!(4)));
        assert_eq!((&tokens[count], &kinds[count]), (&json!(format!("[PAD{count}]")), &json!(5)));
        let kinds_of = |kind: i64| kinds.iter().filter(|it| **it == kind).count();
        assert_eq!((kinds_of(3), kinds_of(6)), (2, if is_llama { 256 } else { 0 }));
        assert_eq!(entry("add_bos_token"), true);
        assert_eq!(entry("add_eos_token"), false);
        assert_eq!(entry("bos_token_id"), u64::from(is_llama));
        assert_eq!(entry("eos_token_id"), 1 + u64::from(is_llama));
        assert_eq!(entry("padding_token_id"), 1);
        let template = file.entries["tokenizer.chat_template"].as_str().expect("a text");
        assert!(template.starts_with("{% for message"), "{template}");
        let merges = tokenizer["model"]["merges"].as_array().expect("pairs");
        if is_llama {
            let first = format!("{}{}", merges[0][0], merges[0][1]).replace('"', "");
            let place = tokens.iter().position(|token| *token == first).expect("it is a token");
            assert_eq!(entry("scores")[place], -1.0);
            assert_eq!(entry("add_space_prefix"), true);
        } else {
            assert_eq!(entry("merges").as_array().map(Vec::len), Some(merges.len()));
        }
    }
    Ok(())
}

#[test]
fn what_a_tokenizer_has_and_a_file_has_not_is_told() -> Outcome {
    let (place, config) = with_tokenizer("bytes", 300)?;
    let path = place.path().join("m.gguf");
    let mut model = config.decoder(&cpu(1), KEY, DType::F32)?;
    let notes = saved(&config, &mut model, &path, None)?;
    assert_eq!(notes, [GgufNote::TokensOutside { count: 21 }]);
    let file = place.path().join("tokenizer.json");
    let text = fs::read_to_string(&file)?;
    fs::write(&file, text.replace("\"use_regex\":true", "\"use_regex\":false"))?;
    let notes = saved(&config, &mut model, &path, None)?;
    assert!(notes.contains(&GgufNote::UnknownPreTokenizer), "{notes:?}");
    for (from, to, entry) in [
        ("\"type\":\"BPE\"", "\"type\":\"Unigram\"", "model.type"),
        ("\"merges\"", "\"pairs\"", "model.merges"),
        ("\"vocab\"", "\"tokens\"", "model.vocab"),
    ] {
        fs::write(&file, text.replace(from, to))?;
        let before = fs::read(&path)?;
        let options = GgufOptions::default();
        match save_gguf(&mut model, &config, &path, &options) {
            Err(PretrainedError::Entry { entry: found, .. }) => assert_eq!(found, entry),
            other => panic!("{other:?}"),
        }
        assert!(fs::read(&path)? == before);
    }
    Ok(())
}

#[test]
fn models_that_llama_cpp_computes_otherwise_are_refused_and_leave_nothing() -> Outcome {
    let place = tempfile::tempdir()?;
    let path = place.path().join("m.gguf");
    let refused = |config: &Config, model: &mut Decoder| match save_gguf(
        model,
        config,
        &path,
        &GgufOptions::default(),
    ) {
        Err(PretrainedError::Export { problem, .. }) => problem,
        other => panic!("{other:?}"),
    };
    for case in ["gpt2-by-layer", "gemma2", "gemma3"] {
        let config = config(case)?;
        let problem = refused(&config, &mut config.load(&cpu(1), DType::F32)?);
        assert!(matches!(problem, ExportProblem::NoForm { .. }), "{case}: {problem:?}");
    }
    let config = config("llama")?;
    let shape = DecoderShape { residual: Residual::Parallel, ..config.shape().clone() };
    let problem = refused(&config, &mut Decoder::new(&cpu(1), shape, KEY, DType::F32)?);
    let what = "this order of norms and branches";
    assert_eq!(problem, ExportProblem::NoForm { what });
    let mut model = config.load(&cpu(1), DType::F32)?;
    adapt(&mut model, KEY, &LoraOptions::default())?;
    assert_eq!(refused(&config, &mut model), ExportProblem::Parameters);
    let mut few = config.load(&cpu(1), DType::F32)?;
    let mut outcome = Ok(());
    few.visit_linears(&mut |_, layer| {
        outcome = layer.quantize(QuantFormat::Int8Rows);
    });
    outcome?;
    assert_eq!(refused(&config, &mut few), ExportProblem::Parameters);
    assert_eq!(fs::read_dir(place.path())?.count(), 0);
    Ok(())
}

/// On a simulated device a model of any size can be made, but its values cannot be read.
#[test]
fn every_published_decoder_has_a_form() -> Outcome {
    let place = tempfile::tempdir()?;
    for name in Config::published_names() {
        let config = Config::published(name)?.ok_or("not there")?;
        let mut model = config.decoder(&sim(1, 1 << 42), KEY, DType::BF16)?;
        let path = place.path().join("m.gguf");
        let saved = save_gguf(&mut model, &config, path, &GgufOptions::default());
        assert!(matches!(saved, Err(PretrainedError::Nn(_))), "{name}: {saved:?}");
    }
    assert_eq!(fs::read_dir(place.path())?.count(), 0);
    Ok(())
}

#[test]
fn a_model_is_converted_in_pieces() -> Outcome {
    let text = r#"{"architectures": ["GPT2LMHeadModel"], "vocab_size": 9001, "n_positions": 3,
        "n_embd": 512, "n_layer": 1, "n_head": 4, "activation_function": "gelu_new",
        "n_inner": 8224}"#;
    let place = tempfile::tempdir()?;
    let config = Config::from_text(place.path(), text)?;
    let device = lowtide_tensor::Device::cpu(Default::default())?;
    let mut model = config.decoder(&device, KEY, DType::BF16)?;
    let bytes = device.allocator().statistics().allocated.current_bytes;
    let made_peak_bytes = device.allocator().statistics().allocated.peak_bytes;
    for kind in [None, Some(GgufType::F32), Some(GgufType::Q8_0)] {
        saved(&config, &mut model, &place.path().join("m.gguf"), kind)?;
    }
    let peak_bytes = device.allocator().statistics().allocated.peak_bytes;
    // One piece has at most three copies: in its own type, in f32, and in blocks.
    assert!(peak_bytes <= made_peak_bytes.max(bytes + (32 << 20)), "{peak_bytes}, {bytes}");
    Ok(())
}

#[test]
fn other_programs_read_the_files_as_the_models_they_are_of() -> Outcome {
    const NAME: &str = "other_programs_read_the_files_as_the_models_they_are_of";
    let Some(python) = Python::with(NAME, &["gguf", "torch", "transformers"]) else {
        return Ok(());
    };
    let place = tempfile::tempdir()?;
    let file = |name: &str| place.path().join(format!("{name}.gguf"));
    let mut jobs = Vec::new();
    for case in cases() {
        // The configuration is in the folder for programs that read it there.
        let from = place.path().join(case);
        let config = taken(case)?;
        let mut model = config.load(&cpu(1), DType::F32)?;
        lowtide_pretrained::save(&mut model, &from, 1 << 30)?;
        config.save(&from)?;
        saved(&config, &mut model, &file(case), None)?;
        let len = match case {
            "mistral" => 4,
            "qwen2" => 3,
            _ => 12,
        };
        jobs.push(json!({ "kind": "model", "folder": from, "file": file(case), "len": len }));
    }
    let (_kept, config) = with_tokenizer("bytes", 321)?;
    let wide = fs::read_to_string(config.folder().join("config.json"))?;
    let wide = Config::from_text(config.folder(), wide.replace("_size\": 8", "_size\": 64"))?;
    let mut model = wide.decoder(&cpu(1), KEY, DType::F32)?;
    saved(&wide, &mut model, &file("plain"), None)?;
    for (name, kind) in
        [("q8_0", GgufType::Q8_0), ("q4_0", GgufType::Q4_0), ("bf16", GgufType::Bf16)]
    {
        saved(&wide, &mut model, &file(name), Some(kind))?;
        let (plain, file) = (file("plain"), file(name));
        jobs.push(json!({ "kind": "blocks", "plain": plain, "file": file }));
    }
    let texts = [
        "Licensed under the Apache License",
        // transformers confuses a space at the beginning with the space that the tokenizer adds.
        "two  spaces,\n\nlines; 1234 numbers: a\u{e9}\u{1f600}!",
        "don't STOP",
    ];
    let mut kept = Vec::new();
    for (kind, rows) in [("characters", 497), ("bytes", 321)] {
        let (folder, config) = with_tokenizer(kind, rows)?;
        saved(&config, &mut config.decoder(&cpu(1), KEY, DType::F32)?, &file(kind), None)?;
        let (file, texts) = (file(kind), texts);
        jobs.push(
            json!({ "kind": "tokenizer", "folder": folder.path(), "file": file, "texts": texts }),
        );
        kept.push(folder);
    }
    let list: PathBuf = place.path().join("jobs.json");
    fs::write(&list, serde_json::to_vec(&jobs)?)?;
    python.run("tests/it/check_gguf.py", &[&list]);
    Ok(())
}

#[cfg(unix)]
#[test]
fn a_link_to_a_file_stays_and_the_file_is_replaced() -> Outcome {
    let place = tempfile::tempdir()?;
    let [target, link] = ["target", "link"].map(|name| place.path().join(name));
    std::os::unix::fs::symlink("target", &link)?;
    let config = taken("llama")?;
    let mut model = config.load(&cpu(1), DType::F32)?;
    for name in ["one", "another"] {
        let options = GgufOptions { name: Some(name.to_owned()), ..GgufOptions::default() };
        save_gguf(&mut model, &config, &link, &options)?;
        let bytes = fs::read(&target)?;
        assert!(link.is_symlink() && bytes.windows(name.len()).any(|it| it == name.as_bytes()));
    }
    Ok(())
}
