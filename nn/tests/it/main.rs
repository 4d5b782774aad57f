//! Laws of parameters, layers, losses, optimizers and weights files, one module per subject.

mod common;
mod init;
mod layers;
mod loss;
mod optimizers;
mod parameters;
mod pytorch;
mod schedules;
mod transaction;
mod weights;
