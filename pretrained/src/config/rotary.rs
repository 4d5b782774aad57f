//! The angles of a configuration, from `rope_parameters`, or from `rope_theta` and `rope_scaling`
//! of older files.

use lowtide_nn::{RotaryEmbedding, RotaryPairs, RotaryScaling};
use serde_json::Value;

use super::entries::Entries;
use crate::error::{EntryProblem, Result};

/// Values of entries that are absent.
#[derive(Clone, Copy)]
pub(super) struct RotaryDefaults {
    pub(super) base: f64,
    /// The share of a head's features that are rotated.
    pub(super) share: f64,
}

/// The angles of a model with equal angles in all layers, for heads of `head_width`.
pub(super) fn rotary(
    entries: &Entries,
    head_width: usize,
    absent: RotaryDefaults,
) -> Result<RotaryEmbedding> {
    let base = entries.optional_number("rope_theta")?.unwrap_or(absent.base);
    let share = entries.optional_number("partial_rotary_factor")?.unwrap_or(absent.share);
    let absent = RotaryDefaults { base, share };
    let old = entries.inside("rope_scaling")?;
    let new = entries.inside("rope_parameters")?;
    match new.or(old) {
        Some(inside) => of_parameters(&inside, entries, head_width, absent),
        None => checked(entries, plain(head_width, absent), head_width),
    }
}

/// The angles in `parameters`.
pub(super) fn of_parameters(
    parameters: &Entries,
    entries: &Entries,
    head_width: usize,
    absent: RotaryDefaults,
) -> Result<RotaryEmbedding> {
    let base = parameters.optional_number("rope_theta")?.unwrap_or(absent.base);
    let share = parameters.optional_number("partial_rotary_factor")?.unwrap_or(absent.share);
    let old = parameters.optional_text("type")?;
    let kind = parameters.optional_text("rope_type")?.or(old).unwrap_or("default");
    let factor = || parameters.positive("factor");
    let scaling = match kind {
        "default" => None,
        "linear" => Some(RotaryScaling::Linear { factor: factor()? }),
        "llama3" => {
            let context = context(parameters, entries)?;
            let turns =
                [parameters.positive("low_freq_factor")?, parameters.positive("high_freq_factor")?];
            Some(RotaryScaling::ByTurns { factor: factor()?, context, turns })
        }
        "yarn" => Some(yarn(parameters, entries)?),
        other => return Err(parameters.unsupported("rope_type", &Value::from(other))),
    };
    parameters.check_all_read(&[])?;
    let plain = plain(head_width, RotaryDefaults { base, share });
    checked(parameters, RotaryEmbedding { scaling, ..plain }, head_width)
}

/// The context length of the first training.
fn context(parameters: &Entries, entries: &Entries) -> Result<usize> {
    match parameters.optional_count("original_max_position_embeddings")? {
        Some(context) => Ok(context),
        None => entries.count("max_position_embeddings"),
    }
}

fn yarn(parameters: &Entries, entries: &Entries) -> Result<RotaryScaling> {
    parameters.only("truncate", true)?;
    let (factor, context) = (parameters.positive("factor")?, context(parameters, entries)?);
    let turns =
        |name, absent| -> Result<f64> { Ok(parameters.optional_number(name)?.unwrap_or(absent)) };
    let turns = [turns("beta_slow", 1.0)?, turns("beta_fast", 32.0)?];
    let scales = [
        parameters.optional_number("mscale")?.filter(|scale| *scale != 0.0),
        parameters.optional_number("mscale_all_dim")?.filter(|scale| *scale != 0.0),
    ];
    // `_compute_yarn_parameters` of transformers uses this formula.
    let magnitude = |scale: f64| if factor > 1.0 { 0.1 * scale * factor.ln() + 1.0 } else { 1.0 };
    let attention = match (parameters.optional_number("attention_factor")?, scales) {
        (Some(attention), _) => attention,
        (None, [Some(scale), Some(all)]) => magnitude(scale) / magnitude(all),
        (None, _) => magnitude(1.0),
    };
    Ok(RotaryScaling::Yarn { factor, context, turns, attention })
}

fn plain(head_width: usize, RotaryDefaults { base, share }: RotaryDefaults) -> RotaryEmbedding {
    // Rounded down as in transformers. The check finds shares out of range.
    let turned = (share != 1.0).then_some((head_width as f64 * share) as usize);
    RotaryEmbedding { base, turned, ..RotaryEmbedding::new(RotaryPairs::HalfSplit) }
}

fn checked(
    entries: &Entries,
    rotary: RotaryEmbedding,
    head_width: usize,
) -> Result<RotaryEmbedding> {
    let wrong = |error: lowtide_nn::NnError| {
        let (expected, found) = ("angles that heads can be turned by", error.to_string());
        entries.error("rope", EntryProblem::Wrong { expected, found })
    };
    rotary.check(head_width).map_err(wrong)?;
    Ok(rotary)
}
