//! Convolutions, pooling, and resizing of images.

use std::num::NonZeroUsize;

use lowtide_autograd::Var;
use lowtide_nn::{ResizeMode, adaptive_max_pool2d_with_places, max_pool2d_with_places};
use lowtide_tensor::{
    AvgPool, Conv1dGeometry, Conv2dGeometry, ConvTranspose1dGeometry, ConvTranspose2dGeometry,
    Corners, Divisor, Interpolation, MaxPool, PadMode, Pool1dGeometry, Pool2dGeometry, Resize,
    SizeRounding, Tensor,
};

use super::{Family, INPUT, images};
use crate::call::{At, Call, Output, Result, at, named, no_form, no_such, one};

pub(super) const OPS: Family = &[
    ("nn.functional.adaptive_avg_pool1d", |call| {
        let (x, is_batch) = batched(call, 2)?;
        let size = [1, one_size(call)?];
        unbatched(x.unsqueeze(2)?.adaptive_avg_pool2d(size)?.squeeze(2)?, is_batch)
    }),
    ("nn.functional.adaptive_max_pool1d", |call| {
        let (x, is_batch) = batched(call, 2)?;
        let size = [1, one_size(call)?];
        let x = x.unsqueeze(2)?;
        if !call.flag(at(2, "return_indices"))?.unwrap_or(false) {
            return unbatched(x.adaptive_max_pool2d(size)?.squeeze(2)?, is_batch);
        }
        let (y, places) = adaptive_max_pool2d_with_places(x, size)?;
        with_places(y.squeeze(2)?, places.squeeze(2)?, is_batch)
    }),
    ("nn.functional.adaptive_avg_pool2d", |call| {
        let (x, is_batch) = batched(call, 3)?;
        let size = adaptive_size(call, &x)?;
        unbatched(x.adaptive_avg_pool2d(size)?, is_batch)
    }),
    ("nn.functional.adaptive_max_pool2d", |call| {
        let (x, is_batch) = batched(call, 3)?;
        let size = adaptive_size(call, &x)?;
        if !call.flag(at(2, "return_indices"))?.unwrap_or(false) {
            return unbatched(x.adaptive_max_pool2d(size)?, is_batch);
        }
        let (y, places) = adaptive_max_pool2d_with_places(x, size)?;
        with_places(y, places, is_batch)
    }),
    ("nn.functional.avg_pool1d", |call| {
        let (x, is_batch) = batched(call, 2)?;
        let kernel = call.single(at(1, "kernel_size"), 1)?;
        let window = Pool1dGeometry {
            kernel,
            stride: call.single(at(2, "stride"), kernel)?,
            padding: call.single(at(3, "padding"), 0)?,
        };
        unbatched(x.avg_pool1d(window, averages(call)?)?, is_batch)
    }),
    ("nn.functional.avg_pool2d", |call| {
        let (x, is_batch) = batched(call, 3)?;
        let window = pool2d(call)?;
        unbatched(x.avg_pool2d(window, averages(call)?)?, is_batch)
    }),
    ("nn.functional.conv1d", |call| {
        let (x, is_batch) = batched(call, 2)?;
        let (w, b) = (call.var(at(1, "weight"))?, call.optional_var(at(2, "bias"))?);
        let dilation = call.single(at(5, "dilation"), 1)?;
        let kernel = w.shape().last().copied().unwrap_or(1);
        let (x, [padding]) = padded(call, x, [kernel], [dilation])?;
        let geometry = Conv1dGeometry {
            stride: call.single(at(3, "stride"), 1)?,
            padding,
            dilation,
            groups: call.count(at(6, "groups"))?.unwrap_or(1),
        };
        unbatched(x.conv1d(w, b, geometry)?, is_batch)
    }),
    ("nn.functional.conv2d", |call| {
        let (x, is_batch) = batched(call, 3)?;
        let (w, b) = (call.var(at(1, "weight"))?, call.optional_var(at(2, "bias"))?);
        let dilation = call.pair(at(5, "dilation"), 1)?;
        let kernel = [2, 1].map(|back| w.shape().iter().rev().nth(back - 1).copied().unwrap_or(1));
        let (x, padding) = padded(call, x, kernel, dilation)?;
        let geometry = Conv2dGeometry {
            stride: call.pair(at(3, "stride"), 1)?,
            padding,
            dilation,
            groups: call.count(at(6, "groups"))?.unwrap_or(1),
        };
        unbatched(x.conv2d(w, b, geometry)?, is_batch)
    }),
    ("nn.functional.conv_transpose1d", |call| {
        let (x, is_batch) = batched(call, 2)?;
        let (w, b) = (call.var(at(1, "weight"))?, call.optional_var(at(2, "bias"))?);
        let geometry = ConvTranspose1dGeometry {
            stride: call.single(at(3, "stride"), 1)?,
            padding: call.single(at(4, "padding"), 0)?,
            output_padding: call.single(at(5, "output_padding"), 0)?,
            groups: call.count(at(6, "groups"))?.unwrap_or(1),
            dilation: call.single(at(7, "dilation"), 1)?,
        };
        unbatched(x.conv_transpose1d(w, b, geometry)?, is_batch)
    }),
    ("nn.functional.conv_transpose2d", |call| {
        let (x, is_batch) = batched(call, 3)?;
        let (w, b) = (call.var(at(1, "weight"))?, call.optional_var(at(2, "bias"))?);
        let geometry = ConvTranspose2dGeometry {
            stride: call.pair(at(3, "stride"), 1)?,
            padding: call.pair(at(4, "padding"), 0)?,
            output_padding: call.pair(at(5, "output_padding"), 0)?,
            groups: call.count(at(6, "groups"))?.unwrap_or(1),
            dilation: call.pair(at(7, "dilation"), 1)?,
        };
        let [more, stride, dilation] =
            [geometry.output_padding, geometry.stride, geometry.dilation];
        if (0..2).any(|i| (stride[i]..dilation[i]).contains(&more[i])) {
            return no_form("an output padding that is only less than the dilation");
        }
        unbatched(x.conv_transpose2d(w, b, geometry)?, is_batch)
    }),
    ("nn.functional.interpolate/bilinear", |call| {
        let aligned = call.flag(at(4, "align_corners"))?.unwrap_or(false);
        let corners = if aligned { Corners::Aligned } else { Corners::Centers };
        resized(call, Interpolation::Bilinear(corners))
    }),
    ("nn.functional.interpolate/nearest", |call| resized(call, Interpolation::Nearest)),
    ("nn.functional.max_pool1d", |call| {
        let (x, is_batch) = batched(call, 2)?;
        let kernel = call.single(at(1, "kernel_size"), 1)?;
        let window = Pool1dGeometry {
            kernel,
            stride: call.single(at(2, "stride"), kernel)?,
            padding: call.single(at(3, "padding"), 0)?,
        };
        let dilation = call.single(at(4, "dilation"), 1)?;
        let rounding = rounding(call, at(5, "ceil_mode"))?;
        // The sequence is an image with one row.
        let (kernel, stride, padding) = (window.kernel, window.stride, window.padding);
        let image =
            Pool2dGeometry { kernel: [1, kernel], stride: [1, stride], padding: [0, padding] };
        let options = MaxPool { dilation: [1, dilation], rounding };
        if call.flag(at(6, "return_indices"))?.unwrap_or(false) {
            let (y, places) = max_pool2d_with_places(x.unsqueeze(2)?, image, options)?;
            return with_places(y.squeeze(2)?, places.squeeze(2)?, is_batch);
        }
        let y = if dilation == 1 && rounding == SizeRounding::Down {
            x.max_pool1d(window)?
        } else {
            x.unsqueeze(2)?.max_pool2d_with(image, options)?.squeeze(2)?
        };
        unbatched(y, is_batch)
    }),
    ("nn.functional.max_pool2d", |call| {
        let (x, is_batch) = batched(call, 3)?;
        let window = pool2d(call)?;
        let dilation = call.pair(at(4, "dilation"), 1)?;
        let rounding = rounding(call, at(5, "ceil_mode"))?;
        let options = MaxPool { dilation, rounding };
        if call.flag(at(6, "return_indices"))?.unwrap_or(false) {
            let (y, places) = max_pool2d_with_places(x, window, options)?;
            return with_places(y, places, is_batch);
        }
        let y = if dilation == [1, 1] && rounding == SizeRounding::Down {
            x.max_pool2d(window)?
        } else {
            x.max_pool2d_with(window, options)?
        };
        unbatched(y, is_batch)
    }),
    ("nn.functional.upsample_bilinear", |call| {
        resized(call, Interpolation::Bilinear(Corners::Aligned))
    }),
    ("nn.functional.upsample_nearest", |call| resized(call, Interpolation::Nearest)),
];

/// The input with a batch dimension, and true if the input had one. A sample has `rank` dimensions.
pub(super) fn batched(call: &Call<'_>, rank: usize) -> Result<(Var, bool)> {
    let x = call.var(INPUT)?;
    if x.shape().len() == rank { Ok((x.unsqueeze(0)?, false)) } else { Ok((x, true)) }
}

pub(super) fn unbatched(y: Var, is_batch: bool) -> Result<Vec<Output>> {
    one(if is_batch { y } else { y.squeeze(0)? })
}

fn pool2d(call: &Call<'_>) -> Result<Pool2dGeometry> {
    let kernel = call.pair(at(1, "kernel_size"), 1)?;
    let stride = match call.counts(at(2, "stride"))?.as_deref() {
        None | Some([]) => kernel,
        Some(_) => call.pair(at(2, "stride"), 1)?,
    };
    Ok(Pool2dGeometry { kernel, stride, padding: call.pair(at(3, "padding"), 0)? })
}

pub(super) fn rounding(call: &Call<'_>, at: At) -> Result<SizeRounding> {
    let up = call.flag(at)?.unwrap_or(false);
    Ok(if up { SizeRounding::Up } else { SizeRounding::Down })
}

pub(super) fn averages(call: &Call<'_>) -> Result<AvgPool> {
    let counts_padding = call.flag(at(5, "count_include_pad"))?.unwrap_or(true);
    let divisor = if counts_padding { Divisor::Window } else { Divisor::Inside };
    let divisor = match call.count(at(6, "divisor_override"))? {
        None => divisor,
        Some(number) => match NonZeroUsize::new(number) {
            Some(number) => Divisor::Exactly(number),
            None => return no_such(call, "divisor_override"),
        },
    };
    Ok(AvgPool { divisor, rounding: rounding(call, at(4, "ceil_mode"))? })
}

/// A result and its places, without the batch dimension if the input had none.
pub(super) fn with_places(y: Var, places: Tensor, is_batch: bool) -> Result<Vec<Output>> {
    let mut outputs = unbatched(y, is_batch)?;
    outputs.push(if is_batch { places.into() } else { places.squeeze(0)?.into() });
    Ok(outputs)
}

fn one_size(call: &Call<'_>) -> Result<usize> {
    match call.counts(at(1, "output_size"))?.as_deref() {
        Some(&[size]) => Ok(size),
        _ => no_such(call, "output_size"),
    }
}

/// Numbers of windows; `None` in the argument stands for the input's own size.
fn adaptive_size(call: &Call<'_>, x: &Var) -> Result<[usize; 2]> {
    const SIZE: At = at(1, "output_size");
    let own = [2, 1].map(|back| x.shape().iter().rev().nth(back - 1).copied().unwrap_or(1));
    let Some(items) = call.value(SIZE).and_then(|value| value.as_array()) else {
        return call.pair(SIZE, 1);
    };
    let [height, width] = &items[..] else { return no_such(call, "output_size") };
    let size = |value: &serde_json::Value, own| {
        if value.is_null() { Ok(own) } else { call.count_of(SIZE, value) }
    };
    Ok([size(height, own[0])?, size(width, own[1])?])
}

/// The padding on both sides. If the sides differ, the input is padded here.
fn padded<const N: usize>(
    call: &Call<'_>,
    x: Var,
    kernel: [usize; N],
    dilation: [usize; N],
) -> Result<(Var, [usize; N])> {
    const PADDING: At = at(4, "padding");
    if !call.value(PADDING).is_some_and(|value| value.is_string()) {
        let amounts = call.counts(PADDING)?.unwrap_or_else(|| vec![0]);
        return match amounts[..] {
            [all] => Ok((x, [all; N])),
            _ => match <[usize; N]>::try_from(amounts) {
                Ok(padding) => Ok((x, padding)),
                Err(_) => no_such(call, "padding"),
            },
        };
    }
    match call.text(PADDING)? {
        Some("valid") => Ok((x, [0; N])),
        Some("same") => {
            let total: [usize; N] = std::array::from_fn(|i| dilation[i] * (kernel[i] - 1));
            let more = total.map(|total| [0, total % 2]);
            let x = if total.iter().all(|total| total % 2 == 0) {
                x
            } else {
                x.pad(&more, PadMode::Constant(0.0))?
            };
            Ok((x, total.map(|total| total / 2)))
        }
        _ => no_such(call, "padding"),
    }
}

fn resized(call: &Call<'_>, interpolation: Interpolation) -> Result<Vec<Output>> {
    let x = call.var(INPUT)?;
    call.text(at(3, "mode"))?;
    let count = x.shape().len().saturating_sub(2);
    let again = call.flag(named("recompute_scale_factor"))?.unwrap_or(false);
    if count != 2 || again {
        return match interpolation {
            // Sequences and volumes have the same function.
            Interpolation::Nearest => images::resized(call, ResizeMode::Before),
            Interpolation::Bilinear(corners) => images::resized(call, ResizeMode::Linear(corners)),
        };
    }
    let size = match call.value(at(1, "size")) {
        Some(_) => Resize::To(call.pair(at(1, "size"), 1)?),
        None => {
            let factor = call.number(at(2, "scale_factor"))?.unwrap_or(1.0);
            Resize::By([factor; 2])
        }
    };
    one(x.upsample2d(size, interpolation)?)
}
