//! Models other than decoders of text: BERT, T5, ViT and ResNet.

mod attention;
mod bert;
mod functions;
mod resnet;
mod t5;
mod vit;

pub use bert::{Bert, BertConfig, BertHead, BertInput, BertShape};
pub(crate) use resnet::has_shortcut;
pub use resnet::{ResNet, ResNetConfig, ResNetShape};
pub use t5::{T5, T5Config, T5Shape};
pub use vit::{ViT, ViTConfig, ViTShape};
