//! Errors of images.

/// An image that cannot be used; the cause of a [`DataError::File`].
///
/// [`DataError::File`]: crate::DataError::File
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// A file is neither PNG nor JPEG.
    #[error("the file is neither PNG nor JPEG")]
    Unknown,
    /// The header states a size above the [`ImageLimits`](crate::ImageLimits). Nothing was decoded.
    #[error("an image of {width}x{height} pixels is over the limits")]
    TooLarge {
        /// Width in pixels, from the header.
        width: usize,
        /// Height in pixels, from the header.
        height: usize,
    },
    /// An image has no pixels, or other channels or another size than its source or pipeline.
    #[error("an image of shape {shape:?} does not fit where {expected:?} is needed")]
    Shape {
        /// Channels, height and width.
        shape: [usize; 3],
        /// Required channels, height and width. 0 stands for any number from 1 on.
        expected: [usize; 3],
    },
    /// The PNG decoder failed.
    #[error("the PNG file is damaged")]
    Png(#[source] png::DecodingError),
    /// The JPEG decoder failed.
    #[error("the JPEG file is damaged: {0:?}")]
    Jpeg(zune_jpeg::errors::DecodeErrors),
    /// A mask is not a PNG file of class indices.
    #[error("the file is not a mask: a PNG file with a palette or of grey, up to 8 bits")]
    NoMask,
    /// A mask has a class that does not exist.
    #[error("a pixel has the class {class}, and there are {classes} classes")]
    Class {
        /// The first class that does not exist.
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
        /// Path of the mask's file.
        path: std::path::PathBuf,
    },
}
