//! Every operation of the lists has the bits of the operation on inputs that are cast by hand.

use std::collections::BTreeSet;
use std::path::Path;

use lowtide_amp::Autocast;
use lowtide_autograd::{Attempt, AutogradResult as Result, CastPolicy, LeafId, Pass, Var};
use lowtide_tensor::{
    AttentionOptions, CpuOptions, DType, Device, Interpolation, Labelling,
    LinearCrossEntropyOptions, PairLoss, RandomKey, Resize, Scales, Tensor,
};

pub(crate) type Outcome = std::result::Result<(), Box<dyn std::error::Error>>;

pub(crate) fn cpu() -> Device {
    let options =
        CpuOptions { budget_bytes: Some(64 << 20), threads: Some(2), ..Default::default() };
    Device::cpu(options).expect("64 MiB of addresses")
}

/// A tensor of numbers from `[0.1, 0.9)`, in the domain of every function, that depend on `name`
/// only.
pub(crate) fn tensor(device: &Device, name: &str, shape: &[usize]) -> Tensor {
    let key = RandomKey::new(3).op(name);
    let len = shape.iter().product::<usize>() as u64;
    let values: Vec<f32> = (0..len).map(|index| 0.1 + 0.8 * key.uniform(index)).collect();
    Tensor::from_slice(device, shape, &values).expect("memory for a small tensor")
}

pub(crate) fn bits(tensor: &Tensor) -> Vec<u32> {
    let values = tensor.to_dtype(DType::F32).and_then(|x| x.to_vec::<f32>());
    values.expect("floats on the CPU").into_iter().map(f32::to_bits).collect()
}

type Run = fn(Vec<Var>) -> Result<Var>;

/// An operation, the shapes of its inputs, and a call of it.
struct Case(&'static str, &'static [&'static [usize]], Run);

const X: &[usize] = &[4, 6];

/// Operations that run in the half type.
const NARROW: &[Case] = &[
    Case("matmul", &[X, &[6, 5]], |x| of2(x, Var::matmul)),
    Case("bmm", &[&[2, 3, 4], &[2, 4, 5]], |x| of2(x, Var::bmm)),
    Case("addmm", &[&[4, 5], X, &[6, 5]], |x| of3(x, |x, a, b| x.addmm(a, b, Scales::default()))),
    Case("addmv", &[&[4], X, &[6]], |x| of3(x, |x, a, b| x.addmv(a, b, Scales::default()))),
    Case("baddbmm", &[&[5], &[2, 3, 4], &[2, 4, 5]], |x| {
        of3(x, |x, a, b| x.baddbmm(a, b, Scales::default()))
    }),
    Case("matvec", &[X, &[6]], |x| of2(x, Var::matvec)),
    Case("linear", &[X, &[5, 6], &[5]], |x| of3(x, |x, w, b| x.linear(w, Some(b)))),
    Case("conv1d", &[&[2, 3, 8], &[4, 3, 3], &[4]], |x| {
        of3(x, |x, w, b| x.conv1d(w, Some(b), Default::default()))
    }),
    Case("conv2d", &[&[2, 3, 6, 6], &[4, 3, 3, 3], &[4]], |x| {
        of3(x, |x, w, b| x.conv2d(w, Some(b), Default::default()))
    }),
    Case("conv_transpose1d", &[&[2, 3, 8], &[3, 4, 3], &[4]], |x| {
        of3(x, |x, w, b| x.conv_transpose1d(w, Some(b), Default::default()))
    }),
    Case("conv_transpose2d", &[&[2, 3, 6, 6], &[3, 4, 3, 3], &[4]], |x| {
        of3(x, |x, w, b| x.conv_transpose2d(w, Some(b), Default::default()))
    }),
    Case("attention", &[&[1, 2, 5, 4], &[1, 2, 5, 4], &[1, 2, 5, 4]], |x| {
        of3(x, |q, k, v| q.attention(k, v, None, AttentionOptions::default()))
    }),
    Case("self_attention", &[&[2, 5, 24]], |x| {
        of1(x, |x| x.self_attention([2, 2], None, AttentionOptions::default()))
    }),
    Case("linear_cross_entropy", &[X, &[5, 6]], |x| {
        let labels = Tensor::from_slice(x[0].value().device(), [4], &[0_i64, 4, 2, 1])?;
        of2(x, |x, w| Ok(x.linear_cross_entropy(w, None, &labels, options())?.0))
    }),
];

fn options() -> LinearCrossEntropyOptions {
    LinearCrossEntropyOptions::default()
}

/// Operations that run in f32.
const F32: &[Case] = &[
    Case("acos", &[X], |x| of1(x, Var::acos)),
    Case("asin", &[X], |x| of1(x, Var::asin)),
    Case("cosh", &[X], |x| of1(x, Var::cosh)),
    Case("cross_entropy", &[X], |x| {
        let labels = Tensor::from_slice(x[0].value().device(), [4], &[0_i64, 4, 2, 1])?;
        of1(x, |x| Ok(x.cross_entropy(&labels, -100)?.0))
    }),
    Case("cumprod", &[X], |x| of1(x, |x| x.cumprod(1))),
    Case("cumsum", &[X], |x| of1(x, |x| x.cumsum(1))),
    Case("dist", &[X, X], |x| of2(x, |x, y| x.dist(y, 2.0))),
    Case("exp", &[X], |x| of1(x, Var::exp)),
    Case("expm1", &[X], |x| of1(x, Var::expm1)),
    Case("group_norm", &[&[2, 4, 3], &[4], &[4]], |x| {
        of3(x, |x, w, b| x.group_norm(2, Some(w), Some(b), 1e-5))
    }),
    Case("layer_norm", &[X, &[6], &[6]], |x| {
        of3(x, |x, w, b| x.layer_norm(1, Some(w), Some(b), 1e-5))
    }),
    Case("log", &[X], |x| of1(x, Var::log)),
    Case("log10", &[X], |x| of1(x, Var::log10)),
    Case("log1p", &[X], |x| of1(x, Var::log1p)),
    Case("log2", &[X], |x| of1(x, Var::log2)),
    Case("log_softmax", &[X], |x| of1(x, |x| x.log_softmax(1))),
    Case("logsumexp", &[X], |x| of1(x, |x| x.logsumexp(&[1]))),
    Case("nll_loss", &[X], |x| {
        let labels = Tensor::from_slice(x[0].value().device(), [4], &[0_i64, 4, 2, 1])?;
        of1(x, |x| Ok(x.nll_loss(&labels, -100, None)?.0))
    }),
    Case("norm", &[X], |x| of1(x, |x| x.norm(&[1], 2.0))),
    Case("pair_loss", &[X], |x| {
        let target = tensor(x[0].value().device(), "target", X);
        of1(x, |x| x.pair_loss(&target, PairLoss::SquaredError))
    }),
    Case("pow", &[X, X], |x| of2(x, Var::pow)),
    Case("pow_scalar", &[X], |x| of1(x, |x| x.pow_scalar(2.5))),
    Case("prod", &[X], |x| of1(x, |x| x.prod(&[1]))),
    Case("reciprocal", &[X], |x| of1(x, Var::reciprocal)),
    Case("rms_norm", &[X, &[6]], |x| of2(x, |x, w| x.rms_norm(1, Some(w), 1e-5))),
    Case("rsqrt", &[X], |x| of1(x, Var::rsqrt)),
    Case("sinh", &[X], |x| of1(x, Var::sinh)),
    Case("soft_cross_entropy", &[X], |x| {
        let target = tensor(x[0].value().device(), "target", X);
        of1(x, |x| x.soft_cross_entropy(&target, Labelling::default()))
    }),
    Case("softmax", &[X], |x| of1(x, |x| x.softmax(1))),
    Case("softplus", &[X], |x| of1(x, |x| x.softplus(1.0, 20.0))),
    Case("sum", &[X], |x| of1(x, |x| x.sum(&[1]))),
    Case("sum_to", &[X], |x| of1(x, |x| x.sum_to([6]))),
    Case("tan", &[X], |x| of1(x, Var::tan)),
    Case("upsample2d", &[&[1, 2, 3, 3]], |x| {
        of1(x, |x| x.upsample2d(Resize::To([5, 5]), Interpolation::Nearest))
    }),
];

/// Operations that run in the widest type of their inputs.
const WIDEST: &[Case] = &[
    Case("add", &[X, X], |x| of2(x, Var::add)),
    Case("mul", &[X, X], |x| of2(x, Var::mul)),
    Case("cat", &[X, X], |x| Var::cat(x, 0)),
    Case("stack", &[X, X], |x| Var::stack(x, 0)),
    Case("dot", &[&[6], &[6]], |x| of2(x, Var::dot)),
    Case("addcmul", &[X, X, X], |x| of3(x, |x, a, b| x.addcmul(a, b, 0.5))),
    Case("addcdiv", &[X, X, X], |x| of3(x, |x, a, b| x.addcdiv(a, b, 0.5))),
    Case("atan2", &[X, X], |x| of2(x, Var::atan2)),
    Case("scatter_add", &[X, X], |x| {
        let index = Tensor::zeros(x[0].value().device(), X, DType::I64)?;
        of2(x, |x, source| x.scatter_add(0, &index, source))
    }),
];

fn of1(inputs: Vec<Var>, f: impl FnOnce(Var) -> Result<Var>) -> Result<Var> {
    let [a] = <[Var; 1]>::try_from(inputs).unwrap_or_else(|_| panic!("one input"));
    f(a)
}

fn of2(inputs: Vec<Var>, f: impl FnOnce(Var, Var) -> Result<Var>) -> Result<Var> {
    let [a, b] = <[Var; 2]>::try_from(inputs).unwrap_or_else(|_| panic!("two inputs"));
    f(a, b)
}

fn of3(inputs: Vec<Var>, f: impl FnOnce(Var, Var, Var) -> Result<Var>) -> Result<Var> {
    let [a, b, c] = <[Var; 3]>::try_from(inputs).unwrap_or_else(|_| panic!("three inputs"));
    f(a, b, c)
}

/// The type of the value, and the bits of the value and of every gradient, for inputs stored as
/// `stored`. Inputs are cast by the policy, or to `by_hand` if there is none.
fn run(
    Case(name, shapes, f): &Case,
    stored: &[DType],
    casts: Option<Autocast>,
    by_hand: DType,
) -> Result<(DType, Vec<Vec<u32>>)> {
    let device = cpu();
    let attempt = Attempt::new();
    let mut pass = Pass::train(RandomKey::new(1), &attempt);
    if let Some(policy) = casts {
        pass = pass.with_casts(policy);
    }
    let mut leaves = Vec::new();
    let mut vars = Vec::new();
    for (index, shape) in shapes.iter().enumerate() {
        let dtype = stored[index % stored.len()];
        let value = tensor(&device, &format!("{name} {index}"), shape).to_dtype(dtype)?;
        let leaf = LeafId::new();
        let var = pass.leaf(leaf, &value)?;
        vars.push(if casts.is_some() { var } else { var.to_dtype(by_hand)? });
        leaves.push(leaf);
    }
    let y = f(vars)?;
    let (dtype, value) = (y.value().dtype(), bits(y.value()));
    // The gradient of y has a different number at each place.
    let dy = pass.constant(tensor(&device, "dy", y.shape()));
    pass.backward(y.to_dtype(DType::F32)?.mul(dy)?.sum_all()?)?;
    let gradients = attempt.into_gradients();
    let of = |&leaf: &LeafId| bits(gradients.get(leaf).expect("it has influence"));
    Ok((dtype, std::iter::once(value).chain(leaves.iter().map(of)).collect()))
}

const POLICIES: [(Autocast, DType); 2] =
    [(Autocast::bf16(), DType::BF16), (Autocast::f16(), DType::F16)];

#[test]
fn products_have_the_bits_of_a_twin_that_casts_to_the_half_type() -> Outcome {
    for (policy, half) in POLICIES {
        for case in NARROW {
            let cast = run(case, &[DType::F32], Some(policy), half)?;
            assert_eq!(cast, run(case, &[DType::F32], None, half)?, "{} in {half}", case.0);
        }
    }
    Ok(())
}

#[test]
fn what_needs_range_has_the_bits_of_a_twin_that_casts_to_f32() -> Outcome {
    for (policy, half) in POLICIES {
        for case in F32 {
            let cast = run(case, &[half], Some(policy), DType::F32)?;
            assert_eq!(cast.0, DType::F32, "{} in {half}", case.0);
            assert_eq!(cast, run(case, &[half], None, DType::F32)?, "{} in {half}", case.0);
        }
    }
    Ok(())
}

#[test]
fn mixed_inputs_have_the_bits_of_a_twin_in_the_widest_type_and_equal_ones_stay() -> Outcome {
    for (policy, half) in POLICIES {
        for case in WIDEST {
            for stored in [[half, DType::F32], [DType::F32, half]] {
                let cast = run(case, &stored, Some(policy), DType::F32)?;
                assert_eq!(cast, run(case, &stored, None, DType::F32)?, "{}", case.0);
            }
            for same in [half, DType::F32, DType::F64] {
                let cast = run(case, &[same], Some(policy), same)?;
                assert_eq!(cast, run(case, &[same], None, same)?, "{} in {same}", case.0);
            }
        }
    }
    Ok(())
}

#[test]
fn f64_and_integers_are_left_alone() {
    let policy = Autocast::f16();
    for op in ["matmul", "exp", "add", "batch_norm", "an operation of someone's own"] {
        for inputs in [&[DType::F64][..], &[DType::F64, DType::F32], &[DType::I64], &[]] {
            assert_eq!(policy.dtype(op, inputs), None, "{op} of {inputs:?}");
        }
    }
    assert_eq!(policy.dtype("cross_entropy", &[DType::F16, DType::I64]), Some(DType::F32));
    assert_eq!(policy.dtype("own", &[DType::F16, DType::BF16]), Some(DType::F32));
    assert_eq!(policy.dtype("batch_norm", &[DType::F16, DType::F32]), Some(DType::F16));
}

/// The text of every source file below `folder`.
fn sources(folder: &Path, text: &mut String) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            sources(&path, text)?;
        } else {
            text.push_str(&std::fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

#[test]
fn every_name_of_the_lists_is_an_operation_and_has_a_case() -> Outcome {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let list = std::fs::read_to_string(root.join("amp/src/autocast.rs"))?;
    let mut operations = String::new();
    sources(&root.join("autograd/src/rules"), &mut operations)?;
    sources(&root.join("nn/src"), &mut operations)?;
    let names = list.lines().filter_map(|line| line.strip_prefix("    \"")?.strip_suffix("\","));
    let names: BTreeSet<&str> = names.collect();
    assert!(names.len() > 40, "{names:?}");
    let cased: BTreeSet<&str> = NARROW.iter().chain(F32).map(|case| case.0).collect();
    for name in &names {
        let is_one = [format!("\"{name}\""), format!("fn {name}(")];
        assert!(is_one.iter().any(|text| operations.contains(text)), "no operation: {name}");
    }
    // The operations of lowtide-nn have their cases in the trainer's tests.
    let missing: Vec<_> = names.difference(&cased).copied().collect();
    assert_eq!(missing, ["cross_attention", "gru", "lstm", "prelu"]);
    assert!(cased.is_subset(&names), "{:?}", cased.difference(&names));
    Ok(())
}
