//! The geometry of one image or mask, computed as late as possible.
//!
//! Crops, resizes and flips only change a [`View`]: a part of the pixels and the size that it is
//! scaled to. The part is resampled once, when a step needs pixels or at the end. So pixels outside
//! a crop are not computed, and a flip costs nothing.

use crate::image::{ImageError, Raster};
use crate::transform::draw::{ImageOp, Rect};
use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};

/// The interpolation between pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Sampling {
    /// The mean of the neighbouring pixels, weighted by distance. Pixels outside the image are 0.
    Bilinear,
    /// The nearest pixel, for classes. Pixels outside the image have this value.
    Nearest(u8),
}

/// Memory that is reused for every image.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) front: Raster,
    back: Raster,
    resizer: Resizer,
}

/// The image in the front raster, and the view of it after the operations so far.
#[derive(Debug)]
pub(super) struct Canvas<'a> {
    scratch: &'a mut Scratch,
    sampling: Sampling,
    view: View,
}

/// A finished image or mask: a part of a raster.
#[derive(Debug, Clone, Copy)]
pub(super) struct FinishedPart<'a> {
    pub(super) raster: &'a Raster,
    /// Top and left of the part.
    pub(super) origin: [usize; 2],
    /// True if left and right must be exchanged.
    pub(super) is_mirrored: bool,
}

/// A rectangle of pixels that is scaled to `size`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct View {
    /// The pixels that resampling may read.
    support: Rect,
    /// Top and left of the rectangle, in pixels. The rectangle may be outside the raster, but only
    /// if nothing is resized.
    origin: [f64; 2],
    /// Height and width of the rectangle, in pixels.
    extent: [f64; 2],
    /// Height and width after scaling.
    size: [usize; 2],
    /// True if left and right must be exchanged in the end.
    is_mirrored: bool,
}

impl View {
    fn whole([height, width]: [usize; 2]) -> Self {
        Self {
            support: Rect { origin: [0; 2], size: [height, width] },
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
            let place = if axis == 1 && self.is_mirrored {
                self.size[axis] as isize - size[axis] as isize - place[axis]
            } else {
                place[axis]
            };
            self.origin[axis] += place as f64 * scale;
            self.extent[axis] = size[axis] as f64 * scale;
        }
        self.size = size;
        if !is_resized {
            self.extent = size.map(|side| side as f64);
            // Resampling after a crop reads only pixels of the crop, as in PyTorch.
            let origin = self.origin.map(|place| place.max(0.0) as usize);
            self.support = Rect { origin, size };
        }
    }
}

impl<'a> Canvas<'a> {
    /// The whole front raster.
    pub(super) fn new(scratch: &'a mut Scratch, sampling: Sampling) -> Self {
        let view = View::whole(scratch.front.size());
        Self { scratch, sampling, view }
    }

    /// Applies the geometry of an operation, at once or when the pixels are needed.
    pub(super) fn apply(&mut self, op: ImageOp) {
        match op {
            ImageOp::Crop { top, left, size } => {
                let mut cropped = self.view;
                cropped.crop([top, left], size);
                if self.view.is_resized() && !cropped.is_inside(self.scratch.front.size()) {
                    self.render();
                    self.view.crop([top, left], size);
                } else {
                    self.view = cropped;
                }
            }
            ImageOp::Resize(size) => {
                if self.view.is_resized() || !self.view.is_inside(self.scratch.front.size()) {
                    self.render();
                }
                self.view.size = size;
            }
            ImageOp::Flip => self.view.is_mirrored = !self.view.is_mirrored,
            ImageOp::Rotate { radians } => {
                self.render();
                // The raster is not mirrored yet, so its direction of rotation is the opposite.
                let radians = if self.view.is_mirrored { -radians } else { radians };
                let Scratch { front, back, .. } = &mut *self.scratch;
                rotate(front, back, radians, self.sampling);
                std::mem::swap(front, back);
            }
            ImageOp::Colour(_) => {}
        }
    }

    /// Checks the size after all operations. The size is wrong if the source gives images of
    /// another size than its format states.
    pub(super) fn check_size(&self, size: [usize; 2]) -> Result<(), ImageError> {
        let channels = self.scratch.front.channels();
        let [shape, expected] =
            [self.view.size, size].map(|[rows, columns]| [channels, rows, columns]);
        (shape == expected).then_some(()).ok_or(ImageError::Shape { shape, expected })
    }

    /// The pixels of the view, not mirrored.
    pub(super) fn pixels_mut(&mut self) -> &mut Raster {
        self.render();
        &mut self.scratch.front
    }

    /// Makes the raster equal to the view, with one resampling or copy if they differ.
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

    /// The finished image.
    pub(super) fn finish(&mut self) -> FinishedPart<'_> {
        if self.view.is_resized() || !self.view.is_inside(self.scratch.front.size()) {
            self.render();
        }
        let origin = self.view.origin.map(|place| place as usize);
        let is_mirrored = self.view.is_mirrored;
        FinishedPart { raster: &self.scratch.front, origin, is_mirrored }
    }
}

/// Copies a view that is not resized. Pixels of the view may be outside the raster.
fn copy(from: &Raster, to: &mut Raster, view: &View, sampling: Sampling) {
    let ([height, width], channels) = (from.size(), from.channels());
    let [rows, columns] = view.size;
    let [top, left] = view.origin.map(|place| place as isize);
    let outside = if let Sampling::Nearest(outside) = sampling { outside } else { 0 };
    let to = to.set_shape(channels, rows, columns);
    // The columns of the result that are inside the raster.
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

/// The bilinear resize. The kernel is wider if the result is smaller.
fn resample(from: &Raster, to: &mut Raster, view: &View, resizer: &mut Resizer) {
    // A resizer that finds the type of the pixels at run time contains code for thirteen types.
    match from.channels() {
        1 => resample_pixels::<U8>(from, to, view, resizer),
        _ => resample_pixels::<U8x3>(from, to, view, resizer),
    }
}

fn resample_pixels<P: PixelTrait>(
    from: &Raster,
    to: &mut Raster,
    view: &View,
    resizer: &mut Resizer,
) {
    let ([height, width], channels) = (from.size(), from.channels());
    let Rect { origin: [top, left], size: [rows, columns] } = view.support;
    let [y, x] = [view.origin[0] - top as f64, view.origin[1] - left as f64].map(|at| at.max(0.0));
    // Rounding must not leave the support.
    let [high, wide] =
        [view.extent[0].min(rows as f64 - y), view.extent[1].min(columns as f64 - x)];
    let options = ResizeOptions::new()
        .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
        .crop(x, y, wide, high);
    let [out_rows, out_columns] = view.size;
    let out = to.set_shape(channels, out_rows, out_columns);
    let mut resize = || -> Result<(), Box<dyn std::error::Error>> {
        let [left, top, width_u32, height_u32] = [left, top, width, height].map(|n| n as u32);
        let whole = TypedImageRef::<P>::from_buffer(width_u32, height_u32, from.bytes())?;
        let part = TypedCroppedImage::new(whole, left, top, columns as u32, rows as u32)?;
        let (out_width, out_height) = (out_columns as u32, out_rows as u32);
        let mut out = TypedImage::<P>::from_buffer(out_width, out_height, out)?;
        Ok(resizer.resize_typed(&part, &mut out, &options)?)
    };
    resize().expect("the view lies in the raster, and both have their bytes");
}

/// Resizes by taking the nearest pixel.
fn pick(from: &Raster, to: &mut Raster, view: &View) {
    let [rows, columns] = view.size;
    let Rect { origin: [top, left], size: [high, wide] } = view.support;
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

/// Rotates counter-clockwise about the centre. Each pixel of the result is read at the place in
/// `from` that rotates to the pixel.
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
