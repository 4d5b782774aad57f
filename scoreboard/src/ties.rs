//! Sorts and selections of one element, where the peer does not define the order of equal elements.

use lowtide_tensor::Tensor;
use serde_json::Value;

use crate::case::{Case, Numbers, Values};

/// An operation that sorts or selects.
struct Sort {
    op: &'static str,
    /// The position of the dimension among the arguments.
    position: usize,
    default_dim: i64,
    /// The index of the result with places.
    places: usize,
}

const SORTS: &[Sort] = &[
    Sort { op: "argsort", position: 1, default_dim: -1, places: 0 },
    Sort { op: "kthvalue", position: 2, default_dim: -1, places: 1 },
    Sort { op: "mode", position: 1, default_dim: -1, places: 1 },
    Sort { op: "msort", position: 1, default_dim: 0, places: 1 },
    Sort { op: "sort", position: 1, default_dim: -1, places: 1 },
    Sort { op: "topk", position: 2, default_dim: -1, places: 1 },
];

/// True if the values equal the peer's, and the places lead to elements that equal the elements at
/// the peer's places. Then only the order of equal elements differs.
pub(crate) fn agree(case: &Case, file: &[u8], outputs: &[Tensor]) -> bool {
    let Some(sort) = SORTS.iter().find(|sort| sort.op == case.op) else { return false };
    if case.options.get("stable") == Some(&Value::Bool(true)) {
        return false;
    }
    let dim = case.arguments.get(sort.position).or(case.options.get("dim"));
    let dim = dim.and_then(Value::as_i64).unwrap_or(sort.default_dim);
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
        if index == sort.places {
            let found = pointed_at(&x, &found, axis);
            found.is_some() && found == pointed_at(&x, &expected, axis)
        } else {
            keys(&found) == keys(&expected)
        }
    })
}

/// Keys that are equal for equal elements: NaN equals NaN, and 0 equals -0.
fn keys(values: &Values) -> Vec<i64> {
    match &values.numbers {
        Numbers::Floats(values) => {
            let key = |&x: &f64| if x.is_nan() { i64::MAX } else { (x + 0.0).to_bits() as i64 };
            values.iter().map(key).collect()
        }
        Numbers::Integers(values) => values.clone(),
    }
}

/// The keys of the elements of `x` at places along `axis`. `None` if a place is outside, or if two
/// places of a row are equal.
fn pointed_at(x: &Values, places: &Values, axis: usize) -> Option<Vec<i64>> {
    let Numbers::Integers(numbers) = &places.numbers else { return None };
    let len = *x.shape.get(axis)?;
    // A row has one place if the dimension is not kept.
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
