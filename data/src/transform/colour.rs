//! Operations on the colours of bytes, after torchvision's functional transforms of byte tensors.

use crate::image::Raster;
use crate::transform::draw::ColourOp;

/// Applies one operation.
pub(super) fn apply(image: &mut Raster, op: ColourOp) {
    let channels = image.channels();
    let bytes = image.bytes_mut();
    match op {
        ColourOp::Brightness(factor) => map_bytes(bytes, |value| factor * value),
        ColourOp::Contrast(factor) => {
            let mean = mean_of_grey(bytes, channels);
            map_bytes(bytes, |value| factor * value + (1.0 - factor) * mean);
        }
        ColourOp::Saturation(factor) if channels == 3 => {
            for pixel in bytes.chunks_exact_mut(3) {
                let grey = f32::from(grey(pixel));
                for value in pixel {
                    *value = to_byte(factor * f32::from(*value) + (1.0 - factor) * grey);
                }
            }
        }
        ColourOp::Hue(shift) if channels == 3 => {
            for pixel in bytes.chunks_exact_mut(3) {
                let rgb = [pixel[0], pixel[1], pixel[2]].map(|value| f32::from(value) / 255.0);
                let [hue, saturation, value] = to_hsv(rgb);
                let rgb = to_rgb([(hue + shift).rem_euclid(1.0), saturation, value]);
                pixel.copy_from_slice(&rgb.map(|value| (value * 255.999) as u8));
            }
        }
        ColourOp::Saturation(_) | ColourOp::Hue(_) => {}
    }
}

/// Rounds down to a byte, clamped to its range.
fn to_byte(value: f32) -> u8 {
    value as u8
}

/// Applies a function to each byte, through a table of its 256 values.
fn map_bytes(bytes: &mut [u8], function: impl Fn(f32) -> f32) {
    let table: [u8; 256] = std::array::from_fn(|value| to_byte(function(value as f32)));
    for byte in bytes {
        *byte = table[usize::from(*byte)];
    }
}

fn grey(pixel: &[u8]) -> u8 {
    let [r, g, b] = [pixel[0], pixel[1], pixel[2]].map(f32::from);
    to_byte(0.2989 * r + 0.587 * g + 0.114 * b)
}

fn mean_of_grey(bytes: &[u8], channels: usize) -> f32 {
    let sum: u64 = match channels {
        3 => bytes.chunks_exact(3).map(|pixel| u64::from(grey(pixel))).sum(),
        _ => bytes.iter().map(|&value| u64::from(value)).sum(),
    };
    (sum as f64 / (bytes.len() / channels).max(1) as f64) as f32
}

fn to_hsv([r, g, b]: [f32; 3]) -> [f32; 3] {
    let (max, min) = (r.max(g).max(b), r.min(g).min(b));
    let range = max - min;
    if range == 0.0 {
        return [0.0, 0.0, max];
    }
    let [below_r, below_g, below_b] = [r, g, b].map(|value| (max - value) / range);
    let hue = if max == r {
        below_b - below_g
    } else if max == g {
        2.0 + below_r - below_b
    } else {
        4.0 + below_g - below_r
    };
    [(hue / 6.0 + 1.0) % 1.0, range / max, max]
}

fn to_rgb([hue, saturation, value]: [f32; 3]) -> [f32; 3] {
    let sixth = (hue * 6.0).floor();
    let share = hue * 6.0 - sixth;
    let p = (value * (1.0 - saturation)).clamp(0.0, 1.0);
    let q = (value * (1.0 - saturation * share)).clamp(0.0, 1.0);
    let t = (value * (1.0 - saturation * (1.0 - share))).clamp(0.0, 1.0);
    match sixth as u8 % 6 {
        0 => [value, t, p],
        1 => [q, value, p],
        2 => [p, value, t],
        3 => [p, q, value],
        4 => [t, p, value],
        _ => [value, p, q],
    }
}
