//! Normalisations and dropout.

use lowtide_nn::{LocalResponseOptions, local_response_norm};
use lowtide_tensor::{DType, Tensor};

use super::node::NodeCall;
use super::{Family, converted};
use crate::call::{Result, Stop, one};
use crate::outcome::Reason;

pub(super) const OPS: Family = &[
    ("BatchNormalization", |node| {
        let (x, w, b) = (node.var(0)?, node.var(1)?, node.var(2)?);
        let (mean, variance) = (node.tensor(3)?, node.tensor(4)?);
        let eps = epsilon(node)?;
        let kept = node.attribute_number("momentum")?.unwrap_or(0.9);
        if !node.flag("training_mode")?.unwrap_or(false) {
            return one(x.batch_norm_fixed([&mean, &variance], Some(w), Some(b), eps)?);
        }
        let (y, [batch_mean, batch_variance]) = x.batch_norm(Some(w), Some(b), eps)?;
        // ONNX's momentum is the share of the old statistics, and its variance is the variance of
        // the batch itself.
        let mean = batch_mean.lerp(&mean, kept)?;
        let variance = batch_variance.lerp(&variance, kept)?;
        Ok(vec![y.into(), mean.into(), variance.into()])
    }),
    ("Dropout", |node| {
        let x = node.var(0)?;
        // Without a seed, ONNX draws a seed. `is_test` belongs to version 1.
        node.ignore(&["seed", "is_test"]);
        let ratio = match node.number(1)? {
            Some(ratio) => ratio,
            None => node.attribute_number("ratio")?.unwrap_or(0.5),
        };
        let is_training = node.number(2)?.is_some_and(|flag| flag != 0.0);
        if is_training && ratio != 0.0 {
            return Err(Stop::NotApplicable(Reason::Random, "dropout".to_owned()));
        }
        let mask = Tensor::ones(node.device(), *x.shape(), DType::Bool)?;
        Ok(vec![x.into(), mask.into()])
    }),
    ("GroupNormalization", |node| {
        let (x, w, b) = (node.var(0)?, node.var(1)?, node.var(2)?);
        node.ignore(&["stash_type"]);
        let groups = node.attribute_count("num_groups")?.unwrap_or(1);
        one(x.group_norm(groups, Some(w), Some(b), epsilon(node)?)?)
    }),
    ("InstanceNormalization", |node| {
        let (x, w, b) = (node.var(0)?, node.var(1)?, node.var(2)?);
        let channels = x.shape().get(1).copied().unwrap_or(0);
        one(x.group_norm(channels, Some(w), Some(b), epsilon(node)?)?)
    }),
    ("LRN", |node| {
        let options = LocalResponseOptions {
            alpha: node.attribute_number("alpha")?.unwrap_or(1e-4),
            beta: node.attribute_number("beta")?.unwrap_or(0.75),
            k: node.attribute_number("bias")?.unwrap_or(1.0),
        };
        let count = node.attribute_count("size")?.unwrap_or(1);
        one(local_response_norm(node.var(0)?, count, options)?)
    }),
    ("LayerNormalization", |node| {
        let (x, w, b) = (node.var(0)?, node.optional_var(1), node.optional_var(2));
        let (rank, eps) = (x.shape().len(), epsilon(node)?);
        let axis = node.attribute_axis("axis", -1, rank)?;
        // lowtide computes in f32 as well.
        node.ignore(&["stash_type"]);
        let y = x.clone().layer_norm(rank - axis, w, b, eps)?;
        if !node.wants(1) && !node.wants(2) {
            return one(y);
        }
        let axes: Vec<usize> = (axis..rank).collect();
        let wide = x.value().dtype().computed();
        let x = converted(node, x, wide)?;
        let mean = x.clone().mean_keep(&axes)?;
        let deviation = x.var_keep(&axes, 0.0)?.add_scalar(eps)?.rsqrt()?;
        Ok(vec![y.into(), mean.into(), deviation.into()])
    }),
    ("LpNormalization", |node| {
        let x = node.var(0)?;
        let axis = node.attribute_axis("axis", -1, x.shape().len())?;
        let order = node.attribute_number("p")?.unwrap_or(2.0);
        one(lowtide_nn::normalize(x, order, axis as isize, 1e-12)?)
    }),
    ("MeanVarianceNormalization", |node| {
        let x = node.var(0)?;
        let axes = node.attribute_integers("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
        let centered = x.clone().sub(x.clone().mean_keep(&axes)?)?;
        one(centered.div(x.std_keep(&axes, 0.0)?.add_scalar(1e-9)?)?)
    }),
    ("RMSNormalization", |node| {
        let (x, w) = (node.var(0)?, node.optional_var(1));
        let rank = x.shape().len();
        let axis = node.attribute_axis("axis", -1, rank)?;
        node.ignore(&["stash_type"]);
        one(x.rms_norm(rank - axis, w, epsilon(node)?)?)
    }),
];

fn epsilon(node: &NodeCall<'_>) -> Result<f64> {
    Ok(node.attribute_number("epsilon")?.unwrap_or(1e-5))
}
