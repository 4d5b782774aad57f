//! The graph of a ResNet, node by node.
//!
//! `N` images, `C` channels, `H` rows, `W` columns, `K` classes.

use super::graph::{Attribute, Value};
use super::parts::{OnnxModel, Parts};
use crate::error::Result;
use crate::models::{ResNet, has_shortcut};

impl OnnxModel for ResNet {
    /// # Shapes
    /// `pixel_values: [batch, channels, height, width] → logits: [batch, K]`
    fn build(&self, parts: &mut Parts) -> Result<()> {
        let shape = self.shape();
        let elements = parts.graph.element();
        let sizes = [Err("batch"), Ok(shape.channels as i64), Err("height"), Err("width")];
        let images = parts.graph.input("pixel_values", elements, &sizes);
        let x = convolved(parts, &images, "resnet.embedder.embedder", [7, 2])?;
        let x = parts.activated(&x, shape.activation);
        let window = [
            Attribute::Ints("kernel_shape", &[3; 2]),
            Attribute::Ints("strides", &[2; 2]),
            Attribute::Ints("pads", &[1; 4]),
        ];
        let mut x = parts.graph.node("MaxPool", &[&x], &window);
        for (at, layers) in shape.layers().into_iter().enumerate() {
            for (index, (channels, stride)) in layers.into_iter().enumerate() {
                let path = format!("resnet.encoder.stages.{at}.layers.{index}");
                let convolutions = shape.convolutions(channels, stride);
                let mut y = x.clone();
                for (place, [_, _, kernel, stride]) in convolutions.iter().copied().enumerate() {
                    let layer = format!("{path}.layer.{place}");
                    y = convolved(parts, &y, &layer, [kernel, stride])?;
                    if place + 1 < convolutions.len() {
                        y = parts.activated(&y, shape.activation);
                    }
                }
                if has_shortcut(channels, stride) {
                    x = convolved(parts, &x, &format!("{path}.shortcut"), [1, stride])?;
                }
                let sum = parts.graph.add(&y, &x);
                x = parts.activated(&sum, shape.activation);
            }
        }
        let pooled = parts.graph.node("GlobalAveragePool", &[&x], &[]);
        let pooled = parts.graph.node("Flatten", &[&pooled], &[]);
        let logits = parts.linear(&pooled, "classifier.1", true)?;
        parts.graph.output("logits", &logits, &[Err("batch"), Ok(shape.classes as i64)]);
        Ok(())
    }
}

/// A convolution and its norm, with the running statistics of training.
fn convolved(
    parts: &mut Parts,
    x: &Value,
    path: &str,
    [kernel, stride]: [usize; 2],
) -> Result<Value> {
    /// The addend of the variance in all norms of ResNet, also in transformers.
    const EPS: f32 = 1e-5;
    let weight = parts.weight(&format!("{path}.convolution.weight"))?;
    let (padding, stride) = ([kernel as i64 / 2; 4], [stride as i64; 2]);
    let attributes = [Attribute::Ints("pads", &padding), Attribute::Ints("strides", &stride)];
    let x = parts.graph.node("Conv", &[x, &weight], &attributes);
    let path = format!("{path}.normalization");
    // The number of batches does not affect the result.
    parts.tensor(&format!("{path}.num_batches_tracked"))?;
    let names = ["weight", "bias", "running_mean", "running_var"];
    let [scale, bias, mean, variance] = parts.weights(&path, names)?;
    let inputs = [&x, &scale, &bias, &mean, &variance];
    Ok(parts.graph.node("BatchNormalization", &inputs, &[Attribute::Float("epsilon", EPS)]))
}
