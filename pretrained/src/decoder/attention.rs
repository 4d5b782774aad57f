//! Attention of a sequence to itself, with grouped heads.
//!
//! `B` batch, `T` positions, `H` heads of queries, `G` heads of keys and values, `D` features of a
//! head.

use lowtide_autograd::{Pass, Var};
use lowtide_nn::parallel::{Branch, Shared};
use lowtide_nn::{Dropout, Linear, Module, NnResult, Node, Nodes, RotaryTables, Visitor};
use lowtide_tensor::{AttentionDropout, AttentionOptions, Causal, Tensor};

use super::functions::{capped, run_in};
use super::layer_cache::LayerCache;
use super::make::Maker;
use super::names::LayerNames;
use super::norm::Norm;
use super::shape::{AttentionShape, DecoderShape, Projections};
use crate::error::Result;

#[derive(Clone, Debug)]
pub(super) struct Attention {
    /// The layers of queries, keys and values, or one layer for all three.
    inputs: Vec<Linear>,
    /// The norms of queries and of keys, or none.
    head_norms: Vec<Norm>,
    output: Linear,
    shape: AttentionShape,
    scale: Option<f64>,
    names: &'static LayerNames,
}

/// The keys that the queries of a pass see, and the rotation angles of queries and keys.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// True where a query sees a key, apart from the causal order; broadcasts to `[B, H, T, T]`.
    pub(super) mask: Option<Tensor>,
    pub(super) tables: Option<RotaryTables>,
}

impl Attention {
    /// The attention of the layer `path` of `model`, with the factor `scale` of the scores.
    pub(super) fn new(
        make: &Maker<'_>,
        path: &str,
        model: &DecoderShape,
        scale: Option<f64>,
    ) -> Result<Self> {
        let (names, shape, width) = (model.family.names().layer, model.attention, model.width);
        let AttentionShape { heads, groups, head_width, has_input_bias, .. } = shape;
        let path = |name: &str| format!("{path}.{}.{name}", names.attention);
        let counts: &[usize] = match shape.projections {
            Projections::Separate => &[heads, groups, groups],
            Projections::Packed | Projections::PackedByHead => &[heads + 2 * groups],
        };
        let input = |(&count, name): (&usize, &&str)| {
            make.linear(&path(name), [width, count * head_width], has_input_bias)
        };
        let inputs = counts.iter().zip(&names.inputs).map(input).collect::<Result<_>>()?;
        let head_norm = || make.norm(model.norm, head_width);
        let head_norms =
            if shape.has_head_norms { vec![head_norm()?, head_norm()?] } else { Vec::new() };
        let (sizes, deviation) = ([heads * head_width, width], model.branch_deviation());
        let output =
            make.linear_with(&path(names.output), sizes, shape.has_output_bias, deviation)?;
        Ok(Attention { inputs, head_norms, output, shape, scale, names })
    }

    /// The heads in groups, which ranks can share.
    fn branches(&mut self, visitor: &mut dyn FnMut(Shared<'_>)) {
        let AttentionShape { heads, groups, head_width: width, projections, .. } = self.shape;
        let of_group = heads / groups * width;
        let packed = [(0, of_group), (heads * width, width), ((heads + groups) * width, width)];
        let branch = Branch::new(groups, &mut self.output, of_group);
        let branch = match (&self.inputs[..], projections) {
            ([q, k, v], _) => {
                let branch = branch.made_by(q, &[(0, of_group)]);
                branch.made_by(k, &[(0, width)]).made_by(v, &[(0, width)])
            }
            (inputs, Projections::PackedByHead) => branch.made_by(&inputs[0], &[(0, 3 * width)]),
            (inputs, Projections::Packed | Projections::Separate) => {
                branch.made_by(&inputs[0], &packed)
            }
        };
        let branch =
            self.head_norms.iter_mut().fold(branch, |branch, norm| branch.with_common(norm));
        visitor(Shared::Branch(branch.resizing(|len| {
            self.shape.heads = len * (heads / groups);
            self.shape.groups = len;
        })));
    }

    /// # Shapes
    /// `x: [B, T, C] → [B, T, C]`
    pub(super) fn forward(&self, pass: &Pass, x: Var, seen: &Seen) -> NnResult<Var> {
        let AttentionShape { heads, groups, .. } = self.shape;
        let (mask, options) = (seen.mask.as_ref(), self.options(pass, Causal::UpperLeft));
        let x = self.output.branch_input(x)?;
        let y = match (&self.inputs[..], &self.head_norms[..]) {
            ([packed], []) if self.shape.score_cap.is_none() => {
                let mut x = self.packed(run_in(pass, self.names.inputs[0], packed, x)?)?;
                if let Some(tables) = &seen.tables {
                    x = tables.turn_heads(x, [heads + groups, heads + 2 * groups])?;
                }
                x.self_attention([heads, groups], mask, options)?
            }
            _ => {
                let [q, k, v] = self.projected(pass, x)?;
                let [q, k] = self.turned(pass, [q, k], seen.tables.as_ref())?;
                joined(self.attended(pass, [q, k, v], mask, Causal::UpperLeft)?)?
            }
        };
        run_in(pass, self.names.output, &self.output, y)
    }

    /// [`Attention::forward`] of the positions after the positions in `cache`. With an empty cache,
    /// `x` may have several positions; otherwise `x` is one position, which sees the whole cache.
    pub(super) fn forward_cached(
        &self,
        pass: &Pass,
        x: Var,
        seen: &Seen,
        cache: &mut LayerCache,
    ) -> NnResult<Var> {
        let [q, k, v] = self.projected(pass, x)?;
        let [q, k] = self.turned(pass, [q, k], seen.tables.as_ref())?;
        let is_first = cache.is_empty();
        cache.extend(k.value(), v.value())?;
        let y = if is_first {
            self.attended(pass, [q, k, v], seen.mask.as_ref(), Causal::UpperLeft)?
        } else {
            let [k, v] = cache.seen()?.map(|kept| pass.constant(kept));
            self.attended(pass, [q, k, v], None, Causal::No)?
        };
        run_in(pass, self.names.output, &self.output, joined(y)?)
    }

    fn options(&self, pass: &Pass, causal: Causal) -> AttentionOptions {
        let probability = self.shape.dropout;
        let drops = pass.is_training() && probability > 0.0;
        let first_sample = pass.first_sample();
        let key = || self.output.within_branch(pass, || pass.draw());
        let dropout = drops.then(|| AttentionDropout { key: key(), probability, first_sample });
        AttentionOptions { causal, scale: self.scale, dropout }
    }

    /// # Shapes
    /// `q: [B, H, T, D], k and v: [B, G, S, D] → [B, H, T, D]`
    fn attended(
        &self,
        pass: &Pass,
        [q, k, v]: [Var; 3],
        mask: Option<&Tensor>,
        causal: Causal,
    ) -> NnResult<Var> {
        let Some(cap) = self.shape.score_cap else {
            return Ok(q.attention(k, v, mask, self.options(pass, causal))?);
        };
        /// The score of a hidden key: so far below capped scores that its exponential is 0.
        const HIDDEN: f64 = -30_000.0;
        let (batch, len, keys) = (q.shape()[0], q.shape()[2], k.shape()[2]);
        let AttentionShape { heads, groups, head_width: width, .. } = self.shape;
        let scale = self.scale.unwrap_or_else(|| 1.0 / (width as f64).sqrt());
        let shared = heads / groups;
        let q = q.reshape([batch, groups, shared * len, width])?;
        let mut scores = capped(q.matmul(k.transpose(2, 3)?)?, scale, cap)?;
        scores = scores.reshape([batch, groups, shared, len, keys])?;
        if let Some(mask) = mask {
            scores = scores.masked_fill(&mask.logical_not()?.unsqueeze(1)?, HIDDEN)?;
        }
        let (dropout, weights) = (Dropout::new(self.shape.dropout)?, scores.softmax(4)?);
        let weights = self.output.within_branch(pass, || dropout.forward(pass, weights))?;
        let weights = weights.reshape([batch, groups, shared * len, keys])?;
        Ok(weights.matmul(v)?.reshape([batch, heads, len, width])?)
    }

    /// Queries, keys and values as their layers return them.
    ///
    /// # Shapes
    /// `x: [B, T, C] → [B, H, T, D], [B, G, T, D], [B, G, T, D]`
    fn projected(&self, pass: &Pass, x: Var) -> NnResult<[Var; 3]> {
        let AttentionShape { heads, groups, .. } = self.shape;
        let names = self.names.inputs;
        match &self.inputs[..] {
            [q, k, v] => Ok([
                by_heads(run_in(pass, names[0], q, x.clone())?, heads)?,
                by_heads(run_in(pass, names[1], k, x.clone())?, groups)?,
                by_heads(run_in(pass, names[2], v, x)?, groups)?,
            ]),
            packed => {
                let all = self.packed(run_in(pass, names[0], &packed[0], x)?)?;
                let all = by_heads(all, heads + 2 * groups)?;
                Ok([
                    all.clone().narrow(1, 0, heads)?,
                    all.clone().narrow(1, heads, groups)?,
                    all.narrow(1, heads + groups, groups)?,
                ])
            }
        }
    }

    /// `x` with the queries of all heads first, then the keys, then the values.
    ///
    /// # Shapes
    /// `[B, T, (H + 2 · G) · D]`
    fn packed(&self, x: Var) -> NnResult<Var> {
        let AttentionShape { heads, head_width, projections, .. } = self.shape;
        match projections {
            Projections::Separate | Projections::Packed => return Ok(x),
            Projections::PackedByHead => {}
        }
        let shape = *x.shape();
        let (batch, len) = (shape[0], shape[1]);
        let x = x.reshape([batch, len, heads, 3, head_width])?.transpose(2, 3)?;
        Ok(x.reshape([batch, len, 3 * heads * head_width])?)
    }

    /// Queries and keys, normalised and rotated.
    fn turned(
        &self,
        pass: &Pass,
        [mut q, mut k]: [Var; 2],
        tables: Option<&RotaryTables>,
    ) -> NnResult<[Var; 2]> {
        if let [q_norm, k_norm] = &self.head_norms[..] {
            let names = self.names.head_norms;
            q = run_in(pass, names[0], q_norm, q)?;
            k = run_in(pass, names[1], k_norm, k)?;
        }
        match tables {
            Some(tables) => Ok([tables.turn(q)?, tables.turn(k)?]),
            None => Ok([q, k]),
        }
    }
}

impl Nodes for Attention {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        visitor.node("", Node::Shared(&mut |visitor| self.branches(visitor)));
        visitor.field(self.names.inputs, &mut self.inputs);
        visitor.field(self.names.output, &mut self.output);
        visitor.field(self.names.head_norms, &mut self.head_norms);
    }
}

/// `[B, T, heads · D] → [B, heads, T, D]`
fn by_heads(x: Var, heads: usize) -> NnResult<Var> {
    let (batch, len, width) = (x.shape()[0], x.shape()[1], x.shape()[2]);
    Ok(x.reshape([batch, len, heads, width / heads])?.transpose(1, 2)?)
}

/// `[B, H, T, D] → [B, T, H · D]`
fn joined(x: Var) -> NnResult<Var> {
    let (batch, heads, len, width) = (x.shape()[0], x.shape()[1], x.shape()[2], x.shape()[3]);
    Ok(x.transpose(1, 2)?.reshape([batch, len, heads * width])?)
}
