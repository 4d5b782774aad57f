//! Models of the `transformers` package, read by `lowtide-pretrained` from the files of
//! `save_pretrained`.
//!
//! A run is ten steps of AdamW. Each quantity of a run is a case: logits and loss of a step,
//! gradients of the first and the last step, and the buffers after the last step.

mod batch;
mod models;
mod run;

use std::collections::BTreeSet;
use std::path::Path;

use lowtide_autograd::{Pass, Var};
use lowtide_nn::Parameters;
use lowtide_tensor::Tensor;

use crate::call::Result;
use crate::report::Line;
use batch::Batch;

pub use run::lines;

/// The suite's name.
pub const SUITE: &str = "transformers";

/// The models in the lines of this suite; empty for another suite.
pub(crate) fn models<'a>(suite: &str, lines: &'a [Line]) -> BTreeSet<&'a str> {
    let lines = if suite == SUITE { lines } else { &[] };
    lines.iter().filter_map(|line| Some(line.op.split_once(' ')?.0)).collect()
}

/// True if a line is about a model.
pub(crate) fn is_of(line: &Line, model: &str) -> bool {
    line.op.split_once(' ').is_some_and(|(name, _)| name == model)
}

/// A model of a configuration.
trait Net: Parameters {
    /// The results for a batch, and its loss.
    fn forward(&self, pass: &Pass, batch: &Batch) -> Result<Step>;

    /// Reads the weights of a folder.
    fn load(&mut self, folder: &Path) -> Result<()>;

    /// The gradient of the parameter `name` in the layout of the file.
    fn in_file(&self, name: &str, gradient: Tensor) -> Result<Tensor> {
        let _ = name;
        Ok(gradient)
    }
}

/// The results of a model in a step.
struct Step {
    logits: Var,
    /// The mean loss over the targets.
    loss: Var,
}
