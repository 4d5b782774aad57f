//! ONNX files, as onnxruntime and others run them: what a model computes, as a graph of standard
//! operations, with its weights in a file beside.

mod decoder;
mod encoders;
mod graph;
mod parts;
mod proto;
mod resnet;

use std::path::Path;

use lowtide_tensor::DType;

use crate::config::{ModelConfig, Shape};
use crate::error::Result;
use crate::weights::{Partial, Stored, in_folder, remove, sources};
use graph::Graph;
use parts::Parts;

/// What errors call the format.
const FORMAT: &str = "ONNX";
/// The file of the graph, and the one of its weights.
const FILE: &str = "model.onnx";
const DATA_FILE: &str = "model.onnx.data";

/// The type of a graph's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnnxType {
    /// 32 bits.
    F32,
    /// 16 bits; norms, softmax and angles are computed in f32.
    F16,
}

impl OnnxType {
    fn element(self) -> i64 {
        match self {
            OnnxType::F32 => graph::FLOAT,
            OnnxType::F16 => graph::FLOAT16,
        }
    }

    fn size_bytes(self) -> u64 {
        match self {
            OnnxType::F32 => 4,
            OnnxType::F16 => 2,
        }
    }
}

/// How an ONNX file is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnnxOptions {
    /// The type of weights and logits; if absent f16 for a model in f16, else f32: processors do
    /// not compute in bf16.
    pub tensor_type: Option<OnnxType>,
}

/// A model that a graph can be made of: decoders, BERT, ViT and ResNet. Only models of this crate
/// are.
pub trait OnnxModel: Stored {
    /// Adds inputs, all that is computed, and the output.
    #[doc(hidden)]
    fn build(&self, parts: &mut Parts) -> Result<()>;
}

/// Writes what `model` computes into `folder`, which is made if it is not there: the graph to
/// `model.onnx` and its weights to `model.onnx.data`, beside their places first, then renamed.
/// Of the operations of version 17 it has standard ones only. Weights are converted in pieces of a
/// few megabytes. Nothing is dropped, and statistics are those that were seen in training.
///
/// # Shapes
/// Decoders: `input_ids: [batch, sequence]` of i64 `→ logits: [batch, sequence, vocabulary]`;
/// sequences begin at position 0 and have no padding. BERT has `attention_mask` and
/// `token_type_ids` as well. ViT and ResNet: `pixel_values: [batch, channels, height, width] →
/// logits: [batch, classes]`.
///
/// # Errors
/// `Export` for a model with adapters or weights in few bits; `File`; `OutOfMemory`. Files that
/// were there before are then untouched.
pub fn save_onnx<S: Shape<Model: OnnxModel>>(
    model: &mut S::Model,
    config: &ModelConfig<S>,
    folder: impl AsRef<Path>,
    options: &OnnxOptions,
) -> Result<()> {
    let folder = folder.as_ref();
    let place = (config.architecture(), FORMAT);
    let tensors = sources(model, config.parameter_count(), place)?;
    let of_model = tensors.first().map_or(DType::F32, |(_, value)| value.dtype());
    let kind = options.tensor_type.unwrap_or(match of_model {
        DType::F16 => OnnxType::F16,
        _ => OnnxType::F32,
    });
    let mut parts = Parts { graph: Graph::new(kind), tensors: tensors.into_iter().collect() };
    model.build(&mut parts)?;
    let (graph_path, data_path) = (folder.join(FILE), folder.join(DATA_FILE));
    in_folder(folder, || {
        let data = Partial::write(&data_path, |file| parts.graph.write_weights(file))?;
        let graph = Partial::write(&graph_path, |file| file.write(&parts.graph.model()))?;
        // A process that ends in between leaves no graph, not one of other weights.
        remove(&graph_path)?;
        data.publish()?;
        graph.publish()
    })
}
