use lowtide_tensor::testing::functions;
use lowtide_tensor::{
    Closeness, DType, Device, RandomKey, Replacements, Tensor, TensorResult as Result,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::alike::{assert_alike, assert_close, each_float, on};
use crate::gpu::Gpu;
use crate::storage::cpu;

/// Largest distance of values of a formula, relative to the larger of their size and 1. The
/// functions of both devices are right to a few units in the last place.
const TOLERANCE: f64 = 2e-6;

pub(crate) fn noise(device: &Device, name: &str, shape: &[usize], bounds: [f64; 2]) -> Tensor {
    let mut x = Tensor::empty(&cpu(), shape, DType::F32).unwrap();
    x.uniform_(RandomKey::new(5).op(name), bounds[0], bounds[1]).unwrap();
    on(device, &x)
}

fn close(name: &str, found: &Tensor, expected: &Tensor) {
    assert_close(name, found, expected, TOLERANCE);
}

type UnaryRun = Box<dyn Fn(&Tensor) -> Result<Tensor>>;
type Method = fn(&Tensor) -> Result<Tensor>;

/// A function of one tensor.
struct Unary {
    name: &'static str,
    run: UnaryRun,
    /// The range of the numbers that the function is tested with.
    range: [f64; 2],
}

/// Ranges of the functions that are not tested from -3 to 3.
const RANGES: &[(&str, [f64; 2])] = &[
    ("log", [-0.5, 3.0]),
    ("log1p", [-1.5, 3.0]),
    ("sqrt", [-0.5, 3.0]),
    ("rsqrt", [0.1, 3.0]),
    ("reciprocal", [0.1, 3.0]),
    ("sin", [-9.0, 9.0]),
    ("cos", [-9.0, 9.0]),
    ("tanh", [-9.0, 9.0]),
    ("sigmoid", [-9.0, 9.0]),
    ("gelu", [-5.0, 5.0]),
    ("gelu_tanh", [-5.0, 5.0]),
    ("silu", [-9.0, 9.0]),
    ("softplus", [-5.0, 5.0]),
    ("pow_scalar", [0.0, 3.0]),
    ("tan", [-1.3, 1.3]),
    ("atan", [-9.0, 9.0]),
    ("asin", [-1.1, 1.1]),
    ("acos", [-1.1, 1.1]),
    ("sinh", [-2.0, 2.0]),
    ("cosh", [-2.0, 2.0]),
    ("asinh", [-9.0, 9.0]),
    ("acosh", [0.9, 9.0]),
    ("atanh", [-0.9, 0.9]),
    ("log2", [-0.5, 3.0]),
    ("log10", [-0.5, 3.0]),
    ("mish", [-5.0, 5.0]),
    ("hardswish", [-5.0, 5.0]),
    ("hardsigmoid", [-5.0, 5.0]),
    ("selu", [-5.0, 5.0]),
    ("softsign", [-5.0, 5.0]),
    ("logsigmoid", [-9.0, 9.0]),
];

fn range_of(name: &str) -> [f64; 2] {
    RANGES.iter().find(|(of, _)| *of == name).map_or([-3.0, 3.0], |(_, range)| *range)
}

/// A number for each scalar of a function or a gradient.
fn scalars(names: &[&str]) -> Vec<f64> {
    let number = |name: &&str| match *name {
        "alpha" => 1.5,
        "beta" => 2.0,
        "exponent" => 2.5,
        "high" => 0.5,
        "low" => -1.0,
        "slope" => 0.1,
        "threshold" => 4.0,
        _ => 0.75,
    };
    names.iter().map(number).collect()
}

/// The functions of the table with float results, and the methods that take a number.
fn unary() -> Vec<Unary> {
    let listed = functions().filter(|of| of.is_numbered && of.name != "logical_not").map(|of| {
        let scalars = scalars(of.scalars);
        let run = Box::new(move |x: &Tensor| (of.run)(x, &scalars));
        Unary { name: of.name, run, range: range_of(of.name) }
    });
    let with_number: [(&str, Method); 5] = [
        ("add_scalar", |x| x.add_scalar(0.75)),
        ("sub_scalar", |x| x.sub_scalar(0.75)),
        ("mul_scalar", |x| x.mul_scalar(0.75)),
        ("div_scalar", |x| x.div_scalar(0.7)),
        ("nan_to_num", |x| x.nan_to_num(Replacements { nan: 4.0, ..Default::default() })),
    ];
    let with_number =
        with_number.map(|(name, run)| Unary { name, run: Box::new(run), range: range_of(name) });
    let listed: Vec<_> = listed.collect();
    assert!(listed.len() >= 49, "{} formulas", listed.len());
    listed.into_iter().chain(with_number).collect()
}

/// The tests above and below compare all other formulas.
#[test]
fn formulas_without_a_number_are_known() {
    let names: Vec<&str> = functions().filter(|of| !of.is_numbered).map(|of| of.name).collect();
    assert_eq!(names, ["erfinv", "lgamma", "digamma"]);
}

#[test]
fn formulas_of_one_tensor_are_those_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let (device, cpu) = (gpu.device(), cpu());
    gpu.in_every_order(|| {
        for Unary { name, run: f, range } in &unary() {
            let x = noise(&cpu, name, &[5, 67], *range);
            close(name, &f(&on(&device, &x)).unwrap(), &f(&x).unwrap());
            // A transposed matrix, and one row that broadcasts.
            let turned = |x: &Tensor| f(&x.transpose(0, 1)?.narrow(0, 3, 40)?);
            close(name, &turned(&on(&device, &x)).unwrap(), &turned(&x).unwrap());
            let corners = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0];
            let x = Tensor::from_slice(&cpu, [5], &corners).unwrap();
            close(name, &f(&on(&device, &x)).unwrap(), &f(&x).unwrap());
        }
    });
}

type Binary = fn(&Tensor, &Tensor) -> Result<Tensor>;

const BINARY: [(&str, Binary); 40] = [
    ("add", |a, b| a.add(b)),
    ("sub", |a, b| a.sub(b)),
    ("mul", |a, b| a.mul(b)),
    ("div", |a, b| a.div(b)),
    ("maximum", |a, b| a.maximum(b)),
    ("minimum", |a, b| a.minimum(b)),
    ("pow", |a, b| a.pow(b)),
    ("lerp", |a, b| a.lerp(b, 0.25)),
    ("div_floor", |a, b| a.div_floor(b)),
    ("div_trunc", |a, b| a.div_trunc(b)),
    ("remainder", |a, b| a.remainder(b)),
    ("fmod", |a, b| a.fmod(b)),
    ("fmax", |a, b| a.fmax(b)),
    ("fmin", |a, b| a.fmin(b)),
    ("heaviside", |a, b| a.heaviside(b)),
    ("atan2", |a, b| a.atan2(b)),
    ("hypot", |a, b| a.hypot(b)),
    ("copysign", |a, b| a.copysign(b)),
    ("logaddexp", |a, b| a.logaddexp(b)),
    ("xlogy", |a, b| a.xlogy(b)),
    ("addcmul", |a, b| a.addcmul(a, b, 0.5)),
    ("addcdiv", |a, b| a.addcdiv(b, a, 0.5)),
    ("eq", |a, b| a.eq(b)),
    ("ne", |a, b| a.ne(b)),
    ("lt", |a, b| a.lt(b)),
    ("le", |a, b| a.le(b)),
    ("gt", |a, b| a.gt(b)),
    ("ge", |a, b| a.ge(b)),
    ("logical_and", |a, b| a.logical_and(b)),
    ("logical_or", |a, b| a.logical_or(b)),
    ("logical_xor", |a, b| a.logical_xor(b)),
    ("isclose", |a, b| a.isclose(b, Closeness { relative: 0.3, ..Default::default() })),
    ("logical_not", |a, b| a.sub(b)?.logical_not()),
    ("isnan", |a, b| a.sub(b)?.log()?.is_nan()),
    ("isfinite", |a, b| a.sub(b)?.log()?.is_finite()),
    ("isinf", |a, b| a.sub(b)?.log()?.is_inf()),
    ("where", |a, b| a.gt(b)?.where_cond(a, b)),
    ("masked_fill", |a, b| a.sub(b)?.masked_fill(&a.gt(b)?, 4.0)),
    ("maximum_scalar", |a, b| a.sub(b)?.maximum_scalar(0.25)),
    ("lt_scalar", |a, b| a.sub(b)?.lt_scalar(0.25)),
];

#[test]
fn gradients_of_formulas_are_those_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    gpu.in_every_order(|| {
        let numbered = functions().filter(|function| function.is_numbered);
        let gradients: Vec<_> = numbered.filter_map(|of| of.gradient.as_ref()).collect();
        assert!(gradients.len() >= 17, "{} gradients", gradients.len());
        for gradient in gradients {
            let (name, scalars) = (gradient.name, scalars(gradient.scalars));
            let f = |dy: &Tensor, of: &Tensor| (gradient.run)(dy, of, &scalars);
            let [dy, x] = ["dy", "x"].map(|of| noise(&cpu(), of, &[5, 67], [-5.0, 5.0]));
            assert_alike(&device, name, &[&dy, &x], 4.0 * TOLERANCE, |operands| {
                let [dy, x] = operands else { unreachable!("as given") };
                let [turned, on_its_side] = [dy.transpose(0, 1)?, x.transpose(0, 1)?];
                Ok(vec![f(dy, x)?, f(&turned, &on_its_side)?])
            });
        }
    });
}

#[test]
fn formulas_in_every_type_are_those_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    for (dtype, tolerance) in each_float([TOLERANCE, 1e-14]) {
        for Unary { name, run: f, range } in &unary() {
            let x = noise(&cpu(), name, &[6, 7], *range).to_dtype(dtype).unwrap();
            // In f32 the `gelu` of the processor is right to 3e-7 · |x|.
            let name = format!("{name} {dtype}");
            assert_alike(&device, &name, &[&x], 4.0 * tolerance, |x| Ok(vec![f(&x[0])?]));
        }
        for (name, f) in BINARY {
            let of = |name: &str| noise(&cpu(), name, &[6, 7], [0.1, 3.0]);
            let [a, b] = ["a", "b"].map(|name| of(name).to_dtype(dtype).unwrap());
            let name = format!("{name} {dtype}");
            assert_alike(&device, &name, &[&a, &b], 4.0 * tolerance, |x| {
                Ok(vec![f(&x[0], &x[1].narrow(0, 1, 1)?)?, f(&x[0], &x[1])?])
            });
        }
    }
}

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
fn formulas_of_integers_and_truth_values_are_those_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let device = gpu.device();
    for dtype in [DType::I64, DType::I32, DType::U8, DType::Bool] {
        let of = |name: &str, low: f64| {
            let low = if dtype == DType::I64 || dtype == DType::I32 { low } else { 0.0 };
            noise(&cpu(), name, &[5, 6], [low, 4.0]).to_dtype(dtype).unwrap()
        };
        let (a, b, mask) = (of("a", -4.0), of("b", -4.0), of("mask", 0.0));
        assert_alike(&device, &dtype.to_string(), &[&a, &b, &mask], 0.0, |operands| {
            let [a, b, mask] = operands else { unreachable!("as given") };
            let (row, mask) = (b.narrow(0, 1, 1)?, mask.gt_scalar(1.0)?);
            let mut all = vec![
                a.eq(&row)?,
                a.ne(b)?,
                a.transpose(0, 1)?.lt(&b.transpose(0, 1)?)?,
                a.le_scalar(1.0)?,
                a.gt(b)?,
                a.ge(b)?,
                a.logical_not()?,
                a.logical_and(b)?,
                a.logical_or(b)?,
                a.logical_xor(b)?,
                mask.where_cond(a, &row)?,
                a.masked_fill(&mask, 1.0)?,
            ];
            if dtype != DType::Bool {
                let mut in_place = a.copied()?;
                in_place.add_scalar_(250.0)?;
                in_place.mul_(&row)?;
                let values = [a.add(&row)?, a.sub(b)?, a.mul(b)?, a.neg()?, a.abs()?, a.sign()?];
                all.extend(values);
                all.extend([a.relu()?, a.clamp(-1.0, 2.0)?, a.maximum(b)?, a.minimum(&row)?]);
                all.extend([a.mul_scalar(100.0)?, in_place, a.addcmul(b, &row, 3.0)?]);
            }
            Ok(all)
        });
    }
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
