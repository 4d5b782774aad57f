//! Errors as JSON, for programs that read them.

use lowtide_trainer::{
    DoesNotFit, Knobs, NotFinite, Remedy, TrainError, categories_json, ledger_json,
};
use serde_json::{Value, json};

/// The error as `{"error": LINE, "does_not_fit": {..}, "not_finite": {..}, "out_of_memory": {..}}`.
/// Parts that do not apply are left out.
pub(crate) fn error_json(error: &TrainError) -> Value {
    let does_not_fit = match error {
        TrainError::DoesNotFit(error) => Some(does_not_fit_json(error)),
        _ => None,
    };
    let not_finite = match error {
        TrainError::NotFinite(error) => Some(not_finite_json(error)),
        _ => None,
    };
    json!({
        "error": error.one_line(),
        "does_not_fit": does_not_fit,
        "not_finite": not_finite,
        "out_of_memory": error.ledger().map(ledger_json),
    })
}

pub(crate) fn does_not_fit_json(error: &DoesNotFit) -> Value {
    let fields = json!({
        "budget_bytes": error.budget_bytes,
        "needed_bytes": error.needed_bytes,
        "missing_bytes": error.missing_bytes(),
        "peak_bytes_by_category": categories_json(error.category_peaks.iter().copied()),
        "coupled_in": error.coupling.as_ref().map(ToString::to_string),
        "step": error.step,
        "remedies": error.remedies.iter().map(remedy_json).collect::<Vec<_>>(),
    });
    with_knobs(error.knobs, fields)
}

/// The object `fields` with the knobs as further members.
pub(crate) fn with_knobs(knobs: Knobs, mut fields: Value) -> Value {
    let knobs = serde_json::to_value(knobs).expect("numbers by names");
    if let (Value::Object(fields), Value::Object(knobs)) = (&mut fields, knobs) {
        fields.extend(knobs);
    }
    fields
}

fn not_finite_json(error: &NotFinite) -> Value {
    json!({
        "step": error.step,
        "samples": error.samples,
        "began_at": error.anomaly.as_ref().map(ToString::to_string),
    })
}

fn remedy_json(remedy: &Remedy) -> Value {
    let (kind, value) = match *remedy {
        Remedy::MicroBatch(len) => ("micro_batch", json!({ "samples": len })),
        Remedy::Budget(bytes) => ("budget", json!({ "needed_bytes": bytes })),
        Remedy::ProcessBudget(bytes) => ("process_budget", json!({ "needed_bytes": bytes })),
        Remedy::OffloadBudget(bytes) => ("offload_budget", json!({ "needed_bytes": bytes })),
        Remedy::StatelessOptimizer { needed_bytes } => {
            ("stateless_optimizer", json!({ "needed_bytes": needed_bytes }))
        }
        Remedy::EightBitStates { needed_bytes } => {
            ("eight_bit_states", json!({ "needed_bytes": needed_bytes }))
        }
        Remedy::HalfPrecision { needed_bytes } => {
            ("half_precision", json!({ "needed_bytes": needed_bytes }))
        }
    };
    json!({ "kind": kind, "text": remedy.to_string(), "value": value })
}
