//! Datasets, one per file.

mod digits;
#[cfg(feature = "images")]
mod image_folder;
mod images;
mod memory;
mod random;
mod text;

pub use digits::Digits;
#[cfg(feature = "images")]
pub use image_folder::{ImageFolder, SegmentationFolder};
pub use images::Images;
pub use memory::InMemory;
pub use random::Random;
pub use text::Text;
