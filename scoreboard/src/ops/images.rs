//! Resizing of images, sequences and volumes, sampling of images, shuffles, and windows of volumes.

use lowtide_autograd::Var;
use lowtide_nn::{
    Conv3dGeometry, ConvTranspose3dGeometry, GridMode, GridOptions, GridPadding, MaxPool3dOptions,
    Pool3dGeometry, ResizeMode, Sizes, adaptive_avg_pool3d, adaptive_max_pool3d,
    adaptive_max_pool3d_with_places, avg_pool3d, channel_shuffle, conv_transpose3d, conv3d,
    grid_sample, max_pool3d, max_pool3d_with_places, max_unpool, pixel_shuffle, pixel_unshuffle,
    resize,
};
use lowtide_tensor::{Corners, PadMode};

use super::windows::{averages, batched, rounding, unbatched, with_places};
use super::{Family, INPUT};
use crate::call::{At, Call, Output, Result, at, named, no_form, no_such, one};

pub(super) const OPS: Family = &[
    ("_upsample_bilinear2d_aa", |call| {
        let corners = corners(call, at(2, "align_corners"))?;
        let scales = [named("scales_h"), named("scales_w")].map(|scale| call.number(scale));
        if corners == Corners::Centers && scales.iter().any(|scale| !matches!(scale, Ok(None))) {
            return no_form("a scale beside a size");
        }
        let mode = ResizeMode::LinearAntialias(corners);
        let factors = call.value(at(3, "scale_factors")).and_then(|value| value.as_array());
        let factors = factors.map_or(&[][..], Vec::as_slice).iter();
        let sizes = match call.counts(at(1, "output_size"))? {
            Some(sizes) => Sizes::To(sizes),
            None => Sizes::By(factors.filter_map(|factor| factor.as_f64()).collect()),
        };
        one(resize(call.var(INPUT)?, &sizes, mode)?)
    }),
    ("grid_sampler_2d", by_number),
    ("grid_sampler_3d", by_number),
    ("nn.functional.adaptive_avg_pool3d", |call| {
        let (x, is_batch) = batched(call, 4)?;
        let size = adaptive_size(call, &x)?;
        unbatched(adaptive_avg_pool3d(x, size)?, is_batch)
    }),
    ("nn.functional.adaptive_max_pool3d", |call| {
        let (x, is_batch) = batched(call, 4)?;
        let size = adaptive_size(call, &x)?;
        if !call.flag(at(2, "return_indices"))?.unwrap_or(false) {
            return unbatched(adaptive_max_pool3d(x, size)?, is_batch);
        }
        let (y, places) = adaptive_max_pool3d_with_places(x, size)?;
        with_places(y, places, is_batch)
    }),
    ("nn.functional.avg_pool3d", |call| {
        let (x, is_batch) = batched(call, 4)?;
        let window = pool3d(call)?;
        unbatched(avg_pool3d(x, window, averages(call)?)?, is_batch)
    }),
    ("nn.functional.channel_shuffle", |call| {
        let groups = call.count(at(1, "groups"))?.unwrap_or(1);
        one(channel_shuffle(call.var(INPUT)?, groups)?)
    }),
    ("nn.functional.conv3d", |call| {
        let (x, is_batch) = batched(call, 4)?;
        let (w, b) = (call.var(at(1, "weight"))?, call.optional_var(at(2, "bias"))?);
        let dilation = triple(call, at(5, "dilation"), 1)?;
        let (x, padding) = if call.value(at(4, "padding")).is_some_and(|p| p.is_string()) {
            same(call, x, &w, dilation)?
        } else {
            (x, triple(call, at(4, "padding"), 0)?)
        };
        let geometry = Conv3dGeometry {
            stride: triple(call, at(3, "stride"), 1)?,
            padding,
            dilation,
            groups: call.count(at(6, "groups"))?.unwrap_or(1),
        };
        unbatched(conv3d(x, w, b, geometry)?, is_batch)
    }),
    ("nn.functional.conv_transpose3d", |call| {
        let (x, is_batch) = batched(call, 4)?;
        let (w, b) = (call.var(at(1, "weight"))?, call.optional_var(at(2, "bias"))?);
        let geometry = ConvTranspose3dGeometry {
            stride: triple(call, at(3, "stride"), 1)?,
            padding: triple(call, at(4, "padding"), 0)?,
            output_padding: triple(call, at(5, "output_padding"), 0)?,
            groups: call.count(at(6, "groups"))?.unwrap_or(1),
            dilation: triple(call, at(7, "dilation"), 1)?,
        };
        let [more, stride, dilation] =
            [geometry.output_padding, geometry.stride, geometry.dilation];
        if (0..3).any(|i| (stride[i]..dilation[i]).contains(&more[i])) {
            return no_form("an output padding that is only less than the dilation");
        }
        unbatched(conv_transpose3d(x, w, b, geometry)?, is_batch)
    }),
    ("nn.functional.grid_sample", |call| {
        let mode = match call.text(at(2, "mode"))? {
            None | Some("bilinear") => GridMode::Bilinear,
            Some("nearest") => GridMode::Nearest,
            Some("bicubic") => GridMode::Bicubic,
            Some(_) => return no_such(call, "mode"),
        };
        let padding = match call.text(at(3, "padding_mode"))? {
            None | Some("zeros") => GridPadding::Zeros,
            Some("border") => GridPadding::Border,
            Some("reflection") => GridPadding::Reflection,
            Some(_) => return no_such(call, "padding_mode"),
        };
        sampled(
            call,
            GridOptions { mode, padding, corners: corners(call, at(4, "align_corners"))? },
        )
    }),
    ("nn.functional.interpolate/area", |call| resized(call, ResizeMode::Area)),
    ("nn.functional.interpolate/bicubic", |call| {
        let corners = corners(call, at(4, "align_corners"))?;
        resized(call, ResizeMode::Cubic(corners))
    }),
    ("nn.functional.interpolate/linear", linear),
    ("nn.functional.interpolate/nearest-exact", |call| resized(call, ResizeMode::Nearest)),
    ("nn.functional.interpolate/trilinear", linear),
    ("nn.functional.max_pool3d", |call| {
        let (x, is_batch) = batched(call, 4)?;
        let window = pool3d(call)?;
        let dilation = triple(call, at(4, "dilation"), 1)?;
        let options = MaxPool3dOptions { dilation, rounding: rounding(call, at(5, "ceil_mode"))? };
        if !call.flag(at(6, "return_indices"))?.unwrap_or(false) {
            return unbatched(max_pool3d(x, window, options)?, is_batch);
        }
        let (y, places) = max_pool3d_with_places(x, window, options)?;
        with_places(y, places, is_batch)
    }),
    ("nn.functional.max_unpool1d", |call| unpooled(call, 1)),
    ("nn.functional.max_unpool1d/grad", |call| unpooled(call, 1)),
    ("nn.functional.max_unpool2d", |call| unpooled(call, 2)),
    ("nn.functional.max_unpool2d/grad", |call| unpooled(call, 2)),
    ("nn.functional.max_unpool3d", |call| unpooled(call, 3)),
    ("nn.functional.max_unpool3d/grad", |call| unpooled(call, 3)),
    ("nn.functional.pixel_shuffle", |call| {
        let factor = call.count(at(1, "upscale_factor"))?.unwrap_or(1);
        one(pixel_shuffle(call.var(INPUT)?, factor)?)
    }),
    ("nn.functional.pixel_unshuffle", |call| {
        let factor = call.count(at(1, "downscale_factor"))?.unwrap_or(1);
        one(pixel_unshuffle(call.var(INPUT)?, factor)?)
    }),
];

/// Grid sampling with its modes given as numbers.
fn by_number(call: &Call<'_>) -> Result<Vec<Output>> {
    let modes = [GridMode::Bilinear, GridMode::Nearest, GridMode::Bicubic];
    let paddings = [GridPadding::Zeros, GridPadding::Border, GridPadding::Reflection];
    let index = |at: At| -> Result<usize> { Ok(call.count(at)?.unwrap_or_default()) };
    let (mode, padding) = (index(at(2, "interpolation_mode"))?, index(at(3, "padding_mode"))?);
    let (Some(&mode), Some(&padding)) = (modes.get(mode), paddings.get(padding)) else {
        return no_such(call, "mode");
    };
    sampled(call, GridOptions { mode, padding, corners: corners(call, at(4, "align_corners"))? })
}

/// Three counts; a single count stands for all three.
pub(super) fn triple(call: &Call<'_>, at: At, default: usize) -> Result<[usize; 3]> {
    match call.counts(at)?.as_deref() {
        None | Some([]) => Ok([default; 3]),
        Some(&[all]) => Ok([all; 3]),
        Some(&[depth, height, width]) => Ok([depth, height, width]),
        Some(_) => no_such(call, "three numbers"),
    }
}

fn pool3d(call: &Call<'_>) -> Result<Pool3dGeometry> {
    let kernel = triple(call, at(1, "kernel_size"), 1)?;
    let stride = match call.counts(at(2, "stride"))?.as_deref() {
        None | Some([]) => kernel,
        Some(_) => triple(call, at(2, "stride"), 1)?,
    };
    Ok(Pool3dGeometry { kernel, stride, padding: triple(call, at(3, "padding"), 0)? })
}

/// Unpooling. Without a given size, the size is the part that the windows cover.
fn unpooled(call: &Call<'_>, rank: usize) -> Result<Vec<Output>> {
    let (x, is_batch) = batched(call, rank + 1)?;
    let places = call.constant(at(1, "indices"))?;
    let places = if is_batch { places } else { places.unsqueeze(0)? };
    if x.shape().len() != rank + 2 {
        // lowtide's error for a wrong number of dimensions.
        return one(max_unpool(x, &places, &vec![1; rank])?);
    }
    let each = |at: At, default: &[usize]| -> Result<Vec<usize>> {
        Ok(match call.counts(at)? {
            None => default.to_vec(),
            Some(all) if all.len() == 1 => vec![all[0]; rank],
            Some(all) => all,
        })
    };
    let kernel = each(at(2, "kernel_size"), &vec![1; rank])?;
    let stride = each(at(3, "stride"), &kernel)?;
    let padding = each(at(4, "padding"), &vec![0; rank])?;
    if stride.contains(&0) {
        return no_such(call, "stride");
    }
    let size = match call.counts(at(5, "output_size"))? {
        Some(size) => size[size.len().saturating_sub(rank)..].to_vec(),
        None => {
            let from = x.shape()[2..].iter().zip(kernel.iter().zip(stride.iter().zip(&padding)));
            let len = |(out, (kernel, (stride, padding))): (&usize, _)| {
                let (kernel, stride, padding): (&usize, &usize, &usize) = (kernel, stride, padding);
                (out.saturating_sub(1) * stride + kernel).saturating_sub(2 * padding)
            };
            from.map(len).collect()
        }
    };
    unbatched(max_unpool(x, &places, &size)?, is_batch)
}

/// Numbers of windows; `None` in the argument stands for the input's own size.
fn adaptive_size(call: &Call<'_>, x: &Var) -> Result<[usize; 3]> {
    const SIZE: At = at(1, "output_size");
    let Some(items) = call.value(SIZE).and_then(|value| value.as_array()) else {
        return triple(call, SIZE, 1);
    };
    if items.len() != 3 {
        return no_such(call, "output_size");
    }
    let mut size = [0; 3];
    for (place, (size, value)) in size.iter_mut().zip(items).enumerate() {
        let own = x.shape().iter().rev().nth(2 - place).copied().unwrap_or(1);
        *size = if value.is_null() { own } else { call.count_of(SIZE, value)? };
    }
    Ok(size)
}

/// Padding of PyTorch's words. If the sides differ, the input is padded here.
fn same(call: &Call<'_>, x: Var, w: &Var, dilation: [usize; 3]) -> Result<(Var, [usize; 3])> {
    match call.text(at(4, "padding"))? {
        Some("valid") => Ok((x, [0; 3])),
        Some("same") if triple(call, at(3, "stride"), 1)? != [1; 3] => no_such(call, "padding"),
        Some("same") => {
            let kernel =
                [2, 1, 0].map(|back| w.shape().iter().rev().nth(back).copied().unwrap_or(1));
            let total: [usize; 3] = std::array::from_fn(|i| dilation[i] * (kernel[i] - 1));
            let more = total.map(|total| [0, total % 2]);
            let is_even = more == [[0; 2]; 3];
            let x = if is_even { x } else { x.pad(&more, PadMode::Constant(0.0))? };
            Ok((x, total.map(|total| total / 2)))
        }
        _ => no_such(call, "padding"),
    }
}

fn corners(call: &Call<'_>, at: At) -> Result<Corners> {
    let aligned = call.flag(at)?.unwrap_or(false);
    Ok(if aligned { Corners::Aligned } else { Corners::Centers })
}

fn sampled(call: &Call<'_>, options: GridOptions) -> Result<Vec<Output>> {
    let (x, grid) = (call.var(INPUT)?, call.var(at(1, "grid"))?);
    one(grid_sample(x, grid, options)?)
}

fn linear(call: &Call<'_>) -> Result<Vec<Output>> {
    let corners = corners(call, at(4, "align_corners"))?;
    resized(call, ResizeMode::Linear(corners))
}

pub(super) fn resized(call: &Call<'_>, mode: ResizeMode) -> Result<Vec<Output>> {
    let x = call.var(INPUT)?;
    call.text(at(3, "mode"))?;
    let mode = match (call.flag(named("antialias"))?.unwrap_or(false), mode) {
        (false, mode) => mode,
        (true, ResizeMode::Linear(corners)) => ResizeMode::LinearAntialias(corners),
        (true, ResizeMode::Cubic(corners)) => ResizeMode::CubicAntialias(corners),
        (true, _) => return no_such(call, "antialias"),
    };
    let count = x.shape().len().saturating_sub(2);
    let again = call.flag(named("recompute_scale_factor"))?.unwrap_or(false);
    let sizes = match call.counts(at(1, "size"))? {
        Some(sizes) if sizes.len() == 1 => Sizes::To(vec![sizes[0]; count]),
        Some(sizes) => Sizes::To(sizes),
        None => {
            let factor = at(2, "scale_factor");
            let factors = match call.value(factor).and_then(|value| value.as_array()) {
                Some(items) => items.iter().filter_map(|item| item.as_f64()).collect(),
                None => vec![call.number(factor)?.unwrap_or(1.0); count],
            };
            let len = |(from, factor): (&usize, &f64)| (*from as f64 * factor) as usize;
            // Means of windows have no factor either.
            if again || mode == ResizeMode::Area {
                Sizes::To(x.shape()[2..].iter().zip(&factors).map(len).collect())
            } else {
                Sizes::By(factors)
            }
        }
    };
    one(resize(x, &sizes, mode)?)
}
