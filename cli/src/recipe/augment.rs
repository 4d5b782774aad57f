//! How the images to train on are varied.

use lowtide_trainer::Result;

use super::options::options;
use super::setting;

options! {
    /// How the images to train on are varied: other numbers for each sample in each epoch. Those to
    /// test on are not.
    AugmentRecipe {
        /// Whether every second image is mirrored, left to right.
        flip: bool = false,
        /// Pixels of zeros on each side, out of which a part of the image's size is cut by chance.
        crop_padding: usize = 0,
        /// Whether a part of random area (8 to 100 %) and ratio (3/4 to 4/3) is taken and resized.
        random_resized_crop: bool = false,
        /// Images are turned by up to this number of degrees either way.
        rotate: f64 = 0.0,
        /// Brightness, contrast and saturation change by up to this share.
        jitter: f64 = 0.0,
        /// Hue moves by up to this share of the colour circle, at most 0.5.
        hue: f64 = 0.0,
        /// Probability that a rectangle is set to zero.
        erase: f64 = 0.0,
        /// The images of a batch are mixed in pairs, with shares from Beta(alpha, alpha).
        mixup: f64 = 0.0,
        /// Rectangles of the images of a batch are exchanged, of areas from Beta(alpha, alpha).
        cutmix: f64 = 0.0,
        /// Whether values are brought to mean 0 and deviation 1 by the colours of ImageNet.
        normalise: bool = false,
    }
}

impl AugmentRecipe {
    /// Whether images stay as they are.
    pub fn is_none(&self) -> bool {
        *self == AugmentRecipe::default()
    }

    /// The part that is for the images to test on, too.
    pub(super) fn still(&self) -> AugmentRecipe {
        AugmentRecipe { normalise: self.normalise, ..AugmentRecipe::default() }
    }

    /// # Errors
    /// `Setting` that names the first number that is out of its range.
    pub(super) fn check(&self) -> Result<()> {
        let ranges = [
            ("augment.rotate", self.rotate, 180.0),
            ("augment.jitter", self.jitter, 1.0),
            ("augment.hue", self.hue, 0.5),
            ("augment.erase", self.erase, 1.0),
            ("augment.mixup", self.mixup, 100.0),
            ("augment.cutmix", self.cutmix, 100.0),
        ];
        for (name, value, max) in ranges {
            if !(0.0..=max).contains(&value) {
                return Err(setting(name, &format!("{value} is not from 0 to {max}")));
            }
        }
        if self.mixup > 0.0 && self.cutmix > 0.0 {
            return Err(setting("augment.cutmix", "cannot be used together with augment.mixup"));
        }
        if self.random_resized_crop && self.crop_padding > 0 {
            let problem = "cannot be used together with augment.random_resized_crop";
            return Err(setting("augment.crop_padding", problem));
        }
        match self.crop_padding {
            0..=4096 => Ok(()),
            _ => Err(setting("augment.crop_padding", "must be 0 to 4096")),
        }
    }
}
