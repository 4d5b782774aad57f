//! Laws of decoders, their configurations and their files, one module per subject.

mod common;
mod configs;
mod devices;
mod files;
mod generate;
mod lora;
mod models;
mod parity;
mod training;
