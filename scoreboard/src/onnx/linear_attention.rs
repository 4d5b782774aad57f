//! Linear attention: each head has a matrix, which every step decays, corrects, adds to and reads.

use lowtide_autograd::Var;
use lowtide_tensor::{DType, Tensor};

use super::node::NodeCall;
use super::{Family, converted};
use crate::call::{Output, Result, one};

pub(super) const OPS: Family = &[("LinearAttention", run)];

fn run(node: &NodeCall<'_>) -> Result<Vec<Output>> {
    let heads = node.attribute_count("q_num_heads")?.unwrap_or(1).max(1);
    let groups = node.attribute_count("kv_num_heads")?.unwrap_or(1).max(1);
    // `chunk_size` is a hint without an effect, and the inputs imply `update_rule`.
    node.ignore(&["chunk_size", "update_rule"]);
    let dtype = node.dtype();
    // The state is f32, as in ONNX.
    let wide = |x: Var, heads: usize| -> Result<Var> {
        by_heads(node, converted(node, x, DType::F32)?, heads)
    };
    let (q, k) = (wide(node.var(0)?, heads)?, wide(node.var(1)?, groups)?);
    let v = wide(node.var(2)?, groups)?;
    let (width, steps) = (k.shape()[3], k.shape()[2]);
    let decay = node.optional_var(4).map(|decay| wide(decay, groups)).transpose()?;
    let beta = match node.optional_var(5) {
        Some(beta) => {
            let heads = beta.shape()[2];
            Some(wide(beta, heads)?)
        }
        None => None,
    };
    let scale = node.attribute_number("scale")?.filter(|&scale| scale != 0.0);
    let scale = scale.unwrap_or(1.0 / (width as f64).sqrt());
    let shape = [q.shape()[0], groups, width, v.shape()[3]];
    let past = node.optional_var(3);
    let state_dtype = past.as_ref().map_or(dtype, |past| past.value().dtype());
    let mut state = match past {
        Some(past) => converted(node, past, DType::F32)?,
        None => node.constant(Tensor::zeros(node.device(), shape, DType::F32)?),
    };
    let mut rows = Vec::new();
    for step in 0..steps {
        // Rows of one step: [B, heads, 1, D]
        let at = |x: &Var| x.clone().narrow(2, step, 1);
        let (key, mut value) = (at(&k)?.transpose(-2, -1)?, at(&v)?);
        if let Some(decay) = &decay {
            state = state.mul(at(decay)?.exp()?.transpose(-2, -1)?)?;
        }
        if let Some(beta) = &beta {
            let known = at(&k)?.matmul(state.clone())?;
            value = value.sub(known)?.mul(at(beta)?)?;
        }
        state = state.add(key.matmul(value)?)?;
        let read = state.clone().repeat_interleave(1, heads / groups)?;
        rows.push(at(&q)?.matmul(read)?.mul_scalar(scale)?);
    }
    let y = Var::cat(rows, 2)?;
    let &[samples, heads, len, width] = &y.shape()[..] else {
        return Err(node.wrong("not by heads"));
    };
    let y = converted(node, y.transpose(1, 2)?.reshape([samples, len, heads * width])?, dtype)?;
    let mut outputs = one(y)?;
    outputs.push(converted(node, state, state_dtype)?.into());
    Ok(outputs)
}

/// `[B, T, heads · D]` as `[B, heads, T, D]`.
fn by_heads(node: &NodeCall<'_>, x: Var, heads: usize) -> Result<Var> {
    match x.shape()[..] {
        [samples, len, width] if width.is_multiple_of(heads) => {
            Ok(x.reshape([samples, len, heads, width / heads])?.transpose(1, 2)?)
        }
        _ => Err(node.wrong("there are no heads")),
    }
}
