#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod batch;
mod concat;
mod dataset;
mod draws;
mod element;
mod epoch;
mod error;
mod hub;
#[cfg(feature = "images")]
mod image;
mod job;
mod layout;
mod loader;
mod mapped;
mod mix;
mod options;
mod panics;
mod plan;
mod pool;
mod producer;
mod rows;
mod sampler;
mod shared;
mod source;
mod split;
mod staging;
mod state;
mod stream;
mod subset;
mod tokenizer;
#[cfg(feature = "images")]
mod transform;
mod window;

pub use batch::{Batch, BatchView, FieldView, SkippedSample};
pub use concat::{Concat, ConcatError};
pub use dataset::{BatchSlot, Dataset, SampleSlot};
pub use draws::Draws;
pub use element::{Collate, Element, ElementType, Field, IGNORED_LABEL};
pub use epoch::Epoch;
pub use error::{DataError, FilePlace, IndexOutOfRange, NotBool, SampleError, TooLong};
pub use half::bf16;
pub use hub::{HubCache, HubError, HubRepo};
#[cfg(feature = "images")]
pub use image::{ImageError, ImageFormat, ImageLimits, ImageSample, ImageSource, Raster};
pub use loader::Loader;
pub use mapped::{Mapped, SampleView};
pub use mix::{Mixed, Mixing};
pub use options::{LoaderOptions, OnBadSample};
pub use sampler::{
    Bucketed, EpochKey, Order, Permuted, Remainder, Sampler, Sequential, Sharded, Shuffled,
    Weighted,
};
#[cfg(all(feature = "images", feature = "parquet"))]
pub use source::ParquetImages;
pub use source::{
    ChatRole, ChatTemplate, Cifar, Csv, CsvError, CsvOptions, CsvTarget, Digits, Document,
    DocumentRows, Documents, Images, InMemory, JsonLines, JsonLinesStream, LineError, LineFormat,
    Npy, NpyError, PackedRows, PreferenceLines, PreferenceRows, Preferences, Random, ReadProgress,
    RowFit, Text, TokenFile, TokenFileError, TokenFormat, TokenTooLarge, TokenWriter, write_tokens,
};
#[cfg(feature = "images")]
pub use source::{ImageFolder, SegmentationFolder, TarError, TarShards};
#[cfg(feature = "parquet")]
pub use source::{Parquet, ParquetError};
pub use split::{BadFractions, split_at_random};
pub use state::LoaderState;
pub use stream::{
    ForeignState, Reading, ShuffledStream, Stream, StreamLoader, StreamLoaderState, StreamOptions,
    StreamState,
};
pub use subset::Subset;
#[cfg(feature = "tiktoken")]
pub use tokenizer::Tiktoken;
#[cfg(feature = "tokenizers")]
pub use tokenizer::TokenizerJson;
pub use tokenizer::{Bytes, Characters, SpecialRole, SpecialToken, Tokenizer, TokenizerError};
#[cfg(feature = "images")]
pub use transform::{Pipeline, Step, Transformed};
