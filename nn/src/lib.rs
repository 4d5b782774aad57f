#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod buffer;
mod checks;
mod commit;
mod compress;
mod error;
mod functional;
pub mod init;
mod layers;
mod lora;
mod loss;
pub mod models;
mod module;
mod node;
pub mod optim;
pub mod parallel;
mod parameter;
mod pattern;
mod safetensors;
mod schedule;
mod segment;

pub use buffer::Buffer;
pub use commit::{check_buffers, commit_buffers};
pub use compress::{Activations, prune, quantize, quantize_all, set_activations};
pub use error::{AdapterProblem, NnError, NnResult, PruneProblem, WeightsProblem};
pub use functional::distance::{
    LocalResponseOptions, cosine_similarity, local_response_norm, normalize, pairwise_distance,
};
pub use functional::grid::{GridMode, GridOptions, GridPadding, grid_sample};
pub use functional::images::{
    ResizeMode, Sizes, channel_shuffle, pixel_shuffle, pixel_unshuffle, resize,
};
pub use functional::pool_places::{
    adaptive_max_pool2d_with_places, adaptive_max_pool3d_with_places, max_pool2d_with_places,
    max_pool3d_with_places, max_unpool,
};
pub use functional::volumes::{
    Conv3dGeometry, MaxPool3dOptions, Pool3dGeometry, adaptive_avg_pool3d, adaptive_max_pool3d,
    avg_pool3d, conv3d, max_pool3d,
};
pub use layers::activations::{
    ELU, GELU, GLU, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, LeakyReLU, LogSigmoid,
    LogSoftmax, Mish, ReLU, ReLU6, SELU, SiLU, Sigmoid, Softmax, Softmin, Softplus, Softshrink,
    Softsign, Tanh, TanhGELU, Tanhshrink, Threshold,
};
pub use layers::attention::{AttentionMemory, MultiHeadAttention, MultiHeadOptions};
pub use layers::attention_mask::key_padding_mask;
pub use layers::batch_norm::{BatchNorm1d, BatchNorm2d, BatchNorm3d};
pub use layers::conv_transpose1d::ConvTranspose1d;
pub use layers::conv_transpose2d::ConvTranspose2d;
pub use layers::conv_transpose3d::{ConvTranspose3d, ConvTranspose3dGeometry, conv_transpose3d};
pub use layers::conv1d::Conv1d;
pub use layers::conv2d::Conv2d;
pub use layers::dropout::Dropout;
pub use layers::embedding::Embedding;
pub use layers::embedding_bag::{BagOptions, BagReduction, Bags, EmbeddingBag, embedding_bag};
pub use layers::flatten::Flatten;
pub use layers::instance_norm::{InstanceNorm1d, InstanceNorm2d, InstanceNorm3d};
pub use layers::linear::Linear;
pub use layers::norm::{GroupNorm, LayerNorm, RmsNorm};
pub use layers::pad::Pad;
pub use layers::pool::{
    AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveMaxPool1d, AdaptiveMaxPool2d, AvgPool1d,
    AvgPool2d, MaxPool1d, MaxPool2d,
};
pub use layers::prelu::PReLU;
pub use layers::recurrent::{
    CellOptions, Directions, Gru, GruCell, Lstm, LstmCell, LstmState, PackedSequence,
    RecurrentOptions, Rnn, RnnActivation, RnnCell,
};
pub use layers::relative_position::{RelativePositionBias, RelativePositionOptions, RelativeSides};
pub use layers::rotary::{RotaryEmbedding, RotaryPairs, RotaryScaling, RotaryTables};
pub use layers::sequential::Sequential;
pub use layers::spectral_norm::{SpectralNorm, SpectralNormOptions};
pub use layers::transformer::{
    HiddenActivation, NormPlace, TransformerDecoderLayer, TransformerEncoderLayer,
    TransformerOptions,
};
pub use layers::transformer_stack::{
    Transformer, TransformerDecoder, TransformerEncoder, TransformerMasks,
};
pub use layers::upsample::Upsample;
pub use layers::volumes::{AdaptiveAvgPool3d, AdaptiveMaxPool3d, AvgPool3d, Conv3d, MaxPool3d};
pub use layers::weight_norm::{WeightNorm, Weighted};
pub use lora::{
    Adapter, LoraOptions, LoraScaling, Targets, adapt, adapted, is_output_layer, load_adapters,
    merge, remove_adapters, save_adapters,
};
pub use loss::compositions::{
    NllOptions, cosine_embedding, ctc, dice, gaussian_nll, hinge_embedding, margin_ranking,
    multi_margin, multilabel_soft_margin, nll, poisson_nll, soft_margin, triplet_margin,
};
pub use loss::logits::Logits;
pub use loss::preference::preference;
pub use loss::terms;
pub use loss::terms::{
    CtcOptions, GaussianNllOptions, MultiMarginOptions, PoissonNllOptions, TripletMarginOptions,
};
pub use loss::{
    CrossEntropyOptions, LinearCrossEntropyOptions, Loss, PairLoss, bce, bce_with_logits,
    cross_entropy, cross_entropy_with, huber, kl_divergence, l1, linear_cross_entropy, mse,
    pair_loss, smooth_l1, soft_cross_entropy,
};
pub use module::{Module, Parameters};
pub use node::{Field, Node, Nodes, Visitor};
pub use parameter::Parameter;
pub use safetensors::{from_safetensors, load, map, parse_safetensors, save, to_safetensors};
pub use schedule::{Better, Plateau, PlateauOptions, PlateauState, Schedule};
pub use segment::{Segment, run_blocks};
