//! A language model of LSTM layers: Zaremba, Sutskever and Vinyals, "Recurrent neural network
//! regularization" (2014), in the form of PyTorch's `word_language_model` example.
//!
//! `B` batch, `T` positions, `V` vocabulary.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Device, RandomKey};

use crate::error::Result;
use crate::layers::dropout::Dropout;
use crate::layers::embedding::Embedding;
use crate::layers::linear::Linear;
use crate::layers::recurrent::{Lstm, LstmState, RecurrentOptions};
use crate::module::{Module, Parameters, forward_in};
use crate::node::parameters;

/// The sizes of an [`LstmModel`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LstmModelShape {
    /// Number of tokens in the vocabulary.
    pub vocabulary: usize,
    /// Number of features of each token.
    pub width: usize,
    /// Number of features of the hidden state.
    pub hidden: usize,
    /// Number of layers.
    pub layers: usize,
    /// Dropout probability after the table, between layers and before the output layer.
    pub dropout: f64,
}

impl LstmModelShape {
    /// The defaults of PyTorch's example with the 33,278 words of WikiText-2: 13,987,678
    /// parameters.
    pub const USUAL: LstmModelShape =
        LstmModelShape { vocabulary: 33_278, width: 200, hidden: 200, layers: 2, dropout: 0.2 };
}

/// A table of tokens, LSTM layers, and a linear layer to the vocabulary.
#[derive(Clone, Debug)]
pub struct LstmModel {
    encoder: Embedding,
    rnn: Lstm,
    decoder: Linear,
    dropout: Dropout,
}

impl LstmModel {
    /// A model of `shape`, initialised from `key` as in PyTorch's example: the table and the output
    /// layer are uniform in ±0.1.
    ///
    /// # Errors
    /// `Option` without layers or with a dropout outside `[0, 1]`; `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, shape: LstmModelShape) -> Result<Self> {
        const BOUND: f64 = 0.1;
        let LstmModelShape { vocabulary, width, hidden, layers, dropout } = shape;
        let recurrent =
            RecurrentOptions { layers, dropout, ..RecurrentOptions::new(width, hidden) };
        let mut model = LstmModel {
            encoder: Embedding::new(device, key.op("encoder"), vocabulary, width)?,
            rnn: Lstm::new(device, key.op("rnn"), recurrent)?,
            decoder: Linear::new(device, key.op("decoder"), hidden, vocabulary)?,
            dropout: Dropout::new(dropout)?,
        };
        let mut result = Ok(());
        model.visit(&mut |name, parameter| {
            let value = parameter.value_mut();
            let filled = match name {
                "encoder.weight" | "decoder.weight" => {
                    value.uniform_(key.op("uniform").op(name), -BOUND, BOUND)
                }
                "decoder.bias" => value.fill_(0.0),
                _ => Ok(()),
            };
            result = std::mem::replace(&mut result, Ok(())).and(filled);
        });
        result?;
        Ok(model)
    }

    /// [`Module::forward`] from the states `start` instead of zeros. Also returns the last states,
    /// for sequences that continue in the next batch.
    ///
    /// # Shapes
    /// `input: [B, T]` of i64 `→ [B, T, V]`
    ///
    /// # Errors
    /// `Shape`, `Index`, `OutOfMemory`.
    pub fn run(
        &self,
        pass: &Pass,
        input: Var,
        start: Option<LstmState>,
    ) -> Result<(Var, LstmState)> {
        let x = forward_in(pass, "encoder", &self.encoder, input)?;
        let x = pass.within("drop", || self.dropout.forward(pass, x))?;
        let (y, end) = pass.within("rnn", || self.rnn.run(pass, x, start))?;
        let y = pass.within("drop", || self.dropout.forward(pass, y))?;
        Ok((forward_in(pass, "decoder", &self.decoder, y)?, end))
    }
}

parameters!(LstmModel { encoder, rnn, decoder });

impl Module for LstmModel {
    /// # Shapes
    /// `input: [B, T]` of i64 `→ [B, T, V]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        Ok(self.run(pass, input, None)?.0)
    }
}
