use std::collections::BTreeMap;

use lowtide_tensor::{DType, Tensor, TensorResult as Result};
use safetensors::SafeTensors;

use crate::common::{download, epsilon, file_dtype, shared};

/// The reference values of PyTorch in a file of `tests/fixtures`, by name.
pub(crate) fn fixture(file: &str) -> BTreeMap<String, Tensor> {
    let path = format!("{}/tests/fixtures/{file}.safetensors", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).expect("the fixture is part of the repository");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let upload = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        let dtype = file_dtype(view.dtype());
        (name, Tensor::from_bytes(shared(), view.shape(), dtype, view.data()).unwrap())
    };
    file.tensors().into_iter().map(upload).collect()
}

type Function = fn(&Tensor) -> Result<Tensor>;
type Pair = fn(&Tensor, &Tensor) -> Result<Tensor>;

macro_rules! named {
    ($($name:ident)*) => { [$((stringify!($name), Tensor::$name as Function)),*] };
}

const FUNCTIONS: &[(&str, Function)] = &named! {
    exp expm1 log log1p sqrt rsqrt reciprocal sin cos tan atan tanh erf sigmoid silu gelu
    gelu_tanh floor ceil round trunc abs neg sign relu is_finite is_inf is_nan logical_not
};

const FUNCTIONS_OF_NUMBERS: &[(&str, Function)] = &[
    ("leaky_relu", |x| x.leaky_relu(0.25)),
    ("elu", |x| x.elu(1.5)),
    ("softplus", |x| x.softplus(2.0, 20.0)),
    ("clamp", |x| x.clamp(-1.0, 2.5)),
    ("pow_0.0", |x| x.pow_scalar(0.0)),
    ("pow_0.5", |x| x.pow_scalar(0.5)),
    ("pow_1.0", |x| x.pow_scalar(1.0)),
    ("pow_2.0", |x| x.pow_scalar(2.0)),
    ("pow_3.0", |x| x.pow_scalar(3.0)),
    ("pow_5.0", |x| x.pow_scalar(5.0)),
    ("pow_-0.5", |x| x.pow_scalar(-0.5)),
    ("pow_-1.0", |x| x.pow_scalar(-1.0)),
    ("pow_-2.0", |x| x.pow_scalar(-2.0)),
    ("pow_1.25", |x| x.pow_scalar(1.25)),
];

const PAIRS: &[(&str, Pair)] = &[
    ("add", Tensor::add),
    ("sub", Tensor::sub),
    ("mul", Tensor::mul),
    ("div", Tensor::div),
    ("remainder", Tensor::remainder),
    ("pow", Tensor::pow),
    ("maximum", Tensor::maximum),
    ("minimum", Tensor::minimum),
    ("eq", Tensor::eq),
    ("ne", Tensor::ne),
    ("lt", Tensor::lt),
    ("le", Tensor::le),
    ("gt", Tensor::gt),
    ("ge", Tensor::ge),
    ("logical_and", Tensor::logical_and),
    ("logical_or", Tensor::logical_or),
    ("logical_xor", Tensor::logical_xor),
    ("lerp_low", |a, b| a.lerp(b, 0.25)),
    ("lerp_high", |a, b| a.lerp(b, 0.75)),
    ("addcmul", |a, b| a.addcmul(a, b, 0.5)),
    ("addcdiv", |a, b| a.addcdiv(a, b, 0.5)),
    ("relu_backward", Tensor::relu_backward),
];

/// Compares to within `roundings` of a value of the expected size; infinities, NaN and the sign of
/// 0 exactly. Returns the elements that disagree.
pub(crate) fn differences(
    found: &Tensor,
    expected: &Tensor,
    roundings: f64,
) -> Vec<(usize, f64, f64)> {
    assert_eq!((found.dtype(), found.shape()), (expected.dtype(), expected.shape()));
    let epsilon = epsilon(found.dtype());
    let tiny = match found.dtype() {
        DType::F32 | DType::BF16 => f64::from(f32::MIN_POSITIVE),
        DType::F16 => lowtide_tensor::f16::MIN_POSITIVE.to_f64(),
        _ => 0.0,
    };
    let agrees = |x: f64, y: f64| {
        let is_close = (x - y).abs() <= roundings * epsilon * y.abs().max(tiny);
        (x.is_nan() && y.is_nan())
            || (x == y && x.is_sign_negative() == y.is_sign_negative())
            || (x != y && is_close)
    };
    let (found, expected) = (download(found).values, download(expected).values);
    let pairs = found.into_iter().zip(expected).enumerate();
    pairs.filter(|&(_, (x, y))| !agrees(x, y)).map(|(at, (x, y))| (at, x, y)).collect()
}

/// True where PyTorch is less exact than this crate, or where its types disagree with each other.
fn is_known(name: &str, dtype: DType, x: f64, [found, expected]: [f64; 2]) -> bool {
    match (name, dtype) {
        // PyTorch's erf for `gelu` is good to 1e-6.
        ("gelu", DType::F32) => (found - expected).abs() <= 1e-6,
        // PyTorch computes a power for f16, and a root for other types.
        ("pow_0.5" | "pow_-0.5", DType::F16) => x == 0.0 || x == f64::NEG_INFINITY,
        ("erf", DType::BF16) => x.abs() < 1e-5,
        _ => false,
    }
}

#[test]
fn functions_agree_with_pytorch_at_the_corners() {
    let fixture = fixture("elementwise");
    let mut wrong = Vec::new();
    for dtype in DType::ALL {
        for (name, function) in FUNCTIONS.iter().chain(FUNCTIONS_OF_NUMBERS) {
            let Some(expected) = fixture.get(&format!("{name}.{dtype}")) else { continue };
            let x = &fixture[&format!("x.{dtype}")];
            for (at, found, expected) in differences(&function(x).unwrap(), expected, 4.0) {
                let x = download(x).values[at];
                if is_known(name, dtype, x, [found, expected]) {
                    continue;
                }
                wrong.push(format!("{name}({x:e}) of {dtype}: {found:e}, PyTorch {expected:e}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn pairs_agree_with_pytorch_at_the_corners() {
    let fixture = fixture("elementwise");
    let mut wrong = Vec::new();
    for dtype in DType::ALL {
        for &(name, pair) in PAIRS {
            let Some(expected) = fixture.get(&format!("{name}.{dtype}")) else { continue };
            let [a, b] = ["a", "b"].map(|name| &fixture[&format!("{name}.{dtype}")]);
            for (at, found, expected) in differences(&pair(a, b).unwrap(), expected, 4.0) {
                let [a, b] = [a, b].map(|x| download(x).values[at]);
                // PyTorch's vector loop gives up on such quotients in f32.
                if name == "remainder" && (a / b).abs() > 1e38 && dtype != DType::F64 {
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
fn conversions_are_those_of_pytorch() {
    let fixture = fixture("elementwise");
    for from in DType::ALL {
        for to in DType::ALL {
            let x = &fixture[&format!("x.{from}.{to}")];
            let expected = &fixture[&format!("to.{from}.{to}")];
            let wrong = differences(&x.to_dtype(to).unwrap(), expected, 0.0);
            assert!(wrong.is_empty(), "{from} to {to}: {wrong:?}");
        }
    }
}
