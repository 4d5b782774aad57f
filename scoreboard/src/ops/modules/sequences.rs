//! Recurrence, attention and transformers.

use lowtide_autograd::Var;
use lowtide_nn::{
    AttentionMemory, CellOptions, Directions, Gru, GruCell, HiddenActivation, Lstm, LstmCell,
    LstmState, MultiHeadAttention, MultiHeadOptions, NormPlace, RecurrentOptions, Rnn,
    RnnActivation, RnnCell, Transformer, TransformerDecoderLayer, TransformerEncoder,
    TransformerEncoderLayer, TransformerMasks, TransformerOptions, key_padding_mask,
};
use lowtide_tensor::{DType, Tensor};

use super::{Family, INPUT, KEY, flag, loaded, size};
use crate::call::{At, Call, Result, Stop, at, named, no_form, no_such, one};
use crate::outcome::Reason;

pub(super) const OPS: Family = &[
    ("nn.GRU", |call| {
        let (options, batch_first) = recurrent(call)?;
        let layer = loaded(call, Gru::new(&call.device, KEY, options)?)?;
        let (x, form) = sequence(call, INPUT, batch_first)?;
        let start = call.optional_var(at(1, "hx"))?.map(|h| form.state(h)).transpose()?;
        let (y, h) = layer.run(&call.pass, x, start)?;
        Ok(vec![form.restored(y)?.into(), form.state_restored(h)?.into()])
    }),
    ("nn.LSTM", |call| {
        let (options, batch_first) = recurrent(call)?;
        let layer = match call.count(named("proj_size"))?.unwrap_or(0) {
            0 => Lstm::new(&call.device, KEY, options)?,
            projected => Lstm::with_projection(&call.device, KEY, options, projected)?,
        };
        let layer = loaded(call, layer)?;
        let (x, form) = sequence(call, INPUT, batch_first)?;
        let start = match call.value(at(1, "hx")) {
            None => None,
            Some(_) => {
                let [h, c] = <[Var; 2]>::try_from(call.vars(at(1, "hx"))?)
                    .map_err(|_| Stop::NotApplicable(Reason::Form, "hx".to_owned()))?;
                Some(LstmState { h: form.state(h)?, c: form.state(c)? })
            }
        };
        let (y, LstmState { h, c }) = layer.run(&call.pass, x, start)?;
        let [h, c] = [form.state_restored(h)?, form.state_restored(c)?];
        Ok(vec![form.restored(y)?.into(), h.into(), c.into()])
    }),
    ("nn.GRUCell", |call| {
        let layer = loaded(call, GruCell::new(&call.device, KEY, cell(call)?)?)?;
        let (x, is_alone) = one_step(call, INPUT)?;
        let start = match call.value(at(1, "hx")) {
            Some(_) => Some(one_step(call, at(1, "hx"))?.0),
            None => None,
        };
        let h = layer.step(&call.pass, x, start)?;
        one(if is_alone { h.squeeze(0)? } else { h })
    }),
    ("nn.LSTMCell", |call| {
        let layer = loaded(call, LstmCell::new(&call.device, KEY, cell(call)?)?)?;
        let (x, is_alone) = one_step(call, INPUT)?;
        let start = match call.value(at(1, "hx")) {
            None => None,
            Some(_) => {
                let [h, c] = <[Var; 2]>::try_from(call.vars(at(1, "hx"))?)
                    .map_err(|_| Stop::NotApplicable(Reason::Form, "hx".to_owned()))?;
                Some(if is_alone { [h.unsqueeze(0)?, c.unsqueeze(0)?] } else { [h, c] })
            }
        };
        let [h, c] = layer.step(&call.pass, x, start)?;
        let [h, c] = if is_alone { [h.squeeze(0)?, c.squeeze(0)?] } else { [h, c] };
        Ok(vec![h.into(), c.into()])
    }),
    ("nn.RNNCell", |call| {
        let activation = nonlinearity(call)?;
        let layer = loaded(call, RnnCell::new(&call.device, KEY, cell(call)?, activation)?)?;
        let (x, is_alone) = one_step(call, INPUT)?;
        let start = match call.value(at(1, "hx")) {
            Some(_) => Some(one_step(call, at(1, "hx"))?.0),
            None => None,
        };
        let h = layer.step(&call.pass, x, start)?;
        one(if is_alone { h.squeeze(0)? } else { h })
    }),
    ("nn.MultiheadAttention", |call| {
        let options = MultiHeadOptions {
            dropout: dropout(call, 0.0)?,
            bias: flag(call, "bias")?,
            learned_key: call.flag(named("add_bias_kv"))?.unwrap_or(false),
            zero_key: call.flag(named("add_zero_attn"))?.unwrap_or(false),
            ..MultiHeadOptions::new(size(call, "embed_dim")?, size(call, "num_heads")?)
        };
        for width in ["kdim", "vdim"] {
            if call.count(named(width))?.is_some_and(|width| width != options.width) {
                return Err(Stop::NotApplicable(Reason::Argument, width.to_owned()));
            }
        }
        let batch_first = call.flag(named("batch_first"))?.unwrap_or(false);
        let heads = options.heads;
        let layer = loaded(call, MultiHeadAttention::new(&call.device, KEY, options)?)?;
        let (x, form) = sequence(call, at(0, "query"), batch_first)?;
        let (keys, _) = sequence(call, at(1, "key"), batch_first)?;
        let mask = mask(call, ["attn_mask", "key_padding_mask"], heads)?;
        // The flag is only a hint: the mask has the same meaning.
        call.flag(named("is_causal"))?;
        let memory = if call.value(at(1, "key")) == call.value(at(2, "value")) {
            AttentionMemory::from(keys)
        } else {
            AttentionMemory::parts(keys, sequence(call, at(2, "value"), batch_first)?.0)
        };
        let averages = call.flag(named("average_attn_weights"))?.unwrap_or(true);
        if !flag(call, "need_weights")? {
            return one(form.restored(layer.attend(&call.pass, x, memory, mask.as_ref())?)?);
        }
        let (y, weights) = layer.attend_with_weights(&call.pass, x, memory, mask.as_ref())?;
        let weights = if averages { weights.mean(&[1])? } else { weights };
        let weights = if form.is_alone { weights.squeeze(0)? } else { weights };
        Ok(vec![form.restored(y)?.into(), weights.into()])
    }),
    ("nn.RNN", |call| {
        let (options, batch_first) = recurrent(call)?;
        let activation = nonlinearity(call)?;
        let layer = loaded(call, Rnn::new(&call.device, KEY, options, activation)?)?;
        let (x, form) = sequence(call, INPUT, batch_first)?;
        let start = call.optional_var(at(1, "hx"))?.map(|h| form.state(h)).transpose()?;
        let (y, h) = layer.run(&call.pass, x, start)?;
        Ok(vec![form.restored(y)?.into(), form.state_restored(h)?.into()])
    }),
    ("nn.Transformer", |call| {
        let (options, batch_first) = transformer(call)?;
        let counts = ["num_encoder_layers", "num_decoder_layers"];
        let [encoders, decoders] = counts.map(|name| call.count(named(name)));
        let counts = [encoders?.unwrap_or(6), decoders?.unwrap_or(6)];
        let heads = options.heads;
        let layer = loaded(call, Transformer::new(&call.device, KEY, counts, options)?)?;
        let (source, _) = sequence(call, at(0, "src"), batch_first)?;
        let (target, form) = sequence(call, at(1, "tgt"), batch_first)?;
        let own = mask(call, ["src_mask", "src_key_padding_mask"], heads)?;
        let other = mask(call, ["tgt_mask", "tgt_key_padding_mask"], heads)?;
        let memory = mask(call, ["memory_mask", "memory_key_padding_mask"], heads)?;
        let masks = TransformerMasks {
            source: own.as_ref(),
            target: other.as_ref(),
            memory: memory.as_ref(),
        };
        one(form.restored(layer.run(&call.pass, source, target, masks)?)?)
    }),
    ("nn.TransformerDecoderLayer", |call| {
        let (options, batch_first) = transformer(call)?;
        let heads = options.heads;
        let layer = loaded(call, TransformerDecoderLayer::new(&call.device, KEY, options)?)?;
        let (x, form) = sequence(call, INPUT, batch_first)?;
        let (memory, _) = sequence(call, at(1, "memory"), batch_first)?;
        let own = mask(call, ["tgt_mask", "tgt_key_padding_mask"], heads)?;
        let other = mask(call, ["memory_mask", "memory_key_padding_mask"], heads)?;
        // The flags are only hints: the masks have the same meaning.
        call.flag(named("tgt_is_causal"))?;
        call.flag(named("memory_is_causal"))?;
        let y = layer.decode(&call.pass, x, memory, [own.as_ref(), other.as_ref()])?;
        one(form.restored(y)?)
    }),
    ("nn.TransformerEncoder", |call| {
        let (options, batch_first) = transformer(call)?;
        let (heads, count) = (options.heads, size(call, "num_layers")?);
        let stack = TransformerEncoder::new(&call.device, KEY, count, options)?;
        let stack = loaded(call, stack.without_norm())?;
        let (x, form) = sequence(call, at(0, "src"), batch_first)?;
        let mask = mask(call, ["mask", "src_key_padding_mask"], heads)?;
        call.flag(named("is_causal"))?;
        one(form.restored(stack.forward_masked(&call.pass, x, mask.as_ref())?)?)
    }),
    ("nn.TransformerEncoderLayer", |call| {
        let (options, batch_first) = transformer(call)?;
        let heads = options.heads;
        let layer = loaded(call, TransformerEncoderLayer::new(&call.device, KEY, options)?)?;
        let (x, form) = sequence(call, INPUT, batch_first)?;
        let mask = mask(call, ["src_mask", "src_key_padding_mask"], heads)?;
        call.flag(named("is_causal"))?;
        one(form.restored(layer.forward_masked(&call.pass, x, mask.as_ref())?)?)
    }),
];

fn nonlinearity(call: &Call<'_>) -> Result<RnnActivation> {
    match call.text(named("nonlinearity"))? {
        None | Some("tanh") => Ok(RnnActivation::Tanh),
        Some("relu") => Ok(RnnActivation::Relu),
        Some(_) => no_such(call, "nonlinearity"),
    }
}

fn cell(call: &Call<'_>) -> Result<CellOptions> {
    let (inputs, hidden) = (size(call, "input_size")?, size(call, "hidden_size")?);
    Ok(CellOptions { inputs, hidden, bias: flag(call, "bias")? })
}

/// The input as a batch of one if it is a single sample, with true for a single sample.
fn one_step(call: &Call<'_>, at: At) -> Result<(Var, bool)> {
    let x = call.var(at)?;
    let is_alone = x.shape().len() == 1;
    Ok((if is_alone { x.unsqueeze(0)? } else { x }, is_alone))
}

fn recurrent(call: &Call<'_>) -> Result<(RecurrentOptions, bool)> {
    let both = call.flag(named("bidirectional"))?.unwrap_or(false);
    let options = RecurrentOptions {
        inputs: size(call, "input_size")?,
        hidden: size(call, "hidden_size")?,
        layers: call.count(named("num_layers"))?.unwrap_or(1),
        dropout: dropout(call, 0.0)?,
        directions: if both { Directions::Both } else { Directions::Forward },
        bias: flag(call, "bias")?,
    };
    Ok((options, call.flag(named("batch_first"))?.unwrap_or(false)))
}

/// A probability of dropout, which must be 0 in training.
fn dropout(call: &Call<'_>, default: f64) -> Result<f64> {
    let probability = call.number(named("dropout"))?.unwrap_or(default);
    if probability > 0.0 && call.case().training {
        Err(Stop::NotApplicable(Reason::Random, "dropout".to_owned()))
    } else {
        Ok(probability)
    }
}

fn transformer(call: &Call<'_>) -> Result<(TransformerOptions, bool)> {
    let activation = call.value(named("activation")).map(ToString::to_string).unwrap_or_default();
    let norm_first = call.flag(named("norm_first"))?.unwrap_or(false);
    let options = TransformerOptions {
        hidden: call.count(named("dim_feedforward"))?.unwrap_or(2048),
        dropout: dropout(call, 0.1)?,
        activation: if activation.contains("gelu") {
            HiddenActivation::Gelu
        } else {
            HiddenActivation::Relu
        },
        norm: if norm_first { NormPlace::Before } else { NormPlace::After },
        eps: call.number(named("layer_norm_eps"))?.unwrap_or(1e-5),
        bias: flag(call, "bias")?,
        ..TransformerOptions::new(size(call, "d_model")?, size(call, "nhead")?)
    };
    Ok((options, call.flag(named("batch_first"))?.unwrap_or(false)))
}

/// The layout of sequences. In lowtide batches come first.
#[derive(Clone, Copy)]
struct Form {
    batch_first: bool,
    is_alone: bool,
}

impl Form {
    fn restored(self, y: Var) -> Result<Var> {
        Ok(match self {
            Form { is_alone: true, .. } => y.squeeze(0)?,
            Form { batch_first: true, .. } => y,
            _ => y.transpose(0, 1)?,
        })
    }

    /// Adds the batch dimension to a state without one: `[layers, batch, features]`.
    fn state(self, h: Var) -> Result<Var> {
        Ok(if self.is_alone { h.unsqueeze(1)? } else { h })
    }

    fn state_restored(self, h: Var) -> Result<Var> {
        Ok(if self.is_alone { h.squeeze(1)? } else { h })
    }
}

fn sequence(call: &Call<'_>, at: At, batch_first: bool) -> Result<(Var, Form)> {
    let x = call.var(at)?;
    let form = Form { batch_first, is_alone: x.shape().len() == 2 };
    let x = match form {
        Form { is_alone: true, .. } => x.unsqueeze(0)?,
        Form { batch_first: true, .. } => x,
        _ => x.transpose(0, 1)?,
    };
    Ok((x, form))
}

/// One mask of lowtide for PyTorch's two masks. True means hidden in PyTorch, and visible in
/// lowtide.
fn mask(call: &Call<'_>, names: [&'static str; 2], heads: usize) -> Result<Option<Tensor>> {
    let [attention, padding] = names.map(|name| call.optional_constant(named(name)));
    let (attention, padding) = (attention?, padding?);
    let are_flags = |mask: &Option<Tensor>| mask.as_ref().is_none_or(|m| m.dtype() == DType::Bool);
    if !are_flags(&attention) || !are_flags(&padding) {
        return match (attention, padding) {
            (Some(scores), None) => Ok(Some(for_heads(scores, heads)?)),
            _ => no_form("numbers as a mask of keys"),
        };
    }
    let attention = attention.map(|mask| for_heads(mask.logical_not()?, heads)).transpose()?;
    let padding = padding.map(|mask| match mask.shape().len() {
        1 => key_padding_mask(&mask.unsqueeze(0)?),
        _ => key_padding_mask(&mask),
    });
    Ok(match (attention, padding.transpose()?) {
        (Some(attention), Some(padding)) => Some(attention.logical_and(&padding)?),
        (attention, padding) => attention.or(padding),
    })
}

/// The mask `[T, S]` unchanged, or the masks of all samples and heads as `[B, heads, T, S]`.
fn for_heads(mask: Tensor, heads: usize) -> Result<Tensor> {
    match mask.shape()[..] {
        [count, rows, columns] => Ok(mask.reshape([count / heads.max(1), heads, rows, columns])?),
        _ => Ok(mask),
    }
}
