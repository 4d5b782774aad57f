//! The geometry of one image or mask, carried out as late as possible.
//!
//! Crops, resizes and flips only move a [`View`]: a part of the pixels, seen at some size. The part
//! is resampled once, when a step needs pixels or at the end, so what a crop leaves out is not
//! computed, and a flip costs nothing.

use crate::image::{ImageError, Raster};
use crate::transform::draw::Act;
use fast_image_resize::images::{CroppedImage, Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};

/// How pixels between pixels are made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Sampling {
    /// The mean of the pixels around, weighted by distance. Outside is 0.
    Bilinear,
    /// The nearest pixel: for classes. Outside is this.
    Nearest(u8),
}

/// Memory that is used again for each image.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) front: Raster,
    back: Raster,
    resizer: Resizer,
}

/// An image in the front raster as it is seen after some acts.
#[derive(Debug)]
pub(super) struct Canvas<'a> {
    scratch: &'a mut Scratch,
    sampling: Sampling,
    view: View,
}

/// A rectangle of pixels, `window`, seen at `size`, perhaps mirrored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct View {
    /// Top, left, height and width of the pixels that resampling may look at.
    support: [usize; 4],
    /// Top and left, in pixels. It may be outside the raster, but only if nothing is resized.
    origin: [f64; 2],
    /// Height and width, in pixels.
    extent: [f64; 2],
    /// Rows and columns that it is seen at.
    size: [usize; 2],
    /// Whether left and right are to be exchanged in the end.
    pub(super) is_mirrored: bool,
}

impl View {
    fn whole([height, width]: [usize; 2]) -> Self {
        Self {
            support: [0, 0, height, width],
            origin: [0.0; 2],
            extent: [height as f64, width as f64],
            size: [height, width],
            is_mirrored: false,
        }
    }

    fn is_resized(&self) -> bool {
        self.extent != self.size.map(|side| side as f64)
    }

    fn is_inside(&self, raster: [usize; 2]) -> bool {
        (0..2).all(|axis| {
            self.origin[axis] >= 0.0 && self.origin[axis] + self.extent[axis] <= raster[axis] as f64
        })
    }

    fn crop(&mut self, place: [isize; 2], size: [usize; 2]) {
        let is_resized = self.is_resized();
        for axis in 0..2 {
            let scale = self.extent[axis] / self.size[axis] as f64;
            let place = match axis == 1 && self.is_mirrored {
                true => self.size[axis] as isize - size[axis] as isize - place[axis],
                false => place[axis],
            };
            self.origin[axis] += place as f64 * scale;
            self.extent[axis] = size[axis] as f64 * scale;
        }
        self.size = size;
        if !is_resized {
            self.extent = size.map(|side| side as f64);
            // Resampling after a crop sees only what the crop has left, as PyTorch has it.
            let [top, left] = self.origin.map(|place| place.max(0.0) as usize);
            self.support = [top, left, size[0], size[1]];
        }
    }
}

impl<'a> Canvas<'a> {
    /// The whole front raster.
    pub(super) fn new(scratch: &'a mut Scratch, sampling: Sampling) -> Self {
        let view = View::whole(scratch.front.size());
        Self { scratch, sampling, view }
    }

    /// Carries out an act, or notes it. A change of colour is none of the canvas's.
    pub(super) fn act(&mut self, act: Act) {
        match act {
            Act::Crop { top, left, size } => {
                let mut cropped = self.view;
                cropped.crop([top, left], size);
                if self.view.is_resized() && !cropped.is_inside(self.scratch.front.size()) {
                    self.render();
                    self.view.crop([top, left], size);
                } else {
                    self.view = cropped;
                }
            }
            Act::Resize(size) => {
                if self.view.is_resized() || !self.view.is_inside(self.scratch.front.size()) {
                    self.render();
                }
                self.view.size = size;
            }
            Act::Flip => self.view.is_mirrored = !self.view.is_mirrored,
            Act::Rotate { radians } => {
                self.render();
                // Of a mirrored image the other way round.
                let radians = if self.view.is_mirrored { -radians } else { radians };
                let Scratch { front, back, .. } = &mut *self.scratch;
                rotate(front, back, radians, self.sampling);
                std::mem::swap(front, back);
            }
            Act::Colour(_) => {}
        }
    }

    /// Whether the image is seen at this size after all acts: it is not if a source gives images of
    /// another size than it says.
    pub(super) fn check_size(&self, size: [usize; 2]) -> Result<(), ImageError> {
        let channels = self.scratch.front.channels();
        let [shape, expected] =
            [self.view.size, size].map(|[rows, columns]| [channels, rows, columns]);
        (shape == expected).then_some(()).ok_or(ImageError::Shape { shape, expected })
    }

    /// The pixels as they are seen, except for the mirroring.
    pub(super) fn pixels_mut(&mut self) -> &mut Raster {
        self.render();
        &mut self.scratch.front
    }

    /// Makes what is seen the whole raster, if need be by one resampling or copy.
    fn render(&mut self) {
        let size = self.scratch.front.size();
        if self.view != (View { is_mirrored: self.view.is_mirrored, ..View::whole(size) }) {
            let Scratch { front, back, resizer } = &mut *self.scratch;
            match self.sampling {
                _ if !self.view.is_resized() => copy(front, back, &self.view, self.sampling),
                Sampling::Bilinear => resample(front, back, &self.view, resizer),
                Sampling::Nearest(_) => pick(front, back, &self.view),
            }
            std::mem::swap(front, back);
            let is_mirrored = self.view.is_mirrored;
            self.view = View { is_mirrored, ..View::whole(self.view.size) };
        }
    }

    /// The raster, and top and left in it of the finished image, which is mirrored or not.
    pub(super) fn finish(&mut self) -> (&Raster, [usize; 2], bool) {
        if self.view.is_resized() || !self.view.is_inside(self.scratch.front.size()) {
            self.render();
        }
        let origin = self.view.origin.map(|place| place as usize);
        (&self.scratch.front, origin, self.view.is_mirrored)
    }
}

/// A part without resizing, of which some may be outside.
fn copy(from: &Raster, to: &mut Raster, view: &View, sampling: Sampling) {
    let ([height, width], channels) = (from.size(), from.channels());
    let [rows, columns] = view.size;
    let [top, left] = view.origin.map(|place| place as isize);
    let outside = if let Sampling::Nearest(outside) = sampling { outside } else { 0 };
    let to = to.set_shape(channels, rows, columns);
    // The columns that are inside, as columns of the result.
    let start = (-left).clamp(0, columns as isize) as usize;
    let end = (width as isize - left).clamp(start as isize, columns as isize) as usize;
    for (row, line) in to.chunks_exact_mut(columns * channels).enumerate() {
        let y = row as isize + top;
        if y < 0 || y >= height as isize || start == end {
            line.fill(outside);
            continue;
        }
        let first = (y as usize * width) as isize + left + start as isize;
        let inside = &from.bytes()[first as usize * channels..][..(end - start) * channels];
        line[..start * channels].fill(outside);
        line[start * channels..end * channels].copy_from_slice(inside);
        line[end * channels..].fill(outside);
    }
}

/// The bilinear resize, with a wider kernel where the result is smaller.
fn resample(from: &Raster, to: &mut Raster, view: &View, resizer: &mut Resizer) {
    let ([height, width], channels) = (from.size(), from.channels());
    let kind = if channels == 1 { PixelType::U8 } else { PixelType::U8x3 };
    let [top, left, rows, columns] = view.support;
    let [y, x] = [view.origin[0] - top as f64, view.origin[1] - left as f64].map(|at| at.max(0.0));
    // Rounding must not lead outside.
    let [high, wide] =
        [view.extent[0].min(rows as f64 - y), view.extent[1].min(columns as f64 - x)];
    let options = ResizeOptions::new()
        .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
        .crop(x, y, wide, high);
    let [out_rows, out_columns] = view.size;
    let out = to.set_shape(channels, out_rows, out_columns);
    let mut resize = || -> Result<(), Box<dyn std::error::Error>> {
        let [left, top, width_u32, height_u32] = [left, top, width, height].map(|n| n as u32);
        let whole = ImageRef::new(width_u32, height_u32, from.bytes(), kind)?;
        let part = CroppedImage::new(&whole, left, top, columns as u32, rows as u32)?;
        let mut out = Image::from_slice_u8(out_columns as u32, out_rows as u32, out, kind)?;
        Ok(resizer.resize(&part, &mut out, &options)?)
    };
    resize().expect("the view lies in the raster, and both have their bytes");
}

/// The nearest pixel of each, without a kernel.
fn pick(from: &Raster, to: &mut Raster, view: &View) {
    let [rows, columns] = view.size;
    let [top, left, high, wide] = view.support;
    let width = from.size()[1];
    let at = |axis: usize, n: usize, first: usize, count: usize| {
        let scale = view.extent[axis] / view.size[axis] as f64;
        let place = view.origin[axis] + (n as f64 + 0.5) * scale;
        (place as usize).clamp(first, first + count - 1)
    };
    let channels = from.channels();
    let to = to.set_shape(channels, rows, columns);
    for (row, line) in to.chunks_exact_mut(columns * channels).enumerate() {
        let y = at(0, row, top, high);
        for (column, pixel) in line.chunks_exact_mut(channels).enumerate() {
            let x = at(1, column, left, wide);
            pixel.copy_from_slice(&from.bytes()[(y * width + x) * channels..][..channels]);
        }
    }
}

/// Turns counter-clockwise about the middle: each pixel is looked up where it comes from.
fn rotate(from: &Raster, to: &mut Raster, radians: f64, sampling: Sampling) {
    let ([height, width], channels) = (from.size(), from.channels());
    let (sin, cos) = radians.sin_cos();
    let [middle_y, middle_x] = [height, width].map(|side| (side as f64 - 1.0) / 2.0);
    let bytes = from.bytes();
    let pixel_at = |y: isize, x: isize| {
        let is_inside = (0..height as isize).contains(&y) && (0..width as isize).contains(&x);
        is_inside.then(|| &bytes[(y as usize * width + x as usize) * channels..][..channels])
    };
    let to = to.set_shape(channels, height, width);
    for (at, out) in to.chunks_exact_mut(channels).enumerate() {
        let (dy, dx) = ((at / width) as f64 - middle_y, (at % width) as f64 - middle_x);
        let (x, y) = (cos * dx - sin * dy + middle_x, sin * dx + cos * dy + middle_y);
        if let Sampling::Nearest(outside) = sampling {
            let nearest = pixel_at(y.round_ties_even() as isize, x.round_ties_even() as isize);
            match nearest {
                Some(pixel) => out.copy_from_slice(pixel),
                None => out.fill(outside),
            }
            continue;
        }
        let (top, left) = (y.floor(), x.floor());
        let (share_y, share_x) = ((y - top) as f32, (x - left) as f32);
        let mut sums = [0.0_f32; 4];
        for (row, weight_y) in [(0, 1.0 - share_y), (1, share_y)] {
            for (column, weight_x) in [(0, 1.0 - share_x), (1, share_x)] {
                let pixel = pixel_at(top as isize + row, left as isize + column);
                for (sum, &value) in sums.iter_mut().zip(pixel.unwrap_or_default()) {
                    *sum += weight_y * weight_x * f32::from(value);
                }
            }
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = (sum + 0.5) as u8;
        }
    }
}
