//! Quantised weights in the format of bitsandbytes: NF4 and int8 by rows, each a few tensors with
//! the names of `QuantState.as_dict` and of `Linear8bitLt`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use lowtide_nn::WeightsProblem;
use lowtide_tensor::{DType, NF4_VALUES, QuantFormat, Quantized, Shape, Tensor};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use crate::error::Result;

/// The end of the name of the tensor that describes an NF4 weight.
const STATE: &str = "quant_state.bitsandbytes__nf4";
/// Number of elements that share a scale, and number of scales that share a second scale, in
/// [`QuantFormat::Nf4`].
const BLOCK_LENS: [u64; 2] = [64, 256];

/// A quantised weight in a file.
pub(super) struct StoredWeight<'a> {
    pub(super) format: QuantFormat,
    pub(super) shape: Shape,
    /// The bytes of [`QuantFormat::parts`], in their order.
    pub(super) parts: Vec<Cow<'a, [u8]>>,
}

/// Takes the tensors of the weight of `layer` from the tensors of a file, if the weight is
/// quantised.
///
/// # Errors
/// The fault of the weight.
pub(super) fn take<'a>(
    stored: &mut BTreeMap<String, TensorView<'a>>,
    layer: &str,
    shape: Shape,
) -> std::result::Result<Option<StoredWeight<'a>>, WeightsProblem> {
    let mut part = |name: &str| stored.remove(&format!("{layer}.{name}"));
    if let Some(scales) = part("SCB") {
        // Always 0: the row order.
        part("weight_format");
        let codes = part("weight").ok_or(WeightsProblem::Missing)?;
        let format = QuantFormat::Int8Rows;
        let parts = checked(format, shape, vec![(codes, Dtype::I8), (scales, Dtype::F32)])?;
        return Ok(Some(StoredWeight { format, shape, parts }));
    }
    let Some(state) = part(&format!("weight.{STATE}")) else { return Ok(None) };
    let mut needed = |name: &str| part(name).ok_or(WeightsProblem::Missing);
    let state: Value = serde_json::from_slice(state.data()).unwrap_or_default();
    let double = state.get("nested_blocksize").is_some();
    let offset = is_ours(&state, shape, double)?;
    let mut found = vec![
        (needed("weight")?, Dtype::U8),
        (needed("weight.absmax")?, if double { Dtype::U8 } else { Dtype::F32 }),
    ];
    if double {
        found.push((needed("weight.nested_absmax")?, Dtype::F32));
        found.push((needed("weight.nested_quant_map")?, Dtype::F32));
    }
    let values = needed("weight.quant_map")?;
    if values.data() != bytes_of(&NF4_VALUES) {
        return Err(wrong("other values than those of NF4"));
    }
    let format = QuantFormat::Nf4 { double };
    let mut parts = checked(format, shape, found)?;
    parts.extend(offset.map(|offset| Cow::Owned(offset.to_le_bytes().to_vec())));
    Ok(Some(StoredWeight { format, shape, parts }))
}

/// Checks that a description fits [`QuantFormat`]. Returns the offset of the scales, if they are
/// quantised too.
fn is_ours(
    state: &Value,
    shape: Shape,
    double: bool,
) -> std::result::Result<Option<f32>, WeightsProblem> {
    let sizes = state.get("shape").and_then(Value::as_array);
    let sizes = sizes.map(|sizes| sizes.iter().filter_map(Value::as_u64).collect::<Vec<_>>());
    // No model has a size that the cast would change.
    let sizes: Vec<usize> = sizes.into_iter().flatten().map(|size| size as usize).collect();
    if sizes[..] != shape[..] {
        return Err(WeightsProblem::Shape { found: sizes, expected: shape });
    }
    let has_blocks = |name: &str, len: u64| state.get(name).and_then(Value::as_u64) == Some(len);
    if !has_blocks("blocksize", BLOCK_LENS[0]) {
        return Err(wrong("blocks of another size"));
    }
    if !double {
        return Ok(None);
    }
    let offset = state.get("nested_offset").and_then(Value::as_f64).filter(|it| it.is_finite());
    match offset.filter(|_| has_blocks("nested_blocksize", BLOCK_LENS[1])) {
        Some(offset) => Ok(Some(offset as f32)),
        None => Err(wrong("scales in blocks of another size, or without an offset")),
    }
}

/// The bytes of the tensors, after a check of their types and sizes for a weight of this shape.
fn checked<'a>(
    format: QuantFormat,
    shape: Shape,
    found: Vec<(TensorView<'a>, Dtype)>,
) -> std::result::Result<Vec<Cow<'a, [u8]>>, WeightsProblem> {
    let parts = format.parts(shape).map_err(|_| wrong("a weight that is no matrix"))?;
    let bytes = found.into_iter().zip(&parts).map(|((view, dtype), part)| {
        if view.dtype() != dtype {
            let (found, expected) = (format!("{:?}", view.dtype()), format!("{dtype:?}"));
            return Err(WeightsProblem::Type { found, expected });
        }
        // Codes are a column in the file and a row in memory, so only the number of bytes is
        // compared.
        if view.data().len() != part.shape.element_count() * part.dtype.size_bytes() {
            let found = view.shape().to_vec();
            return Err(WeightsProblem::Shape { found, expected: part.shape });
        }
        Ok(Cow::Borrowed(view.data()))
    });
    bytes.collect()
}

fn wrong(found: &str) -> WeightsProblem {
    let expected = "NF4 in blocks of 64, scales in blocks of 256".to_owned();
    WeightsProblem::Type { found: found.to_owned(), expected }
}

/// A tensor of a weight, as it is written.
pub(super) struct WrittenPart {
    pub(super) name: String,
    pub(super) tensor: Tensor,
    pub(super) shape: Vec<usize>,
    pub(super) dtype: Dtype,
}

/// The tensors in a file for the weight of `layer`, whose products are in `dtype`; `None` for
/// formats that bitsandbytes lacks.
///
/// # Errors
/// `OutOfMemory`, and errors of the device for a copy.
pub(super) fn written(
    layer: &str,
    weight: &Quantized,
    dtype: DType,
) -> Result<Option<Vec<WrittenPart>>> {
    let part = |name: &str, tensor: &Tensor, shape: &[usize], dtype| WrittenPart {
        name: format!("{layer}.{name}"),
        tensor: tensor.clone(),
        shape: shape.to_vec(),
        dtype,
    };
    let like = |name: &str, tensor: &Tensor, dtype| part(name, tensor, tensor.shape(), dtype);
    let device = weight.device();
    let parts = weight.parts();
    let QuantFormat::Nf4 { double } = weight.format() else {
        if weight.format() != QuantFormat::Int8Rows {
            return Ok(None);
        }
        let order = Tensor::from_slice(device, [1], &[0_u8])?;
        return Ok(Some(vec![
            like("weight", &parts[0], Dtype::I8),
            like("SCB", &parts[1], Dtype::F32),
            part("weight_format", &order, &[], Dtype::U8),
        ]));
    };
    let values = Tensor::from_slice(device, [NF4_VALUES.len()], &NF4_VALUES)?;
    let mut state = json!({
        "quant_type": "nf4",
        "blocksize": BLOCK_LENS[0],
        "dtype": torch_name(dtype),
        "shape": weight.shape()[..],
    });
    let mut written = vec![
        part("weight", &parts[0], &[parts[0].element_count(), 1], Dtype::U8),
        like("weight.absmax", &parts[1], if double { Dtype::U8 } else { Dtype::F32 }),
        like("weight.quant_map", &values, Dtype::F32),
    ];
    if double {
        written.push(like("weight.nested_absmax", &parts[2], Dtype::F32));
        written.push(like("weight.nested_quant_map", &parts[3], Dtype::F32));
        let offset = f64::from(parts[4].item::<f32>()?);
        let more = [
            ("nested_blocksize", json!(BLOCK_LENS[1])),
            ("nested_dtype", json!("float32")),
            ("nested_offset", json!(offset)),
        ];
        for (key, value) in more {
            state[key] = value;
        }
    }
    let state =
        Tensor::from_slice(device, [state.to_string().len()], state.to_string().as_bytes())?;
    written.push(like(&format!("weight.{STATE}"), &state, Dtype::U8));
    Ok(Some(written))
}

fn torch_name(dtype: DType) -> &'static str {
    match dtype {
        DType::BF16 => "bfloat16",
        DType::F16 => "float16",
        DType::F64 => "float64",
        _ => "float32",
    }
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
