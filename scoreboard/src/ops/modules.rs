//! Layers. Those without parameters are the functions of the other families, with the arguments of
//! the constructor; the others are made, given the case's parameters and buffers, and called.

use std::collections::BTreeSet;

use lowtide_autograd::Var;
use lowtide_nn::{
    BatchNorm1d, BatchNorm2d, BatchNorm3d, Conv1d, Conv2d, Conv3d, Conv3dGeometry, ConvTranspose1d,
    ConvTranspose2d, Directions, Embedding, GroupNorm, Gru, HiddenActivation, InstanceNorm1d,
    InstanceNorm2d, LayerNorm, Linear, Lstm, LstmState, Module, MultiHeadAttention,
    MultiHeadOptions, NormPlace, PReLU, Pad, Parameters, RecurrentOptions, RmsNorm, Rnn,
    RnnActivation, TransformerDecoderLayer, TransformerEncoderLayer, TransformerOptions,
    key_padding_mask,
};
use lowtide_tensor::{
    Conv1dGeometry, Conv2dGeometry, ConvTranspose1dGeometry, ConvTranspose2dGeometry, DType,
    PadMode, RandomKey, Tensor,
};

use super::images::triple;
use super::{Family, INPUT};
use crate::call::{At, Call, Output, Result, Stop, at, named, no_form, no_such, one};
use crate::outcome::Reason;

/// Layers without parameters, each with the function that it is.
pub(super) const FUNCTIONS: &[(&str, &str)] = &[
    ("nn.AdaptiveAvgPool1d", "nn.functional.adaptive_avg_pool1d"),
    ("nn.AdaptiveAvgPool2d", "nn.functional.adaptive_avg_pool2d"),
    ("nn.AdaptiveAvgPool3d", "nn.functional.adaptive_avg_pool3d"),
    ("nn.AdaptiveMaxPool1d", "nn.functional.adaptive_max_pool1d"),
    ("nn.AdaptiveMaxPool2d", "nn.functional.adaptive_max_pool2d"),
    ("nn.AdaptiveMaxPool3d", "nn.functional.adaptive_max_pool3d"),
    ("nn.AvgPool1d", "nn.functional.avg_pool1d"),
    ("nn.AvgPool2d", "nn.functional.avg_pool2d"),
    ("nn.AvgPool3d", "nn.functional.avg_pool3d"),
    ("nn.BCELoss", "nn.functional.binary_cross_entropy"),
    ("nn.BCEWithLogitsLoss", "nn.functional.binary_cross_entropy_with_logits"),
    ("nn.CELU", "nn.functional.celu"),
    ("nn.CTCLoss", "nn.functional.ctc_loss"),
    ("nn.CosineEmbeddingLoss", "nn.functional.cosine_embedding_loss"),
    ("nn.CrossEntropyLoss", "nn.functional.cross_entropy"),
    ("nn.ELU", "nn.functional.elu"),
    ("nn.GELU", "nn.functional.gelu"),
    ("nn.GLU", "nn.functional.glu"),
    ("nn.GaussianNLLLoss", "nn.functional.gaussian_nll_loss"),
    ("nn.Hardshrink", "nn.functional.hardshrink"),
    ("nn.Hardswish", "nn.functional.hardswish"),
    ("nn.Hardtanh", "nn.functional.hardtanh"),
    ("nn.HingeEmbeddingLoss", "nn.functional.hinge_embedding_loss"),
    ("nn.HuberLoss", "nn.functional.huber_loss"),
    ("nn.KLDivLoss", "nn.functional.kl_div"),
    ("nn.L1Loss", "nn.functional.l1_loss"),
    ("nn.LeakyReLU", "nn.functional.leaky_relu"),
    ("nn.LocalResponseNorm", "nn.functional.local_response_norm"),
    ("nn.LogSigmoid", "nn.functional.logsigmoid"),
    ("nn.LogSoftmax", "log_softmax"),
    ("nn.MSELoss", "nn.functional.mse_loss"),
    ("nn.MarginRankingLoss", "nn.functional.margin_ranking_loss"),
    ("nn.MaxPool1d", "nn.functional.max_pool1d"),
    ("nn.MaxPool2d", "nn.functional.max_pool2d"),
    ("nn.MaxPool3d", "nn.functional.max_pool3d"),
    ("nn.Mish", "nn.functional.mish"),
    ("nn.MultiLabelSoftMarginLoss", "nn.functional.multilabel_soft_margin_loss"),
    ("nn.MultiMarginLoss", "nn.functional.multi_margin_loss"),
    ("nn.NLLLoss", "nn.functional.nll_loss"),
    ("nn.PoissonNLLLoss", "nn.functional.poisson_nll_loss"),
    ("nn.ReLU", "nn.functional.relu"),
    ("nn.ReLU6", "nn.functional.relu6"),
    ("nn.SELU", "nn.functional.selu"),
    ("nn.SiLU", "nn.functional.silu"),
    ("nn.Sigmoid", "sigmoid"),
    ("nn.SmoothL1Loss", "nn.functional.smooth_l1_loss"),
    ("nn.SoftMarginLoss", "nn.functional.soft_margin_loss"),
    ("nn.Softmax", "softmax"),
    ("nn.Softmin", "nn.functional.softmin"),
    ("nn.Softplus", "nn.functional.softplus"),
    ("nn.Softshrink", "nn.functional.softshrink"),
    ("nn.Softsign", "nn.functional.softsign"),
    ("nn.Tanh", "tanh"),
    ("nn.Tanhshrink", "nn.functional.tanhshrink"),
    ("nn.Threshold", "nn.functional.threshold"),
];

pub(super) const OPS: Family = &[
    ("nn.BatchNorm1d", |call| {
        let (eps, momentum) = batch_norm(call)?;
        let (device, channels) = (&call.device, size(call, "num_features")?);
        let layer = match norm_parts(call, true)? {
            NormParts::Both => BatchNorm1d::new(device, channels)?,
            NormParts::Weight => BatchNorm1d::without_bias(device, channels)?,
            NormParts::None => BatchNorm1d::without_parameters(device, channels)?,
        };
        forward(call, layer.with_eps(eps).with_momentum(momentum))
    }),
    ("nn.BatchNorm2d", |call| {
        let (eps, momentum) = batch_norm(call)?;
        let (device, channels) = (&call.device, size(call, "num_features")?);
        let layer = match norm_parts(call, true)? {
            NormParts::Both => BatchNorm2d::new(device, channels)?,
            NormParts::Weight => BatchNorm2d::without_bias(device, channels)?,
            NormParts::None => BatchNorm2d::without_parameters(device, channels)?,
        };
        forward(call, layer.with_eps(eps).with_momentum(momentum))
    }),
    ("nn.BatchNorm3d", |call| {
        let (eps, momentum) = batch_norm(call)?;
        let (device, channels) = (&call.device, size(call, "num_features")?);
        let layer = match norm_parts(call, true)? {
            NormParts::Both => BatchNorm3d::new(device, channels)?,
            NormParts::Weight => BatchNorm3d::without_bias(device, channels)?,
            NormParts::None => BatchNorm3d::without_parameters(device, channels)?,
        };
        forward(call, layer.with_eps(eps).with_momentum(momentum))
    }),
    ("nn.CircularPad1d", |call| padded(call, PadMode::Circular, 1)),
    ("nn.CircularPad2d", |call| padded(call, PadMode::Circular, 2)),
    ("nn.CircularPad3d", |call| padded(call, PadMode::Circular, 3)),
    ("nn.ConstantPad1d", |call| padded(call, constant(call)?, 1)),
    ("nn.ConstantPad2d", |call| padded(call, constant(call)?, 2)),
    ("nn.ConstantPad3d", |call| padded(call, constant(call)?, 3)),
    ("nn.ReflectionPad1d", |call| padded(call, PadMode::Reflect, 1)),
    ("nn.ReflectionPad2d", |call| padded(call, PadMode::Reflect, 2)),
    ("nn.ReflectionPad3d", |call| padded(call, PadMode::Reflect, 3)),
    ("nn.ReplicationPad1d", |call| padded(call, PadMode::Replicate, 1)),
    ("nn.ReplicationPad2d", |call| padded(call, PadMode::Replicate, 2)),
    ("nn.ReplicationPad3d", |call| padded(call, PadMode::Replicate, 3)),
    ("nn.ZeroPad1d", |call| padded(call, PadMode::Constant(0.0), 1)),
    ("nn.ZeroPad2d", |call| padded(call, PadMode::Constant(0.0), 2)),
    ("nn.ZeroPad3d", |call| padded(call, PadMode::Constant(0.0), 3)),
    ("nn.Conv1d", |call| {
        let kernel = call.single(named("kernel_size"), 1)?;
        let dilation = call.single(named("dilation"), 1)?;
        let geometry = Conv1dGeometry {
            stride: call.single(named("stride"), 1)?,
            padding: padding::<1>(call)?[0],
            dilation,
            groups: call.count(named("groups"))?.unwrap_or(1),
        };
        let channels = channels(call)?;
        let layer = match flag(call, "bias")? {
            true => Conv1d::new(&call.device, KEY, channels, kernel, geometry)?,
            false => Conv1d::without_bias(&call.device, KEY, channels, kernel, geometry)?,
        };
        let layer = if is_same(call) { layer.with_same_padding()? } else { layer };
        let layer = match padding_mode(call)? {
            Some(mode) => layer.with_padding_mode(mode),
            None => layer,
        };
        in_batch(call, layer, 2)
    }),
    ("nn.Conv2d", |call| {
        let kernel = call.pair(named("kernel_size"), 1)?;
        let dilation = call.pair(named("dilation"), 1)?;
        let geometry = Conv2dGeometry {
            stride: call.pair(named("stride"), 1)?,
            padding: padding(call)?,
            dilation,
            groups: call.count(named("groups"))?.unwrap_or(1),
        };
        let channels = channels(call)?;
        let layer = match flag(call, "bias")? {
            true => Conv2d::new(&call.device, KEY, channels, kernel, geometry)?,
            false => Conv2d::without_bias(&call.device, KEY, channels, kernel, geometry)?,
        };
        let layer = if is_same(call) { layer.with_same_padding()? } else { layer };
        let layer = match padding_mode(call)? {
            Some(mode) => layer.with_padding_mode(mode),
            None => layer,
        };
        in_batch(call, layer, 3)
    }),
    ("nn.Conv3d", |call| {
        let kernel = triple(call, named("kernel_size"), 1)?;
        let dilation = triple(call, named("dilation"), 1)?;
        if is_same(call) && kernel.iter().zip(dilation).any(|(k, d)| d * (k - 1) % 2 == 1) {
            return no_form("padding=\"same\" of an even kernel");
        }
        let same = std::array::from_fn(|i| dilation[i] * (kernel[i] - 1) / 2);
        let geometry = Conv3dGeometry {
            stride: triple(call, named("stride"), 1)?,
            padding: if is_same(call) { same } else { padding(call)? },
            dilation,
            groups: call.count(named("groups"))?.unwrap_or(1),
        };
        if padding_mode(call)?.is_some() {
            return Err(Stop::NotApplicable(Reason::Argument, "padding_mode".to_owned()));
        }
        let channels = channels(call)?;
        let layer = match flag(call, "bias")? {
            true => Conv3d::new(&call.device, KEY, channels, kernel, geometry)?,
            false => Conv3d::without_bias(&call.device, KEY, channels, kernel, geometry)?,
        };
        in_batch(call, layer, 4)
    }),
    ("nn.ConvTranspose1d", |call| {
        let kernel = call.single(named("kernel_size"), 1)?;
        let geometry = ConvTranspose1dGeometry {
            stride: call.single(named("stride"), 1)?,
            padding: call.single(named("padding"), 0)?,
            output_padding: call.single(named("output_padding"), 0)?,
            dilation: call.single(named("dilation"), 1)?,
            groups: call.count(named("groups"))?.unwrap_or(1),
        };
        let channels = channels(call)?;
        let layer = match flag(call, "bias")? {
            true => ConvTranspose1d::new(&call.device, KEY, channels, kernel, geometry)?,
            false => ConvTranspose1d::without_bias(&call.device, KEY, channels, kernel, geometry)?,
        };
        in_batch(call, layer, 2)
    }),
    ("nn.ConvTranspose2d", |call| {
        let kernel = call.pair(named("kernel_size"), 1)?;
        let geometry = ConvTranspose2dGeometry {
            stride: call.pair(named("stride"), 1)?,
            padding: call.pair(named("padding"), 0)?,
            output_padding: call.pair(named("output_padding"), 0)?,
            dilation: call.pair(named("dilation"), 1)?,
            groups: call.count(named("groups"))?.unwrap_or(1),
        };
        let channels = channels(call)?;
        let layer = match flag(call, "bias")? {
            true => ConvTranspose2d::new(&call.device, KEY, channels, kernel, geometry)?,
            false => ConvTranspose2d::without_bias(&call.device, KEY, channels, kernel, geometry)?,
        };
        in_batch(call, layer, 3)
    }),
    ("nn.Embedding", |call| {
        let (rows, width) = (size(call, "num_embeddings")?, size(call, "embedding_dim")?);
        let layer = Embedding::new(&call.device, KEY, rows, width)?;
        forward(
            call,
            match call.count(named("padding_idx"))? {
                Some(row) => layer.with_padding(row)?,
                None => layer,
            },
        )
    }),
    ("nn.GRU", |call| {
        let (options, batch_first) = recurrent(call)?;
        let layer = loaded(call, Gru::new(&call.device, KEY, options)?)?;
        let (x, form) = sequence(call, INPUT, batch_first)?;
        let start = call.optional_var(at(1, "hx"))?.map(|h| form.state(h)).transpose()?;
        let (y, h) = layer.run(&call.pass, x, start)?;
        Ok(vec![form.restored(y)?.into(), form.state_restored(h)?.into()])
    }),
    ("nn.GroupNorm", |call| {
        let (groups, channels) = (size(call, "num_groups")?, size(call, "num_channels")?);
        let layer = match norm_parts(call, true)? {
            NormParts::Both => GroupNorm::new(&call.device, groups, channels)?,
            NormParts::Weight => GroupNorm::without_bias(&call.device, groups, channels)?,
            NormParts::None => GroupNorm::without_parameters(groups),
        };
        forward(call, layer.with_eps(call.number(named("eps"))?.unwrap_or(1e-5)))
    }),
    ("nn.InstanceNorm1d", |call| {
        let (channels, is_affine, eps) = instance_norm(call)?;
        let layer = match is_affine {
            true => InstanceNorm1d::affine(&call.device, channels)?,
            false => InstanceNorm1d::new(channels),
        };
        in_batch(call, layer.with_eps(eps), 2)
    }),
    ("nn.InstanceNorm2d", |call| {
        let (channels, is_affine, eps) = instance_norm(call)?;
        let layer = match is_affine {
            true => InstanceNorm2d::affine(&call.device, channels)?,
            false => InstanceNorm2d::new(channels),
        };
        in_batch(call, layer.with_eps(eps), 3)
    }),
    ("nn.LSTM", |call| {
        let (options, batch_first) = recurrent(call)?;
        if call.count(named("proj_size"))?.unwrap_or(0) > 0 {
            return Err(Stop::NotApplicable(Reason::Argument, "proj_size".to_owned()));
        }
        let layer = loaded(call, Lstm::new(&call.device, KEY, options)?)?;
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
    ("nn.LayerNorm", |call| {
        let shape = call.counts(named("normalized_shape"))?.unwrap_or_default();
        let layer = match norm_parts(call, true)? {
            NormParts::Both => LayerNorm::new(&call.device, &shape)?,
            NormParts::Weight => LayerNorm::without_bias(&call.device, &shape)?,
            NormParts::None => LayerNorm::without_parameters(shape.len()),
        };
        forward(call, layer.with_eps(call.number(named("eps"))?.unwrap_or(1e-5)))
    }),
    ("nn.Linear", |call| {
        let (inputs, outputs) = (size(call, "in_features")?, size(call, "out_features")?);
        let layer = match flag(call, "bias")? {
            true => Linear::new(&call.device, KEY, inputs, outputs)?,
            false => Linear::without_bias(&call.device, KEY, inputs, outputs)?,
        };
        forward(call, layer)
    }),
    ("nn.MultiheadAttention", |call| {
        let layer = MultiHeadOptions {
            dropout: dropout(call, 0.0)?,
            bias: flag(call, "bias")?,
            ..MultiHeadOptions::new(size(call, "embed_dim")?, size(call, "num_heads")?)
        };
        no_argument(call, "add_bias_kv", false)?;
        no_argument(call, "add_zero_attn", false)?;
        if flag(call, "need_weights")? {
            return Err(Stop::NotApplicable(Reason::Argument, "need_weights".to_owned()));
        }
        let batch_first = call.flag(named("batch_first"))?.unwrap_or(false);
        let heads = layer.heads;
        let layer = loaded(call, MultiHeadAttention::new(&call.device, KEY, layer)?)?;
        let (x, form) = sequence(call, at(0, "query"), batch_first)?;
        let (keys, _) = sequence(call, at(1, "key"), batch_first)?;
        let mask = mask(call, ["attn_mask", "key_padding_mask"], heads)?;
        // Only a hint: the mask says it too.
        call.flag(named("is_causal"))?;
        call.flag(named("average_attn_weights"))?;
        // lowtide projects one sequence to keys and values.
        if call.value(at(1, "key")) != call.value(at(2, "value")) {
            return no_form("values that are not the keys");
        }
        one(form.restored(layer.attend(&call.pass, x, keys, mask.as_ref())?)?)
    }),
    ("nn.PReLU", |call| {
        let channels = call.count(named("num_parameters"))?.unwrap_or(1);
        // Of the parameter, which the case has.
        call.number(named("init"))?;
        forward(call, PReLU::new(&call.device, channels)?)
    }),
    ("nn.RMSNorm", |call| {
        let shape = call.counts(named("normalized_shape"))?.unwrap_or_default();
        let layer = match norm_parts(call, true)? {
            NormParts::None => RmsNorm::without_parameters(shape.len()),
            _ => RmsNorm::new(&call.device, &shape)?,
        };
        let layer = match call.number(named("eps"))? {
            Some(eps) => layer.with_eps(eps),
            None => layer,
        };
        forward(call, layer)
    }),
    ("nn.RNN", |call| {
        let (options, batch_first) = recurrent(call)?;
        let activation = match call.text(named("nonlinearity"))? {
            None | Some("tanh") => RnnActivation::Tanh,
            Some("relu") => RnnActivation::Relu,
            Some(_) => return no_such(call, "nonlinearity"),
        };
        let layer = loaded(call, Rnn::new(&call.device, KEY, options, activation)?)?;
        let (x, form) = sequence(call, INPUT, batch_first)?;
        let start = call.optional_var(at(1, "hx"))?.map(|h| form.state(h)).transpose()?;
        let (y, h) = layer.run(&call.pass, x, start)?;
        Ok(vec![form.restored(y)?.into(), form.state_restored(h)?.into()])
    }),
    ("nn.TransformerDecoderLayer", |call| {
        let (options, batch_first) = transformer(call)?;
        let heads = options.heads;
        let layer = loaded(call, TransformerDecoderLayer::new(&call.device, KEY, options)?)?;
        let (x, form) = sequence(call, INPUT, batch_first)?;
        let (memory, _) = sequence(call, at(1, "memory"), batch_first)?;
        let own = mask(call, ["tgt_mask", "tgt_key_padding_mask"], heads)?;
        let other = mask(call, ["memory_mask", "memory_key_padding_mask"], heads)?;
        // Only hints: the masks say it too.
        call.flag(named("tgt_is_causal"))?;
        call.flag(named("memory_is_causal"))?;
        let y = layer.decode(&call.pass, x, memory, [own.as_ref(), other.as_ref()])?;
        one(form.restored(y)?)
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

/// Parameters are the case's, whatever they start from.
const KEY: RandomKey = RandomKey::new(0);

fn size(call: &Call<'_>, name: &'static str) -> Result<usize> {
    Ok(call.count(named(name))?.unwrap_or_default())
}

/// A flag that is set by default.
fn flag(call: &Call<'_>, name: &'static str) -> Result<bool> {
    Ok(call.flag(named(name))?.unwrap_or(true))
}

/// `Ok` if a flag that lowtide does not have is as lowtide is.
fn no_argument(call: &Call<'_>, name: &'static str, own: bool) -> Result<()> {
    match call.flag(named(name))?.unwrap_or(own) == own {
        true => Ok(()),
        false => Err(Stop::NotApplicable(Reason::Argument, name.to_owned())),
    }
}

fn channels(call: &Call<'_>) -> Result<[usize; 2]> {
    call.text(named("padding_mode"))?;
    Ok([size(call, "in_channels")?, size(call, "out_channels")?])
}

/// The padding of a convolution, if it is not in words.
fn padding<const N: usize>(call: &Call<'_>) -> Result<[usize; N]> {
    const PADDING: At = named("padding");
    if call.value(PADDING).is_some_and(|value| value.is_string()) {
        return Ok([0; N]);
    }
    match call.counts(PADDING)?.as_deref() {
        None => Ok([0; N]),
        Some(&[all]) => Ok([all; N]),
        Some(all) => <[usize; N]>::try_from(all).or_else(|_| no_form("padding")),
    }
}

/// Whether a convolution keeps the size.
fn is_same(call: &Call<'_>) -> bool {
    call.value(named("padding")).and_then(|value| value.as_str()) == Some("same")
}

/// How a convolution is padded, unless by zeros.
fn padding_mode(call: &Call<'_>) -> Result<Option<PadMode>> {
    match call.text(named("padding_mode"))? {
        None | Some("zeros") => Ok(None),
        Some("reflect") => Ok(Some(PadMode::Reflect)),
        Some("replicate") => Ok(Some(PadMode::Replicate)),
        Some("circular") => Ok(Some(PadMode::Circular)),
        Some(_) => no_form("padding_mode"),
    }
}

/// A layer that pads; PyTorch's amounts begin with the last dimension.
fn padded(call: &Call<'_>, mode: PadMode, rank: usize) -> Result<Vec<Output>> {
    let amounts = match call.counts(named("padding"))?.as_deref() {
        Some(&[all]) => vec![[all; 2]; rank],
        Some(amounts) => amounts.chunks_exact(2).rev().map(|pair| [pair[0], pair[1]]).collect(),
        None => return no_form("padding"),
    };
    forward(call, Pad { amounts, mode })
}

fn constant(call: &Call<'_>) -> Result<PadMode> {
    Ok(PadMode::Constant(call.number(named("value"))?.unwrap_or_default()))
}

/// The parameters of a normalisation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NormParts {
    Both,
    Weight,
    None,
}

/// Which parameters a normalisation has; `affine` unless it is said.
fn norm_parts(call: &Call<'_>, affine: bool) -> Result<NormParts> {
    let affine = call.flag(named("affine"))?.unwrap_or(affine);
    let elementwise = flag(call, "elementwise_affine")?;
    let bias = flag(call, "bias")?;
    Ok(match (affine && elementwise, bias) {
        (false, _) => NormParts::None,
        (true, false) => NormParts::Weight,
        (true, true) => NormParts::Both,
    })
}

/// `eps` and the momentum of a batch normalisation.
fn batch_norm(call: &Call<'_>) -> Result<(f64, f64)> {
    no_argument(call, "track_running_stats", true)?;
    let is_average = call.case().options.get("momentum").is_some_and(|value| value.is_null());
    if is_average {
        return Err(Stop::NotApplicable(Reason::Argument, "momentum=None".to_owned()));
    }
    let eps = call.number(named("eps"))?.unwrap_or(1e-5);
    Ok((eps, call.number(named("momentum"))?.unwrap_or(0.1)))
}

/// Channels, whether there are parameters, and `eps` of an instance normalisation.
fn instance_norm(call: &Call<'_>) -> Result<(usize, bool, f64)> {
    no_argument(call, "track_running_stats", false)?;
    // Of running statistics.
    call.number(named("momentum"))?;
    let is_affine = call.flag(named("affine"))?.unwrap_or(false);
    let has_bias = flag(call, "bias")?;
    if is_affine && !has_bias {
        return Err(Stop::NotApplicable(Reason::Argument, "bias".to_owned()));
    }
    let eps = call.number(named("eps"))?.unwrap_or(1e-5);
    Ok((size(call, "num_features")?, is_affine, eps))
}

/// A layer with the case's parameters and buffers; an error if they are not the layer's.
fn loaded<M: Parameters>(call: &Call<'_>, mut layer: M) -> Result<M> {
    let mut seen = BTreeSet::new();
    let mut unknown = Vec::new();
    layer.visit(&mut |name, parameter| match call.parameter(name, parameter.id()) {
        Some(value) => {
            *parameter.value_mut() = value;
            seen.insert(name.to_owned());
        }
        None => unknown.push(name.to_owned()),
    });
    let mut outcome = Ok(());
    layer.visit_buffers(&mut |name, buffer| match call.buffer(name) {
        Some(value) => {
            // Statistics of half types are f32.
            match value.to_dtype(value.dtype().computed()) {
                Ok(value) => *buffer.value_mut() = value,
                Err(error) => outcome = Err(error),
            }
            seen.insert(name.to_owned());
        }
        None => unknown.push(name.to_owned()),
    });
    outcome?;
    let absent = call.case().state.keys().filter(|name| !seen.contains(*name));
    unknown.extend(absent.cloned());
    match unknown.is_empty() {
        true => Ok(layer),
        false => Err(Stop::failure(format!("names that only one side has: {unknown:?}"))),
    }
}

/// The result of a layer, and its buffers after that in training.
fn forward(call: &Call<'_>, layer: impl Module) -> Result<Vec<Output>> {
    in_batch(call, layer, 0)
}

/// [`forward`] where the input has a batch dimension unless it has `rank` dimensions.
fn in_batch(call: &Call<'_>, layer: impl Module, rank: usize) -> Result<Vec<Output>> {
    let mut layer = loaded(call, layer)?;
    let x = call.var(INPUT)?;
    let is_alone = rank > 0 && x.shape().len() == rank;
    let x = if is_alone { x.unsqueeze(0)? } else { x };
    let y = layer.forward(&call.pass, x)?;
    let mut outputs = one(if is_alone { y.squeeze(0)? } else { y })?;
    if call.case().training {
        // In PyTorch's order.
        let mut buffers = Vec::new();
        layer.visit_buffers(&mut |_, buffer| buffers.push(buffer.current(&call.pass)));
        for value in buffers {
            let dtype = if value.dtype() == DType::I64 { DType::I64 } else { call.dtype() };
            outputs.push(value.to_dtype(dtype)?.into());
        }
    }
    Ok(outputs)
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

/// A probability of dropout, which in training must be 0.
fn dropout(call: &Call<'_>, default: f64) -> Result<f64> {
    let probability = call.number(named("dropout"))?.unwrap_or(default);
    match probability > 0.0 && call.case().training {
        true => Err(Stop::NotApplicable(Reason::Random, "dropout".to_owned())),
        false => Ok(probability),
    }
}

fn transformer(call: &Call<'_>) -> Result<(TransformerOptions, bool)> {
    let activation = call.value(named("activation")).map(ToString::to_string).unwrap_or_default();
    let norm_first = call.flag(named("norm_first"))?.unwrap_or(false);
    let options = TransformerOptions {
        hidden: call.count(named("dim_feedforward"))?.unwrap_or(2048),
        dropout: dropout(call, 0.1)?,
        activation: match activation.contains("gelu") {
            true => HiddenActivation::Gelu,
            false => HiddenActivation::Relu,
        },
        norm: if norm_first { NormPlace::Before } else { NormPlace::After },
        eps: call.number(named("layer_norm_eps"))?.unwrap_or(1e-5),
        bias: flag(call, "bias")?,
        ..TransformerOptions::new(size(call, "d_model")?, size(call, "nhead")?)
    };
    Ok((options, call.flag(named("batch_first"))?.unwrap_or(false)))
}

/// How sequences lie: lowtide's lie batches first.
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

    /// States are `[layers, batch, features]`.
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

/// PyTorch's two masks, whose true means hidden, as lowtide's one.
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

/// `[T, S]`, or one for each sample and head after the other, as `[B, heads, T, S]`.
fn for_heads(mask: Tensor, heads: usize) -> Result<Tensor> {
    match mask.shape()[..] {
        [count, rows, columns] => Ok(mask.reshape([count / heads.max(1), heads, rows, columns])?),
        _ => Ok(mask),
    }
}
