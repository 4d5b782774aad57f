//! Reductions, scans, sorting, division and gradients of special values, against PyTorch's values
//! in `tests/fixtures/reductions.safetensors`.

use lowtide_tensor::testing::functions;
use lowtide_tensor::{DType, SortOrder, Tensor, TensorResult as Result};

use crate::common::{download, scalars};
use crate::golden::{differences, fixture};

type Function = fn(&Tensor) -> Result<Tensor>;
type Pair = fn(&Tensor, &Tensor) -> Result<Tensor>;

const UP: SortOrder = SortOrder::Ascending;
const DOWN: SortOrder = SortOrder::Descending;

/// Functions of the rows of `x`, with the number of roundings that may differ.
const OVER_ROWS: &[(&str, Function, f64)] = &[
    ("sum", |x| x.sum(&[1]), 2.0),
    ("prod", |x| x.prod(&[1]), 4.0),
    ("amax", |x| x.amax(&[1]), 0.0),
    ("amin", |x| x.amin(&[1]), 0.0),
    ("any", |x| x.any(&[1]), 0.0),
    ("all", |x| x.all(&[1]), 0.0),
    ("count_nonzero", |x| x.count_nonzero(&[1]), 0.0),
    ("argmax", |x| x.argmax_axis(1), 0.0),
    ("argmin", |x| x.argmin_axis(1), 0.0),
    ("max", |x| Ok(x.max(1)?.0), 0.0),
    ("min", |x| Ok(x.min(1)?.0), 0.0),
    ("cumsum", |x| x.cumsum(1), 2.0),
    ("cumprod", |x| x.cumprod(1), 4.0),
    ("sort", |x| Ok(x.sort(1, UP)?.0), 0.0),
    ("argsort", |x| x.argsort(1, UP), 0.0),
    ("sort_down", |x| Ok(x.sort(1, DOWN)?.0), 0.0),
    ("argsort_down", |x| x.argsort(1, DOWN), 0.0),
    ("topk", |x| Ok(x.topk(3, 1, DOWN)?.0), 0.0),
    ("topk_smallest", |x| Ok(x.topk(3, 1, UP)?.0), 0.0),
    ("mean", |x| x.mean(&[1]), 2.0),
    ("logsumexp", |x| x.logsumexp(&[1]), 8.0),
    ("var", |x| x.var(&[1], 1.0), 4.0),
    ("std", |x| x.std(&[1], 0.0), 4.0),
    ("var_none_left", |x| x.var(&[1], 5.0), 4.0),
    ("norm_0.0", |x| x.norm(&[1], 0.0), 0.0),
    ("norm_1.0", |x| x.norm(&[1], 1.0), 4.0),
    ("norm_2.0", |x| x.norm(&[1], 2.0), 4.0),
    ("norm_3.0", |x| x.norm(&[1], 3.0), 8.0),
    ("norm_inf", |x| x.norm(&[1], f64::INFINITY), 0.0),
];

const PAIRS: &[(&str, Pair)] = &[
    ("atan2", Tensor::atan2),
    ("div_floor", Tensor::div_floor),
    ("div_trunc", Tensor::div_trunc),
    ("remainder", Tensor::remainder),
];

#[test]
fn reductions_scans_and_sorting_agree_with_pytorch() {
    let fixture = fixture("reductions");
    let mut wrong = Vec::new();
    for dtype in DType::ALL {
        let Some(x) = fixture.get(&format!("x.{dtype}")) else { continue };
        let mut checked = 0;
        for &(name, function, roundings) in OVER_ROWS {
            let Some(expected) = fixture.get(&format!("{name}.{dtype}")) else { continue };
            checked += 1;
            let found = function(x).unwrap();
            // PyTorch returns truth values of bytes as bytes.
            let expected = &expected.to_dtype(found.dtype()).unwrap();
            let found =
                if found.layout().is_contiguous() { found } else { found.copied().unwrap() };
            // In PyTorch the sign of a sum of zeros depends on the order of the zeros.
            let is_zero = |x: f64, y: f64| x == 0.0 && y == 0.0;
            for (at, found, expected) in differences(&found, expected, roundings) {
                if !is_zero(found, expected) {
                    wrong.push(format!("{name} of {dtype} at {at}: {found:e}, not {expected:e}"));
                }
            }
        }
        assert!(checked >= 19, "{checked} of {dtype}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn more_functions_agree_with_pytorch() {
    let fixture = fixture("reductions");
    let mut wrong = Vec::new();
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let x = &fixture[&format!("v.{dtype}")];
        let mut checked = 0;
        for function in functions() {
            let name = function.name;
            let Some(expected) = fixture.get(&format!("{name}.{dtype}")) else { continue };
            checked += 1;
            let found = (function.run)(x, &scalars(function.scalars)).unwrap();
            for (at, found, expected) in differences(&found, expected, 8.0) {
                let x = download(x).values[at];
                // Both numbers are small multiples of the smallest f32.
                if (found - expected).abs() < 1e-42 && dtype == DType::F32 {
                    continue;
                }
                wrong.push(format!("{name}({x:e}) of {dtype}: {found:e}, PyTorch {expected:e}"));
            }
        }
        assert!(checked >= 13, "{checked} of {dtype}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn more_pairs_agree_with_pytorch() {
    let fixture = fixture("reductions");
    let mut wrong = Vec::new();
    for dtype in DType::ALL {
        for &(name, pair) in PAIRS {
            let Some(expected) = fixture.get(&format!("{name}.{dtype}")) else { continue };
            let [a, b] = ["a", "b"].map(|name| &fixture[&format!("{name}.{dtype}")]);
            for (at, found, expected) in differences(&pair(a, b).unwrap(), expected, 4.0) {
                let [a, b] = [a, b].map(|x| download(x).values[at]);
                // PyTorch rounds a quotient to the half type before it truncates.
                if name == "div_trunc" && dtype.size_bytes() == 2 && (a / b).trunc() == found {
                    continue;
                }
                let line = format!("{name}({a:e}, {b:e}) of {dtype}: {found:e}, not {expected:e}");
                wrong.push(line);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn gradients_agree_with_pytorch() {
    let fixture = fixture("reductions");
    let mut wrong = Vec::new();
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let [dy, x] = ["dy", "g"].map(|name| &fixture[&format!("{name}.{dtype}")]);
        let mut checked = 0;
        for gradient in functions().filter_map(|function| function.gradient.as_ref()) {
            let name = gradient.name;
            let Some(expected) = fixture.get(&format!("{name}.{dtype}")) else { continue };
            checked += 1;
            // PyTorch multiplies by 1/6 in f32.
            if (name, dtype) == ("hardsigmoid_backward", DType::F64) {
                continue;
            }
            let mut scalars = scalars(gradient.scalars);
            if name == "softplus_backward" {
                scalars = vec![2.0, 20.0];
            }
            let found = (gradient.run)(dy, x, &scalars).unwrap();
            let tolerance = 8.0 * crate::common::epsilon(dtype);
            let pairs = download(&found).values.into_iter().zip(download(expected).values);
            for (at, (found, expected)) in pairs.enumerate() {
                if (found - expected).abs() > tolerance * expected.abs().max(1.0) {
                    let x = download(x).values[at];
                    wrong.push(format!("{name}({x:e}) of {dtype}: {found:e}, not {expected:e}"));
                }
            }
        }
        assert!(checked >= 14, "{checked} of {dtype}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
