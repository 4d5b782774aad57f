//! Decoding of PNG and JPEG files. The limits are checked before any pixel is decoded.

use crate::image::error::ImageError;
use crate::image::exif;
use crate::image::raster::Raster;
use png::{ColorType, Transformations};
use std::io::Cursor;
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

/// The largest image that is decoded, with defaults in parentheses. The limits guard against files
/// that claim enormous sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageLimits {
    /// Maximum height and width (16384).
    pub side_max: usize,
    /// Maximum number of pixels, height times width (2^26, about 67 million).
    pub pixels_max: usize,
    /// Maximum number of bytes of a file (2^28, which is 256 MiB).
    pub file_bytes_max: u64,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self { side_max: 1 << 14, pixels_max: 1 << 26, file_bytes_max: 1 << 28 }
    }
}

impl ImageLimits {
    fn check(&self, width: usize, height: usize) -> Result<(), ImageError> {
        if width == 0 || height == 0 {
            return Err(ImageError::Shape { shape: [0, height, width], expected: [0; 3] });
        }
        let is_small = width.max(height) <= self.side_max
            && width.checked_mul(height).is_some_and(|pixels| pixels <= self.pixels_max);
        is_small.then_some(()).ok_or(ImageError::TooLarge { width, height })
    }
}

/// Options of decoding.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DecodeOptions {
    /// 1 for grey, 3 for RGB.
    pub(crate) channels: usize,
    /// Rotates an image upright if its EXIF data say that the camera was rotated.
    pub(crate) is_upright: bool,
    pub(crate) limits: ImageLimits,
}

impl Default for DecodeOptions {
    fn default() -> Self {
        Self { channels: 3, is_upright: false, limits: ImageLimits::default() }
    }
}

/// Decodes a PNG or JPEG file as Pillow's `convert("L")` and `convert("RGB")` do: transparency is
/// dropped, and 16 bits become 8.
pub(crate) fn decode(
    file: &[u8],
    options: &DecodeOptions,
    out: &mut Raster,
) -> Result<(), ImageError> {
    if file.starts_with(b"\x89PNG\r\n\x1a\n") {
        decode_png(file, options, out)
    } else if file.starts_with(b"\xff\xd8\xff") {
        let orientation = decode_jpeg(file, options, out)?;
        if options.is_upright {
            exif::rotate_upright(out, orientation);
        }
        Ok(())
    } else {
        Err(ImageError::Unknown)
    }
}

/// Decodes a JPEG file and returns its EXIF orientation, from 1 to 8.
fn decode_jpeg(file: &[u8], options: &DecodeOptions, out: &mut Raster) -> Result<u8, ImageError> {
    let DecodeOptions { channels, limits, .. } = *options;
    // Strict mode makes a file that ends early an error. Otherwise the rest of its image is grey.
    let jpeg_options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(limits.side_max)
        .set_max_height(limits.side_max);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), jpeg_options);
    let failed = |decoder: &JpegDecoder<ZCursor<&[u8]>>, error| match decoder.info() {
        Some(info) if limits.check(info.width.into(), info.height.into()).is_err() => {
            ImageError::TooLarge { width: info.width.into(), height: info.height.into() }
        }
        _ => ImageError::Jpeg(error),
    };
    decoder.decode_headers().map_err(|error| failed(&decoder, error))?;
    let (width, height) = decoder.dimensions().ok_or(ImageError::Unknown)?;
    limits.check(width, height)?;
    let is_grey = decoder.input_colorspace() == Some(ColorSpace::Luma);
    let stored = if is_grey { 1 } else { channels };
    let space = if stored == 1 { ColorSpace::Luma } else { ColorSpace::RGB };
    decoder.set_options(decoder.options().jpeg_set_out_colorspace(space));
    let expected = stored * width * height;
    if decoder.output_buffer_size() != Some(expected) {
        return Err(ImageError::Unknown);
    }
    let bytes = out.set_shape(channels, height, width);
    decoder.decode_into(&mut bytes[..expected]).map_err(ImageError::Jpeg)?;
    if stored < channels {
        repeat_grey(bytes, channels);
    }
    Ok(decoder.exif().map_or(1, |exif| exif::orientation(exif)))
}

fn decode_png(file: &[u8], options: &DecodeOptions, out: &mut Raster) -> Result<(), ImageError> {
    let &DecodeOptions { channels, ref limits, .. } = options;
    let mut reader = png_reader(file, Transformations::normalize_to_color8(), limits)?;
    let info = reader.info();
    let (width, height) = (info.width as usize, info.height as usize);
    let stored = reader.output_color_type().0.samples();
    if stored == channels {
        let bytes = out.set_shape(channels, height, width);
        reader.next_frame(bytes).map_err(ImageError::Png)?;
        return reader.finish().map_err(ImageError::Png);
    }
    // The raster first holds the channels that the file stores.
    let bytes = out.set_shape(stored.max(channels), height, width);
    reader.next_frame(&mut bytes[..stored * height * width]).map_err(ImageError::Png)?;
    reader.finish().map_err(ImageError::Png)?;
    if stored <= 2 && channels == 3 {
        let pixels = height * width;
        for at in 1..pixels {
            bytes[at] = bytes[at * stored];
        }
        repeat_grey(&mut bytes[..pixels * 3], 3);
    } else {
        for at in 0..height * width {
            let pixel = &bytes[at * stored..][..stored];
            if channels == 3 {
                let rgb = [pixel[0], pixel[1], pixel[2]];
                bytes[at * 3..][..3].copy_from_slice(&rgb);
            } else {
                bytes[at] = if stored <= 2 { pixel[0] } else { luma(pixel) };
            }
        }
    }
    out.set_shape(channels, height, width);
    Ok(())
}

/// Decodes a mask `[H, W]`. The class of a pixel is its palette index or its grey value.
pub(crate) fn decode_mask(
    file: &[u8],
    limits: &ImageLimits,
    out: &mut Raster,
) -> Result<(), ImageError> {
    if !file.starts_with(b"\x89PNG\r\n\x1a\n") {
        return Err(ImageError::NoMask);
    }
    let mut reader = png_reader(file, Transformations::IDENTITY, limits)?;
    let info = reader.info();
    let (width, height) = (info.width as usize, info.height as usize);
    let (color, depth) = reader.output_color_type();
    let bits = depth as usize;
    if !matches!(color, ColorType::Indexed | ColorType::Grayscale) || bits > 8 {
        return Err(ImageError::NoMask);
    }
    let line_bytes = (width * bits).div_ceil(8);
    let bytes = out.set_shape(1, height, width);
    reader.next_frame(&mut bytes[..line_bytes * height]).map_err(ImageError::Png)?;
    reader.finish().map_err(ImageError::Png)?;
    if bits < 8 {
        // Unpacking from the end overwrites no byte before it is read.
        let (per_byte, mask) = (8 / bits, (1_u8 << bits) - 1);
        for (row, column) in
            (0..height).rev().flat_map(|row| (0..width).rev().map(move |column| (row, column)))
        {
            let packed = bytes[row * line_bytes + column / per_byte];
            let shift = 8 - bits * (column % per_byte + 1);
            bytes[row * width + column] = packed >> shift & mask;
        }
    }
    Ok(())
}

fn png_reader<'a>(
    file: &'a [u8],
    transformations: Transformations,
    limits: &ImageLimits,
) -> Result<png::Reader<Cursor<&'a [u8]>>, ImageError> {
    let bytes = limits.pixels_max.saturating_mul(8);
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(file), png::Limits { bytes });
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_transformations(transformations);
    let info = decoder.read_header_info().map_err(ImageError::Png)?;
    limits.check(info.width as usize, info.height as usize)?;
    decoder.read_info().map_err(ImageError::Png)
}

/// Repeats the grey value of each pixel for all channels. `bytes` begins with one byte per pixel.
fn repeat_grey(bytes: &mut [u8], channels: usize) {
    // Writing from the end overwrites no byte before it is read.
    for at in (0..bytes.len() / channels).rev() {
        let grey = bytes[at];
        bytes[at * channels..][..channels].fill(grey);
    }
}

/// The luma of ITU-R 601-2, in Pillow's 16-bit arithmetic.
fn luma(pixel: &[u8]) -> u8 {
    let [r, g, b] = [pixel[0], pixel[1], pixel[2]].map(u32::from);
    ((r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16) as u8
}
