//! A layer of a decoder: attention and feed-forward, each a residual branch.

use lowtide_autograd::{Pass, Var};
use lowtide_nn::{Dropout, Module, NnResult, Nodes, Visitor};

use super::attention::{Attention, Seen};
use super::feed_forward::FeedForward;
use super::functions::run_in;
use super::layer_cache::LayerCache;
use super::make::Maker;
use super::names::LayerNames;
use super::norm::Norm;
use super::shape::{DecoderShape, LayerShape, Residual};
use crate::error::Result;

#[derive(Clone, Debug)]
pub(super) struct Layer {
    attention_norm: Norm,
    attention: Attention,
    after_attention: Option<Norm>,
    feed_forward_norm: Norm,
    feed_forward: FeedForward,
    after_feed_forward: Option<Norm>,
    residual: Residual,
    /// The probability of dropout of each branch.
    dropout: f64,
    /// Index of this layer's masks and angles in a pass.
    pub(super) seen_index: usize,
    names: &'static LayerNames,
}

impl Layer {
    /// The layer `path` of `model`.
    pub(super) fn new(
        make: &Maker<'_>,
        path: &str,
        model: &DecoderShape,
        layer: LayerShape,
        seen_index: usize,
    ) -> Result<Self> {
        let DecoderShape { width, norm, residual, .. } = *model;
        let after = || -> Result<Option<Norm>> {
            match residual {
                Residual::PrePostNorm => Ok(Some(make.norm(norm, width)?)),
                Residual::PreNorm | Residual::Parallel => Ok(None),
            }
        };
        Ok(Layer {
            attention_norm: make.norm(norm, width)?,
            attention: Attention::new(make, path, model, layer.scale)?,
            after_attention: after()?,
            feed_forward_norm: make.norm(norm, width)?,
            feed_forward: FeedForward::new(make, path, model)?,
            after_feed_forward: after()?,
            residual,
            dropout: model.dropout.branch,
            seen_index,
            names: model.family.names().layer,
        })
    }

    /// # Shapes
    /// `x: [B, T, C] → [B, T, C]`
    pub(super) fn forward(&self, pass: &Pass, x: Var, seen: &Seen) -> NnResult<Var> {
        self.with_attention(pass, x, |normed| self.attention.forward(pass, normed, seen))
    }

    /// [`Layer::forward`] of the positions after the positions in `cache`.
    pub(super) fn forward_cached(
        &self,
        pass: &Pass,
        x: Var,
        seen: &Seen,
        cache: &mut LayerCache,
    ) -> NnResult<Var> {
        self.with_attention(pass, x, |x| self.attention.forward_cached(pass, x, seen, cache))
    }

    /// The layer, with `attend` applied to the normalised input.
    fn with_attention(
        &self,
        pass: &Pass,
        x: Var,
        attend: impl FnOnce(Var) -> NnResult<Var>,
    ) -> NnResult<Var> {
        let names = self.names;
        let normed = run_in(pass, names.attention_norm, &self.attention_norm, x.clone())?;
        let seen = pass.within(names.attention, || self.drop(pass, attend(normed)?))?;
        let seen = after(pass, names.after_attention, &self.after_attention, seen)?;
        // The branch comes first in each sum, so that the sum can reuse its buffer.
        match self.residual {
            Residual::Parallel => {
                let hidden = self.hidden(pass, x.clone())?;
                Ok(hidden.add(seen)?.add(x)?)
            }
            Residual::PreNorm | Residual::PrePostNorm => {
                let x = seen.add(x)?;
                let hidden = self.hidden(pass, x.clone())?;
                Ok(hidden.add(x)?)
            }
        }
    }

    fn drop(&self, pass: &Pass, x: Var) -> NnResult<Var> {
        Dropout::new(self.dropout)?.forward(pass, x)
    }

    fn hidden(&self, pass: &Pass, x: Var) -> NnResult<Var> {
        let names = self.names;
        let normed = run_in(pass, names.feed_forward_norm, &self.feed_forward_norm, x)?;
        let forward = || self.drop(pass, self.feed_forward.forward(pass, normed)?);
        let hidden = pass.within(names.feed_forward, forward)?;
        after(pass, names.after_feed_forward, &self.after_feed_forward, hidden)
    }
}

/// `x` after the norm, if there is one.
fn after(pass: &Pass, name: &str, norm: &Option<Norm>, x: Var) -> NnResult<Var> {
    match norm {
        Some(norm) => run_in(pass, name, norm, x),
        None => Ok(x),
    }
}

impl Nodes for Layer {
    fn visit_nodes(&mut self, visitor: &mut Visitor<'_>) {
        visitor.field(self.names.attention_norm, &mut self.attention_norm);
        visitor.field(self.names.attention, &mut self.attention);
        visitor.field(self.names.after_attention, &mut self.after_attention);
        visitor.field(self.names.feed_forward_norm, &mut self.feed_forward_norm);
        visitor.field(self.names.feed_forward, &mut self.feed_forward);
        visitor.field(self.names.after_feed_forward, &mut self.after_feed_forward);
    }
}
