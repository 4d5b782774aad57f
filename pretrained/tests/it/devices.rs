//! Models on a simulated device, in published sizes.

use lowtide_nn::Parameters;
use lowtide_pretrained::Config;
use lowtide_tensor::DType;

use crate::common::{KEY, Outcome, sim};

/// The configuration of Llama 3.1 with 8 billion parameters.
const LLAMA_8B: &str = r#"{
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072,
    "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "transformers_version": "4.43.0.dev0", "use_cache": true, "vocab_size": 128256
}"#;

#[test]
fn eight_billion_parameters_are_built_on_a_simulated_device_at_once() -> Outcome {
    let config = Config::from_text("llama", LLAMA_8B)?;
    assert_eq!(config.shape().parameter_count(), 8_030_261_248);
    let device = sim(2, 1 << 40);
    let mut model = config.decoder(&device, KEY, DType::BF16)?;
    let mut count = 0;
    model.visit(&mut |_, parameter| count += parameter.value().element_count());
    assert_eq!(count, 8_030_261_248);
    let peak_bytes = device.allocator().statistics().allocated.peak_bytes;
    assert!(peak_bytes < 2 * count + (1 << 20), "{peak_bytes}");
    Ok(())
}

/// Published models with the number of their parameters.
const PUBLISHED: [(&str, usize); 41] = [
    ("EleutherAI/gpt-neox-20b", 20_554_567_680),
    ("EleutherAI/pythia-1.4b", 1_414_647_808),
    ("EleutherAI/pythia-12b", 11_846_072_320),
    ("EleutherAI/pythia-160m", 162_322_944),
    ("EleutherAI/pythia-410m", 405_334_016),
    ("EleutherAI/pythia-6.9b", 6_857_302_016),
    ("EleutherAI/pythia-70m", 70_426_624),
    ("HuggingFaceTB/SmolLM2-1.7B", 1_711_376_384),
    ("HuggingFaceTB/SmolLM2-135M", 134_515_008),
    ("HuggingFaceTB/SmolLM2-360M", 361_821_120),
    ("Qwen/Qwen2.5-0.5B", 494_032_768),
    ("Qwen/Qwen2.5-1.5B", 1_543_714_304),
    ("Qwen/Qwen2.5-32B", 32_763_876_352),
    ("Qwen/Qwen2.5-72B", 72_706_203_648),
    ("Qwen/Qwen2.5-7B", 7_615_616_512),
    ("Qwen/Qwen3-0.6B", 596_049_920),
    ("Qwen/Qwen3-1.7B", 1_720_574_976),
    ("Qwen/Qwen3-32B", 32_762_123_264),
    ("Qwen/Qwen3-4B", 4_022_468_096),
    ("Qwen/Qwen3-8B", 8_190_735_360),
    ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 1_100_048_384),
    ("google/gemma-2-27b", 27_227_128_320),
    ("google/gemma-2-2b", 2_614_341_888),
    ("google/gemma-2-9b", 9_241_705_984),
    ("google/gemma-2b", 2_506_172_416),
    ("google/gemma-3-1b-pt", 999_885_952),
    ("google/gemma-3-270m", 268_098_176),
    ("google/gemma-7b", 8_537_680_896),
    ("meta-llama/Llama-2-13b-hf", 13_015_864_320),
    ("meta-llama/Llama-2-70b-hf", 68_976_648_192),
    ("meta-llama/Llama-2-7b-hf", 6_738_415_616),
    ("meta-llama/Llama-3.1-70B", 70_553_706_496),
    ("meta-llama/Llama-3.1-8B", 8_030_261_248),
    ("meta-llama/Llama-3.2-1B", 1_235_814_400),
    ("meta-llama/Llama-3.2-3B", 3_212_749_824),
    ("mistralai/Mistral-7B-v0.1", 7_241_732_096),
    ("mistralai/Mistral-7B-v0.3", 7_248_023_552),
    ("openai-community/gpt2", 124_439_808),
    ("openai-community/gpt2-large", 774_030_080),
    ("openai-community/gpt2-medium", 354_823_168),
    ("openai-community/gpt2-xl", 1_557_611_200),
];

#[test]
fn published_models_have_as_many_parameters_as_they_were_published_with() -> Outcome {
    assert!(Config::published_names().eq(PUBLISHED.iter().map(|(name, _)| *name)));
    for (name, expected) in PUBLISHED {
        let config = Config::published(name)?.ok_or("not there")?;
        let device = sim(2, 1 << 40);
        let mut model = config.decoder(&device, KEY, DType::BF16)?;
        let mut count = 0;
        model.visit(&mut |_, parameter| count += parameter.value().element_count());
        assert_eq!(count, expected, "{name}");
        assert_eq!(config.shape().parameter_count(), expected as u128, "{name}");
    }
    assert!(Config::published("org/other")?.is_none());
    Ok(())
}
