//! Linear layers with ReLU in between.

use lowtide_autograd::{Pass, Var};
use lowtide_tensor::{Device, RandomKey};

use crate::compress::prune::cut::{Group, Prunable};
use crate::error::Result;
use crate::layers::linear::Linear;
use crate::models::groups::hidden;
use crate::module::{Module, forward_in};
use crate::node::{Nodes, Visitor};

/// A multilayer perceptron: `torch.nn.Sequential` of linear layers with ReLU in between. The linear
/// layers are `0`, `2`, `4` and so on. 784-512-512-10 has 669,706 parameters.
#[derive(Clone, Debug)]
pub struct Mlp {
    layers: Vec<Linear>,
}

impl Mlp {
    /// A linear layer from each of `widths` to the next, initialised from `key`. With fewer than
    /// two widths the model returns its input.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(device: &Device, key: RandomKey, widths: &[usize]) -> Result<Self> {
        let layer = |(index, pair): (usize, &[usize])| {
            Linear::new(device, key.op(&(2 * index).to_string()), pair[0], pair[1])
        };
        Ok(Mlp { layers: widths.windows(2).enumerate().map(layer).collect::<Result<_>>()? })
    }
}

impl Nodes for Mlp {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        for (index, layer) in self.layers.iter_mut().enumerate() {
            visitor.field((2 * index).to_string().as_str(), layer);
        }
    }
}

impl Prunable for Mlp {
    /// The outputs of each layer but the last, as groups `0`, `2` and so on.
    fn groups(&self) -> Vec<Group> {
        let group = |(index, layer): (usize, &Linear)| {
            let names = [2 * index, 2 * index + 2].map(|name| name.to_string());
            hidden(&names[0], layer, [&names[0], &names[1]])
        };
        let hidden = self.layers.iter().take(self.layers.len().saturating_sub(1));
        hidden.enumerate().map(group).collect()
    }
}

impl Module for Mlp {
    /// # Shapes
    /// `input: [N, first width] → [N, last width]`
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        self.layers.iter().enumerate().try_fold(input, |x, (index, layer)| {
            let x = if index > 0 { x.relu()? } else { x };
            forward_in(pass, &(2 * index).to_string(), layer, x)
        })
    }
}
