//! Layers: one file for each kind.
//!
//! A layer is a struct that owns its parameters and the layers inside it, lists them in
//! `parameters!`, and computes in [`Module::forward`](crate::Module::forward).
//! A new layer needs a file in this folder, a line below and a line of re-exports in `lib.rs`.

pub(crate) mod activations;
pub(crate) mod attention;
pub(crate) mod attention_mask;
pub(crate) mod batch_norm;
mod border;
pub(crate) mod conv1d;
pub(crate) mod conv2d;
pub(crate) mod conv_transpose1d;
pub(crate) mod conv_transpose2d;
pub(crate) mod conv_transpose3d;
pub(crate) mod cross_attention;
pub(crate) mod dropout;
pub(crate) mod embedding;
pub(crate) mod embedding_bag;
pub(crate) mod flatten;
pub(crate) mod instance_norm;
pub(crate) mod kernel;
pub(crate) mod linear;
pub(crate) mod linear_weight;
pub(crate) mod norm;
pub(crate) mod pad;
pub(crate) mod pool;
pub(crate) mod prelu;
pub(crate) mod recurrent;
pub(crate) mod relative_position;
pub(crate) mod rotary;
pub(crate) mod sequential;
pub(crate) mod spectral_norm;
pub(crate) mod transformer;
pub(crate) mod transformer_stack;
pub(crate) mod upsample;
pub(crate) mod volumes;
pub(crate) mod weight_norm;
