//! Layers with a weight that is split into lengths and directions.
//!
//! Salimans and Kingma, "Weight normalization: a simple reparameterization to accelerate training
//! of deep neural networks" (2016).

use lowtide_allocator::Category;
use lowtide_autograd::{Needs, Pass, Saved, Var};
use lowtide_tensor::{Axis, Tensor};

use crate::error::Result;
use crate::layers::linear::Linear;
use crate::module::Module;
use crate::node::{Node, Nodes, Visitor};
use crate::parameter::Parameter;

/// A layer whose weight another module can compute. One of its parameters has the name `weight`.
pub trait Weighted: Nodes {
    /// The layer's own weight.
    fn weight(&self) -> &Parameter;

    /// The layer's own weight, to show to a visitor or to replace.
    fn weight_mut(&mut self) -> &mut Parameter;

    /// [`Module::forward`] with another weight of this shape.
    ///
    /// # Errors
    /// The errors of the layer.
    fn forward_with(&self, pass: &Pass, weight: Var, input: Var) -> Result<Var>;
}

/// Implements [`Weighted`] for a layer with a `weight` and an optional `bias`. The expression
/// computes the output from the input and the variables of both.
macro_rules! weighted {
    ($layer:ident, |$self:ident, $input:ident, $weight:ident, $bias:ident| $y:expr) => {
        impl crate::layers::weight_norm::Weighted for $layer {
            fn weight(&self) -> &Parameter {
                &self.weight
            }

            fn weight_mut(&mut self) -> &mut Parameter {
                &mut self.weight
            }

            fn forward_with(&$self, pass: &Pass, $weight: Var, $input: Var) -> Result<Var> {
                let $bias = $self.bias.as_ref().map(|bias| bias.var(pass)).transpose()?;
                $y
            }
        }
    };
}
pub(crate) use weighted;

impl Weighted for Linear {
    fn weight(&self) -> &Parameter {
        Linear::weight(self)
    }

    fn weight_mut(&mut self) -> &mut Parameter {
        Linear::weight_mut(self)
    }

    fn forward_with(&self, pass: &Pass, weight: Var, input: Var) -> Result<Var> {
        let bias = self.bias().map(|bias| bias.var(pass)).transpose()?;
        Ok(input.linear(weight, bias)?)
    }
}

/// A layer with the weight `w = g · v / ‖v‖`, with one norm for each slice along one dimension:
/// `torch.nn.utils.parametrizations.weight_norm`. Names are PyTorch's:
/// `parametrizations.weight.original0` for g and `original1` for v.
///
/// Backward keeps v, g and the norms; the layer also keeps w.
#[derive(Clone, Debug)]
pub struct WeightNorm<M> {
    layer: M,
    lengths: Parameter,
    axis: usize,
}

impl<M: Weighted> WeightNorm<M> {
    /// The layer with its weight as v, and with the norms of the slices along the first dimension
    /// as g. The first w is therefore the layer's weight.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(layer: M) -> Result<Self> {
        Self::along(layer, 0)
    }

    /// [`WeightNorm::new`] with norms of the slices along another dimension, PyTorch's `dim`.
    ///
    /// # Errors
    /// `Index` for a dimension that does not exist, `OutOfMemory`.
    pub fn along(layer: M, axis: impl Into<Axis>) -> Result<Self> {
        let weight = layer.weight().value().clone();
        let axis = axis.into().index("weight_norm", weight.shape().len())?;
        let norms = weight.norm_keep(&others(&weight, axis), 2.0)?;
        let shape = *norms.shape();
        let mut lengths =
            Tensor::empty_in(weight.device(), Category::Parameter, shape, weight.dtype())?;
        lengths.copy_(&norms)?;
        Ok(WeightNorm { layer, lengths: Parameter::new(lengths), axis })
    }
}

/// `w = g · v / ‖v‖`
fn weight_norm(v: Var, g: Var, axis: usize) -> Result<Var> {
    Ok(Var::apply("weight_norm", [v, g], |[v, g], save| {
        let axes = others(&v, axis);
        let norms = v.norm_keep(&axes, 2.0)?;
        let w = v.mul(&g.div(&norms)?)?;
        let saved = [&v, &g, &norms].map(|x| save.keep(x));
        // dg = Σ dw · v / ‖v‖, dv = g / ‖v‖ · (dw - dg · v / ‖v‖)
        let rule = move |dw: Tensor, _: Needs| {
            let [v, g, norms] = saved.map(Saved::unpack);
            let (v, g, norms) = (v?, g?, norms?);
            let dg = dw.mul(&v)?.sum_keep(&axes)?.div(&norms)?;
            let across = dw.sub(&v.mul(&dg.div(&norms)?)?)?;
            Ok(vec![Some(across.mul(&g.div(&norms)?)?), Some(dg)])
        };
        Ok((w, rule))
    })?)
}

/// All dimensions but `axis`.
fn others(weight: &Tensor, axis: usize) -> Vec<usize> {
    (0..weight.shape().len()).filter(|&other| other != axis).collect()
}

impl<M: Weighted> Nodes for WeightNorm<M> {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        // PyTorch's order: the rest of the layer, then the parametrisation.
        visit_without_weight(&mut self.layer, visitor);
        visitor.field("parametrizations.weight.original0", &mut self.lengths);
        let weight = Node::Parameter(self.layer.weight_mut());
        visitor.node("parametrizations.weight.original1", weight);
    }
}

/// Shows everything of a layer but its weight, which another module computes. The layer is not
/// shown as a linear layer, so it gets no adapter and ranks do not share it.
pub(super) fn visit_without_weight(layer: &mut impl Weighted, visitor: &mut Visitor<'_>) {
    layer.visit_nodes(&mut Visitor::new(&mut |name, node| match node {
        Node::Parameter(_) if name == "weight" => {}
        Node::Parameter(_) | Node::Buffer(_) | Node::Block(_) => visitor.node(name, node),
        Node::Linear(_) | Node::Shared(_) => {}
    }));
}

impl<M: Weighted> Module for WeightNorm<M> {
    /// # Shapes
    /// The shapes of the layer.
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        let [v, g] = [self.layer.weight().var(pass)?, self.lengths.var(pass)?];
        let weight = weight_norm(v, g, self.axis)?;
        self.layer.forward_with(pass, weight, input)
    }
}
