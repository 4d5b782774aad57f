//! The operations on one image: the steps of a pipeline with their random numbers drawn. No pixel
//! is touched here.

use crate::draws::Draws;
use crate::transform::step::{Step, resize_shorter};
use std::f64::consts::PI;

/// An operation on one image: a step with its random numbers drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ImageOp {
    /// Takes a part, which may reach outside the image.
    Crop { top: isize, left: isize, size: [usize; 2] },
    /// Resizes to a height and width.
    Resize([usize; 2]),
    /// Exchanges left and right.
    Flip,
    /// Rotates counter-clockwise about the centre.
    Rotate { radians: f64 },
    /// Changes the colours.
    Colour(ColourOp),
}

/// An operation on the colours.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ColourOp {
    Brightness(f32),
    Contrast(f32),
    Saturation(f32),
    Hue(f32),
}

/// A rectangle of pixels within an image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rect {
    /// Top and left.
    pub(super) origin: [usize; 2],
    /// Height and width.
    pub(super) size: [usize; 2],
}

/// All operations on one image.
#[derive(Debug, Default, PartialEq)]
pub(super) struct DrawnOps {
    pub(super) ops: Vec<ImageOp>,
    /// The rectangle of the finished image that is erased.
    pub(super) erased: Option<Rect>,
}

/// Draws the operations on an image of `size`. `draws` makes the generator of the step at a
/// position.
pub(super) fn draw(steps: &[Step], mut size: [usize; 2], draws: impl Fn(u64) -> Draws) -> DrawnOps {
    let mut drawn = DrawnOps::default();
    for (position, step) in steps.iter().enumerate() {
        let mut draws = draws(position as u64);
        let ops = &mut drawn.ops;
        match *step {
            Step::Resize(to) => ops.push(ImageOp::Resize(to)),
            Step::ResizeShorter(side) => ops.push(ImageOp::Resize(resize_shorter(size, side))),
            Step::CentreCrop(to) => {
                let [top, left] = [0, 1].map(|axis| centred_start(size[axis], to[axis]));
                ops.push(ImageOp::Crop { top, left, size: to });
            }
            Step::RandomCrop { size: to, padding } => {
                let [top, left] =
                    [0, 1].map(|axis| match (size[axis] + 2 * padding).checked_sub(to[axis]) {
                        Some(room) => draws.below(room + 1) as isize - padding as isize,
                        None => centred_start(size[axis], to[axis]),
                    });
                ops.push(ImageOp::Crop { top, left, size: to });
            }
            Step::RandomResizedCrop { size: to, area, ratio } => {
                let part = random_part(size, area, ratio, &mut draws);
                let [top, left] = part.origin.map(|place| place as isize);
                ops.push(ImageOp::Crop { top, left, size: part.size });
                ops.push(ImageOp::Resize(to));
            }
            Step::FlipHorizontal { probability } => {
                if draws.chance(probability) {
                    ops.push(ImageOp::Flip);
                }
            }
            Step::Rotate { degrees } => {
                let radians = draws.between(-degrees, degrees) * PI / 180.0;
                ops.push(ImageOp::Rotate { radians });
            }
            Step::ColourJitter { brightness, contrast, saturation, hue } => {
                let mut factor = |x: f64| draws.between((1.0 - x).max(0.0), 1.0 + x) as f32;
                let mut colours = [
                    ColourOp::Brightness(factor(brightness)),
                    ColourOp::Contrast(factor(contrast)),
                    ColourOp::Saturation(factor(saturation)),
                    ColourOp::Hue(draws.between(-hue, hue) as f32),
                ];
                for last in (1..colours.len()).rev() {
                    colours.swap(last, draws.below(last + 1));
                }
                ops.extend(colours.into_iter().filter(|op| !op.is_identity()).map(ImageOp::Colour));
            }
            Step::Normalise { .. } => {}
            Step::Erase { probability, area, ratio } => {
                if draws.chance(probability) {
                    drawn.erased = random_hole(size, area, ratio, &mut draws);
                }
            }
        }
        size = step.size_after(Some(size)).unwrap_or(size);
    }
    drawn
}

impl ColourOp {
    fn is_identity(self) -> bool {
        match self {
            Self::Brightness(x) | Self::Contrast(x) | Self::Saturation(x) => x == 1.0,
            Self::Hue(x) => x == 0.0,
        }
    }
}

/// The start of a centred part of length `to` in a side of length `side`.
fn centred_start(side: usize, to: usize) -> isize {
    ((side as f64 - to as f64) / 2.0).round_ties_even() as isize
}

/// A random part, after `RandomResizedCrop.get_params` of torchvision. If ten attempts do not fit,
/// the part is the centre with the nearest allowed ratio.
fn random_part(
    [height, width]: [usize; 2],
    area: [f64; 2],
    ratio: [f64; 2],
    draws: &mut Draws,
) -> Rect {
    for _ in 0..10 {
        let target = (height * width) as f64 * draws.between(area[0], area[1]);
        let aspect = draws.between(ratio[0].ln(), ratio[1].ln()).exp();
        let columns = (target * aspect).sqrt().round_ties_even() as usize;
        let rows = (target / aspect).sqrt().round_ties_even() as usize;
        if (1..=height).contains(&rows) && (1..=width).contains(&columns) {
            let top = draws.below(height - rows + 1);
            let left = draws.below(width - columns + 1);
            return Rect { origin: [top, left], size: [rows, columns] };
        }
    }
    let whole = width as f64 / height as f64;
    let rounded = |side: f64, side_max: usize| (side.round_ties_even() as usize).clamp(1, side_max);
    let [rows, columns] = if whole < ratio[0] {
        [rounded(width as f64 / ratio[0], height), width]
    } else if whole > ratio[1] {
        [height, rounded(height as f64 * ratio[1], width)]
    } else {
        [height, width]
    };
    let origin = [(height - rows) / 2, (width - columns) / 2];
    Rect { origin, size: [rows, columns] }
}

/// A rectangle to erase, after `RandomErasing.get_params` of torchvision; `None` if ten attempts do
/// not fit.
fn random_hole(
    [height, width]: [usize; 2],
    area: [f64; 2],
    ratio: [f64; 2],
    draws: &mut Draws,
) -> Option<Rect> {
    (0..10).find_map(|_| {
        let target = (height * width) as f64 * draws.between(area[0], area[1]);
        let aspect = draws.between(ratio[0].ln(), ratio[1].ln()).exp();
        let rows = (target * aspect).sqrt().round_ties_even() as usize;
        let columns = (target / aspect).sqrt().round_ties_even() as usize;
        (rows < height && columns < width).then(|| {
            let top = draws.below(height - rows + 1);
            let left = draws.below(width - columns + 1);
            Rect { origin: [top, left], size: [rows, columns] }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{Draws, Rect, centred_start, random_hole, random_part};

    #[test]
    fn parts_lie_in_the_image_with_the_required_area_and_ratio() {
        let mut draws = Draws::new(1, 2, 3, 4);
        for _ in 0..2000 {
            let part = random_part([375, 500], [0.08, 1.0], [0.75, 4.0 / 3.0], &mut draws);
            let Rect { origin: [top, left], size: [rows, columns] } = part;
            assert!(top + rows <= 375 && left + columns <= 500);
            let (area, ratio) = ((rows * columns) as f64, columns as f64 / rows as f64);
            assert!(area >= 0.079 * 375.0 * 500.0, "{rows}x{columns}");
            assert!((0.74..1.35).contains(&ratio), "{rows}x{columns}");
        }
        // No part of an image with one row has such a ratio, so its centre is taken.
        let part = random_part([1, 100], [0.9, 1.0], [0.75, 1.25], &mut draws);
        assert_eq!(part, Rect { origin: [0, 49], size: [1, 1] });
    }

    #[test]
    fn holes_lie_in_the_image_and_centred_starts_round_as_in_pytorch() {
        let mut draws = Draws::new(1, 2, 3, 4);
        for _ in 0..2000 {
            if let Some(Rect { origin: [top, left], size: [rows, columns] }) =
                random_hole([32, 20], [0.02, 0.33], [0.3, 3.3], &mut draws)
            {
                assert!(top + rows <= 32 && left + columns <= 20);
            }
        }
        assert_eq!([centred_start(5, 2), centred_start(7, 2), centred_start(2, 5)], [2, 2, -2]);
    }
}
