//! Entries of a `config.json` that are read, and entries that are refused.

use std::fs;
use std::path::Path;

use lowtide_data::HubCache;
use lowtide_nn::RotaryScaling;
use lowtide_pretrained::{
    Activation, Config, EntryProblem, Family, NormKind, PretrainedError, Residual,
};
use lowtide_tensor::DType;
use serde_json::{Value, json};

use crate::common::{CASES, Outcome, folder};

fn of(value: &Value) -> Result<Config, PretrainedError> {
    Config::from_text("folder", value.to_string())
}

/// A small Llama with other entries. Null entries are left out.
fn llama(other: Value) -> Value {
    let mut entries = json!({
        "architectures": ["LlamaForCausalLM"], "vocab_size": 32, "hidden_size": 16,
        "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
        "hidden_act": "silu",
    });
    let all = entries.as_object_mut().expect("an object");
    for (name, value) in other.as_object().expect("an object") {
        match value {
            Value::String(text) if text == "(absent)" => drop(all.remove(name)),
            value => drop(all.insert(name.clone(), value.clone())),
        }
    }
    entries
}

/// The entry and the problem of a refused configuration.
fn refused(value: &Value) -> (String, EntryProblem) {
    match of(value) {
        Err(PretrainedError::Entry { entry, problem, .. }) => (entry, problem),
        other => panic!("{other:?} of {value}"),
    }
}

#[test]
fn older_entries_say_what_newer_ones_do() -> Outcome {
    let old = llama(json!({
        "rope_theta": 500000.0, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
        "rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
    }));
    let new = llama(json!({
        "max_position_embeddings": 131072, "dtype": "bfloat16",
        "rope_parameters": {"rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192},
    }));
    let (old, new) = (of(&old)?, of(&new)?);
    assert_eq!(old.shape(), new.shape());
    let rotary = new.shape().layers[0].rotary.ok_or("without angles")?;
    assert_eq!(rotary.base, 500_000.0);
    let (factor, context, turns) = (8.0, 8192, [1.0, 4.0]);
    assert_eq!(rotary.scaling, Some(RotaryScaling::ByTurns { factor, context, turns }));
    let old = llama(json!({"rope_scaling": {"type": "linear", "factor": 4.0}}));
    let scaling = of(&old)?.shape().layers[1].rotary.and_then(|rotary| rotary.scaling);
    assert_eq!(scaling, Some(RotaryScaling::Linear { factor: 4.0 }));
    Ok(())
}

#[test]
fn yarn_scales_scores_only_where_positions_are_stretched() -> Outcome {
    let attention = |parameters: Value| -> Result<f64, Box<dyn std::error::Error>> {
        let mut yarn = json!({"rope_type": "yarn", "original_max_position_embeddings": 64});
        let entries = yarn.as_object_mut().expect("an object");
        entries.extend(parameters.as_object().expect("an object").clone());
        let config = of(&llama(json!({ "rope_scaling": yarn })))?;
        match config.shape().layers[0].rotary.and_then(|rotary| rotary.scaling) {
            Some(RotaryScaling::Yarn { attention, .. }) => Ok(attention),
            other => Err(format!("{other:?}").into()),
        }
    };
    let stretched = 0.1 * 4.0_f64.ln() + 1.0;
    assert_eq!(attention(json!({"factor": 4.0}))?, stretched);
    // transformers gives 1 as well: the logarithm would be 0 or below.
    for factor in [1.0, 0.5] {
        assert_eq!(attention(json!({"factor": factor}))?, 1.0, "{factor}");
        let both = json!({"factor": factor, "mscale": 2.0, "mscale_all_dim": 0.5});
        assert_eq!(attention(both)?, 1.0, "{factor}");
    }
    Ok(())
}

#[test]
fn older_gpt_neox_has_names_of_its_own() -> Outcome {
    let config = of(&json!({
        "architectures": ["GPTNeoXForCausalLM"], "vocab_size": 50304, "hidden_size": 512,
        "intermediate_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 8,
        "hidden_act": "gelu", "layer_norm_eps": 1e-5, "max_position_embeddings": 2048,
        "model_type": "gpt_neox", "rotary_emb_base": 10000, "rotary_pct": 0.25,
        "tie_word_embeddings": false, "use_parallel_residual": true, "bos_token_id": 0,
        "eos_token_id": 0, "initializer_range": 0.02, "torch_dtype": "float16",
        "transformers_version": "4.24.0", "use_cache": true,
    }))?;
    let shape = config.shape();
    assert_eq!(shape.layers[0].rotary.and_then(|rotary| rotary.turned), Some(16));
    assert_eq!((shape.residual, shape.family), (Residual::Parallel, Family::Neox));
    // Pythia 70M.
    assert_eq!(shape.parameter_count(), 70_426_624);
    Ok(())
}

#[test]
fn older_gemma_3_has_a_pattern_and_two_bases() -> Outcome {
    let config = of(&json!({
        "architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "attn_logit_softcapping": null, "bos_token_id": 2, "cache_implementation": "hybrid",
        "eos_token_id": [1, 106], "final_logit_softcapping": null, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "initializer_range": 0.02,
        "intermediate_size": 6912, "max_position_embeddings": 32768, "model_type": "gemma3_text",
        "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
        "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-6,
        "rope_local_base_freq": 10000, "rope_scaling": null, "rope_theta": 1000000,
        "sliding_window": 512, "sliding_window_pattern": 6, "torch_dtype": "bfloat16",
        "transformers_version": "4.50.0.dev0", "use_cache": true, "vocab_size": 262144,
    }))?;
    let shape = config.shape();
    let of_layer = |at: usize| (shape.layers[at].window, shape.layers[at].rotary.map(|it| it.base));
    assert_eq!(of_layer(4), (Some(512), Some(10_000.0)));
    assert_eq!(of_layer(5), (None, Some(1_000_000.0)));
    assert_eq!(shape.norm.kind, NormKind::RmsPlusOne);
    assert!(shape.is_tied);
    assert_eq!(shape.parameter_count(), 999_885_952);
    Ok(())
}

#[test]
fn an_absent_entry_is_what_transformers_assumes() -> Outcome {
    let mistral = |window: Value| {
        let other = json!({"architectures": ["MistralForCausalLM"], "sliding_window": window});
        Ok::<_, PretrainedError>(of(&llama(other))?.shape().layers[0].window)
    };
    assert_eq!(mistral(json!("(absent)"))?, Some(4096));
    assert_eq!(mistral(Value::Null)?, None);
    assert_eq!(mistral(json!(7))?, Some(7));
    let gemma = json!({"architectures": ["GemmaForCausalLM"], "hidden_act": "gelu"});
    let shape = of(&llama(gemma))?.shape().clone();
    assert_eq!((shape.attention.head_width, shape.is_tied), (256, true));
    assert_eq!(shape.feed_forward.activation, Activation::GeluTanh);
    assert_eq!(of(&llama(json!({})))?.shape().attention.groups, 4);
    let by_type = llama(json!({"architectures": "(absent)", "model_type": "llama"}));
    assert_eq!(of(&by_type)?.architecture(), "LlamaForCausalLM");
    Ok(())
}

#[test]
fn a_configuration_says_what_the_model_was_stored_in() -> Outcome {
    for (entries, expected) in [
        (json!({}), None),
        (json!({"torch_dtype": "bfloat16"}), Some(DType::BF16)),
        (json!({"dtype": "float16", "torch_dtype": null}), Some(DType::F16)),
        (json!({"dtype": "float32", "torch_dtype": "float16"}), Some(DType::F32)),
    ] {
        assert_eq!(of(&llama(entries))?.dtype(), expected);
    }
    assert_eq!(refused(&llama(json!({"torch_dtype": "float8_e4m3fn"}))).0, "torch_dtype");
    Ok(())
}

#[test]
fn what_is_not_built_is_refused_by_name() {
    for (entries, name) in [
        (json!({"rope_interleaved": true}), "rope_interleaved"),
        (json!({"architectures": ["MixtralForCausalLM"]}), "architectures"),
        (json!({"architectures": "(absent)", "model_type": "mamba"}), "model_type"),
        (json!({"hidden_act": "xielu"}), "hidden_act"),
        (
            json!({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}),
            "rope_scaling.rope_type",
        ),
        (
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "truncate": false},
            "max_position_embeddings": 64}),
            "rope_scaling.truncate",
        ),
        (json!({"rope_parameters": {"rope_theta": 1e4, "mscale": 2}}), "rope_parameters.mscale"),
        (
            json!({"quantization_config": {"quant_method": "gptq", "bits": 4}}),
            "quantization_config.quant_method",
        ),
        (
            json!({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true}}),
            "quantization_config.bnb_4bit_quant_type",
        ),
        (json!({"num_experts": 8}), "num_experts"),
        (
            json!({"architectures": ["Gemma3ForCausalLM"], "hidden_activation": "silu",
            "use_bidirectional_attention": true}),
            "use_bidirectional_attention",
        ),
    ] {
        let (entry, problem) = refused(&llama(entries));
        assert_eq!(entry, name);
        assert!(matches!(problem, EntryProblem::Unsupported { .. }), "{entry}: {problem}");
    }
}

#[test]
fn entries_that_no_model_has_are_refused_by_name() {
    let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
    for (name, value) in [
        ("vocab_size", json!(-1)),
        ("vocab_size", json!(0)),
        ("vocab_size", json!(1_u64 << 60)),
        ("vocab_size", json!(1.5)),
        ("vocab_size", json!("32")),
        ("vocab_size", deep.clone()),
        ("hidden_size", json!({"a": deep})),
        ("hidden_size", json!([16])),
        ("num_hidden_layers", json!(1_000_000_000)),
        ("num_attention_heads", json!(3)),
        ("num_key_value_heads", json!(3)),
        ("rope_theta", json!("x")),
        ("rms_norm_eps", json!([])),
        ("hidden_act", json!(3)),
        ("tie_word_embeddings", json!("yes")),
        ("rope_scaling", json!("linear")),
        ("head_dim", json!(0)),
        ("max_position_embeddings", json!("long")),
        ("attention_dropout", json!(1)),
        ("attention_dropout", json!(-0.1)),
    ] {
        let (entry, problem) = refused(&llama(json!({ name: value })));
        assert_eq!(entry, name);
        assert!(matches!(problem, EntryProblem::Wrong { .. }), "{entry}: {problem}");
        assert!(problem.to_string().len() < 200, "{problem}");
    }
    for name in ["vocab_size", "hidden_size", "num_hidden_layers", "hidden_act", "architectures"] {
        let found = refused(&llama(json!({ name: "(absent)" })));
        assert_eq!(found, (name.to_owned(), EntryProblem::Missing));
    }
    let most = (1_u64 << 31) - 1;
    let huge = json!({"hidden_size": most / 8 * 8, "intermediate_size": most, "vocab_size": most,
        "num_hidden_layers": 4096});
    let (entry, _) = refused(&llama(huge));
    assert_eq!(entry, "(all)");
    let odd = json!({"head_dim": 5});
    assert_eq!(refused(&llama(odd)).0, "rope");
    let turns = json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0,
        "low_freq_factor": 4.0, "high_freq_factor": 1.0}, "max_position_embeddings": 9});
    assert_eq!(refused(&llama(turns)).0, "rope_scaling.rope");
    for factor in [json!(0), json!(-2.0), json!("x"), Value::Null] {
        let (entry, _) =
            refused(&llama(json!({"rope_scaling": {"type": "linear", "factor": factor}})));
        assert_eq!(entry, "rope_scaling.factor");
    }
}

#[test]
fn layers_of_types_are_as_many_as_there_are_layers() {
    let qwen = |types: Value, window: Value| {
        llama(json!({"architectures": ["Qwen3ForCausalLM"], "layer_types": types,
            "use_sliding_window": true, "sliding_window": window}))
    };
    let full = "full_attention";
    assert_eq!(refused(&qwen(json!([full]), json!(3))).0, "layer_types");
    assert_eq!(refused(&qwen(json!(full), json!(3))).0, "layer_types");
    assert_eq!(refused(&qwen(json!([full, "chunked_attention"]), json!(3))).0, "layer_types");
    assert_eq!(refused(&qwen(json!([full, "sliding_attention"]), Value::Null)).0, "sliding_window");
}

#[test]
fn text_that_is_no_configuration_is_an_error() {
    let nested = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for text in ["", "{", "[]", "3", "null", &nested, "{\"vocab_size\": 1e999}", "\u{0}"] {
        let error = Config::from_text("folder", text).expect_err("it is none");
        assert!(matches!(error, PretrainedError::Json { .. }), "{error}");
        assert!(error.to_string().contains("config.json"), "{error}");
    }
}

/// A configuration with one changed byte is a configuration or an error.
#[test]
fn no_byte_of_a_configuration_makes_it_panic() -> Outcome {
    for &case in CASES.iter() {
        let bytes = fs::read(folder(case).join("config.json"))?;
        for at in 0..bytes.len() {
            for byte in *b"9\"[{}],:-e x" {
                let mut changed = bytes.clone();
                changed[at] = byte;
                if let Ok(text) = String::from_utf8(changed) {
                    drop(Config::from_text("folder", text));
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_model_is_found_in_the_cache_of_the_hub() -> Outcome {
    let cache = tempfile::tempdir()?;
    let repo = cache.path().join("models--org--tiny");
    fs::create_dir_all(repo.join("refs"))?;
    fs::write(repo.join("refs/main"), "abc123\n")?;
    let snapshot = repo.join("snapshots/abc123");
    fs::create_dir_all(&snapshot)?;
    fs::copy(folder("qwen3").join("config.json"), snapshot.join("config.json"))?;
    let hub = HubCache::at(cache.path());
    let config = Config::open_in(Path::new("org/tiny"), &hub)?;
    assert_eq!(config.folder(), snapshot);
    assert_eq!(config.architecture(), "Qwen3ForCausalLM");
    let error = Config::open_in(Path::new("org/other"), &hub).expect_err("it is not there");
    assert!(matches!(error, PretrainedError::NotFound { .. }), "{error}");
    let error = error.to_string();
    assert!(error.contains("org/other") && error.contains("models--org--other"), "{error}");
    let error = Config::open_in(Path::new("../org"), &hub).expect_err("it leads out");
    assert!(matches!(error, PretrainedError::NotFound { .. }), "{error}");
    Ok(())
}
