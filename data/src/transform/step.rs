//! The steps of a pipeline, and what they do to the size of an image.

use crate::error::DataError;

/// One step of a [`Pipeline`](crate::Pipeline). Sizes are `[height, width]`; defaults and formulas
/// are those of torchvision's transform of the same name.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Step {
    /// To exactly this size, bilinear with antialiasing (masks: nearest pixel).
    Resize([usize; 2]),
    /// The shorter side to this length and the other in proportion, as `Resize`.
    ResizeShorter(usize),
    /// The middle of the image, which is padded with zeros where it is smaller.
    CentreCrop([usize; 2]),
    /// A part anywhere in the image, after padding each side with zeros.
    RandomCrop {
        /// Size of the part.
        size: [usize; 2],
        /// Pixels added on each side.
        padding: usize,
    },
    /// A part of random area and aspect ratio, resized. See [`Step::random_resized_crop`].
    RandomResizedCrop {
        /// Size of the result.
        size: [usize; 2],
        /// Least and greatest area of the part, as a share of the image's.
        area: [f64; 2],
        /// Least and greatest width over height of the part.
        ratio: [f64; 2],
    },
    /// Left becomes right with this probability.
    FlipHorizontal {
        /// From 0 to 1.
        probability: f64,
    },
    /// Turned about the middle by an angle of at most so many degrees either way, bilinear (masks:
    /// nearest pixel); what comes in from outside is zero.
    Rotate {
        /// Greatest angle, to 180.
        degrees: f64,
    },
    /// Brightness, contrast, saturation and hue changed at random, in a random order. The first
    /// three are factors from `max(0, 1 - x)` to `1 + x`; `hue` is a shift of up to that share of
    /// the colour circle, at most 0.5. Saturation and hue leave grey images as they are.
    ColourJitter {
        /// Greatest change of the brightness.
        brightness: f64,
        /// Greatest change of the contrast.
        contrast: f64,
        /// Greatest change of the saturation.
        saturation: f64,
        /// Greatest shift of the hue.
        hue: f64,
    },
    /// `(x / 255 - mean) / std` for each channel; without this step images are `x / 255`. After it
    /// only `Erase` may come.
    Normalise {
        /// One number a channel.
        mean: Vec<f32>,
        /// One number a channel, none of them 0.
        std: Vec<f32>,
    },
    /// A rectangle of the finished image set to zero with this probability. The last step. See
    /// [`Step::erase`].
    Erase {
        /// From 0 to 1.
        probability: f64,
        /// Least and greatest area of the rectangle, as a share of the image's.
        area: [f64; 2],
        /// Least and greatest height over width of the rectangle.
        ratio: [f64; 2],
    },
}

impl Step {
    /// [`Step::RandomResizedCrop`] with an area of 8 to 100 per cent and a ratio of 3/4 to 4/3.
    #[must_use]
    pub fn random_resized_crop(size: [usize; 2]) -> Self {
        Self::RandomResizedCrop { size, area: [0.08, 1.0], ratio: [3.0 / 4.0, 4.0 / 3.0] }
    }

    /// [`Step::FlipHorizontal`] of every second image.
    #[must_use]
    pub fn flip_horizontal() -> Self {
        Self::FlipHorizontal { probability: 0.5 }
    }

    /// [`Step::Normalise`] by mean and standard deviation of the colours of ImageNet.
    #[must_use]
    pub fn normalise_imagenet() -> Self {
        Self::Normalise { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225] }
    }

    /// [`Step::Erase`] with an area of 2 to 33 per cent and a ratio of 0.3 to 3.3.
    #[must_use]
    pub fn erase(probability: f64) -> Self {
        Self::Erase { probability, area: [0.02, 0.33], ratio: [0.3, 3.3] }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Resize(_) => "Resize",
            Self::ResizeShorter(_) => "ResizeShorter",
            Self::CentreCrop(_) => "CentreCrop",
            Self::RandomCrop { .. } => "RandomCrop",
            Self::RandomResizedCrop { .. } => "RandomResizedCrop",
            Self::FlipHorizontal { .. } => "FlipHorizontal",
            Self::Rotate { .. } => "Rotate",
            Self::ColourJitter { .. } => "ColourJitter",
            Self::Normalise { .. } => "Normalise",
            Self::Erase { .. } => "Erase",
        }
    }

    /// Checks the numbers of the step alone.
    pub(super) fn check(&self) -> Result<(), DataError> {
        let wrong = |reason| Err(DataError::Transform { step: self.name(), reason });
        let is_size = |size: [usize; 2]| size.iter().all(|side| (1..=SIDE_MAX).contains(side));
        let is_share = |share: f64| (0.0..=1.0).contains(&share);
        let is_range = |[low, high]: [f64; 2]| low > 0.0 && low <= high && high.is_finite();
        match self {
            Self::Resize(size) | Self::CentreCrop(size) if !is_size(*size) => wrong(SIZE),
            Self::ResizeShorter(side) if !is_size([*side; 2]) => wrong(SIZE),
            Self::RandomCrop { size, padding } if !is_size(*size) || *padding > SIDE_MAX => {
                wrong(SIZE)
            }
            Self::RandomResizedCrop { size, area, ratio } => match () {
                () if !is_size(*size) => wrong(SIZE),
                () if !is_range(*area) || !is_range(*ratio) => wrong(RANGE),
                () => Ok(()),
            },
            Self::Erase { probability, area, ratio } => match () {
                () if !is_share(*probability) => wrong(PROBABILITY),
                () if !is_range(*area) || !is_range(*ratio) => wrong(RANGE),
                () => Ok(()),
            },
            Self::FlipHorizontal { probability } if !is_share(*probability) => wrong(PROBABILITY),
            Self::Rotate { degrees } if !(0.0..=180.0).contains(degrees) => {
                wrong("turns by 0 to 180 degrees")
            }
            Self::ColourJitter { brightness, contrast, saturation, hue } => {
                let strengths = [brightness, contrast, saturation];
                let is_finite = strengths.iter().all(|x| x.is_finite() && **x >= 0.0);
                match is_finite && (0.0..=0.5).contains(hue) {
                    true => Ok(()),
                    false => wrong("takes strengths from 0 on, and a hue to 0.5"),
                }
            }
            Self::Normalise { mean, std } => {
                let is_fine = mean.iter().all(|mean| mean.is_finite())
                    && std.iter().all(|std| std.is_finite() && *std != 0.0);
                match is_fine {
                    true => Ok(()),
                    false => wrong("takes finite means, and finite deviations other than 0"),
                }
            }
            _ => Ok(()),
        }
    }

    /// The size of the image after the step, if it is the same for every image.
    pub(super) fn size_after(&self, before: Option<[usize; 2]>) -> Option<[usize; 2]> {
        match *self {
            Self::Resize(size)
            | Self::CentreCrop(size)
            | Self::RandomCrop { size, .. }
            | Self::RandomResizedCrop { size, .. } => Some(size),
            Self::ResizeShorter(side) => before.map(|size| resize_shorter(size, side)),
            _ => before,
        }
    }
}

/// Greatest side that a step may make.
const SIDE_MAX: usize = 1 << 14;
const SIZE: &str = "makes sides of 1 to 16384 pixels";
const RANGE: &str = "takes ranges that begin above 0 and end at or above their beginning";
const PROBABILITY: &str = "takes a probability from 0 to 1";

/// The size of an image whose shorter side becomes `side`; the other is rounded down.
pub(super) fn resize_shorter([height, width]: [usize; 2], side: usize) -> [usize; 2] {
    let (short, long) = (height.min(width).max(1), height.max(width));
    let long = ((side as f64 * long as f64 / short as f64) as usize).clamp(1, SIDE_MAX);
    if height <= width { [side, long] } else { [long, side] }
}
