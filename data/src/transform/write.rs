//! Writing of finished images and masks to the batch.

use crate::element::{Element, IGNORED_LABEL};
use crate::transform::canvas::FinishedPart;
use crate::transform::draw::Rect;

/// For each channel, the output for each of the 256 byte values.
#[derive(Debug)]
pub(super) struct Tables<T>(Vec<[T; 256]>);

impl Tables<u8> {
    /// Tables that leave bytes unchanged.
    pub(super) fn identity(channels: usize) -> Self {
        Self(vec![std::array::from_fn(|value| value as u8); channels])
    }
}

impl Tables<f32> {
    /// `(x / 255 - mean) / std`, in PyTorch's order of operations.
    pub(super) fn normalise(mean: &[f32], std: &[f32]) -> Self {
        let table = |(mean, std): (&f32, &f32)| {
            std::array::from_fn(|value| (value as f32 / 255.0 - mean) / std)
        };
        Self(mean.iter().zip(std).map(table).collect())
    }
}

/// Writes an image of this size as planes `[C, H, W]`.
pub(super) fn write<T: Element>(
    image: &FinishedPart<'_>,
    [height, width]: [usize; 2],
    tables: &Tables<T>,
    out: &mut [T],
) {
    let FinishedPart { raster, origin: [top, left], is_mirrored } = *image;
    let (channels, stride) = (raster.channels(), raster.size()[1]);
    let plane = height * width;
    for row in 0..height {
        let line = &raster.bytes()[((top + row) * stride + left) * channels..][..width * channels];
        if let ([r, g, b], 3) = (&tables.0[..], channels) {
            let (out_r, rest) = out.split_at_mut(plane);
            let (out_g, out_b) = rest.split_at_mut(plane);
            let outs = out_r[row * width..][..width]
                .iter_mut()
                .zip(&mut out_g[row * width..][..width])
                .zip(&mut out_b[row * width..][..width]);
            let paint = |(((to_r, to_g), to_b), pixel): (((&mut T, &mut T), &mut T), &[u8; 3])| {
                *to_r = r[usize::from(pixel[0])];
                *to_g = g[usize::from(pixel[1])];
                *to_b = b[usize::from(pixel[2])];
            };
            let (pixels, _) = line.as_chunks::<3>();
            if is_mirrored {
                outs.zip(pixels.iter().rev()).for_each(paint);
            } else {
                outs.zip(pixels).for_each(paint);
            }
            continue;
        }
        for (channel, table) in tables.0.iter().enumerate() {
            let out = &mut out[channel * plane + row * width..][..width];
            let values = line[channel..].iter().step_by(channels);
            let paint = |(to, &value): (&mut T, &u8)| *to = table[usize::from(value)];
            if is_mirrored {
                out.iter_mut().rev().zip(values).for_each(paint);
            } else {
                out.iter_mut().zip(values).for_each(paint);
            }
        }
    }
}

/// Sets a rectangle of every plane to zero.
pub(super) fn erase<T: Element + bytemuck::Zeroable>(
    hole: Rect,
    [height, width]: [usize; 2],
    out: &mut [T],
) {
    let Rect { origin: [top, left], size: [rows, columns] } = hole;
    for plane in out.chunks_exact_mut(height * width) {
        for line in plane.chunks_exact_mut(width).skip(top).take(rows) {
            line[left..left + columns].fill(bytemuck::Zeroable::zeroed());
        }
    }
}

/// Writes a mask of this size as labels `[H, W]`. The class `ignored` becomes [`IGNORED_LABEL`].
pub(super) fn write_mask(
    mask: &FinishedPart<'_>,
    [height, width]: [usize; 2],
    ignored: u8,
    out: &mut [i64],
) {
    let FinishedPart { raster, origin: [top, left], is_mirrored } = *mask;
    let stride = raster.size()[1];
    let label = |value: u8| if value == ignored { IGNORED_LABEL } else { i64::from(value) };
    let paint = |(to, &value): (&mut i64, &u8)| *to = label(value);
    for (row, out) in out.chunks_exact_mut(width).enumerate().take(height) {
        let line = &raster.bytes()[(top + row) * stride + left..][..width];
        if is_mirrored {
            out.iter_mut().rev().zip(line).for_each(paint);
        } else {
            out.iter_mut().zip(line).for_each(paint);
        }
    }
}
