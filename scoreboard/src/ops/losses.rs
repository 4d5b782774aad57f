//! Losses. A loss of lowtide is a sum with a count.

use lowtide_autograd::Var;
use lowtide_nn::{
    CrossEntropyOptions, CtcOptions, GaussianNllOptions, LinearCrossEntropyOptions, Loss,
    MultiMarginOptions, NllOptions, PairLoss, PoissonNllOptions, TripletMarginOptions,
    cross_entropy_with, linear_cross_entropy, nll, pair_loss, soft_cross_entropy, terms,
};
use lowtide_tensor::{DType, Tensor};

use super::{Family, INPUT};
use crate::call::{At, Call, Output, Result, at, named, no_form, no_such, one};

const TARGET: At = at(1, "target");

pub(super) const OPS: Family = &[
    ("nn.functional.binary_cross_entropy", |call| pair(call, PairLoss::BinaryCrossEntropy)),
    ("nn.functional.binary_cross_entropy_with_logits", |call| {
        let (x, target) = (call.var(INPUT)?, call.constant(TARGET)?);
        let positive_weight = call.optional_constant(named("pos_weight"))?;
        if call.value(named("weight")).is_some() || is_unreduced(call)? {
            return weighted(call, terms::bce_with_logits(x, &target, positive_weight.as_ref())?);
        }
        let dtype = x.value().dtype();
        let loss = lowtide_nn::bce_with_logits(x, &target, positive_weight.as_ref())?;
        reduced(call, loss, dtype)
    }),
    ("nn.functional.cosine_embedding_loss", |call| {
        let [a, b] = [call.var(at(0, "input1"))?, call.var(at(1, "input2"))?];
        // The target only selects, so its gradient is 0.
        let target = call.var(at(2, "target"))?.into_value().to_dtype(a.value().dtype())?;
        let margin = call.number(named("margin"))?.unwrap_or(0.0);
        // A single pair is a batch of one.
        let is_alone = a.shape().len() == 1;
        let (a, b, target) = if is_alone {
            (a.unsqueeze(0)?, b.unsqueeze(0)?, target.reshape([1])?)
        } else {
            (a, b, target)
        };
        let y = terms::cosine_embedding(a, b, &target, margin)?;
        from_terms(call, if is_alone { y.squeeze(0)? } else { y })
    }),
    ("nn.functional.cross_entropy", |call| of_logits(call, call.var(INPUT)?, TARGET)),
    ("nn.functional.ctc_loss", ctc),
    ("nn.functional.gaussian_nll_loss", |call| {
        let [x, target] = [call.var(INPUT)?, call.var(TARGET)?];
        let variance = call.var(at(2, "var"))?;
        let options = GaussianNllOptions {
            full: call.flag(at(3, "full"))?.unwrap_or(false),
            eps: call.number(at(4, "eps"))?.unwrap_or(1e-6),
        };
        from_terms(call, terms::gaussian_nll(x, target, variance, options)?)
    }),
    ("nn.functional.hinge_embedding_loss", |call| {
        // The target only selects, so its gradient is 0.
        let (x, target) = (call.var(INPUT)?, call.var(TARGET)?.into_value());
        let margin = call.number(at(2, "margin"))?.unwrap_or(1.0);
        from_terms(call, terms::hinge_embedding(x, &target, margin)?)
    }),
    ("nn.functional.huber_loss", |call| {
        let delta = call.number(named("delta"))?.unwrap_or(1.0);
        if delta <= 0.0 {
            // The function checks the delta, but the formula does not.
            let (x, target) = (call.var(INPUT)?, call.constant(TARGET)?);
            lowtide_nn::huber(x, &target, delta)?;
        }
        pair(call, PairLoss::Huber { delta })
    }),
    ("nn.functional.kl_div", |call| {
        let is_log = call.flag(named("log_target"))?.unwrap_or(false);
        let loss = if is_log { PairLoss::KlDivergenceOfLog } else { PairLoss::KlDivergence };
        pair(call, loss)
    }),
    ("nn.functional.l1_loss", |call| pair(call, PairLoss::AbsoluteError)),
    ("nn.functional.linear_cross_entropy", linear),
    ("nn.functional.linear_cross_entropy/chunked", linear_in_chunks),
    ("nn.functional.linear_cross_entropy/chunked_none", linear_in_chunks),
    ("nn.functional.margin_ranking_loss", |call| {
        let [a, b] = [call.var(at(0, "input1"))?, call.var(at(1, "input2"))?];
        let target = call.constant(at(2, "target"))?;
        let margin = call.number(at(3, "margin"))?.unwrap_or(0.0);
        from_terms(call, terms::margin_ranking(a, b, &target, margin)?)
    }),
    ("nn.functional.mse_loss", |call| pair(call, PairLoss::SquaredError)),
    ("nn.functional.multi_margin_loss", |call| {
        let (x, labels) = (call.var(INPUT)?, call.constant(TARGET)?);
        let weight = call.optional_constant(named("weight"))?;
        let options = MultiMarginOptions {
            margin: call.number(named("margin"))?.unwrap_or(1.0),
            order: call.number(named("p"))?.unwrap_or(1.0),
            weight: weight.as_ref(),
        };
        // A single sample is a batch of one, also with one class.
        let is_alone = x.shape().len() < 2;
        let classes = x.shape().last().copied().unwrap_or(1);
        let (x, labels) =
            if is_alone { (x.reshape([1, classes])?, labels.reshape([1])?) } else { (x, labels) };
        let y = terms::multi_margin(x, &labels, options)?;
        from_terms(call, if is_alone { y.squeeze(0)? } else { y })
    }),
    ("nn.functional.multilabel_soft_margin_loss", |call| {
        let (x, target) = (call.var(INPUT)?, call.constant(TARGET)?);
        let weight = call.optional_constant(named("weight"))?;
        from_terms(call, terms::multilabel_soft_margin(x, &target, weight.as_ref())?)
    }),
    ("nn.functional.nll_loss", |call| {
        let (x, target) = (call.var(INPUT)?, call.constant(TARGET)?);
        let weight = call.optional_constant(named("weight"))?;
        let options = NllOptions { ignore_index: ignore_index(call)?, weight: weight.as_ref() };
        let dtype = x.value().dtype();
        let is_alone = x.shape().len() == 1;
        let (x, target) =
            if is_alone { (x.unsqueeze(0)?, target.unsqueeze(0)?) } else { (x, target) };
        if is_unreduced(call)? {
            let y = terms::nll(x, &target, options)?;
            return one(if is_alone { y.squeeze(0)? } else { y });
        }
        reduced(call, nll(x, &target, options)?, dtype)
    }),
    ("nn.functional.poisson_nll_loss", |call| {
        let [x, target] = [call.var(INPUT)?, call.var(TARGET)?];
        let options = PoissonNllOptions {
            log_input: call.flag(at(2, "log_input"))?.unwrap_or(true),
            full: call.flag(at(3, "full"))?.unwrap_or(false),
            eps: call.number(named("eps"))?.unwrap_or(1e-8),
        };
        from_terms(call, terms::poisson_nll(x, target, options)?)
    }),
    ("nn.functional.smooth_l1_loss", |call| {
        let beta = call.number(named("beta"))?.unwrap_or(1.0);
        if beta < 0.0 {
            let (x, target) = (call.var(INPUT)?, call.constant(TARGET)?);
            lowtide_nn::smooth_l1(x, &target, beta)?;
        }
        pair(call, PairLoss::SmoothL1 { beta })
    }),
    ("nn.functional.soft_margin_loss", |call| {
        let (x, target) = (call.var(INPUT)?, call.constant(TARGET)?);
        from_terms(call, terms::soft_margin(x, &target)?)
    }),
    ("nn.functional.triplet_margin_loss", triplet),
    ("nn.functional.triplet_margin_with_distance_loss", |call| {
        // The samples use the distance of the other triplet loss.
        call.value(named("distance_function"));
        triplet(call)
    }),
];

fn ctc(call: &Call<'_>) -> Result<Vec<Output>> {
    let (x, targets) = (call.var(at(0, "log_probs"))?, call.constant(at(1, "targets"))?);
    if x.shape().len() != 3 || targets.shape().len() != 2 {
        return no_form("one sample, or targets one after the other");
    }
    // Lengths may be tensors or lists.
    let len = |at: At| {
        if call.value(at).is_some_and(serde_json::Value::is_array) {
            let lens = call.integers(at)?.unwrap_or_default();
            let lens: Vec<i64> = lens.into_iter().map(|len| len as i64).collect();
            Ok(Tensor::from_slice(&call.device, [lens.len()], &lens)?)
        } else {
            call.constant(at)
        }
    };
    let [steps, lens] = [len(at(2, "input_lengths"))?, len(at(3, "target_lengths"))?];
    let options = CtcOptions {
        blank: call.count(at(4, "blank"))?.unwrap_or(0),
        zero_infinity: call.flag(named("zero_infinity"))?.unwrap_or(false),
    };
    let dtype = x.value().dtype();
    // PyTorch's gradient is the gradient of logits. Logarithms of probabilities are logits too.
    let x = x.log_softmax(2)?;
    if call.text(named("reduction"))?.unwrap_or("mean") == "mean" {
        return reduced(call, lowtide_nn::ctc(x, &targets, [&steps, &lens], options)?, dtype);
    }
    from_terms(call, terms::ctc(x, &targets, [&steps, &lens], options)?)
}

fn triplet(call: &Call<'_>) -> Result<Vec<Output>> {
    let [anchor, positive, negative] =
        [call.var(at(0, "anchor"))?, call.var(at(1, "positive"))?, call.var(at(2, "negative"))?];
    let options = TripletMarginOptions {
        margin: call.number(named("margin"))?.unwrap_or(1.0),
        order: call.number(named("p"))?.unwrap_or(2.0),
        eps: call.number(named("eps"))?.unwrap_or(1e-6),
        swap: call.flag(named("swap"))?.unwrap_or(false),
    };
    from_terms(call, terms::triplet_margin(anchor, positive, negative, options)?)
}

/// Cross-entropy with classes, or with probabilities of classes.
fn of_logits(call: &Call<'_>, x: Var, place: At) -> Result<Vec<Output>> {
    let Some(target) = call.optional_var(place)? else { return no_form("no target") };
    let weight = call.optional_constant(named("weight"))?;
    let weight = weight.map(|weight| weight.to_dtype(x.value().dtype())).transpose()?;
    let options = CrossEntropyOptions {
        ignore_index: ignore_index(call)?,
        label_smoothing: call.number(named("label_smoothing"))?.unwrap_or(0.0),
        weight: weight.as_ref(),
    };
    let dtype = call.var(INPUT)?.value().dtype();
    // A single sample is a batch of one.
    let is_alone = x.shape().len() == 1;
    let in_batch = |x: Var| if is_alone { x.unsqueeze(0) } else { Ok(x) };
    let (x, target) = (in_batch(x)?, in_batch(target)?);
    if target.value().dtype().is_float() {
        let target = target.to_dtype(x.value().dtype())?;
        if !is_unreduced(call)? && !target.needs_gradient() {
            let loss = soft_cross_entropy(x, target.value(), options)?;
            return reduced(call, loss, dtype);
        }
        // Only the loss of each row has a gradient of the target.
        let y = terms::soft_cross_entropy(x, target, options)?;
        let y = if is_alone { y.squeeze(0)? } else { y };
        return from_terms_in(call, y, dtype);
    }
    if is_unreduced(call)? {
        let y = terms::cross_entropy(x, target.value(), options)?;
        let y = if is_alone { y.squeeze(0)? } else { y };
        return one(y.to_dtype(dtype)?);
    }
    reduced(call, cross_entropy_with(x, target.value(), options)?, dtype)
}

/// The loss of an output layer, by the fused operation. Options that the fused operation lacks use
/// the whole logits.
fn linear(call: &Call<'_>) -> Result<Vec<Output>> {
    const LABELS: At = at(2, "target");
    let [x, w] = [call.var(INPUT)?, call.var(at(1, "linear_weight"))?];
    let target = call.optional_var(LABELS)?;
    let bias = call.optional_var(named("linear_bias"))?;
    let of_rows = w.shape().len() == 2 && target.is_some_and(|x| !x.value().dtype().is_float());
    if of_rows && call.value(named("weight")).is_none() && !is_unreduced(call)? {
        let options =
            LinearCrossEntropyOptions { ignore_index: ignore_index(call)?, ..Default::default() };
        let (target, dtype) = (call.constant(LABELS)?, x.value().dtype());
        return reduced(call, linear_cross_entropy(x, w, bias, &target, options)?, dtype);
    }
    let Some((&inputs, classes)) = w.shape().split_last() else { return no_form("no weight") };
    if x.shape().len() == 1 && classes.len() > 1 {
        return no_such(call, "several classes for one row without a batch");
    }
    let (classes, rows) = (classes.to_vec(), classes.iter().product::<usize>());
    let logits = [&x.shape()[..x.shape().len().saturating_sub(1)], &classes].concat();
    let bias = bias.map(|bias| bias.reshape([rows])).transpose()?;
    // The fused operation computes logits of half types in f32, too.
    let dtype = x.value().dtype().computed();
    let wide = |x: Var| x.to_dtype(dtype);
    let bias = bias.map(wide).transpose()?;
    let y = wide(x)?.linear(wide(w)?.reshape([rows, inputs])?, bias)?;
    of_logits(call, y.reshape(&logits[..])?, LABELS)
}

fn linear_in_chunks(call: &Call<'_>) -> Result<Vec<Output>> {
    // The option sets how PyTorch splits the product. lowtide chooses its own split.
    call.value(named("options"));
    linear(call)
}

fn ignore_index(call: &Call<'_>) -> Result<i64> {
    Ok(call.integer(named("ignore_index"))?.map_or(-100, |index| index as i64))
}

fn pair(call: &Call<'_>, loss: PairLoss) -> Result<Vec<Output>> {
    let (x, target): (Var, Tensor) = (call.var(INPUT)?, call.constant(TARGET)?);
    if call.value(named("weight")).is_some() || is_unreduced(call)? {
        return weighted(call, terms::pair_loss(x, &target, loss)?);
    }
    let dtype = x.value().dtype();
    reduced(call, pair_loss(x, &target, loss)?, dtype)
}

/// Terms times their weights. lowtide has no argument for the weights.
fn weighted(call: &Call<'_>, terms: Var) -> Result<Vec<Output>> {
    let y = match call.optional_var(named("weight"))? {
        Some(weight) => terms.mul(weight)?,
        None => terms,
    };
    from_terms(call, y)
}

fn is_unreduced(call: &Call<'_>) -> Result<bool> {
    Ok(call.text(named("reduction"))? == Some("none"))
}

/// The terms, their sum, their mean, or their sum divided by the batch size. Sums of half types are
/// in f32, as in lowtide's losses.
fn from_terms(call: &Call<'_>, terms: Var) -> Result<Vec<Output>> {
    let dtype = terms.value().dtype();
    from_terms_in(call, terms, dtype)
}

/// [`from_terms`] with the result in another type.
fn from_terms_in(call: &Call<'_>, terms: Var, dtype: DType) -> Result<Vec<Output>> {
    if is_unreduced(call)? {
        return one(terms.to_dtype(dtype)?);
    }
    let count = Tensor::full(
        terms.value().device(),
        [],
        dtype.computed(),
        terms.value().element_count() as f64,
    )?;
    reduced(call, Loss { sum: terms.to_dtype(dtype.computed())?.sum_all()?, count }, dtype)
}

/// The sum, the mean, or the sum divided by the batch size. The result of half types is f32 in
/// lowtide, and the input's type in PyTorch.
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
