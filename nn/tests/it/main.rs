//! Laws of parameters, layers, losses, optimizers and weights files, one module per subject.

mod average;
mod buffers;
mod common;
mod gpt2_memory;
mod init;
mod layers;
mod leaks;
mod loss;
mod models;
mod optimizer_files;
mod optimizer_options;
mod optimizers;
mod parameters;
mod pytorch;
mod recurrent;
mod reference;
mod runs;
mod saved_bytes;
mod schedules;
mod segments;
mod torch_optimizers;
mod transaction;
mod transformer;
mod weights;
mod zoo;
