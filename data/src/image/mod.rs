//! Images as bytes: the raster that a file is decoded into, and its errors.

mod decode;
mod exif;
mod source;

pub use decode::ImageLimits;
pub(crate) use decode::{decode, decode_mask};
pub use source::{ImageFormat, ImageSample, ImageSource};

/// An image of bytes, `[H, W, C]`: rows from the top, in a row the channels of each pixel together.
/// Its memory is used again for the next image.
#[derive(Debug, Clone, Default)]
pub struct Raster {
    bytes: Vec<u8>,
    channels: usize,
    height: usize,
    width: usize,
}

impl Raster {
    /// Makes this an image of `channels`, `height` and `width` whose bytes are to be written; what
    /// they are before is not specified.
    pub fn set_shape(&mut self, channels: usize, height: usize, width: usize) -> &mut [u8] {
        (self.channels, self.height, self.width) = (channels, height, width);
        self.bytes.resize(channels * height * width, 0);
        &mut self.bytes
    }

    /// Channels of a pixel.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Height and width.
    #[must_use]
    pub fn size(&self) -> [usize; 2] {
        [self.height, self.width]
    }

    /// `H * W * C` bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

/// Why bytes are not an image that can be used: the cause inside [`DataError::File`].
///
/// [`DataError::File`]: crate::DataError::File
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// Neither a PNG nor a JPEG file.
    #[error("the file is neither PNG nor JPEG")]
    Unknown,
    /// The header asks for more than [`ImageLimits`] allow; nothing was decoded.
    #[error("an image of {width}x{height} pixels is over the limits")]
    TooLarge {
        /// Pixels of a row, by the header.
        width: usize,
        /// Pixels of a column, by the header.
        height: usize,
    },
    /// An image has another number of channels or another size than its source or pipeline says,
    /// or no pixels at all.
    #[error("an image of shape {shape:?} does not fit where {expected:?} is needed")]
    Shape {
        /// Channels, height and width.
        shape: [usize; 3],
        /// What is needed; 0 stands for any number from 1 on.
        expected: [usize; 3],
    },
    /// The PNG decoder's error.
    #[error("the PNG file is damaged")]
    Png(#[source] png::DecodingError),
    /// The JPEG decoder's error.
    #[error("the JPEG file is damaged: {0:?}")]
    Jpeg(zune_jpeg::errors::DecodeErrors),
    /// A mask must be a PNG file of class indexes.
    #[error("the file is no mask: a PNG file with a palette or of grey, up to 8 bits")]
    NoMask,
    /// A mask has a class that there is not.
    #[error("a pixel has the class {class}, and there are {classes} classes")]
    Class {
        /// The first such class.
        class: usize,
        /// Number of classes.
        classes: usize,
    },
    /// An image and its mask have different sizes.
    #[error("the image has {image:?} rows and columns, the mask {} has {mask:?}", path.display())]
    MaskSize {
        /// Height and width of the image.
        image: [usize; 2],
        /// Height and width of the mask.
        mask: [usize; 2],
        /// The mask's file.
        path: std::path::PathBuf,
    },
}
