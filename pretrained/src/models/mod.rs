//! Models that are no decoders of text: BERT, T5, ViT and ResNet.

mod attention;
mod bert;
mod resnet;
mod t5;
mod vit;

use lowtide_autograd::{Pass, Var};
use lowtide_nn::{Dropout, Module, NnResult};
use serde_json::{Map, Value};

use crate::config::Entries;
use crate::error::{EntryProblem, Result};

pub use bert::{Bert, BertConfig, BertHead, BertInput, BertShape};
pub(crate) use resnet::has_shortcut;
pub use resnet::{ResNet, ResNetConfig, ResNetShape};
pub use t5::{T5, T5Config, T5Shape};
pub use vit::{ViT, ViTConfig, ViTShape};

/// Classes of a configuration: as many as have names.
fn classes(entries: &Entries) -> Result<usize> {
    let names = entries.value("id2label").and_then(Value::as_object).map(Map::len);
    if names == Some(0) {
        let (expected, found) = ("a name for each class", "{}".to_owned());
        return Err(entries.error("id2label", EntryProblem::Wrong { expected, found }));
    }
    let count = entries.optional_count("num_labels")?.or(entries.optional_count("_num_labels")?);
    match entries.optional_text("problem_type")? {
        None | Some("single_label_classification") => Ok(names.or(count).unwrap_or(2)),
        Some(other) => Err(entries.not_built("problem_type", &Value::from(other))),
    }
}

fn dropped(pass: &Pass, probability: f64, x: Var) -> NnResult<Var> {
    Dropout::new(probability)?.forward(pass, x)
}

/// `module`, whose memory and random numbers are its own.
fn run_in(pass: &Pass, name: &str, module: &impl Module, x: Var) -> NnResult<Var> {
    pass.within(name, || module.forward(pass, x))
}
