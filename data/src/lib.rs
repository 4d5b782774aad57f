#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod batch;
mod dataset;
mod element;
mod epoch;
mod error;
mod layout;
mod loader;
mod pool;
mod sampler;
mod source;
mod staging;
mod state;
mod subset;

pub use batch::{Batch, BatchView, FieldView};
pub use dataset::{Dataset, SampleError, SampleSlot};
pub use element::{Element, ElementType, Field};
pub use epoch::Epoch;
pub use error::{DataError, IndexOutOfRange, NotBool};
pub use half::bf16;
pub use loader::{Loader, LoaderOptions};
pub use sampler::{Sampler, Sequential, Shuffled};
pub use source::{Digits, Images, InMemory, Random, Text};
pub use state::LoaderState;
pub use subset::Subset;
