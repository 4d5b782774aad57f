//! Layers. A layer without parameters is a function of another family, with the arguments of the
//! constructor. Other layers are made, get the case's parameters and buffers, and are called.

mod normal;
mod sequences;
mod tables;
mod windows;

use std::collections::BTreeSet;

use lowtide_nn::{Module, Parameters};
use lowtide_tensor::{DType, RandomKey};

use super::{Adapter, Family, INPUT};
use crate::call::{Call, Output, Result, Stop, named, one};

/// Layers without parameters, each with the name of its function.
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

/// Layers with parameters, and pads.
pub(super) fn layers() -> impl Iterator<Item = &'static (&'static str, Adapter)> {
    [normal::OPS, sequences::OPS, tables::OPS, windows::OPS].into_iter().flatten()
}

/// The key of initial parameters, which the case's parameters replace.
pub(super) const KEY: RandomKey = RandomKey::new(0);

pub(super) fn size(call: &Call<'_>, name: &'static str) -> Result<usize> {
    Ok(call.count(named(name))?.unwrap_or_default())
}

/// A flag that is true by default.
pub(super) fn flag(call: &Call<'_>, name: &'static str) -> Result<bool> {
    Ok(call.flag(named(name))?.unwrap_or(true))
}

/// A layer with the case's parameters and buffers. Names that only one side has are an error.
pub(super) fn loaded<M: Parameters>(call: &Call<'_>, mut layer: M) -> Result<M> {
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
            // Running statistics of half types are f32.
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
    if unknown.is_empty() {
        Ok(layer)
    } else {
        Err(Stop::failure(format!("names that only one side has: {unknown:?}")))
    }
}

/// The result of a layer, followed in training by the buffers after the call.
pub(super) fn forward(call: &Call<'_>, layer: impl Module) -> Result<Vec<Output>> {
    in_batch(call, layer, 0)
}

/// [`forward`] for an input that has a batch dimension, unless it has `rank` dimensions.
pub(super) fn in_batch(call: &Call<'_>, layer: impl Module, rank: usize) -> Result<Vec<Output>> {
    let mut layer = loaded(call, layer)?;
    let x = call.var(INPUT)?;
    let is_alone = rank > 0 && x.shape().len() == rank;
    let x = if is_alone { x.unsqueeze(0)? } else { x };
    let y = layer.forward(&call.pass, x)?;
    let mut outputs = one(if is_alone { y.squeeze(0)? } else { y })?;
    if call.case().training {
        // The buffers follow in PyTorch's order.
        let mut buffers = Vec::new();
        layer.visit_buffers(&mut |_, buffer| buffers.push(buffer.current(&call.pass)));
        for value in buffers {
            let dtype = if value.dtype() == DType::I64 { DType::I64 } else { call.dtype() };
            outputs.push(value.to_dtype(dtype)?.into());
        }
    }
    Ok(outputs)
}
