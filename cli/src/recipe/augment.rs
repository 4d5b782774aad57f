//! Augmentation of training images.

use lowtide_trainer::Result;

use super::options::options;
use super::setting;

options! {
    /// Augmentation of training images, with new random numbers for each sample in each epoch. Test
    /// images are not changed.
    AugmentRecipe {
        /// True if every second image is mirrored left to right.
        flip: bool = false,
        /// Pixels of zeros around the image, from which a part of the original size is cut at
        /// random.
        crop_padding: usize = 0,
        /// True if a part of random area (8 to 100 %) and ratio (3/4 to 4/3) is cut out and
        /// resized.
        random_resized_crop: bool = false,
        /// Largest rotation of an image in degrees, in either direction.
        rotate: f64 = 0.0,
        /// Largest share by which brightness, contrast and saturation change.
        jitter: f64 = 0.0,
        /// Largest change of hue, as a share of the colour circle; at most 0.5.
        hue: f64 = 0.0,
        /// Probability that a rectangle is set to zero.
        erase: f64 = 0.0,
        /// Alpha: images of a batch are mixed in pairs, with shares from Beta(alpha, alpha).
        mixup: f64 = 0.0,
        /// Alpha: rectangles of a batch's images are exchanged, with areas from Beta(alpha, alpha).
        cutmix: f64 = 0.0,
        /// True if values are normalised with the means and deviations of ImageNet's colours.
        normalise: bool = false,
    }
}

impl AugmentRecipe {
    /// True if images are not changed.
    pub fn is_none(&self) -> bool {
        *self == AugmentRecipe::default()
    }

    /// The part of the augmentation that also applies to test images.
    pub(super) fn still(&self) -> AugmentRecipe {
        AugmentRecipe { normalise: self.normalise, ..AugmentRecipe::default() }
    }

    /// # Errors
    /// `Setting` that names the first number out of its range.
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
