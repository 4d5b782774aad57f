//! `quantization_config`: the format of quantised weights of linear layers in the files.

use lowtide_tensor::QuantFormat;
use serde_json::{Value, json};

use super::Entries;
use crate::error::Result;

/// The name of the entry in a configuration.
pub(super) const ENTRY: &str = "quantization_config";

/// Entries that do not change the weights: settings of other programs, and repetitions of another
/// entry.
const IGNORED: [&str; 7] = [
    "_load_in_4bit",
    "_load_in_8bit",
    "bnb_4bit_compute_dtype",
    "llm_int8_enable_fp32_cpu_offload",
    "llm_int8_has_fp16_weight",
    "llm_int8_skip_modules",
    "llm_int8_threshold",
];

/// The format of the weights, if they are quantised.
pub(super) fn quantization(entries: &Entries) -> Result<Option<QuantFormat>> {
    let Some(entries) = entries.inside(ENTRY)? else { return Ok(None) };
    let only = |name: &'static str, built: &str| match entries.optional_text(name)? {
        Some(text) if text != built => Err(entries.unsupported(name, &Value::from(text))),
        _ => Ok(()),
    };
    entries.text("quant_method")?;
    only("quant_method", "bitsandbytes")?;
    only("bnb_4bit_quant_storage", "uint8")?;
    let (in_8, in_4) = (entries.flag("load_in_8bit", false)?, entries.flag("load_in_4bit", false)?);
    let double = entries.flag("bnb_4bit_use_double_quant", false)?;
    // Without an entry the kind is FP4, which has no effect on weights that are not in 4 bits.
    let kind = entries.optional_text("bnb_4bit_quant_type")?.unwrap_or("fp4");
    entries.check_all_read(&IGNORED)?;
    match (in_8, in_4, kind) {
        (true, false, _) => Ok(Some(QuantFormat::Int8Rows)),
        (false, true, "nf4") => Ok(Some(QuantFormat::Nf4 { double })),
        (false, false, _) => Ok(None),
        _ => Err(entries.unsupported("bnb_4bit_quant_type", &Value::from(kind))),
    }
}

/// The entry for weights in `format`; `None` for a format that files do not have.
pub(super) fn entry(format: QuantFormat) -> Option<Value> {
    let (in_8, double) = match format {
        QuantFormat::Int8Rows => (true, false),
        QuantFormat::Nf4 { double } => (false, double),
        QuantFormat::Q8_0 | QuantFormat::Q4_0 => return None,
    };
    Some(json!({
        "quant_method": "bitsandbytes",
        "load_in_8bit": in_8,
        "load_in_4bit": !in_8,
        "bnb_4bit_compute_dtype": "bfloat16",
        "bnb_4bit_quant_storage": "uint8",
        "bnb_4bit_quant_type": if in_8 { "fp4" } else { "nf4" },
        "bnb_4bit_use_double_quant": double,
        "llm_int8_threshold": 6.0,
    }))
}
