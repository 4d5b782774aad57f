//! The steps of a pipeline, and their effect on the size of an image.

use crate::error::DataError;

/// One step of a [`Pipeline`](crate::Pipeline). Sizes are `[height, width]`. Defaults and formulas
/// are the same as in torchvision's transform of the same name.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Step {
    /// Resizes to exactly this size, bilinear with antialiasing (masks: nearest pixel).
    Resize([usize; 2]),
    /// Resizes the shorter side to this length and the other side in proportion.
    ResizeShorter(usize),
    /// Takes the centre of the image. A smaller image is padded with zeros.
    CentreCrop([usize; 2]),
    /// Pads each side with zeros and takes a part at a random position.
    RandomCrop {
        /// Size of the part.
        size: [usize; 2],
        /// Number of pixels added on each side.
        padding: usize,
    },
    /// Takes a part of random area and aspect ratio and resizes it. See
    /// [`Step::random_resized_crop`].
    RandomResizedCrop {
        /// Size of the result.
        size: [usize; 2],
        /// Minimum and maximum area of the part, as a share of the image.
        area: [f64; 2],
        /// Minimum and maximum ratio of the part's width to its height.
        ratio: [f64; 2],
    },
    /// Exchanges left and right at random.
    FlipHorizontal {
        /// Probability, from 0 to 1.
        probability: f64,
    },
    /// Rotates about the centre by a random angle in either direction, bilinear (masks: nearest
    /// pixel). Pixels from outside the image are zero.
    Rotate {
        /// Maximum angle, up to 180.
        degrees: f64,
    },
    /// Changes brightness, contrast, saturation and hue at random, in a random order. A value `x`
    /// of brightness, contrast or saturation means a factor from `max(0, 1 - x)` to `1 + x`. Grey
    /// images keep their saturation and hue.
    ColourJitter {
        /// Maximum change of the brightness.
        brightness: f64,
        /// Maximum change of the contrast.
        contrast: f64,
        /// Maximum change of the saturation.
        saturation: f64,
        /// Maximum shift of the hue, as a share of the colour circle, up to 0.5.
        hue: f64,
    },
    /// Computes `(x / 255 - mean) / std` for each channel. Without this step images are `x / 255`.
    /// Only `Erase` may follow.
    Normalise {
        /// Mean of each channel.
        mean: Vec<f32>,
        /// Standard deviation of each channel, not 0.
        std: Vec<f32>,
    },
    /// Sets a random rectangle of the finished image to zero, at random. This step must be the
    /// last. See [`Step::erase`].
    Erase {
        /// Probability, from 0 to 1.
        probability: f64,
        /// Minimum and maximum area of the rectangle, as a share of the image.
        area: [f64; 2],
        /// Minimum and maximum ratio of the rectangle's height to its width.
        ratio: [f64; 2],
    },
}

impl Step {
    /// [`Step::RandomResizedCrop`] with an area of 8 to 100 per cent and a ratio of 3/4 to 4/3.
    #[must_use]
    pub fn random_resized_crop(size: [usize; 2]) -> Self {
        Self::RandomResizedCrop { size, area: [0.08, 1.0], ratio: [3.0 / 4.0, 4.0 / 3.0] }
    }

    /// [`Step::FlipHorizontal`] with a probability of 0.5.
    #[must_use]
    pub fn flip_horizontal() -> Self {
        Self::FlipHorizontal { probability: 0.5 }
    }

    /// [`Step::Normalise`] with the mean and standard deviation of ImageNet.
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

    /// Checks the numbers of the step.
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
            Self::RandomResizedCrop { size, .. } if !is_size(*size) => wrong(SIZE),
            Self::FlipHorizontal { probability } | Self::Erase { probability, .. }
                if !is_share(*probability) =>
            {
                wrong(PROBABILITY)
            }
            Self::RandomResizedCrop { area, ratio, .. } | Self::Erase { area, ratio, .. }
                if !is_range(*area) || !is_range(*ratio) =>
            {
                wrong(RANGE)
            }
            Self::Rotate { degrees } if !(0.0..=180.0).contains(degrees) => {
                wrong("turns by 0 to 180 degrees")
            }
            Self::ColourJitter { brightness, contrast, saturation, hue } => {
                let strengths = [brightness, contrast, saturation];
                let is_valid = strengths.iter().all(|x| x.is_finite() && **x >= 0.0)
                    && (0.0..=0.5).contains(hue);
                if is_valid { Ok(()) } else { wrong("takes strengths from 0 on, and a hue to 0.5") }
            }
            Self::Normalise { mean, std } => {
                let is_valid = mean.iter().all(|mean| mean.is_finite())
                    && std.iter().all(|std| std.is_finite() && *std != 0.0);
                if is_valid {
                    Ok(())
                } else {
                    wrong("takes finite means, and finite deviations other than 0")
                }
            }
            _ => Ok(()),
        }
    }

    /// The size of the image after the step, if all images have one size.
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

/// Maximum side that a step may produce.
const SIDE_MAX: usize = 1 << 14;
const SIZE: &str = "makes sides of 1 to 16384 pixels";
const RANGE: &str = "takes ranges that begin above 0 and end at or above their beginning";
const PROBABILITY: &str = "takes a probability from 0 to 1";

/// The size of an image after its shorter side becomes `side`. The longer side is rounded down.
pub(super) fn resize_shorter([height, width]: [usize; 2], side: usize) -> [usize; 2] {
    let (short, long) = (height.min(width).max(1), height.max(width));
    let long = ((side as f64 * long as f64 / short as f64) as usize).clamp(1, SIDE_MAX);
    if height <= width { [side, long] } else { [long, side] }
}
