//! Datasets, one per file.

mod cifar;
mod csv;
mod digits;
mod documents;
mod files;
#[cfg(feature = "parquet")]
mod group_cache;
#[cfg(feature = "images")]
mod image_folder;
mod images;
mod json_lines;
mod map;
mod memory;
mod npy;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(all(feature = "images", feature = "parquet"))]
mod parquet_images;
mod random;
#[cfg(feature = "images")]
mod shards;
#[cfg(feature = "images")]
mod tar;
mod text;
mod token_file;
mod token_rows;
mod token_shard;
mod token_writer;
mod zip;

pub use cifar::Cifar;
pub use csv::{Csv, CsvError, CsvOptions, CsvTarget};
pub use digits::Digits;
pub use documents::{
    Document, DocumentRows, Documents, PackedRows, PreferenceRows, RowFit, TokenTooLarge,
};
#[cfg(feature = "images")]
pub use image_folder::{ImageFolder, SegmentationFolder};
pub use images::Images;
pub use json_lines::{
    ChatRole, ChatTemplate, JsonLines, JsonLinesStream, LineError, LineFormat, PreferenceLines,
    Preferences, ReadProgress,
};
pub use memory::InMemory;
pub use npy::{Npy, NpyError};
#[cfg(feature = "parquet")]
pub use parquet::{Parquet, ParquetError};
#[cfg(all(feature = "images", feature = "parquet"))]
pub use parquet_images::ParquetImages;
pub use random::Random;
#[cfg(feature = "images")]
pub use shards::TarShards;
#[cfg(feature = "images")]
pub use tar::TarError;
pub use text::Text;
pub use token_file::TokenFile;
pub use token_shard::{TokenFileError, TokenFormat};
pub use token_writer::{TokenWriter, write_tokens};
