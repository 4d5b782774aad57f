//! Configurations of published models, embedded in the program, for planning before anything is
//! downloaded.

use crate::config::Config;
use crate::error::Result;

/// Name and configuration.
macro_rules! published {
    ($($name:literal: $file:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../configs/", $file, ".json")))),*]
    };
}

const PUBLISHED: &[(&str, &str)] = published! {
    "EleutherAI/gpt-neox-20b": "EleutherAI--gpt-neox-20b",
    "EleutherAI/pythia-1.4b": "EleutherAI--pythia-1.4b",
    "EleutherAI/pythia-12b": "EleutherAI--pythia-12b",
    "EleutherAI/pythia-160m": "EleutherAI--pythia-160m",
    "EleutherAI/pythia-410m": "EleutherAI--pythia-410m",
    "EleutherAI/pythia-6.9b": "EleutherAI--pythia-6.9b",
    "EleutherAI/pythia-70m": "EleutherAI--pythia-70m",
    "HuggingFaceTB/SmolLM2-1.7B": "HuggingFaceTB--SmolLM2-1.7B",
    "HuggingFaceTB/SmolLM2-135M": "HuggingFaceTB--SmolLM2-135M",
    "HuggingFaceTB/SmolLM2-360M": "HuggingFaceTB--SmolLM2-360M",
    "Qwen/Qwen2.5-0.5B": "Qwen--Qwen2.5-0.5B",
    "Qwen/Qwen2.5-1.5B": "Qwen--Qwen2.5-1.5B",
    "Qwen/Qwen2.5-32B": "Qwen--Qwen2.5-32B",
    "Qwen/Qwen2.5-72B": "Qwen--Qwen2.5-72B",
    "Qwen/Qwen2.5-7B": "Qwen--Qwen2.5-7B",
    "Qwen/Qwen3-0.6B": "Qwen--Qwen3-0.6B",
    "Qwen/Qwen3-1.7B": "Qwen--Qwen3-1.7B",
    "Qwen/Qwen3-32B": "Qwen--Qwen3-32B",
    "Qwen/Qwen3-4B": "Qwen--Qwen3-4B",
    "Qwen/Qwen3-8B": "Qwen--Qwen3-8B",
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": "TinyLlama--TinyLlama-1.1B-Chat-v1.0",
    "google/gemma-2-27b": "google--gemma-2-27b",
    "google/gemma-2-2b": "google--gemma-2-2b",
    "google/gemma-2-9b": "google--gemma-2-9b",
    "google/gemma-2b": "google--gemma-2b",
    "google/gemma-3-1b-pt": "google--gemma-3-1b-pt",
    "google/gemma-3-270m": "google--gemma-3-270m",
    "google/gemma-7b": "google--gemma-7b",
    "meta-llama/Llama-2-13b-hf": "meta-llama--Llama-2-13b-hf",
    "meta-llama/Llama-2-70b-hf": "meta-llama--Llama-2-70b-hf",
    "meta-llama/Llama-2-7b-hf": "meta-llama--Llama-2-7b-hf",
    "meta-llama/Llama-3.1-70B": "meta-llama--Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B": "meta-llama--Llama-3.1-8B",
    "meta-llama/Llama-3.2-1B": "meta-llama--Llama-3.2-1B",
    "meta-llama/Llama-3.2-3B": "meta-llama--Llama-3.2-3B",
    "mistralai/Mistral-7B-v0.1": "mistralai--Mistral-7B-v0.1",
    "mistralai/Mistral-7B-v0.3": "mistralai--Mistral-7B-v0.3",
    "openai-community/gpt2": "openai-community--gpt2",
    "openai-community/gpt2-large": "openai-community--gpt2-large",
    "openai-community/gpt2-medium": "openai-community--gpt2-medium",
    "openai-community/gpt2-xl": "openai-community--gpt2-xl",
};

impl Config {
    /// The names of the models that [`Config::published`] knows.
    pub fn published_names() -> impl Iterator<Item = &'static str> {
        PUBLISHED.iter().map(|(name, _)| *name)
    }

    /// The configuration of a published model, such as `Qwen/Qwen3-0.6B`; `None` if the name is not
    /// known. The weights are not embedded: use [`Config::open`] for downloaded weights.
    ///
    /// # Errors
    /// Only if the program is damaged.
    pub fn published(name: &str) -> Result<Option<Self>> {
        let known = PUBLISHED.iter().find(|(known, _)| *known == name);
        known.map(|(name, text)| Config::from_text(name, *text)).transpose()
    }
}
