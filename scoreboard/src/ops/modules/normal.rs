//! Normalisation layers.

use lowtide_nn::{
    BatchNorm1d, BatchNorm2d, BatchNorm3d, GroupNorm, InstanceNorm1d, InstanceNorm2d,
    InstanceNorm3d, LayerNorm, RmsNorm,
};

use super::{Family, flag, forward, in_batch, size};
use crate::call::{Call, Result, named};

pub(super) const OPS: Family = &[
    ("nn.BatchNorm1d", |call| {
        let Statistics { eps, momentum, are_kept } = batch_norm(call)?;
        let (device, channels) = (&call.device, size(call, "num_features")?);
        let layer = match norm_parts(call, true)? {
            NormParts::Both => BatchNorm1d::new(device, channels)?,
            NormParts::Weight => BatchNorm1d::without_bias(device, channels)?,
            NormParts::None => BatchNorm1d::without_parameters(device, channels)?,
        };
        let layer = match momentum {
            Some(momentum) => layer.with_eps(eps).with_momentum(momentum),
            None => layer.with_eps(eps).with_equal_batches(),
        };
        forward(call, if are_kept { layer } else { layer.without_running_statistics() })
    }),
    ("nn.BatchNorm2d", |call| {
        let Statistics { eps, momentum, are_kept } = batch_norm(call)?;
        let (device, channels) = (&call.device, size(call, "num_features")?);
        let layer = match norm_parts(call, true)? {
            NormParts::Both => BatchNorm2d::new(device, channels)?,
            NormParts::Weight => BatchNorm2d::without_bias(device, channels)?,
            NormParts::None => BatchNorm2d::without_parameters(device, channels)?,
        };
        let layer = match momentum {
            Some(momentum) => layer.with_eps(eps).with_momentum(momentum),
            None => layer.with_eps(eps).with_equal_batches(),
        };
        forward(call, if are_kept { layer } else { layer.without_running_statistics() })
    }),
    ("nn.BatchNorm3d", |call| {
        let Statistics { eps, momentum, are_kept } = batch_norm(call)?;
        let (device, channels) = (&call.device, size(call, "num_features")?);
        let layer = match norm_parts(call, true)? {
            NormParts::Both => BatchNorm3d::new(device, channels)?,
            NormParts::Weight => BatchNorm3d::without_bias(device, channels)?,
            NormParts::None => BatchNorm3d::without_parameters(device, channels)?,
        };
        let layer = match momentum {
            Some(momentum) => layer.with_eps(eps).with_momentum(momentum),
            None => layer.with_eps(eps).with_equal_batches(),
        };
        forward(call, if are_kept { layer } else { layer.without_running_statistics() })
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
        let InstanceParts { channels, parts, eps, momentum, are_kept } = instance_norm(call)?;
        let layer = match parts {
            NormParts::Both => InstanceNorm1d::affine(&call.device, channels)?,
            NormParts::Weight => InstanceNorm1d::without_bias(&call.device, channels)?,
            NormParts::None => InstanceNorm1d::new(channels),
        };
        let layer = layer.with_eps(eps).with_momentum(momentum);
        let layer = if are_kept { layer.with_running_statistics(&call.device)? } else { layer };
        in_batch(call, layer, 2)
    }),
    ("nn.InstanceNorm2d", |call| {
        let InstanceParts { channels, parts, eps, momentum, are_kept } = instance_norm(call)?;
        let layer = match parts {
            NormParts::Both => InstanceNorm2d::affine(&call.device, channels)?,
            NormParts::Weight => InstanceNorm2d::without_bias(&call.device, channels)?,
            NormParts::None => InstanceNorm2d::new(channels),
        };
        let layer = layer.with_eps(eps).with_momentum(momentum);
        let layer = if are_kept { layer.with_running_statistics(&call.device)? } else { layer };
        in_batch(call, layer, 3)
    }),
    ("nn.InstanceNorm3d", |call| {
        let InstanceParts { channels, parts, eps, momentum, are_kept } = instance_norm(call)?;
        let layer = match parts {
            NormParts::Both => InstanceNorm3d::affine(&call.device, channels)?,
            NormParts::Weight => InstanceNorm3d::without_bias(&call.device, channels)?,
            NormParts::None => InstanceNorm3d::new(channels),
        };
        let layer = layer.with_eps(eps).with_momentum(momentum);
        let layer = if are_kept { layer.with_running_statistics(&call.device)? } else { layer };
        in_batch(call, layer, 4)
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
];

/// The parameters of a normalisation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NormParts {
    Both,
    Weight,
    None,
}

/// The parameters of a normalisation, where `affine` is the default.
fn norm_parts(call: &Call<'_>, affine: bool) -> Result<NormParts> {
    let affine = call.flag(named("affine"))?.unwrap_or(affine);
    let elementwise = flag(call, "elementwise_affine")?;
    let bias = flag(call, "bias")?;
    Ok(if !(affine && elementwise) {
        NormParts::None
    } else if bias {
        NormParts::Both
    } else {
        NormParts::Weight
    })
}

/// The statistics of a batch normalisation.
struct Statistics {
    eps: f64,
    /// The share of a new batch; `None` if the statistics are the means over all batches.
    momentum: Option<f64>,
    are_kept: bool,
}

fn batch_norm(call: &Call<'_>) -> Result<Statistics> {
    let is_average = call.case().options.get("momentum").is_some_and(|value| value.is_null());
    let momentum = call.number(named("momentum"))?.unwrap_or(0.1);
    Ok(Statistics {
        eps: call.number(named("eps"))?.unwrap_or(1e-5),
        momentum: (!is_average).then_some(momentum),
        are_kept: flag(call, "track_running_stats")?,
    })
}

/// The options of an instance normalisation.
struct InstanceParts {
    channels: usize,
    parts: NormParts,
    eps: f64,
    /// Momentum of the running statistics.
    momentum: f64,
    are_kept: bool,
}

fn instance_norm(call: &Call<'_>) -> Result<InstanceParts> {
    Ok(InstanceParts {
        channels: size(call, "num_features")?,
        parts: norm_parts(call, false)?,
        eps: call.number(named("eps"))?.unwrap_or(1e-5),
        momentum: call.number(named("momentum"))?.unwrap_or(0.1),
        are_kept: call.flag(named("track_running_stats"))?.unwrap_or(false),
    })
}
