#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod config;
mod decoder;
mod error;
mod export;
mod files;
mod generate;
mod models;
mod weights;

pub use config::{Config, ModelConfig, Shape};
pub use decoder::{
    Activation, AttentionShape, Decoder, DecoderShape, DropoutShape, Family, FeedForwardShape,
    KeyValueCache, LayerShape, NormKind, NormShape, Positions, Projections, Residual, Weights,
};
pub use error::{EntryProblem, ExportProblem, PretrainedError, PretrainedResult, WeightProblem};
pub use export::export_piece_len;
pub use export::gguf::{GgufNote, GgufOptions, GgufType, save_gguf};
pub use export::onnx::{OnnxModel, OnnxOptions, OnnxType, save_onnx};
pub use generate::{GenerateOptions, Sampling};
pub use models::{
    Bert, BertConfig, BertHead, BertInput, BertShape, ResNet, ResNetConfig, ResNetShape, T5,
    T5Config, T5Shape, ViT, ViTConfig, ViTShape,
};
pub use weights::{Stored, load, load_body, save, weight_files};
