//! Models of the `transformers` package, built from lowtide's layers and loaded from the files that
//! its `save_pretrained` writes: one file for each family, names as they stand in the files.
//!
//! A run is ten steps of AdamW. Each of its quantities is a case: logits and loss of a step,
//! gradients of the first and the last step, and the buffers after the last.

mod bert;
mod config;
mod gpt2;
mod llama;
mod parts;
mod resnet;
mod run;
mod t5;
mod vit;

use std::collections::BTreeSet;

use lowtide_autograd::{Pass, Var};
use lowtide_nn::Parameters;
use lowtide_tensor::Device;

use crate::call::Result;
use crate::report::Line;
use config::{Batch, Config};

pub use run::lines;

/// The suite's name.
pub const SUITE: &str = "transformers";

/// The models that the lines of a suite are about; none but for this suite.
pub(crate) fn models<'a>(suite: &str, lines: &'a [Line]) -> BTreeSet<&'a str> {
    let lines = if suite == SUITE { lines } else { &[] };
    lines.iter().filter_map(|line| Some(line.op.split_once(' ')?.0)).collect()
}

/// Whether a line is about a model.
pub(crate) fn is_of(line: &Line, model: &str) -> bool {
    line.op.split_once(' ').is_some_and(|(name, _)| name == model)
}

/// A model, as its configuration describes it.
trait Net: Parameters {
    /// The results for a batch, and its loss.
    fn forward(&self, pass: &Pass, batch: &Batch) -> Result<Step>;
}

/// What a model computes in a step.
struct Step {
    logits: Var,
    /// The mean over the targets.
    loss: Var,
}

/// From a configuration to a model with fresh weights.
type Build = fn(&Device, &Config) -> Result<Box<dyn Net>>;

/// The architectures, as `config.json` names them.
const ARCHITECTURES: [(&str, Build); 8] = [
    ("BertForMaskedLM", bert::masked_lm),
    ("BertForSequenceClassification", bert::classifier),
    ("GPT2LMHeadModel", gpt2::lm),
    ("LlamaForCausalLM", llama::llama),
    ("Qwen3ForCausalLM", llama::qwen3),
    ("ResNetForImageClassification", resnet::classifier),
    ("T5ForConditionalGeneration", t5::seq2seq),
    ("ViTForImageClassification", vit::classifier),
];

/// What builds an architecture, if there is one here.
fn builder(architecture: &str) -> Option<Build> {
    let known = ARCHITECTURES.iter().find(|(name, _)| *name == architecture);
    known.map(|(_, build)| *build)
}
