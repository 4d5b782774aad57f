//! Laws of training inside a budget, one module per subject.

mod blank_labels;
mod buffers;
mod checkpoints;
mod clip;
mod common;
mod coupled;
mod devices;
mod faults;
mod files;
mod globs;
mod goes_on;
mod leftovers;
mod loss_scale;
mod misfit;
mod modules;
mod non_finite;
mod observers;
mod peak;
mod prelude;
mod pressure;
mod recipe;
mod same_bits;
mod simulated;
mod split;
mod timeline;
