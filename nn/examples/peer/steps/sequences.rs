//! Networks of sequences.

use lowtide_autograd::{Pass, Var};
use lowtide_nn::{
    Conv1d, Embedding, HiddenActivation, LayerNorm, Linear, Module, NnResult as Result, RmsNorm,
    RotaryEmbedding, RotaryPairs, RotaryTables, TransformerEncoderLayer, TransformerOptions,
    parameters,
};
use lowtide_tensor::{AttentionOptions, Causal, Conv1dGeometry, Device, PadMode};

use crate::KEY;

/// A dilated convolution to gates and values, and convolutions to the residual and to the skip
/// output.
struct Gated {
    dilated: Conv1d,
    residual: Conv1d,
    skip: Conv1d,
    dilation: usize,
}

parameters!(Gated { dilated, residual, skip });

/// Van den Oord et al., "WaveNet: a generative model for raw audio" (2016): two stacks of 8
/// dilations, 64 channels, 128 skip channels, for 256 values of a sample.
pub(super) struct WaveNet {
    table: Embedding,
    layers: Vec<Gated>,
    hidden: Conv1d,
    out: Conv1d,
}

/// Names of the layers.
const LAYERS: [&str; 16] = [
    "layers.0",
    "layers.1",
    "layers.2",
    "layers.3",
    "layers.4",
    "layers.5",
    "layers.6",
    "layers.7",
    "layers.8",
    "layers.9",
    "layers.10",
    "layers.11",
    "layers.12",
    "layers.13",
    "layers.14",
    "layers.15",
];

impl WaveNet {
    pub(super) fn new(device: &Device) -> Result<Self> {
        let conv = |ends, kernel, dilation| {
            let geometry = Conv1dGeometry { dilation, ..Default::default() };
            Conv1d::new(device, KEY, ends, kernel, geometry)
        };
        let layer = |index: usize| {
            let dilation = 1 << (index % 8);
            Ok(Gated {
                dilated: conv([64, 128], 2, dilation)?,
                residual: conv([64, 64], 1, 1)?,
                skip: conv([64, 128], 1, 1)?,
                dilation,
            })
        };
        Ok(WaveNet {
            table: Embedding::new(device, KEY, 256, 64)?,
            layers: (0..LAYERS.len()).map(layer).collect::<Result<_>>()?,
            hidden: conv([128, 128], 1, 1)?,
            out: conv([128, 256], 1, 1)?,
        })
    }
}

parameters!(WaveNet { table, layers as LAYERS, hidden, out });

impl Module for WaveNet {
    fn forward(&self, pass: &Pass, tokens: Var) -> Result<Var> {
        let mut x = self.table.forward(pass, tokens)?.transpose(1, 2)?;
        let mut kept: Option<Var> = None;
        for layer in &self.layers {
            let past = x.clone().pad(&[[layer.dilation, 0]], PadMode::Constant(0.0))?;
            let both = layer.dilated.forward(pass, past)?;
            let value = both.clone().narrow(1, 0, 64)?.tanh()?;
            let gated = value.mul(both.narrow(1, 64, 64)?.sigmoid()?)?;
            let skip = layer.skip.forward(pass, gated.clone())?;
            kept = Some(match kept {
                Some(kept) => kept.add(skip)?,
                None => skip,
            });
            x = layer.residual.forward(pass, gated)?.add(x)?;
        }
        let kept = kept.expect("there are layers").relu()?;
        let y = self.out.forward(pass, self.hidden.forward(pass, kept)?.relu()?)?;
        Ok(y.transpose(1, 2)?)
    }
}

/// Devlin et al., "BERT: pre-training of deep bidirectional transformers" (2019): 4 layers of 256
/// features, 8,192 words, 128 positions.
pub(super) struct Bert {
    table: Embedding,
    positions: Embedding,
    norm: LayerNorm,
    layers: Vec<TransformerEncoderLayer>,
    head: Linear,
}

impl Bert {
    pub(super) fn new(device: &Device) -> Result<Self> {
        let options = TransformerOptions {
            hidden: 1024,
            dropout: 0.0,
            activation: HiddenActivation::Gelu,
            ..TransformerOptions::new(256, 4)
        };
        let layer = |_| TransformerEncoderLayer::new(device, KEY, options);
        Ok(Bert {
            table: Embedding::new(device, KEY, 8192, 256)?,
            positions: Embedding::new(device, KEY, 128, 256)?,
            norm: LayerNorm::new(device, &[256])?,
            layers: (0..4).map(layer).collect::<Result<_>>()?,
            head: Linear::new(device, KEY, 256, 8192)?,
        })
    }
}

parameters!(Bert {
    table,
    positions,
    norm,
    layers as ["layers.0", "layers.1", "layers.2", "layers.3"],
    head,
});

impl Module for Bert {
    fn forward(&self, pass: &Pass, tokens: Var) -> Result<Var> {
        let x = self.table.forward(pass, tokens)?.add(self.positions.table(pass)?)?;
        let x = self.norm.forward(pass, x)?;
        let x = self.layers.iter().try_fold(x, |x, layer| layer.forward(pass, x))?;
        self.head.forward(pass, x)
    }
}

/// Attention with 8 query heads and 4 heads of keys and values, and a gated hidden layer.
struct LlamaLayer {
    norm1: RmsNorm,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    norm2: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
}

parameters!(LlamaLayer { norm1, q, k, v, o, norm2, gate, up, down });

const WIDTH: usize = 256;
const HEADS: usize = 8;
const GROUPS: usize = 4;
const HEAD_WIDTH: usize = WIDTH / HEADS;

impl LlamaLayer {
    fn new(device: &Device) -> Result<Self> {
        let linear = |inputs, outputs| Linear::without_bias(device, KEY, inputs, outputs);
        let norm = || Ok::<_, lowtide_nn::NnError>(RmsNorm::new(device, &[WIDTH])?.with_eps(1e-5));
        Ok(LlamaLayer {
            norm1: norm()?,
            q: linear(WIDTH, WIDTH)?,
            k: linear(WIDTH, GROUPS * HEAD_WIDTH)?,
            v: linear(WIDTH, GROUPS * HEAD_WIDTH)?,
            o: linear(WIDTH, WIDTH)?,
            norm2: norm()?,
            gate: linear(WIDTH, 688)?,
            up: linear(WIDTH, 688)?,
            down: linear(688, WIDTH)?,
        })
    }

    fn forward(&self, pass: &Pass, x: Var, tables: &RotaryTables) -> Result<Var> {
        let [rows, len] = [x.shape()[0], x.shape()[1]];
        let y = self.norm1.forward(pass, x.clone())?;
        let heads = |layer: &Linear, count| -> Result<Var> {
            let y = layer.forward(pass, y.clone())?;
            Ok(y.reshape([rows, len, count, HEAD_WIDTH])?.transpose(1, 2)?)
        };
        let (q, k) = (heads(&self.q, HEADS)?, heads(&self.k, GROUPS)?);
        let (q, k, v) = (tables.turn(q)?, tables.turn(k)?, heads(&self.v, GROUPS)?);
        let options = AttentionOptions { causal: Causal::UpperLeft, ..Default::default() };
        let seen = q.attention(k, v, None, options)?.transpose(1, 2)?;
        let x = self.o.forward(pass, seen.reshape([rows, len, WIDTH])?)?.add(x)?;
        let y = self.norm2.forward(pass, x.clone())?;
        let gate = self.gate.forward(pass, y.clone())?.silu()?;
        let y = gate.mul(self.up.forward(pass, y)?)?;
        Ok(self.down.forward(pass, y)?.add(x)?)
    }
}

/// Touvron et al., "LLaMA: open and efficient foundation language models" (2023), with grouped
/// queries: 4 layers of 256 features, 8,192 words.
pub(super) struct Llama {
    table: Embedding,
    layers: Vec<LlamaLayer>,
    norm: RmsNorm,
    head: Linear,
}

impl Llama {
    pub(super) fn new(device: &Device) -> Result<Self> {
        Ok(Llama {
            table: Embedding::new(device, KEY, 8192, WIDTH)?,
            layers: (0..4).map(|_| LlamaLayer::new(device)).collect::<Result<_>>()?,
            norm: RmsNorm::new(device, &[WIDTH])?.with_eps(1e-5),
            head: Linear::without_bias(device, KEY, WIDTH, 8192)?,
        })
    }
}

parameters!(Llama {
    table,
    layers as ["layers.0", "layers.1", "layers.2", "layers.3"],
    norm,
    head,
});

impl Module for Llama {
    fn forward(&self, pass: &Pass, tokens: Var) -> Result<Var> {
        let x = self.table.forward(pass, tokens)?;
        let rotary = RotaryEmbedding::new(RotaryPairs::HalfSplit);
        let value = x.value();
        let sizes = [x.shape()[1], HEAD_WIDTH];
        let tables = rotary.tables(value.device(), sizes, value.dtype())?;
        let x = self.layers.iter().try_fold(x, |x, layer| layer.forward(pass, x, &tables))?;
        self.head.forward(pass, self.norm.forward(pass, x)?)
    }
}
