//! A chain of modules.

use lowtide_autograd::{Pass, Var};

use crate::error::Result;
use crate::module::Module;
use crate::node::{Nodes, Visitor};

/// A chain of modules. Parameters are named by position (`0.weight`).
#[derive(Default)]
pub struct Sequential {
    layers: Vec<Box<dyn Layer>>,
}

/// A module that can be cloned behind a pointer.
trait Layer: Module {
    fn clone_boxed(&self) -> Box<dyn Layer>;
}

impl<M: Module + Clone + 'static> Layer for M {
    fn clone_boxed(&self) -> Box<dyn Layer> {
        Box::new(self.clone())
    }
}

impl Sequential {
    /// The empty chain, which returns its input.
    pub fn new() -> Self {
        Self::default()
    }

    /// This chain with `layer` at its end.
    #[must_use]
    pub fn then(mut self, layer: impl Module + Clone + 'static) -> Self {
        self.layers.push(Box::new(layer));
        self
    }
}

impl Clone for Sequential {
    fn clone(&self) -> Self {
        Sequential { layers: self.layers.iter().map(|layer| layer.clone_boxed()).collect() }
    }
}

impl Nodes for Sequential {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        for (index, layer) in self.layers.iter_mut().enumerate() {
            visitor.field(index.to_string().as_str(), &mut **layer);
        }
    }
}

impl Module for Sequential {
    fn forward(&self, pass: &Pass, input: Var) -> Result<Var> {
        self.layers.iter().enumerate().try_fold(input, |x, (index, layer)| {
            pass.within(&index.to_string(), || layer.forward(pass, x))
        })
    }
}
