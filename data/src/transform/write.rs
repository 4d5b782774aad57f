//! The finished image or mask, written into the places of its fields.

use crate::element::{Element, IGNORED_LABEL};
use crate::image::Raster;

/// What each byte of each channel becomes.
#[derive(Debug)]
pub(super) struct Tables<T>(Vec<[T; 256]>);

impl Tables<u8> {
    /// Bytes as they are.
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

/// Writes the part of `image` that begins at `[top, left]` and is of this size, mirrored or not, as
/// planes `[C, H, W]`.
pub(super) fn write<T: Element>(
    (image, [top, left], is_mirrored): (&Raster, [usize; 2], bool),
    [height, width]: [usize; 2],
    tables: &Tables<T>,
    out: &mut [T],
) {
    let (channels, stride) = (image.channels(), image.size()[1]);
    let plane = height * width;
    for row in 0..height {
        let line = &image.bytes()[((top + row) * stride + left) * channels..][..width * channels];
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
            match is_mirrored {
                false => outs.zip(pixels).for_each(paint),
                true => outs.zip(pixels.iter().rev()).for_each(paint),
            }
            continue;
        }
        for (channel, table) in tables.0.iter().enumerate() {
            let out = &mut out[channel * plane + row * width..][..width];
            let values = line[channel..].iter().step_by(channels);
            let paint = |(to, &value): (&mut T, &u8)| *to = table[usize::from(value)];
            match is_mirrored {
                false => out.iter_mut().zip(values).for_each(paint),
                true => out.iter_mut().rev().zip(values).for_each(paint),
            }
        }
    }
}

/// Sets a rectangle, top, left, height and width, of every plane to zero.
pub(super) fn erase<T: Element + bytemuck::Zeroable>(
    [top, left, rows, columns]: [usize; 4],
    [height, width]: [usize; 2],
    out: &mut [T],
) {
    for plane in out.chunks_exact_mut(height * width) {
        for line in plane.chunks_exact_mut(width).skip(top).take(rows) {
            line[left..left + columns].fill(bytemuck::Zeroable::zeroed());
        }
    }
}

/// Writes a mask as labels `[H, W]`; `ignored` becomes the label that does not count.
pub(super) fn write_mask(
    (mask, [top, left], is_mirrored): (&Raster, [usize; 2], bool),
    [height, width]: [usize; 2],
    ignored: u8,
    out: &mut [i64],
) {
    let stride = mask.size()[1];
    let label = |value: u8| if value == ignored { IGNORED_LABEL } else { i64::from(value) };
    for (row, out) in out.chunks_exact_mut(width).enumerate().take(height) {
        let line = &mask.bytes()[(top + row) * stride + left..][..width];
        match is_mirrored {
            false => out.iter_mut().zip(line).for_each(|(to, &value)| *to = label(value)),
            true => out.iter_mut().rev().zip(line).for_each(|(to, &value)| *to = label(value)),
        }
    }
}
