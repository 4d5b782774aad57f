#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod batch;
mod dataset;
mod draws;
mod element;
mod epoch;
mod error;
#[cfg(feature = "images")]
mod image;
mod job;
mod layout;
mod loader;
mod mix;
mod options;
mod pool;
mod rows;
mod sampler;
mod source;
mod staging;
mod state;
mod subset;
#[cfg(feature = "images")]
mod transform;
mod window;

pub use batch::{Batch, BatchView, FieldView, SkippedSample};
pub use dataset::{BatchSlot, Dataset, SampleError, SampleSlot};
pub use draws::Draws;
pub use element::{Collate, Element, ElementType, Field};
pub use epoch::Epoch;
pub use error::{DataError, IndexOutOfRange, NotBool, TooLong};
pub use half::bf16;
#[cfg(feature = "images")]
pub use image::{ImageError, ImageFormat, ImageLimits, ImageSample, ImageSource, Raster};
pub use loader::{Loader, LoaderOptions, OnBadSample};
pub use mix::{Mixed, Mixing};
pub use sampler::{
    Bucketed, EpochKey, Order, Permuted, Remainder, Sampler, Sequential, Sharded, Shuffled,
    Weighted,
};
#[cfg(all(feature = "images", feature = "parquet"))]
pub use source::ParquetImages;
pub use source::{
    Cifar, Csv, CsvError, CsvOptions, CsvTarget, Digits, Images, InMemory, Npy, NpyError, Random,
    Text,
};
#[cfg(feature = "images")]
pub use source::{ImageFolder, SegmentationFolder, TarError, TarShards};
#[cfg(feature = "parquet")]
pub use source::{Parquet, ParquetError};
pub use state::LoaderState;
pub use subset::Subset;
#[cfg(feature = "images")]
pub use transform::{Pipeline, Step, Transformed};
