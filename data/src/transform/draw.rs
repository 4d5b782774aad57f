//! What the steps of a pipeline do to one image: the random numbers drawn, and nothing else done.

use crate::draws::Draws;
use crate::transform::step::{Step, resize_shorter};
use std::f64::consts::PI;

/// A step with its numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Act {
    /// This part, of which some may be outside the image.
    Crop { top: isize, left: isize, size: [usize; 2] },
    /// To this size.
    Resize([usize; 2]),
    /// Left becomes right.
    Flip,
    /// Counter-clockwise about the middle.
    Rotate { radians: f64 },
    /// A change of the colours.
    Colour(Colour),
}

/// A change of the colours.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Colour {
    Brightness(f32),
    Contrast(f32),
    Saturation(f32),
    Hue(f32),
}

/// What is done to one image.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Drawn {
    pub(super) acts: Vec<Act>,
    /// Top, left, height and width of what is erased of the finished image.
    pub(super) erased: Option<[usize; 4]>,
}

/// Draws for an image of this size. `draws` makes the generator of the step at a position.
pub(super) fn draw(steps: &[Step], mut size: [usize; 2], draws: impl Fn(u64) -> Draws) -> Drawn {
    let mut drawn = Drawn::default();
    for (position, step) in steps.iter().enumerate() {
        let mut draws = draws(position as u64);
        let acts = &mut drawn.acts;
        match *step {
            Step::Resize(to) => acts.push(Act::Resize(to)),
            Step::ResizeShorter(side) => acts.push(Act::Resize(resize_shorter(size, side))),
            Step::CentreCrop(to) => {
                let [top, left] = [0, 1].map(|axis| middle(size[axis], to[axis]));
                acts.push(Act::Crop { top, left, size: to });
            }
            Step::RandomCrop { size: to, padding } => {
                let [top, left] =
                    [0, 1].map(|axis| match (size[axis] + 2 * padding).checked_sub(to[axis]) {
                        Some(room) => draws.below(room + 1) as isize - padding as isize,
                        None => middle(size[axis], to[axis]),
                    });
                acts.push(Act::Crop { top, left, size: to });
            }
            Step::RandomResizedCrop { size: to, area, ratio } => {
                let ([top, left], part) = part_of(size, area, ratio, &mut draws);
                acts.push(Act::Crop { top: top as isize, left: left as isize, size: part });
                acts.push(Act::Resize(to));
            }
            Step::FlipHorizontal { probability } => {
                if draws.chance(probability) {
                    acts.push(Act::Flip);
                }
            }
            Step::Rotate { degrees } => {
                let radians = draws.between(-degrees, degrees) * PI / 180.0;
                acts.push(Act::Rotate { radians });
            }
            Step::ColourJitter { brightness, contrast, saturation, hue } => {
                let mut factor = |x: f64| draws.between((1.0 - x).max(0.0), 1.0 + x) as f32;
                let mut changes = [
                    Colour::Brightness(factor(brightness)),
                    Colour::Contrast(factor(contrast)),
                    Colour::Saturation(factor(saturation)),
                    Colour::Hue(draws.between(-hue, hue) as f32),
                ];
                for last in (1..changes.len()).rev() {
                    changes.swap(last, draws.below(last + 1));
                }
                acts.extend(
                    changes.into_iter().filter(|&change| !change.is_none()).map(Act::Colour),
                );
            }
            Step::Normalise { .. } => {}
            Step::Erase { probability, area, ratio } => {
                if draws.chance(probability) {
                    drawn.erased = hole_in(size, area, ratio, &mut draws);
                }
            }
        }
        size = step.size_after(Some(size)).unwrap_or(size);
    }
    drawn
}

impl Colour {
    fn is_none(self) -> bool {
        match self {
            Self::Brightness(x) | Self::Contrast(x) | Self::Saturation(x) => x == 1.0,
            Self::Hue(x) => x == 0.0,
        }
    }
}

/// Where a part of length `to` begins that is in the middle of `side`.
fn middle(side: usize, to: usize) -> isize {
    ((side as f64 - to as f64) / 2.0).round_ties_even() as isize
}

/// Place and size of a random part, after `RandomResizedCrop.get_params` of torchvision: ten
/// attempts, and then the middle in the nearest allowed ratio.
fn part_of(
    [height, width]: [usize; 2],
    area: [f64; 2],
    ratio: [f64; 2],
    draws: &mut Draws,
) -> ([usize; 2], [usize; 2]) {
    for _ in 0..10 {
        let target = (height * width) as f64 * draws.between(area[0], area[1]);
        let aspect = draws.between(ratio[0].ln(), ratio[1].ln()).exp();
        let columns = (target * aspect).sqrt().round_ties_even() as usize;
        let rows = (target / aspect).sqrt().round_ties_even() as usize;
        if (1..=height).contains(&rows) && (1..=width).contains(&columns) {
            let top = draws.below(height - rows + 1);
            return ([top, draws.below(width - columns + 1)], [rows, columns]);
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
    ([(height - rows) / 2, (width - columns) / 2], [rows, columns])
}

/// A rectangle to erase, after `RandomErasing.get_params` of torchvision; `None` if ten attempts
/// give none that fits.
fn hole_in(
    [height, width]: [usize; 2],
    area: [f64; 2],
    ratio: [f64; 2],
    draws: &mut Draws,
) -> Option<[usize; 4]> {
    (0..10).find_map(|_| {
        let target = (height * width) as f64 * draws.between(area[0], area[1]);
        let aspect = draws.between(ratio[0].ln(), ratio[1].ln()).exp();
        let rows = (target * aspect).sqrt().round_ties_even() as usize;
        let columns = (target / aspect).sqrt().round_ties_even() as usize;
        (rows < height && columns < width).then(|| {
            let top = draws.below(height - rows + 1);
            [top, draws.below(width - columns + 1), rows, columns]
        })
    })
}

#[cfg(test)]
mod tests {
    use super::{Draws, hole_in, middle, part_of};

    #[test]
    fn parts_lie_in_the_image_with_area_and_ratio_as_asked() {
        let mut draws = Draws::new(1, 2, 3, 4);
        for _ in 0..2000 {
            let ([top, left], [rows, columns]) =
                part_of([375, 500], [0.08, 1.0], [0.75, 4.0 / 3.0], &mut draws);
            assert!(top + rows <= 375 && left + columns <= 500);
            let (area, ratio) = ((rows * columns) as f64, columns as f64 / rows as f64);
            assert!(area >= 0.079 * 375.0 * 500.0, "{rows}x{columns}");
            assert!((0.74..1.35).contains(&ratio), "{rows}x{columns}");
        }
        // No part of a line has such a ratio: its middle is taken.
        assert_eq!(part_of([1, 100], [0.9, 1.0], [0.75, 1.25], &mut draws), ([0, 49], [1, 1]));
    }

    #[test]
    fn holes_lie_in_the_image_and_middles_round_as_pytorch_does() {
        let mut draws = Draws::new(1, 2, 3, 4);
        for _ in 0..2000 {
            if let Some([top, left, rows, columns]) =
                hole_in([32, 20], [0.02, 0.33], [0.3, 3.3], &mut draws)
            {
                assert!(top + rows <= 32 && left + columns <= 20);
            }
        }
        assert_eq!([middle(5, 2), middle(7, 2), middle(2, 5)], [2, 2, -2]);
    }
}
