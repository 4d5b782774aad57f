//! ONNX files for onnxruntime and others: the computation of a model as a graph of standard
//! operations, with the weights in a separate data file.

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
use crate::export::pieces::sources;
use crate::export::target::Target;
use crate::files::{Partial, in_folder, remove};
use graph::{DATA_FILE, Graph};
use parts::Parts;

pub use graph::OnnxType;
pub use parts::OnnxModel;

/// Name of the graph's file.
const FILE: &str = "model.onnx";

/// Options of an ONNX file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnnxOptions {
    /// The type of weights and logits; if absent, f16 for a model in f16, else f32, because CPUs do
    /// not compute in bf16.
    pub tensor_type: Option<OnnxType>,
}

/// Writes the computation of `model` into `folder`, which is made if it does not exist: the graph
/// to `model.onnx` and the weights to `model.onnx.data`. Files are written under temporary names
/// first, then renamed. The graph has only standard operations of version 17. Weights are converted
/// in pieces of a few megabytes. Dropout is left out, and norms use the running statistics of
/// training.
///
/// # Shapes
/// Decoders: `input_ids: [batch, sequence]` of i64 `→ logits: [batch, sequence, vocabulary]`;
/// sequences begin at position 0 and have no padding. BERT has `attention_mask` and
/// `token_type_ids` as well. ViT and ResNet: `pixel_values: [batch, channels, height, width] →
/// logits: [batch, classes]`.
///
/// # Errors
/// `Export` for a model with adapters or quantised weights, and for a model with a parameter that
/// the graph does not read; `File`; `OutOfMemory`. Earlier files are then untouched.
pub fn save_onnx<S: Shape<Model: OnnxModel>>(
    model: &mut S::Model,
    config: &ModelConfig<S>,
    folder: impl AsRef<Path>,
    options: &OnnxOptions,
) -> Result<()> {
    let folder = folder.as_ref();
    let target = Target { architecture: config.architecture(), format: "ONNX" };
    let tensors = sources(model, config.parameter_count(), target)?;
    let of_model = tensors.first().map_or(DType::F32, |(_, value)| value.dtype());
    let kind = options.tensor_type.unwrap_or(match of_model {
        DType::F16 => OnnxType::F16,
        _ => OnnxType::F32,
    });
    let mut parts = Parts::new(Graph::new(kind), tensors, target);
    model.build(&mut parts)?;
    parts.check_all_read()?;
    let (graph_path, data_path) = (folder.join(FILE), folder.join(DATA_FILE));
    in_folder(folder, || {
        let data = Partial::write(&data_path, |file| parts.graph.write_weights(file))?;
        let graph = Partial::write(&graph_path, |file| file.write(&parts.graph.model()))?;
        // A process that ends here leaves no graph, rather than a graph with the weights of another
        // model.
        remove(&graph_path)?;
        data.publish()?;
        graph.publish()
    })
}
