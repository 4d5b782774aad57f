//! Normalisations, distances and attention.

use lowtide_autograd::Var;
use lowtide_nn::{
    LocalResponseOptions, cosine_similarity, local_response_norm, normalize, pairwise_distance,
};
use lowtide_tensor::{AttentionOptions, Causal, DType, Dropout, RandomKey};

use super::{Family, INPUT};
use crate::call::{At, Call, Output, Result, Stop, at, named, no_form, no_such, one};
use crate::outcome::Reason;

pub(super) const OPS: Family = &[
    ("cdist", |call| {
        let [x, y] = [call.var(at(0, "x1"))?, call.var(at(1, "x2"))?];
        let order = call.number(at(2, "p"))?.unwrap_or(2.0);
        // The option selects a matrix product in PyTorch. lowtide has no such option.
        call.value(at(3, "compute_mode"));
        one(x.cdist(y, order)?)
    }),
    ("nn.functional.batch_norm", |call| {
        let x = call.var(INPUT)?;
        let running = [
            call.optional_constant(at(1, "running_mean"))?,
            call.optional_constant(at(2, "running_var"))?,
        ];
        let (w, b) = (call.optional_var(at(3, "weight"))?, call.optional_var(at(4, "bias"))?);
        let training = call.flag(at(5, "training"))?.unwrap_or(false);
        // The momentum is for running statistics, which are not among the results.
        call.number(at(6, "momentum"))?;
        let eps = call.number(at(7, "eps"))?.unwrap_or(1e-5);
        match running {
            _ if training => one(x.batch_norm(w, b, eps)?.0),
            [Some(mean), Some(variance)] => {
                let dtype = if x.value().dtype() == DType::F64 { DType::F64 } else { DType::F32 };
                let (mean, variance) = (mean.to_dtype(dtype)?, variance.to_dtype(dtype)?);
                one(x.batch_norm_fixed([&mean, &variance], w, b, eps)?)
            }
            _ => no_form("evaluation without statistics"),
        }
    }),
    ("nn.functional.cosine_similarity", |call| {
        let [a, b] = [call.var(at(0, "x1"))?, call.var(at(1, "x2"))?];
        let axis = call.integer(at(2, "dim"))?.unwrap_or(1);
        let eps = call.number(at(3, "eps"))?.unwrap_or(1e-8);
        let is_number = a.shape().is_empty() && b.shape().is_empty();
        let y = cosine_similarity(a, b, axis, eps)?;
        one(if is_number { y.reshape([])? } else { y })
    }),
    ("nn.functional.dropout", |call| {
        let x = call.var(INPUT)?;
        let probability = call.number(at(1, "p"))?.unwrap_or(0.5);
        if !call.flag(at(2, "training"))?.unwrap_or(true) {
            return one(x);
        }
        if probability > 0.0 && probability < 1.0 {
            return Err(Stop::NotApplicable(Reason::Random, "dropout".to_owned()));
        }
        one(x.dropout(Dropout { probability, key: RandomKey::new(0), first: 0 })?)
    }),
    ("nn.functional.group_norm", |call| {
        let groups = call.count(at(1, "num_groups"))?.unwrap_or_default();
        let (w, b) = (call.optional_var(at(2, "weight"))?, call.optional_var(at(3, "bias"))?);
        let eps = call.number(at(4, "eps"))?.unwrap_or(1e-5);
        one(call.var(INPUT)?.group_norm(groups, w, b, eps)?)
    }),
    ("nn.functional.instance_norm", |call| {
        let x = call.var(INPUT)?;
        // Each sample's own statistics are used; running statistics are not among the results.
        call.optional_constant(at(1, "running_mean"))?;
        call.optional_constant(at(2, "running_var"))?;
        call.number(at(6, "momentum"))?;
        let (w, b) = (call.optional_var(at(3, "weight"))?, call.optional_var(at(4, "bias"))?);
        if !call.flag(at(5, "use_input_stats"))?.unwrap_or(true) {
            return no_form("evaluation");
        }
        let eps = call.number(at(7, "eps"))?.unwrap_or(1e-5);
        let channels = x.shape().get(1).copied().unwrap_or(0);
        one(x.group_norm(channels, w, b, eps)?)
    }),
    ("nn.functional.layer_norm", |call| {
        let shape = normalized_shape(call)?;
        let (w, b) = (call.optional_var(at(2, "weight"))?, call.optional_var(at(3, "bias"))?);
        let eps = call.number(at(4, "eps"))?.unwrap_or(1e-5);
        one(call.var(INPUT)?.layer_norm(shape.len(), w, b, eps)?)
    }),
    ("nn.functional.local_response_norm", |call| {
        let options = LocalResponseOptions {
            alpha: call.number(at(2, "alpha"))?.unwrap_or(1e-4),
            beta: call.number(at(3, "beta"))?.unwrap_or(0.75),
            k: call.number(at(4, "k"))?.unwrap_or(1.0),
        };
        let count = call.count(at(1, "size"))?.unwrap_or_default();
        one(local_response_norm(call.var(INPUT)?, count, options)?)
    }),
    ("nn.functional.normalize", |call| {
        let order = call.number(at(1, "p"))?.unwrap_or(2.0);
        let axis = call.integer(at(2, "dim"))?.unwrap_or(1);
        let eps = call.number(at(3, "eps"))?.unwrap_or(1e-12);
        let x = call.var(INPUT)?;
        if x.shape().is_empty() {
            // A number is a vector of length 1.
            return one(normalize(x.reshape([1])?, order, axis, eps)?.reshape([])?);
        }
        one(normalize(x, order, axis, eps)?)
    }),
    ("nn.functional.pairwise_distance", |call| {
        let [a, b] = [call.var(at(0, "x1"))?, call.var(at(1, "x2"))?];
        let order = call.number(at(2, "p"))?.unwrap_or(2.0);
        let eps = call.number(at(3, "eps"))?.unwrap_or(1e-6);
        let y = pairwise_distance(a, b, order, eps)?;
        let is_kept = call.flag(at(4, "keepdim"))?.unwrap_or(false);
        one(if is_kept { y.unsqueeze(-1)? } else { y })
    }),
    ("nn.functional.rms_norm", |call| {
        let (x, shape) = (call.var(INPUT)?, normalized_shape(call)?);
        let w = call.optional_var(at(2, "weight"))?;
        // The spacing of the type at 1. Half types are computed in f32 and use the spacing of f32.
        let default =
            if x.value().dtype() == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
        let eps = call.number(at(3, "eps"))?.unwrap_or(default);
        one(x.rms_norm(shape.len(), w, eps)?)
    }),
    ("nn.functional.scaled_dot_product_attention", attention),
];

/// The trailing dimensions that are normalised.
fn normalized_shape(call: &Call<'_>) -> Result<Vec<usize>> {
    const SHAPE: At = at(1, "normalized_shape");
    let shape = call.counts(SHAPE)?.unwrap_or_default();
    let x = call.var(INPUT)?;
    if !x.shape().ends_with(&shape) {
        // lowtide takes the number of dimensions and the shapes of the parameters instead.
        return no_such(call, "a shape to normalise over");
    }
    Ok(shape)
}

fn attention(call: &Call<'_>) -> Result<Vec<Output>> {
    let [q, k, v] = [call.var(at(0, "query"))?, call.var(at(1, "key"))?, call.var(at(2, "value"))?];
    let mask = call.optional_constant(at(3, "attn_mask"))?;
    if call.number(at(4, "dropout_p"))?.unwrap_or(0.0) > 0.0 {
        return Err(Stop::NotApplicable(Reason::Random, "dropout".to_owned()));
    }
    let causal = call.flag(at(5, "is_causal"))?.unwrap_or(false);
    let scale = call.number(named("scale"))?;
    // The shapes determine the groups of heads that share keys.
    call.flag(named("enable_gqa"))?;
    let causal = if causal { Causal::UpperLeft } else { Causal::No };
    let options = AttentionOptions { causal, scale, dropout: None };
    if q.shape().len() != k.shape().len() {
        return no_form("queries that all samples share");
    }
    let has_heads = q.shape().len() == 4;
    let with_heads = |x: Var| if has_heads { Ok(x) } else { x.unsqueeze(1) };
    let y = with_heads(q)?.attention(with_heads(k)?, with_heads(v)?, mask.as_ref(), options)?;
    one(if has_heads { y } else { y.squeeze(1)? })
}
