//! Laws of parameters, layers, losses, optimizers and weights files, one module per subject.

mod average;
mod buffers;
mod chunked_head;
mod common;
mod dtypes;
mod globs;
mod gpt2_memory;
mod init;
mod layer_list;
mod layers;
mod leaks;
mod loss;
mod models;
mod narrow_states;
mod optimizer_files;
mod optimizer_options;
mod optimizer_runs;
mod optimizers;
#[cfg(feature = "serde")]
mod option_files;
mod origins;
mod parameters;
mod parity;
mod pytorch;
mod recurrent;
mod reference;
mod rotary;
mod runs;
mod saved_bytes;
mod schedules;
mod segments;
mod torch_optimizers;
mod transaction;
mod transformer;
mod weights;
mod zoo;
