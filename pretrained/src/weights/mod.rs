//! Weights in a folder: one safetensors file, or several with an index, with the names and layouts
//! of their family.

pub(crate) mod layout;
mod load;
mod quantized;
mod save;

pub use layout::Stored;
pub(crate) use load::load_by_parts;
pub use load::{load, load_body, weight_files};
pub use save::save;
