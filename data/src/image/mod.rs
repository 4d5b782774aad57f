//! Images as bytes: sources of images, the raster that a file is decoded into, and errors.

mod decode;
mod error;
mod exif;
mod raster;
mod source;

pub use decode::ImageLimits;
pub(crate) use decode::{DecodeOptions, decode, decode_mask};
pub use error::ImageError;
pub use raster::Raster;
pub use source::{ImageFormat, ImageSample, ImageSource};
