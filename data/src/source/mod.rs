//! Datasets, one per file.

mod digits;
mod images;
mod memory;
mod random;
mod text;

pub use digits::Digits;
pub use images::Images;
pub use memory::InMemory;
pub use random::Random;
pub use text::Text;
