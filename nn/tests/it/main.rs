//! Laws of parameters, layers, losses, optimizers and weights files, one module per subject.

mod buffers;
mod common;
mod init;
mod layers;
mod loss;
mod models;
mod optimizers;
mod parameters;
mod pytorch;
mod schedules;
mod transaction;
mod weights;
