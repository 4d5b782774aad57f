#![doc = include_str!("README.md")]

mod deep_cnn;
mod gpt;
mod groups;
mod lstm_model;
mod mlp;
mod resnet;
mod seq2seq;
mod simple_cnn;
mod unet;
mod vit;

pub use deep_cnn::{DeepCnn, DeepCnnShape};
pub use gpt::{Gpt, GptShape};
pub use lstm_model::{LstmModel, LstmModelShape};
pub use mlp::Mlp;
pub use resnet::{ResNet, ResNetBlock, ResNetShape};
pub use seq2seq::{Seq2Seq, Seq2SeqShape};
pub use simple_cnn::{SimpleCnn, SimpleCnnShape};
pub use unet::{UNet, UNetShape};
pub use vit::{ViT, ViTShape};
