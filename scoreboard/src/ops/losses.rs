//! Losses. lowtide's are sums with a count.

use lowtide_autograd::Var;
use lowtide_nn::{
    CrossEntropyOptions, LinearCrossEntropyOptions, Loss, NllOptions, PairLoss, cosine_embedding,
    cross_entropy_with, huber, linear_cross_entropy, nll, pair_loss, smooth_l1, soft_cross_entropy,
};
use lowtide_tensor::{DType, Tensor};

use super::{Family, INPUT};
use crate::call::{At, Call, Output, Result, at, named, no_form, no_such, one};

const TARGET: At = at(1, "target");

pub(super) const OPS: Family = &[
    ("nn.functional.binary_cross_entropy", |call| pair(call, PairLoss::BinaryCrossEntropy)),
    ("nn.functional.binary_cross_entropy_with_logits", |call| {
        let (x, target) = (call.var(INPUT)?, call.constant(TARGET)?);
        let weight = call.optional_constant(named("pos_weight"))?;
        let dtype = x.value().dtype();
        let loss = lowtide_nn::bce_with_logits(x, &target, weight.as_ref())?;
        reduced(call, loss, dtype)
    }),
    ("nn.functional.cosine_embedding_loss", |call| {
        let [a, b] = [call.var(at(0, "input1"))?, call.var(at(1, "input2"))?];
        let target = call.constant(at(2, "target"))?.to_dtype(a.value().dtype())?;
        let margin = call.number(named("margin"))?.unwrap_or(0.0);
        let dtype = a.value().dtype();
        // One pair is a batch of one.
        let (a, b, target) = match a.shape().len() {
            1 => (a.unsqueeze(0)?, b.unsqueeze(0)?, target.reshape([1])?),
            _ => (a, b, target),
        };
        reduced(call, cosine_embedding(a, b, &target, margin)?, dtype)
    }),
    ("nn.functional.cross_entropy", |call| {
        let (x, target) = (call.var(INPUT)?, call.constant(TARGET)?);
        let weight = call.optional_constant(named("weight"))?;
        let options = CrossEntropyOptions {
            ignore_index: ignore_index(call)?,
            label_smoothing: call.number(named("label_smoothing"))?.unwrap_or(0.0),
            weight: weight.as_ref(),
        };
        let dtype = x.value().dtype();
        if target.dtype().is_float() {
            let loss = soft_cross_entropy(x, &target, options)?;
            return reduced(call, loss, dtype);
        }
        // One sample without a batch is a batch of one.
        let (x, target) = match x.shape().len() {
            1 => (x.unsqueeze(0)?, target.unsqueeze(0)?),
            _ => (x, target),
        };
        reduced(call, cross_entropy_with(x, &target, options)?, dtype)
    }),
    ("nn.functional.huber_loss", |call| {
        let (x, target) = (call.var(INPUT)?, call.constant(TARGET)?);
        let delta = call.number(named("delta"))?.unwrap_or(1.0);
        let dtype = x.value().dtype();
        reduced(call, huber(x, &target, delta)?, dtype)
    }),
    ("nn.functional.kl_div", |call| {
        let is_log = call.flag(named("log_target"))?.unwrap_or(false);
        let loss = if is_log { PairLoss::KlDivergenceOfLog } else { PairLoss::KlDivergence };
        pair(call, loss)
    }),
    ("nn.functional.l1_loss", |call| pair(call, PairLoss::AbsoluteError)),
    ("nn.functional.linear_cross_entropy", linear),
    ("nn.functional.linear_cross_entropy/chunked", |call| {
        // How PyTorch cuts the product in pieces; lowtide has its own way.
        call.value(named("options"));
        linear(call)
    }),
    ("nn.functional.mse_loss", |call| pair(call, PairLoss::SquaredError)),
    ("nn.functional.nll_loss", |call| {
        let (x, target) = (call.var(INPUT)?, call.constant(TARGET)?);
        let weight = call.optional_constant(named("weight"))?;
        let options = NllOptions { ignore_index: ignore_index(call)?, weight: weight.as_ref() };
        let dtype = x.value().dtype();
        let (x, target) = match x.shape().len() {
            1 => (x.unsqueeze(0)?, target.unsqueeze(0)?),
            _ => (x, target),
        };
        reduced(call, nll(x, &target, options)?, dtype)
    }),
    ("nn.functional.smooth_l1_loss", |call| {
        let (x, target) = (call.var(INPUT)?, call.constant(TARGET)?);
        let beta = call.number(named("beta"))?.unwrap_or(1.0);
        let dtype = x.value().dtype();
        reduced(call, smooth_l1(x, &target, beta)?, dtype)
    }),
];

fn linear(call: &Call<'_>) -> Result<Vec<Output>> {
    let [x, w] = [call.var(INPUT)?, call.var(at(1, "linear_weight"))?];
    let target = call.constant(at(2, "target"))?;
    let bias = call.optional_var(named("linear_bias"))?;
    let options =
        LinearCrossEntropyOptions { ignore_index: ignore_index(call)?, ..Default::default() };
    if target.dtype().is_float() {
        return no_form("probabilities as targets");
    }
    if w.shape().len() > 2 {
        return no_form("several classes for a row of the input");
    }
    let dtype = x.value().dtype();
    reduced(call, linear_cross_entropy(x, w, bias, &target, options)?, dtype)
}

fn ignore_index(call: &Call<'_>) -> Result<i64> {
    Ok(call.integer(named("ignore_index"))?.map_or(-100, |index| index as i64))
}

fn pair(call: &Call<'_>, loss: PairLoss) -> Result<Vec<Output>> {
    let (x, target): (Var, Tensor) = (call.var(INPUT)?, call.constant(TARGET)?);
    let dtype = x.value().dtype();
    reduced(call, pair_loss(x, &target, loss)?, dtype)
}

/// The sum, the mean, or the sum over the batch's size. Those of half types are in f32 in lowtide,
/// and in the input's type in PyTorch.
fn reduced(call: &Call<'_>, loss: Loss, dtype: DType) -> Result<Vec<Output>> {
    let y = match call.text(named("reduction"))?.unwrap_or("mean") {
        "sum" => loss.sum,
        "mean" => loss.mean()?,
        "batchmean" => {
            let samples = call.var(INPUT)?.shape().first().copied().unwrap_or(1);
            loss.sum.div_scalar(samples as f64)?
        }
        "none" => return no_form("reduction=\"none\""),
        _ => return no_such(call, "reduction"),
    };
    one(y.to_dtype(dtype)?)
}
