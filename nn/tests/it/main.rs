//! Laws of parameters, layers, losses, optimizers and weights files, one module per subject.

mod average;
mod buffers;
mod common;
mod init;
mod layers;
mod loss;
mod models;
mod optimizer_files;
mod optimizer_options;
mod optimizers;
mod parameters;
mod pytorch;
mod schedules;
mod torch_optimizers;
mod transaction;
mod weights;
