//! The graph of a decoder, node by node.
//!
//! `B` batch, `T` positions, `C` features of a position, `H` heads of queries, `G` heads of keys
//! and values, `D` features of a head, `V` vocabulary.

use std::collections::BTreeMap;

use lowtide_nn::RotaryEmbedding;

use super::graph::{Attribute, FLOAT, INT64, Value};
use super::parts::{OnnxModel, Parts, Seeing};
use crate::decoder::{
    AttentionShape, Decoder, DecoderShape, LayerShape, Names, NormKind, Positions, Projections,
    Residual,
};
use crate::error::Result;

impl OnnxModel for Decoder {
    fn build(&self, parts: &mut Parts) -> Result<()> {
        let (shape, graph) = (self.shape(), &mut parts.graph);
        let tokens = graph.input("input_ids", INT64, &[Err("batch"), Err("sequence")]);
        let sizes = graph.node("Shape", &[&tokens], &[]);
        let (axis, zero, one) = (graph.int(1), graph.int(0), graph.int(1));
        let len = graph.node("Gather", &[&sizes, &axis], &[]);
        let positions = graph.node("Range", &[&zero, &len, &one], &[]);
        let names = shape.family.names();
        let (seen, angles) = (BTreeMap::new(), Vec::new());
        let mut builder = Builder { parts, shape, names, positions, seen, angles };
        let logits = builder.logits(&tokens, &sizes)?;
        let vocabulary = Ok(shape.vocabulary as i64);
        parts.graph.output("logits", &logits, &[Err("batch"), Err("sequence"), vocabulary]);
        Ok(())
    }
}

struct Builder<'a> {
    parts: &'a mut Parts,
    shape: &'a DecoderShape,
    names: &'static Names,
    /// The positions `[T]`, from 0 on.
    positions: Value,
    /// True where a query sees a key, `[T, T]`, for each window of a layer.
    seen: BTreeMap<Option<usize>, Value>,
    /// Cosines and sines, `[T, R / 2]`, for each kind of angles.
    angles: Vec<(RotaryEmbedding, [Value; 2])>,
}

impl Builder<'_> {
    /// `tokens: [B, T] → [B, T, V]`
    fn logits(&mut self, tokens: &Value, sizes: &Value) -> Result<Value> {
        let (shape, names) = (self.shape, self.names);
        let weight = |path: &str| format!("{path}.weight");
        let table = self.parts.weight(&weight(names.table))?;
        let mut x = self.parts.graph.node("Gather", &[&table, tokens], &[]);
        if shape.table_scale != 1.0 {
            x = self.parts.graph.scaled(&x, shape.table_scale);
        }
        match shape.positions {
            Positions::Learned => {
                let table = self.parts.weight(&weight(names.positions))?;
                let rows = self.parts.graph.node("Gather", &[&table, &self.positions], &[]);
                x = self.parts.graph.add(&x, &rows);
            }
            Positions::Rotary => {}
        }
        for (index, layer) in shape.layers.iter().enumerate() {
            x = self.layer(&x, &format!("{}{index}", names.layers), layer)?;
        }
        let x = self.norm(&x, names.norm)?;
        let head = if shape.is_tied { table } else { self.parts.weight(&weight(names.head))? };
        let head = (&head, [shape.vocabulary, shape.width]);
        let logits = self.parts.product_with_table(&x, head, None, sizes);
        Ok(match shape.logit_cap {
            Some(cap) => self.parts.capped(&logits, cap),
            None => logits,
        })
    }

    /// `x: [B, T, C] → [B, T, C]`
    fn layer(&mut self, x: &Value, path: &str, layer: &LayerShape) -> Result<Value> {
        let names = self.names.layer;
        let within = |name: &str| format!("{path}.{name}");
        let normed = self.norm(x, &within(names.attention_norm))?;
        let seen = self.attention(&normed, &within(names.attention), layer)?;
        let (middle, hidden) = match self.shape.residual {
            Residual::PreNorm => {
                let middle = self.parts.graph.add(x, &seen);
                let hidden = self.hidden_branch(&middle, path)?;
                (middle, hidden)
            }
            Residual::PrePostNorm => {
                let seen = self.norm(&seen, &within(names.after_attention))?;
                let middle = self.parts.graph.add(x, &seen);
                let hidden = self.hidden_branch(&middle, path)?;
                (middle, self.norm(&hidden, &within(names.after_feed_forward))?)
            }
            Residual::Parallel => {
                let middle = self.parts.graph.add(x, &seen);
                let hidden = self.hidden_branch(x, path)?;
                (middle, hidden)
            }
        };
        Ok(self.parts.graph.add(&middle, &hidden))
    }

    /// The feed-forward branch of x with its norm: `[B, T, C] → [B, T, C]`.
    fn hidden_branch(&mut self, x: &Value, path: &str) -> Result<Value> {
        let names = self.names.layer;
        let normed = self.norm(x, &format!("{path}.{}", names.feed_forward_norm))?;
        self.hidden(&normed, &format!("{path}.{}", names.feed_forward))
    }

    /// A norm over the last dimension.
    fn norm(&mut self, x: &Value, path: &str) -> Result<Value> {
        let (kind, eps) = (self.shape.norm.kind, self.shape.norm.eps);
        let addend = match kind {
            NormKind::Layer => return self.parts.layer_norm(x, path, eps),
            NormKind::Rms => 0.0,
            NormKind::RmsPlusOne => 1.0,
        };
        let name = format!("{path}.weight");
        let tensor = self.parts.tensor(&name)?;
        let graph = &mut self.parts.graph;
        let weight = graph.weight(&name, tensor, addend);
        let (wide, eps) = (graph.widened(x), graph.floats(&[], &[eps]));
        let squares = graph.mul(&wide, &wide);
        let mean = graph.node("ReduceMean", &[&squares], &[Attribute::Ints("axes", &[-1])]);
        let mean = graph.add(&mean, &eps);
        let size = graph.node("Sqrt", &[&mean], &[]);
        let normed = graph.node("Div", &[&wide, &size], &[]);
        let normed = graph.narrowed(&normed);
        Ok(graph.mul(&normed, &weight))
    }

    /// `x: [B, T, C] → [B, T, C]`
    fn attention(&mut self, x: &Value, path: &str, layer: &LayerShape) -> Result<Value> {
        let AttentionShape { heads, groups, head_width, has_output_bias, score_cap, .. } =
            self.shape.attention;
        let [mut q, mut k, v] = self.projected(x, path)?;
        if self.shape.attention.has_head_norms {
            let [q_norm, k_norm] = self.names.layer.head_norms;
            q = self.norm(&q, &format!("{path}.{q_norm}"))?;
            k = self.norm(&k, &format!("{path}.{k_norm}"))?;
        }
        if let Some(rotary) = layer.rotary {
            let angles = self.angles(rotary)?;
            let turned = rotary.turned.unwrap_or(head_width);
            [q, k] = [self.turned(&q, &angles, turned), self.turned(&k, &angles, turned)];
        }
        let seen = self.seen(layer.window);
        let seeing = Seeing {
            sizes: [heads, groups, head_width],
            scale: layer.scale.unwrap_or_else(|| 1.0 / (head_width as f64).sqrt()),
            cap: score_cap,
            seen: Some(&seen),
        };
        let y = self.parts.attended([&q, &k, &v], &seeing);
        self.parts.linear(&y, &format!("{path}.{}", self.names.layer.output), has_output_bias)
    }

    /// Queries, keys and values: `[B, H, T, D], [B, G, T, D], [B, G, T, D]`.
    fn projected(&mut self, x: &Value, path: &str) -> Result<[Value; 3]> {
        let AttentionShape { heads, groups, head_width, projections, has_input_bias, .. } =
            self.shape.attention;
        let (parts, counts) = (&mut *self.parts, [heads, groups, groups]);
        let names = self.names.layer.inputs.map(|name| format!("{path}.{name}"));
        let [q, k, v] = match projections {
            Projections::Separate => {
                let [q, k, v] = names.map(|name| parts.linear(x, &name, has_input_bias));
                [q?, k?, v?]
            }
            Projections::Packed => {
                let all = parts.linear(x, &names[0], has_input_bias)?;
                parts.graph.split(&all, -1, counts.map(|count| count * head_width))
            }
            Projections::PackedByHead => {
                let all = parts.linear(x, &names[0], has_input_bias)?;
                let sizes = [0, 0, heads as i64, 3 * head_width as i64];
                let all = parts.graph.reshape(&all, &sizes);
                parts.graph.split(&all, -1, [head_width; 3])
            }
        };
        let mut by_heads = |part, count| parts.by_heads(part, count, head_width);
        Ok([by_heads(&q, heads), by_heads(&k, groups), by_heads(&v, groups)])
    }

    /// Rotates the first `turned` features of each head of `x: [.., T, D]`. The pairs are feature
    /// `i` of the first half of these features and feature `i` of the second half.
    fn turned(&mut self, x: &Value, [cos, sin]: &[Value; 2], turned: usize) -> Value {
        let (half, rest) = (turned / 2, self.shape.attention.head_width - turned);
        let graph = &mut self.parts.graph;
        let (a, b, kept) = if rest > 0 {
            let [a, b, kept] = graph.split(x, -1, [half, half, rest]);
            (a, b, Some(kept))
        } else {
            let [a, b] = graph.split(x, -1, [half, half]);
            (a, b, None)
        };
        let products = [(&a, cos), (&b, sin), (&b, cos), (&a, sin)];
        let [a_cos, b_sin, b_cos, a_sin] = products.map(|(x, by)| graph.mul(x, by));
        let (first, second) = (graph.sub(&a_cos, &b_sin), graph.add(&b_cos, &a_sin));
        let parts = [Some(&first), Some(&second), kept.as_ref()];
        graph.concat(&parts.into_iter().flatten().collect::<Vec<_>>(), -1)
    }

    /// The cosines and sines of all positions. Each kind of angles is made once.
    fn angles(&mut self, rotary: RotaryEmbedding) -> Result<[Value; 2]> {
        if let Some((_, known)) = self.angles.iter().find(|(kind, _)| *kind == rotary) {
            return Ok(known.clone());
        }
        let table = self.parts.tensor(&format!("{}.weight", self.names.table))?;
        let rates = rotary.rates(table.device(), self.shape.attention.head_width)?;
        let rates = rates.to_vec::<f64>()?;
        let graph = &mut self.parts.graph;
        let to_float = [Attribute::Int("to", FLOAT)];
        let positions = graph.node("Cast", &[&self.positions], &to_float);
        let positions = graph.reshape(&positions, &[-1, 1]);
        let rates = graph.floats(&[1, rates.len()], &rates);
        let angles = graph.mul(&positions, &rates);
        let size = rotary.scaling.map_or(1.0, |scaling| scaling.attention());
        let size = graph.floats(&[], &[size]);
        let tables = ["Cos", "Sin"].map(|of| {
            let table = graph.node(of, &[&angles], &[]);
            let table = graph.mul(&table, &size);
            graph.narrowed(&table)
        });
        self.angles.push((rotary, tables.clone()));
        Ok(tables)
    }

    /// The mask of the keys that a query sees: no key after the query, and no key outside of the
    /// window. Equal masks are made once.
    fn seen(&mut self, window: Option<usize>) -> Value {
        if let Some(known) = self.seen.get(&window) {
            return known.clone();
        }
        let graph = &mut self.parts.graph;
        let queries = graph.reshape(&self.positions, &[-1, 1]);
        let keys = graph.reshape(&self.positions, &[1, -1]);
        let mut seen = graph.node("LessOrEqual", &[&keys, &queries], &[]);
        if let Some(window) = window {
            let (distance, window) = (graph.sub(&queries, &keys), graph.int(window as i64));
            let near = graph.node("Less", &[&distance, &window], &[]);
            seen = graph.node("And", &[&seen, &near], &[]);
        }
        self.seen.insert(window, seen.clone());
        seen
    }

    /// `x: [B, T, C] → [B, T, C]`
    fn hidden(&mut self, x: &Value, path: &str) -> Result<Value> {
        let (names, shape) = (self.names.layer, self.shape.feed_forward);
        let within = |name: &str| format!("{path}.{name}");
        let parts = &mut self.parts;
        let up = parts.linear(x, &within(names.up), shape.has_bias)?;
        let hidden = if shape.is_gated {
            let gate = parts.linear(x, &within(names.gate), shape.has_bias)?;
            let gate = parts.activated(&gate, shape.activation);
            parts.graph.mul(&gate, &up)
        } else {
            parts.activated(&up, shape.activation)
        };
        parts.linear(&hidden, &within(names.down), shape.has_bias)
    }
}
