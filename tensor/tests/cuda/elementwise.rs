use lowtide_tensor::{DType, Device, RandomKey, Tensor, TensorResult as Result};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::alike::{assert_close, on};
use crate::gpu::Gpu;
use crate::storage::cpu;

/// Values of a formula may be this far apart, relative to the larger of their size and 1: both
/// devices have functions that are right to a few units in the last place.
const TOLERANCE: f64 = 2e-6;

pub(crate) fn noise(device: &Device, name: &str, shape: &[usize], bounds: [f64; 2]) -> Tensor {
    let mut x = Tensor::empty(&cpu(), shape, DType::F32).unwrap();
    x.uniform_(RandomKey::new(5).op(name), bounds[0], bounds[1]).unwrap();
    on(device, &x)
}

fn close(name: &str, found: &Tensor, expected: &Tensor) {
    assert_close(name, found, expected, TOLERANCE);
}

type Unary = fn(&Tensor) -> Result<Tensor>;

/// Each with the range of numbers that it is tried on.
const UNARY: [(&str, Unary, [f64; 2]); 32] = [
    ("abs", |x| x.abs(), [-3.0, 3.0]),
    ("neg", |x| x.neg(), [-3.0, 3.0]),
    ("sign", |x| x.sign(), [-3.0, 3.0]),
    ("relu", |x| x.relu(), [-3.0, 3.0]),
    ("clamp", |x| x.clamp(-1.0, 0.5), [-3.0, 3.0]),
    ("exp", |x| x.exp(), [-3.0, 3.0]),
    ("expm1", |x| x.expm1(), [-3.0, 3.0]),
    ("log", |x| x.log(), [-0.5, 3.0]),
    ("log1p", |x| x.log1p(), [-1.5, 3.0]),
    ("sqrt", |x| x.sqrt(), [-0.5, 3.0]),
    ("rsqrt", |x| x.rsqrt(), [0.1, 3.0]),
    ("reciprocal", |x| x.reciprocal(), [0.1, 3.0]),
    ("sin", |x| x.sin(), [-9.0, 9.0]),
    ("cos", |x| x.cos(), [-9.0, 9.0]),
    ("tanh", |x| x.tanh(), [-9.0, 9.0]),
    ("erf", |x| x.erf(), [-3.0, 3.0]),
    ("sigmoid", |x| x.sigmoid(), [-9.0, 9.0]),
    ("leaky_relu", |x| x.leaky_relu(0.1), [-3.0, 3.0]),
    ("elu", |x| x.elu(1.5), [-3.0, 3.0]),
    ("gelu", |x| x.gelu(), [-5.0, 5.0]),
    ("gelu_tanh", |x| x.gelu_tanh(), [-5.0, 5.0]),
    ("silu", |x| x.silu(), [-9.0, 9.0]),
    ("softplus", |x| x.softplus(2.0, 4.0), [-5.0, 5.0]),
    ("floor", |x| x.floor(), [-3.0, 3.0]),
    ("ceil", |x| x.ceil(), [-3.0, 3.0]),
    ("round", |x| x.round(), [-3.0, 3.0]),
    ("trunc", |x| x.trunc(), [-3.0, 3.0]),
    ("pow_scalar", |x| x.pow_scalar(2.5), [0.0, 3.0]),
    ("add_scalar", |x| x.add_scalar(0.75), [-3.0, 3.0]),
    ("sub_scalar", |x| x.sub_scalar(0.75), [-3.0, 3.0]),
    ("mul_scalar", |x| x.mul_scalar(0.75), [-3.0, 3.0]),
    ("div_scalar", |x| x.div_scalar(0.7), [-3.0, 3.0]),
];

#[test]
fn formulas_of_one_tensor_are_those_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let (device, cpu) = (gpu.device(), cpu());
    gpu.in_every_order(|| {
        for (name, f, bounds) in UNARY {
            let x = noise(&cpu, name, &[5, 67], bounds);
            close(name, &f(&on(&device, &x)).unwrap(), &f(&x).unwrap());
            // A matrix on its side, and one row for all.
            let turned = |x: &Tensor| f(&x.transpose(0, 1)?.narrow(0, 3, 40)?);
            close(name, &turned(&on(&device, &x)).unwrap(), &turned(&x).unwrap());
            let corners = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0];
            let x = Tensor::from_slice(&cpu, [5], &corners).unwrap();
            close(name, &f(&on(&device, &x)).unwrap(), &f(&x).unwrap());
        }
    });
}

type Binary = fn(&Tensor, &Tensor) -> Result<Tensor>;

const BINARY: [(&str, Binary); 8] = [
    ("add", |a, b| a.add(b)),
    ("sub", |a, b| a.sub(b)),
    ("mul", |a, b| a.mul(b)),
    ("div", |a, b| a.div(b)),
    ("maximum", |a, b| a.maximum(b)),
    ("minimum", |a, b| a.minimum(b)),
    ("pow", |a, b| a.pow(b)),
    ("lerp", |a, b| a.lerp(b, 0.25)),
];

/// Shapes that broadcast, of up to five dimensions with sizes 0, 1 and odd ones.
fn shapes() -> impl Strategy<Value = (Vec<usize>, Vec<usize>)> {
    let sizes = prop::collection::vec((0_usize..6, 0..4), 0..=5);
    sizes.prop_map(|sizes| {
        let side = |stretched: i32| {
            sizes.iter().map(|&(size, which)| if which == stretched { 1 } else { size }).collect()
        };
        (side(0), side(1))
    })
}

#[test]
fn formulas_of_two_tensors_are_those_of_the_processor_over_generated_shapes() {
    let Some(gpu) = Gpu::take() else { return };
    let (device, cpu) = (gpu.device(), cpu());
    let config = Config { cases: 60, failure_persistence: None, ..Config::default() };
    let cases = (shapes(), 0..BINARY.len());
    TestRunner::new(config)
        .run(&cases, |((left, right), op)| {
            let (name, f) = BINARY[op];
            let a = noise(&cpu, "a", &left, [0.1, 3.0]);
            let b = noise(&cpu, "b", &right, [0.1, 3.0]);
            let found = f(&on(&device, &a), &on(&device, &b)).unwrap();
            close(name, &found, &f(&a, &b).unwrap());
            Ok(())
        })
        .unwrap();
}

#[test]
fn in_place_formulas_write_through_views_without_allocating() {
    let Some(gpu) = Gpu::take() else { return };
    let (device, cpu) = (gpu.device(), cpu());
    let (x, y) = (noise(&cpu, "x", &[6, 8], [-2.0, 2.0]), noise(&cpu, "y", &[5, 1], [-2.0, 2.0]));
    let run = |x: &Tensor, y: &Tensor| -> Result<u64> {
        let mut part = x.narrow(0, 1, 5)?.narrow(1, 2, 3)?;
        let before = x.device().allocator().request_count();
        part.add_(y)?;
        part.mul_(y)?;
        part.mul_scalar_(0.5)?;
        part.relu_()?;
        part.add_scaled_(y, 0.25)?;
        Ok(x.device().allocator().request_count() - before)
    };
    let (there, other) = (on(&device, &x), on(&device, &y));
    assert_eq!(run(&there, &other).unwrap(), 0);
    run(&x, &y).unwrap();
    close("in place", &there, &x);
}

#[test]
fn fills_and_casts_are_those_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let (device, cpu) = (gpu.device(), cpu());
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16, DType::I64, DType::U8] {
        for value in [0.0, 1.0, 3.0] {
            let whole = |device: &Device| Tensor::full(device, [7, 5], dtype, value).unwrap();
            assert_eq!(whole(&device).to_bytes().unwrap(), whole(&cpu).to_bytes().unwrap());
            let [found, expected] = [&device, &cpu].map(|device| {
                let x = Tensor::zeros(device, [7, 5], dtype).unwrap();
                x.narrow(1, 1, 3).unwrap().fill_(value + 2.0).unwrap();
                x.to_bytes().unwrap()
            });
            assert_eq!(found, expected, "{dtype} {value}");
        }
    }
    let x = noise(&cpu, "cast", &[9, 11], [-1e5, 1e5]);
    let types = [DType::F32, DType::F16, DType::BF16];
    for from in types {
        for to in types {
            let x = x.to_dtype(from).unwrap();
            let cast = |x: &Tensor| x.transpose(0, 1)?.to_dtype(to)?.to_bytes();
            let found = cast(&on(&device, &x)).unwrap();
            assert_eq!(found, cast(&x).unwrap(), "{from} to {to}");
        }
    }
    let wide = x.to_dtype(DType::F64).unwrap().div_scalar(3.0).unwrap();
    let sums = |x: &Tensor, wide: &Tensor| -> Result<[Tensor; 2]> {
        let mut sum = wide.add(&x.transpose(0, 1)?.to_dtype(DType::F64)?.transpose(0, 1)?)?;
        sum.mul_(wide)?;
        let narrow = sum.sub(wide)?.div(wide)?.to_dtype(DType::F32)?;
        Ok([sum, narrow])
    };
    let found = sums(&on(&device, &x), &on(&device, &wide)).unwrap();
    let expected = sums(&x, &wide).unwrap();
    assert_eq!(
        found.each_ref().map(|x| x.to_bytes().unwrap()),
        expected.map(|x| x.to_bytes().unwrap())
    );
    for dtype in [DType::I64, DType::Bool] {
        let x = x.gt_scalar(0.0).unwrap().to_dtype(dtype).unwrap();
        let copy = |x: &Tensor| x.transpose(0, 1)?.copied()?.to_bytes();
        assert_eq!(copy(&on(&device, &x)).unwrap(), copy(&x).unwrap(), "{dtype}");
    }
}
