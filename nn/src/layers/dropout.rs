//! Dropout: elements set to 0 at random in training.

use lowtide_autograd::{Pass, Var};

use crate::checks::check_option;
use crate::error::Result;
use crate::functional::dropout::dropout;
use crate::module::Module;
use crate::node::parameters;

/// Sets elements to 0 in training and scales the others up, `torch.nn.Dropout`. The mask is a
/// function of the pass's key, the module's path and the sample's place in the logical batch, so
/// that micro-batches have the same mask as the whole batch.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    probability: f64,
}

impl Dropout {
    /// A layer with this probability of an element being set to 0; PyTorch's default is 0.5.
    ///
    /// # Errors
    /// `Option` outside `[0, 1]`.
    pub fn new(probability: f64) -> Result<Self> {
        check_option("probability", probability, "[0, 1]", |p| (0.0..=1.0).contains(&p))?;
        Ok(Dropout { probability })
    }

    /// The probability of an element being set to 0 in training.
    pub fn probability(&self) -> f64 {
        self.probability
    }
}

parameters!(Dropout {});

impl Module for Dropout {
    /// # Shapes
    /// `input: [N, ..] → [N, ..]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        dropout(pass, input, self.probability)
    }
}
