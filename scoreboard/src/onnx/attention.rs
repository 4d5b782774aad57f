//! Attention and rotary embeddings.

use lowtide_autograd::Var;
use lowtide_tensor::{AttentionOptions, Causal, DType, PadMode, RotaryPairs, Tensor};

use super::node::NodeCall;
use super::views::{as_type, padded, stretched};
use super::{Family, converted};
use crate::call::{Output, Result, one};

pub(super) const OPS: Family = &[
    ("Attention", attention),
    ("RotaryEmbedding", rotary),
    ("ai.onnx.preview.FlexAttention", |node| {
        let [q, k, v] = [node.var(0)?, node.var(1)?, node.var(2)?];
        let scale = node.attribute_number("scale")?;
        // These attributes are graphs.
        for name in ["score_mod", "prob_mod"] {
            node.attribute_tensor(name)?;
        }
        // lowtide computes the half types in f32 as well.
        node.ignore(&["softmax_precision"]);
        let options = AttentionOptions { causal: Causal::No, scale, dropout: None };
        one(q.attention(k, v, None, options)?)
    }),
];

fn attention(node: &NodeCall<'_>) -> Result<Vec<Output>> {
    let q_heads = node.attribute_count("q_num_heads")?;
    let kv_heads = node.attribute_count("kv_num_heads")?;
    let is_flat = node.var(0)?.shape().len() == 3;
    let q = by_heads(node, node.var(0)?, q_heads)?;
    let [k, v] = [by_heads(node, node.var(1)?, kv_heads)?, by_heads(node, node.var(2)?, kv_heads)?];
    let past = node.optional_var(4);
    let past_len = past.as_ref().map_or(0, |past| past.shape()[2]);
    let with_past = |past: Option<Var>, x: Var| match past {
        Some(past) => Var::cat(vec![past, x], 2),
        None => Ok(x),
    };
    let (k, v) = (with_past(past, k)?, with_past(node.optional_var(5), v)?);
    let mask = masked(node, [&q, &k], past_len)?;
    let scale = node.attribute_number("scale")?;
    let cap = node.attribute_number("softcap")?.unwrap_or(0.0);
    let scores_mode = node.attribute_integer("qk_matmul_output_mode")?.unwrap_or(0);
    let precision = node.element_type("softmax_precision")?;
    let (y, scores) = if cap == 0.0 && !node.wants(3) {
        let options = AttentionOptions { causal: Causal::No, scale, dropout: None };
        (q.attention(k.clone(), v.clone(), mask.as_ref(), options)?, None)
    } else {
        let parts = Parts { mask, scale, cap, scores_mode, precision };
        let (y, scores) = parts.run(node, [q, k.clone(), v.clone()])?;
        (y, Some(scores))
    };
    let y = if is_flat {
        let &[samples, heads, len, width] = &y.shape()[..] else {
            return Err(node.wrong("not by heads"));
        };
        y.transpose(1, 2)?.reshape([samples, len, heads * width])?
    } else {
        y
    };
    let outputs = [Some(y), Some(k), Some(v), scores];
    Ok(outputs.into_iter().flatten().map(Output::Var).collect())
}

/// `[B, T, heads · D]` as `[B, heads, T, D]`.
fn by_heads(node: &NodeCall<'_>, x: Var, heads: Option<usize>) -> Result<Var> {
    match (&x.shape()[..], heads) {
        (&[_, _, _, _], _) => Ok(x),
        (&[samples, len, width], Some(heads)) if heads > 0 && width.is_multiple_of(heads) => {
            Ok(x.reshape([samples, len, heads, width / heads])?.transpose(1, 2)?)
        }
        _ => Err(node.wrong("there are no heads")),
    }
}

/// The mask of queries and keys in lowtide's form: truth values, or numbers to add to the scores.
fn masked(node: &NodeCall<'_>, [q, k]: [&Var; 2], past_len: usize) -> Result<Option<Tensor>> {
    let (queries, keys) = (q.shape()[2], k.shape()[2]);
    let allowed = allowed(node, [queries, keys], past_len)?;
    let Some(given) = node.optional_var(3) else { return Ok(allowed) };
    // Keys beyond the end of the mask are hidden.
    let more = keys.saturating_sub(given.shape().last().copied().unwrap_or(0));
    let mut pads = vec![[0, 0]; given.shape().len()];
    if let Some(last) = pads.last_mut() {
        last[1] = more as isize;
    }
    let is_truth = given.value().dtype() == DType::Bool;
    let unseen = if is_truth { 0.0 } else { f64::NEG_INFINITY };
    let given = padded(given, &pads, PadMode::Constant(unseen))?.into_value();
    Ok(Some(match allowed {
        None => given,
        Some(allowed) if is_truth => allowed.logical_and(&given)?,
        Some(allowed) => {
            let shape = stretched(given.shape(), allowed.shape());
            given.expand(&shape[..])?.masked_fill(&allowed.logical_not()?, unseen)?
        }
    }))
}

/// The keys that a query may see by its place and the number of filled keys; `None` if all.
fn allowed(
    node: &NodeCall<'_>,
    [queries, keys]: [usize; 2],
    past_len: usize,
) -> Result<Option<Tensor>> {
    let filled = node.optional_var(6).map(Var::into_value);
    let filled =
        filled.map(|filled| filled.reshape([filled.element_count(), 1, 1, 1])).transpose()?;
    let is_causal = node.flag("is_causal")?.unwrap_or(false);
    let left = node.attribute_integer("left_window_size")?.unwrap_or(-1);
    let right = node.attribute_integer("right_window_size")?.unwrap_or(-1);
    let range = |len: usize| Tensor::arange(node.device(), 0.0..len as f64, 1.0, DType::I64);
    let mut rules: Vec<Tensor> = Vec::new();
    if is_causal || left >= 0 || right >= 0 {
        // The distance of each key before the query. The place of a query counts all keys.
        let places = range(queries)?.reshape([queries, 1])?;
        let places = match &filled {
            Some(filled) => places.add(filled)?.add_scalar(-(queries as f64))?,
            None => places.add_scalar(past_len as f64)?,
        };
        let distance = places.sub(&range(keys)?)?;
        if is_causal {
            rules.push(distance.ge_scalar(0.0)?);
        }
        if left >= 0 {
            rules.push(distance.le_scalar(left as f64)?);
        }
        if right >= 0 {
            rules.push(distance.ge_scalar(-(right as f64))?);
        }
    }
    if let Some(filled) = &filled {
        rules.push(range(keys)?.reshape([1, 1, 1, keys])?.lt(filled)?);
    }
    let mut rules = rules.into_iter();
    let Some(first) = rules.next() else { return Ok(None) };
    let all = rules.try_fold(first, |all, rule| all.logical_and(&rule))?;
    Ok(Some(all))
}

/// Attention in single operations, for changed scores or for scores as a result.
struct Parts {
    mask: Option<Tensor>,
    scale: Option<f64>,
    cap: f64,
    scores_mode: isize,
    precision: Option<DType>,
}

impl Parts {
    fn run(self, node: &NodeCall<'_>, [q, k, v]: [Var; 3]) -> Result<(Var, Var)> {
        let dtype = q.value().dtype();
        let (heads, groups) = (q.shape()[1], k.shape()[1].max(1));
        let [k, v] =
            [k.repeat_interleave(1, heads / groups), v.repeat_interleave(1, heads / groups)];
        let (k, v) = (k?, v?);
        let scale = self.scale.unwrap_or(1.0 / (q.shape()[3] as f64).sqrt()).sqrt();
        let k = k.mul_scalar(scale)?.transpose(-2, -1)?;
        let mut scores = q.mul_scalar(scale)?.matmul(k)?;
        if self.cap > 0.0 {
            scores = scores.div_scalar(self.cap)?.tanh()?.mul_scalar(self.cap)?;
        }
        let mut result = scores.clone();
        let mut unseen: Option<Tensor> = None;
        if let Some(mask) = &self.mask {
            let rank = mask.shape().len() as isize;
            let (biased, row) = match mask.dtype() {
                DType::Bool => {
                    let hidden = mask.logical_not()?;
                    let row = hidden.all_keep(&[rank - 1])?;
                    (scores.masked_fill(&hidden, f64::NEG_INFINITY)?, row)
                }
                _ => {
                    let row = mask.amax_keep(&[rank - 1])?.eq_scalar(f64::NEG_INFINITY)?;
                    (scores.add(node.constant(mask.clone()))?, row)
                }
            };
            (scores, unseen) = (biased, Some(row));
        }
        if self.scores_mode == 2 {
            result = scores.clone();
        }
        let weights = converted(node, scores, self.precision.unwrap_or(dtype))?.softmax(-1)?;
        let mut weights = converted(node, weights, dtype)?;
        if let Some(unseen) = &unseen {
            // A query without visible keys has weights of 0 / 0.
            weights = weights.masked_fill(unseen, 0.0)?;
        }
        if self.scores_mode == 3 {
            result = weights.clone();
        }
        Ok((weights.matmul(v)?, result))
    }
}

fn rotary(node: &NodeCall<'_>) -> Result<Vec<Output>> {
    let heads = node.attribute_count("num_heads")?.filter(|&heads| heads > 0);
    let x = node.var(0)?;
    let is_flat = x.shape().len() == 3;
    let x = by_heads(node, x, heads)?;
    let pairs = if node.flag("interleaved")?.unwrap_or(false) {
        RotaryPairs::Interleaved
    } else {
        RotaryPairs::HalfSplit
    };
    // The tables determine this number: they have half as many columns.
    node.ignore(&["rotary_embedding_dim"]);
    let (cos, sin) = (node.tensor(1)?, node.tensor(2)?);
    let places = node.optional_var(3).map(Var::into_value);
    let samples = x.shape()[0];
    let mut rows = Vec::new();
    for sample in 0..samples {
        // A table of lowtide is for one sequence.
        let table = |table: &Tensor| -> Result<Tensor> {
            Ok(match &places {
                Some(places) => {
                    let places = as_type(node, places.select(0, sample)?, DType::I64)?;
                    table.index_select(0, &places)?
                }
                None => table.select(0, sample)?.contiguous()?,
            })
        };
        let row = x.clone().narrow(0, sample, 1)?;
        rows.push(row.rotary(&table(&cos)?, &table(&sin)?, pairs)?);
    }
    let y = Var::cat(rows, 0)?;
    let &[samples, heads, len, width] = &y.shape()[..] else {
        return Err(node.wrong("not by heads"));
    };
    one(if is_flat { y.transpose(1, 2)?.reshape([samples, len, heads * width])? } else { y })
}
