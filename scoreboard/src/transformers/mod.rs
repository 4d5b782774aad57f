//! Models of the `transformers` package, as `lowtide-pretrained` reads them from the files that its
//! `save_pretrained` writes.
//!
//! A run is ten steps of AdamW. Each of its quantities is a case: logits and loss of a step,
//! gradients of the first and the last step, and the buffers after the last.

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

/// The models that the lines of a suite are about; none but for this suite.
pub(crate) fn models<'a>(suite: &str, lines: &'a [Line]) -> BTreeSet<&'a str> {
    let lines = if suite == SUITE { lines } else { &[] };
    lines.iter().filter_map(|line| Some(line.op.split_once(' ')?.0)).collect()
}

/// True if a line is about a model.
pub(crate) fn is_of(line: &Line, model: &str) -> bool {
    line.op.split_once(' ').is_some_and(|(name, _)| name == model)
}

/// A model, as its configuration describes it.
trait Net: Parameters {
    /// The results for a batch, and its loss.
    fn forward(&self, pass: &Pass, batch: &Batch) -> Result<Step>;

    /// Reads the weights of a folder.
    fn load(&mut self, folder: &Path) -> Result<()>;

    /// A gradient of the parameter `name` as files would have it.
    fn in_file(&self, name: &str, gradient: Tensor) -> Result<Tensor> {
        let _ = name;
        Ok(gradient)
    }
}

/// The results of a model in a step.
struct Step {
    logits: Var,
    /// The mean over the targets.
    loss: Var,
}
