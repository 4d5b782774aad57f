//! The models of a configuration, and their losses.

use std::path::Path;

use lowtide_autograd::{Pass, Var};
use lowtide_nn::{Module, cross_entropy};
use lowtide_pretrained::{
    Bert, BertConfig, BertHead, BertInput, Config, Decoder, EntryProblem, Family, ModelConfig,
    PretrainedError, ResNet, ResNetConfig, Shape, T5, T5Config, ViT, ViTConfig, load,
};
use lowtide_tensor::{DType, Device, RandomKey, Tensor};
use serde_json::{Map, Value};

use super::batch::Batch;
use super::{Net, Step};
use crate::call::{Result, Stop};
use crate::outcome::Reason;

/// The key of initial weights, which the loaded weights replace.
pub(super) const KEY: RandomKey = RandomKey::new(0);

/// The model for the `config.json` in `folder`, whose text is `text`.
pub(super) fn net(
    device: &Device,
    folder: &Path,
    text: &str,
    dtype: DType,
) -> Result<Box<dyn Net>> {
    let entries: Map<String, Value> =
        serde_json::from_str(text).map_err(|error| Stop::failure(error.to_string()))?;
    no_dropout(&entries)?;
    let name = entries["architectures"][0].as_str().unwrap_or_default();
    let source = Source { device, folder, text, dtype };
    match name {
        "BertForMaskedLM" | "BertForSequenceClassification" => BertConfig::net(source),
        "GPT2LMHeadModel" | "LlamaForCausalLM" | "Qwen3ForCausalLM" => Config::net(source),
        "ResNetForImageClassification" => ResNetConfig::net(source),
        "T5ForConditionalGeneration" => T5Config::net(source),
        "ViTForImageClassification" => ViTConfig::net(source),
        _ => Err(Stop::NotApplicable(Reason::Form, format!("the architecture {name}"))),
    }
}

/// The files of a model, and the device and type of its parameters.
#[derive(Clone, Copy)]
struct Source<'a> {
    device: &'a Device,
    folder: &'a Path,
    /// The text of `config.json`.
    text: &'a str,
    dtype: DType,
}

/// A type of configuration.
trait Made {
    /// A model of the configuration in `source`.
    fn net(source: Source<'_>) -> Result<Box<dyn Net>>;
}

impl<S: Shape> Made for ModelConfig<S>
where
    S::Model: Net,
{
    fn net(source: Source<'_>) -> Result<Box<dyn Net>> {
        let Source { device, folder, text, dtype } = source;
        let config = ModelConfig::<S>::from_text(folder, text).map_err(stop)?;
        Ok(Box::new(config.model(device, KEY, dtype).map_err(stop)?))
    }
}

/// Checks that dropout probabilities are 0, because no two libraries drop the same values.
fn no_dropout(entries: &Map<String, Value>) -> Result<()> {
    let drops = |(name, value): &(&String, &Value)| {
        let is_of_head = name.starts_with("classifier") || name.starts_with("summary");
        let is_dropout = name.contains("dropout") || name.ends_with("_pdrop");
        is_dropout && !is_of_head && value.as_f64().is_some_and(|probability| probability != 0.0)
    };
    match entries.iter().find(drops) {
        Some((name, _)) => Err(Stop::NotApplicable(Reason::Random, name.clone())),
        None => Ok(()),
    }
}

/// Entries that lowtide does not support are not failures.
fn stop(error: PretrainedError) -> Stop {
    match error {
        PretrainedError::Entry { entry, problem: EntryProblem::Unsupported { .. }, .. } => {
            Stop::NotApplicable(Reason::Argument, entry)
        }
        PretrainedError::Nn(error) => error.into(),
        error => Stop::failure(error.to_string()),
    }
}

impl Net for Decoder {
    fn forward(&self, pass: &Pass, batch: &Batch) -> Result<Step> {
        let ids = pass.constant(batch.tensor("input_ids")?.clone());
        let logits = self.logits(pass, ids, Some(batch.tensor("attention_mask")?))?;
        next_token(logits, batch.tensor("labels")?)
    }

    fn load(&mut self, folder: &Path) -> Result<()> {
        load(self, folder).map_err(stop)
    }

    /// The files of GPT-2 have weights as `[inputs, outputs]`.
    fn in_file(&self, name: &str, gradient: Tensor) -> Result<Tensor> {
        let is_weight = name.contains(".h.") && gradient.shape().len() == 2;
        match self.shape().family {
            Family::Gpt2 if is_weight => Ok(gradient.t()?.contiguous()?),
            _ => Ok(gradient),
        }
    }
}

impl Net for Bert {
    fn forward(&self, pass: &Pass, batch: &Batch) -> Result<Step> {
        let input = BertInput {
            tokens: batch.tensor("input_ids")?.clone(),
            mask: Some(batch.tensor("attention_mask")?.clone()),
            types: Some(batch.tensor("token_type_ids")?.clone()),
        };
        let (logits, labels) = (self.logits(pass, &input)?, batch.tensor("labels")?);
        match self.shape().head {
            BertHead::Tokens => same_token(logits, labels),
            BertHead::Classes(_) => classes(logits, labels),
        }
    }

    fn load(&mut self, folder: &Path) -> Result<()> {
        load(self, folder).map_err(stop)
    }
}

impl Net for T5 {
    fn forward(&self, pass: &Pass, batch: &Batch) -> Result<Step> {
        let (ids, labels) = (batch.tensor("input_ids")?, batch.tensor("labels")?);
        let mask = batch.tensor("attention_mask")?;
        same_token(self.logits(pass, ids, &self.shifted(labels)?, Some(mask))?, labels)
    }

    fn load(&mut self, folder: &Path) -> Result<()> {
        load(self, folder).map_err(stop)
    }
}

impl Net for ViT {
    fn forward(&self, pass: &Pass, batch: &Batch) -> Result<Step> {
        classified(self, pass, batch)
    }

    fn load(&mut self, folder: &Path) -> Result<()> {
        load(self, folder).map_err(stop)
    }
}

impl Net for ResNet {
    fn forward(&self, pass: &Pass, batch: &Batch) -> Result<Step> {
        classified(self, pass, batch)
    }

    fn load(&mut self, folder: &Path) -> Result<()> {
        load(self, folder).map_err(stop)
    }
}

fn classified(model: &impl Module, pass: &Pass, batch: &Batch) -> Result<Step> {
    let pixels = pass.constant(batch.tensor("pixel_values")?.clone());
    classes(model.forward(pass, pixels)?, batch.tensor("labels")?)
}

/// The cross-entropy of each position with the token after it.
fn next_token(logits: Var, labels: &Tensor) -> Result<Step> {
    let len = labels.shape()[1].saturating_sub(1);
    let (shown, labels) = (logits.clone().narrow(1, 0, len)?, labels.narrow(1, 1, len)?);
    Ok(Step { loss: mean_over_positions(shown, &labels)?, logits })
}

/// The cross-entropy of each position with its label.
fn same_token(logits: Var, labels: &Tensor) -> Result<Step> {
    Ok(Step { loss: mean_over_positions(logits.clone(), labels)?, logits })
}

/// The cross-entropy of each sample with its class.
fn classes(logits: Var, labels: &Tensor) -> Result<Step> {
    Ok(Step { loss: cross_entropy(logits.clone(), labels)?.mean()?, logits })
}

/// The mean loss over all positions, for `logits: [B, T, V], labels: [B, T]`.
fn mean_over_positions(logits: Var, labels: &Tensor) -> Result<Var> {
    let (batch, len, vocabulary) = (logits.shape()[0], logits.shape()[1], logits.shape()[2]);
    let rows = logits.reshape([batch * len, vocabulary])?;
    Ok(cross_entropy(rows, &labels.reshape([batch * len])?)?.mean()?)
}
