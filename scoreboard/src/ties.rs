//! Sorts and choices of one element of many, where the peer leaves open the order of equal ones.

use lowtide_tensor::Tensor;
use serde_json::Value;

use crate::case::{Case, Numbers, Values};

/// The operations that sort or choose: the position of their dimension, its default, and which
/// result holds places.
const SORTS: [(&str, usize, i64, usize); 6] = [
    ("argsort", 1, -1, 0),
    ("kthvalue", 2, -1, 1),
    ("mode", 1, -1, 1),
    ("msort", 1, 0, 1),
    ("sort", 1, -1, 1),
    ("topk", 2, -1, 1),
];

/// Whether values are the peer's, and places lead to elements that are equal to those that the
/// peer's lead to: then only which of equal elements stands where is another.
pub(crate) fn agree(case: &Case, file: &[u8], outputs: &[Tensor]) -> bool {
    let Some((_, position, default, places)) = SORTS.iter().find(|(op, ..)| *op == case.op) else {
        return false;
    };
    if case.options.get("stable") == Some(&Value::Bool(true)) {
        return false;
    }
    let dim = case.arguments.get(*position).or(case.options.get("dim"));
    let dim = dim.and_then(Value::as_i64).unwrap_or(*default);
    let x = case.tensors[0].values(file);
    let axis = if dim < 0 { dim + x.shape.len() as i64 } else { dim };
    let Ok(axis) = usize::try_from(axis) else { return false };
    outputs.iter().zip(&case.outputs).enumerate().all(|(index, (found, expected))| {
        let (Ok(found), Some(expected)) = (Values::of(found), case.tensor(expected)) else {
            return false;
        };
        let expected = expected.values(file);
        if found.shape != expected.shape || found.dtype != expected.dtype {
            return false;
        }
        match index == *places {
            true => {
                let found = pointed_at(&x, &found, axis);
                found.is_some() && found == pointed_at(&x, &expected, axis)
            }
            false => keys(&found) == keys(&expected),
        }
    })
}

/// What makes elements equal: NaN to NaN, and 0 to -0.
fn keys(values: &Values) -> Vec<i64> {
    match &values.numbers {
        Numbers::Floats(values) => {
            let key = |&x: &f64| if x.is_nan() { i64::MAX } else { (x + 0.0).to_bits() as i64 };
            values.iter().map(key).collect()
        }
        Numbers::Integers(values) => values.clone(),
    }
}

/// The keys of the elements of `x` that places along `axis` lead to; none where one leads outside
/// or two of a row lead to the same.
fn pointed_at(x: &Values, places: &Values, axis: usize) -> Option<Vec<i64>> {
    let Numbers::Integers(numbers) = &places.numbers else { return None };
    let len = *x.shape.get(axis)?;
    // One place of a row, where the dimension is not kept.
    let kept = if places.shape.len() < x.shape.len() { 1 } else { places.shape[axis] };
    let inner: usize = x.shape[axis + 1..].iter().product();
    let keys = keys(x);
    let mut seen = vec![false; keys.len()];
    let mut found = Vec::with_capacity(numbers.len());
    for (at, &place) in numbers.iter().enumerate() {
        let (row, column) = (at / (kept * inner), at % inner);
        let place = usize::try_from(place).ok().filter(|&place| place < len)?;
        let element = (row * len + place) * inner + column;
        if std::mem::replace(&mut seen[element], true) {
            return None;
        }
        found.push(keys[element]);
    }
    Some(found)
}
