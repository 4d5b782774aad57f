//! Convolutions and pads.

use lowtide_nn::{
    Conv1d, Conv2d, Conv3d, Conv3dGeometry, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d,
    ConvTranspose3dGeometry, Pad,
};
use lowtide_tensor::{
    Conv1dGeometry, Conv2dGeometry, ConvTranspose1dGeometry, ConvTranspose2dGeometry, PadMode,
};

use super::{Family, KEY, flag, forward, in_batch, size};
use crate::call::{At, Call, Output, Result, Stop, named, no_form};
use crate::ops::images::triple;
use crate::outcome::Reason;

pub(super) const OPS: Family = &[
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
        let layer = if flag(call, "bias")? {
            Conv1d::new(&call.device, KEY, channels, kernel, geometry)?
        } else {
            Conv1d::without_bias(&call.device, KEY, channels, kernel, geometry)?
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
        let layer = if flag(call, "bias")? {
            Conv2d::new(&call.device, KEY, channels, kernel, geometry)?
        } else {
            Conv2d::without_bias(&call.device, KEY, channels, kernel, geometry)?
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
        let layer = if flag(call, "bias")? {
            Conv3d::new(&call.device, KEY, channels, kernel, geometry)?
        } else {
            Conv3d::without_bias(&call.device, KEY, channels, kernel, geometry)?
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
        let layer = if flag(call, "bias")? {
            ConvTranspose1d::new(&call.device, KEY, channels, kernel, geometry)?
        } else {
            ConvTranspose1d::without_bias(&call.device, KEY, channels, kernel, geometry)?
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
        let layer = if flag(call, "bias")? {
            ConvTranspose2d::new(&call.device, KEY, channels, kernel, geometry)?
        } else {
            ConvTranspose2d::without_bias(&call.device, KEY, channels, kernel, geometry)?
        };
        in_batch(call, layer, 3)
    }),
    ("nn.ConvTranspose3d", |call| {
        let kernel = triple(call, named("kernel_size"), 1)?;
        let geometry = ConvTranspose3dGeometry {
            stride: triple(call, named("stride"), 1)?,
            padding: triple(call, named("padding"), 0)?,
            output_padding: triple(call, named("output_padding"), 0)?,
            dilation: triple(call, named("dilation"), 1)?,
            groups: call.count(named("groups"))?.unwrap_or(1),
        };
        let channels = channels(call)?;
        let layer = if flag(call, "bias")? {
            ConvTranspose3d::new(&call.device, KEY, channels, kernel, geometry)?
        } else {
            ConvTranspose3d::without_bias(&call.device, KEY, channels, kernel, geometry)?
        };
        in_batch(call, layer, 4)
    }),
];

/// The padding of a convolution; zeros if the padding is a word.
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

/// True if a convolution keeps the size.
fn is_same(call: &Call<'_>) -> bool {
    call.value(named("padding")).and_then(|value| value.as_str()) == Some("same")
}

/// The padding mode of a convolution, unless it is zeros.
fn padding_mode(call: &Call<'_>) -> Result<Option<PadMode>> {
    match call.text(named("padding_mode"))? {
        None | Some("zeros") => Ok(None),
        Some("reflect") => Ok(Some(PadMode::Reflect)),
        Some("replicate") => Ok(Some(PadMode::Replicate)),
        Some("circular") => Ok(Some(PadMode::Circular)),
        Some(_) => no_form("padding_mode"),
    }
}

/// A layer that pads. PyTorch's amounts begin with the last dimension.
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

fn channels(call: &Call<'_>) -> Result<[usize; 2]> {
    call.text(named("padding_mode"))?;
    Ok([size(call, "in_channels")?, size(call, "out_channels")?])
}
