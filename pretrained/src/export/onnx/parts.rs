//! Parts of the graphs of all models: layers by the names of their parameters.

use std::collections::{BTreeMap, BTreeSet};

use lowtide_tensor::Tensor;

use super::graph::{Attribute, Graph, Value};
use crate::decoder::Activation;
use crate::error::Result;
use crate::export::target::Target;
use crate::weights::Stored;

/// A model that can be written as a graph: decoders, BERT, ViT and ResNet. Only this crate
/// implements the trait.
pub trait OnnxModel: Stored {
    /// Adds the inputs, the computation, and the output.
    #[doc(hidden)]
    fn build(&self, parts: &mut Parts) -> Result<()>;
}

/// A graph that is being built from the parameters of a model.
pub struct Parts {
    pub(super) graph: Graph,
    tensors: BTreeMap<String, Tensor>,
    /// The names of the parameters that are in the graph.
    read: BTreeSet<String>,
    target: Target,
}

/// The sizes and the mask of an attention.
pub(super) struct Seeing<'a> {
    /// Number of heads of queries, number of heads of keys and values, and number of features of a
    /// head.
    pub(super) sizes: [usize; 3],
    /// Factor of the scores.
    pub(super) scale: f64,
    /// The soft bound of the scores.
    pub(super) cap: Option<f64>,
    /// True where a query sees a key, `[T, S]` or `[B, 1, 1, 1, S]`; if absent, every query sees
    /// every key.
    pub(super) seen: Option<&'a Value>,
}

impl Parts {
    pub(super) fn new(graph: Graph, tensors: Vec<(String, Tensor)>, target: Target) -> Self {
        let (tensors, read) = (tensors.into_iter().collect(), BTreeSet::new());
        Parts { graph, tensors, read, target }
    }

    /// A parameter in its layout in memory.
    ///
    /// # Errors
    /// `Export` for a name that the model does not have.
    pub(super) fn tensor(&mut self, name: &str) -> Result<Tensor> {
        let tensor = self.tensors.get(name).ok_or_else(|| self.target.no_place(name))?;
        self.read.insert(name.to_owned());
        Ok(tensor.clone())
    }

    /// `Ok` if every parameter is in the graph.
    pub(super) fn check_all_read(&self) -> Result<()> {
        match self.tensors.keys().find(|name| !self.read.contains(*name)) {
            Some(name) => Err(self.target.no_place(name)),
            None => Ok(()),
        }
    }

    /// A parameter, in the data file.
    pub(super) fn weight(&mut self, name: &str) -> Result<Value> {
        let tensor = self.tensor(name)?;
        Ok(self.graph.weight(name, tensor, 0.0))
    }

    /// The parameters `{path}.{name}`, in the data file.
    pub(super) fn weights<const N: usize>(
        &mut self,
        path: &str,
        names: [&str; N],
    ) -> Result<[Value; N]> {
        let weights = names.map(|name| self.weight(&format!("{path}.{name}")));
        let weights: Vec<Value> = weights.into_iter().collect::<Result<_>>()?;
        Ok(weights.try_into().unwrap_or_else(|_| unreachable!("one for each name")))
    }

    /// `x Wᵀ + b`. The weight is stored as `[I, O]`, so that the product needs no copy.
    pub(super) fn linear(&mut self, x: &Value, path: &str, has_bias: bool) -> Result<Value> {
        let name = format!("{path}.weight");
        let tensor = self.tensor(&name)?.t()?;
        let weight = self.graph.weight(&name, tensor, 0.0);
        let y = self.graph.matmul(x, &weight);
        if !has_bias {
            return Ok(y);
        }
        let bias = self.weight(&format!("{path}.bias"))?;
        Ok(self.graph.add(&y, &bias))
    }

    /// `x Tᵀ + b` with a table of tokens of `width` columns, which is not transposed. `sizes` are
    /// the sizes of the tokens, `[B, T]`.
    ///
    /// # Shapes
    /// `x: [B, T, C], table: [V, C] → [B, T, V]`
    pub(super) fn product_with_table(
        &mut self,
        x: &Value,
        (table, [vocabulary, width]): (&Value, [usize; 2]),
        bias: Option<&Value>,
        sizes: &Value,
    ) -> Value {
        let graph = &mut self.graph;
        let rows = graph.reshape(x, &[-1, width as i64]);
        let inputs = [Some(&rows), Some(table), bias];
        let inputs: Vec<&Value> = inputs.into_iter().flatten().collect();
        let y = graph.node("Gemm", &inputs, &[Attribute::Int("transB", 1)]);
        let count = graph.ints(&[vocabulary as i64]);
        let sizes = graph.concat(&[sizes, &count], 0);
        graph.node("Reshape", &[&y, &sizes], &[])
    }

    /// A norm to mean 0 and variance 1 over the last dimension.
    pub(super) fn layer_norm(&mut self, x: &Value, path: &str, eps: f64) -> Result<Value> {
        let [weight, bias] = self.weights(path, ["weight", "bias"])?;
        let attributes = [Attribute::Int("axis", -1), Attribute::Float("epsilon", eps as f32)];
        Ok(self.graph.node("LayerNormalization", &[x, &weight, &bias], &attributes))
    }

    /// `[B, T, heads · D] → [B, heads, T, D]`
    pub(super) fn by_heads(&mut self, x: &Value, heads: usize, width: usize) -> Value {
        let x = self.graph.reshape(x, &[0, 0, heads as i64, width as i64]);
        self.graph.permute(&x, &[0, 2, 1, 3])
    }

    /// Attention without its output layer.
    ///
    /// # Shapes
    /// `q: [B, H, T, D], k and v: [B, G, S, D] → [B, T, H · D]`
    pub(super) fn attended(&mut self, [q, k, v]: [&Value; 3], seeing: &Seeing<'_>) -> Value {
        let [heads, groups, width] = seeing.sizes.map(|count| count as i64);
        let graph = &mut self.graph;
        // The heads of queries that share a head of keys have a separate dimension.
        let q = graph.scaled(q, seeing.scale);
        let q = graph.reshape(&q, &[0, groups, heads / groups, -1, width]);
        let k = graph.permute(k, &[0, 1, 3, 2]);
        let axis = graph.ints(&[2]);
        let [k, v] = [&k, v].map(|x| graph.node("Unsqueeze", &[x, &axis], &[]));
        let mut scores = graph.matmul(&q, &k);
        if let Some(cap) = seeing.cap {
            scores = self.capped(&scores, cap);
        }
        let graph = &mut self.graph;
        let mut scores = graph.widened(&scores);
        if let Some(seen) = seeing.seen {
            let hidden = graph.floats(&[], &[f64::from(f32::MIN)]);
            scores = graph.node("Where", &[seen, &scores, &hidden], &[]);
        }
        let shares = graph.node("Softmax", &[&scores], &[Attribute::Int("axis", -1)]);
        let shares = graph.narrowed(&shares);
        let y = graph.matmul(&shares, &v);
        let y = graph.reshape(&y, &[0, heads, -1, width]);
        let y = graph.permute(&y, &[0, 2, 1, 3]);
        graph.reshape(&y, &[0, 0, heads * width])
    }

    pub(super) fn activated(&mut self, x: &Value, activation: Activation) -> Value {
        let graph = &mut self.graph;
        // Twice the factor of x in the activation, less 1: by the error function, or approximately.
        let share = match activation {
            Activation::Relu => return graph.node("Relu", &[x], &[]),
            Activation::Silu => {
                let share = graph.node("Sigmoid", &[x], &[]);
                return graph.mul(x, &share);
            }
            Activation::Gelu => {
                let scaled = graph.scaled(x, std::f64::consts::FRAC_1_SQRT_2);
                graph.node("Erf", &[&scaled], &[])
            }
            Activation::GeluTanh => {
                // √(2/π) · (x + 0.044715 · x³)
                let square = graph.mul(x, x);
                let (third, one) = (graph.scaled(&square, 0.044715), graph.number(1.0));
                let factor = graph.add(&third, &one);
                let inner = graph.mul(x, &factor);
                let inner = graph.scaled(&inner, (2.0 / std::f64::consts::PI).sqrt());
                graph.node("Tanh", &[&inner], &[])
            }
        };
        let one = graph.number(1.0);
        let share = graph.add(&share, &one);
        let half = graph.scaled(x, 0.5);
        graph.mul(&half, &share)
    }

    /// `cap · tanh(x / cap)`
    pub(super) fn capped(&mut self, x: &Value, cap: f64) -> Value {
        let small = self.graph.scaled(x, 1.0 / cap);
        let small = self.graph.node("Tanh", &[&small], &[]);
        self.graph.scaled(&small, cap)
    }
}

#[cfg(test)]
mod tests {
    use lowtide_tensor::{CpuOptions, DType, Device};

    use super::*;
    use crate::error::{ExportProblem, PretrainedError};
    use crate::export::onnx::graph::OnnxType;

    fn no_place(result: Result<()>) -> String {
        match result {
            Err(PretrainedError::Export { problem: ExportProblem::NoPlace { name }, .. }) => name,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn parameters_that_only_the_model_or_only_the_graph_has_are_refused_by_name() -> Result<()> {
        let device = Device::cpu(CpuOptions::default())?;
        let one = Tensor::zeros(&device, [1], DType::F32)?;
        let tensors = ["norm.bias", "norm.weight"].map(|name| (name.to_owned(), one.clone()));
        let target = Target { architecture: "Llama", format: "ONNX" };
        let mut parts = Parts::new(Graph::new(OnnxType::F32), tensors.into(), target);
        parts.weight("norm.weight")?;
        assert_eq!(no_place(parts.weight("norm.scale").map(drop)), "norm.scale");
        assert_eq!(no_place(parts.check_all_read()), "norm.bias");
        parts.weight("norm.bias")?;
        parts.check_all_read()
    }
}
