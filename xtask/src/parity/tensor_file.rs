//! The tensors of a safetensors file: the length of a header, the header as JSON, the values.

use std::collections::BTreeMap;

use serde_json::Value;

/// A tensor of a file, as bytes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tensor<'a> {
    /// The type's name in the file: `F32`, `BF16`, `I64`.
    pub(super) dtype: String,
    pub(super) shape: Vec<u64>,
    data: &'a [u8],
}

/// The tensors of a file by their names.
///
/// # Errors
/// One line about bytes that are no safetensors file, or a tensor whose bytes do not fit its shape.
pub(super) fn read(bytes: &[u8]) -> Result<BTreeMap<String, Tensor<'_>>, String> {
    let (header, data) = parts(bytes).ok_or("the header is longer than the file")?;
    let header: BTreeMap<String, Value> =
        serde_json::from_slice(header).map_err(|error| format!("the header: {error}"))?;
    let named = header.into_iter().filter(|(name, _)| name != "__metadata__");
    let tensors = named.map(|(name, entry)| {
        let tensor = tensor(&entry, data).ok_or_else(|| format!("{name}: no entry of a tensor"))?;
        Ok((name, tensor))
    });
    tensors.collect()
}

fn parts(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)
}

fn tensor<'a>(entry: &Value, data: &'a [u8]) -> Option<Tensor<'a>> {
    let offset = |index: usize| usize::try_from(entry["data_offsets"][index].as_u64()?).ok();
    let tensor = Tensor {
        dtype: entry["dtype"].as_str()?.to_owned(),
        shape: entry["shape"].as_array()?.iter().map(Value::as_u64).collect::<Option<_>>()?,
        data: data.get(offset(0)?..offset(1)?)?,
    };
    let count = tensor.shape.iter().try_fold(1_u64, |count, len| count.checked_mul(*len))?;
    (count.checked_mul(tensor.element_bytes()?)? == tensor.data.len() as u64).then_some(tensor)
}

impl Tensor<'_> {
    fn element_bytes(&self) -> Option<u64> {
        Some(match self.dtype.as_str() {
            "F64" | "I64" | "U64" => 8,
            "F32" | "I32" | "U32" => 4,
            "F16" | "BF16" | "I16" | "U16" => 2,
            "U8" | "I8" | "BOOL" => 1,
            _ => return None,
        })
    }

    /// The values of a float tensor, or the bytes of another tensor as numbers.
    pub(super) fn numbers(&self) -> Vec<f64> {
        let data = self.data;
        match self.dtype.as_str() {
            "F64" => data.as_chunks().0.iter().map(|x| f64::from_le_bytes(*x)).collect(),
            "F32" => data.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x).into()).collect(),
            "F16" => data.as_chunks().0.iter().map(|x| from_f16(u16::from_le_bytes(*x))).collect(),
            "BF16" => {
                data.as_chunks().0.iter().map(|x| from_bf16(u16::from_le_bytes(*x))).collect()
            }
            _ => data.iter().map(|&byte| byte.into()).collect(),
        }
    }
}

/// The value of a half of IEEE 754: a sign, 5 bits of exponent, 10 of fraction.
fn from_f16(bits: u16) -> f64 {
    let (exponent, fraction) = (bits >> 10 & 0x1f, f64::from(bits & 0x3ff));
    let size = match exponent {
        0 => fraction * 2.0_f64.powi(-24),
        0x1f if fraction == 0.0 => f64::INFINITY,
        0x1f => f64::NAN,
        _ => (1.0 + fraction / 1024.0) * 2.0_f64.powi(i32::from(exponent) - 15),
    };
    if bits >> 15 == 0 { size } else { -size }
}

/// The value of the upper half of an f32.
fn from_bf16(bits: u16) -> f64 {
    f32::from_bits(u32::from(bits) << 16).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_types_have_the_values_of_their_bits() {
        for (bits, value) in [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x3555, 0.333_251_953_125),
            (0x7bff, 65504.0),
            (0x0400, 2.0_f64.powi(-14)),
            (0x0001, 2.0_f64.powi(-24)),
            (0x8000, 0.0),
            (0xfc00, f64::NEG_INFINITY),
        ] {
            assert_eq!(from_f16(bits), value, "{bits:#x}");
        }
        assert!(from_f16(0x7e00).is_nan());
        assert_eq!((from_bf16(0x3f80), from_bf16(0xc049)), (1.0, -3.140_625));
    }

    #[test]
    fn tensor_whose_bytes_are_not_those_of_its_shape_is_refused() {
        let file = |dtype: &str, end: usize| {
            let header =
                format!(r#"{{"x":{{"dtype":"{dtype}","shape":[3],"data_offsets":[0,{end}]}}}}"#);
            let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.extend(header.into_bytes());
            bytes.extend([0; 12]);
            bytes
        };
        assert!(read(&file("F32", 12)).is_ok());
        for (dtype, end) in [("F32", 0), ("F32", 8), ("F16", 12), ("F32", 16), ("F7", 12)] {
            assert!(read(&file(dtype, end)).is_err(), "{dtype} in {end} bytes");
        }
    }
}
