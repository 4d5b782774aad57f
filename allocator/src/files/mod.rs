//! Files of the crates of this workspace: read without waiting, and written whole. The module is
//! here because every other crate depends on this one.

mod input;
mod new_file;

pub use input::{TEXT_BYTES_MAX, open_input, read_input, read_input_text};
pub use new_file::{NewFile, is_in_place, write_file};
