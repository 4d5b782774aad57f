//! Groups of channels for pruning, for the reference models.

use crate::compress::prune::cut::{Group, Slice};
use crate::layers::conv2d::Conv2d;
use crate::layers::linear::Linear;
use crate::layers::weight_norm::Weighted;

/// The channels of the convolution `name`, which has a bias, and the slice `next` of the next
/// layer.
pub(super) fn channels(name: &str, conv: &Conv2d, next: Slice) -> Group {
    let len = Weighted::weight(conv).value().shape()[0];
    Group::new(name, len, made_by(name)).with([next])
}

/// The inputs of the linear layer `name` that belong to each channel of `conv`. The layer takes the
/// flattened output of `conv`.
pub(super) fn flattened(name: &str, linear: &Linear, conv: &Conv2d) -> Slice {
    let channels = Weighted::weight(conv).value().shape()[0];
    let inputs = linear.weight().value().shape()[1];
    Slice::new(format!("{name}.weight"), 1).of_width(inputs / channels.max(1))
}

/// The outputs of the linear layer `up`, which has a bias, with the inputs of the layer `down`.
pub(super) fn hidden(name: &str, layer: &Linear, [up, down]: [&str; 2]) -> Group {
    let len = layer.weight().value().shape()[0];
    Group::new(name, len, made_by(up)).with([Slice::new(format!("{down}.weight"), 1)])
}

/// `heads` heads of `width` features. Their queries, keys and values are outputs of the layer
/// `packed`, which has a bias. Their results are inputs of the layer `out`.
pub(super) fn packed_heads(
    name: &str,
    [heads, width]: [usize; 2],
    [packed, out]: [&str; 2],
) -> Group {
    let part = |own: &str, index: usize| {
        Slice::new(format!("{packed}.{own}"), 0).of_width(width).from(index * heads * width)
    };
    let made_by = (0..3).flat_map(|index| ["weight", "bias"].map(|own| part(own, index)));
    let next = Slice::new(format!("{out}.weight"), 1).of_width(width);
    Group::new(name, heads, made_by).with([next])
}

/// Slices of the weight and the bias of a layer.
fn made_by(name: &str) -> [Slice; 2] {
    ["weight", "bias"].map(|own| Slice::new(format!("{name}.{own}"), 0))
}
