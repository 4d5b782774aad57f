//! Every rule against central differences in f64.

mod assembled;
mod elementwise;
mod indices;
mod layers;
mod losses;
mod ranks;
mod reductions;
mod views;
mod windows;

use std::collections::BTreeSet;
use std::path::Path;

use lowtide_autograd::check::{self, Tolerance};
use lowtide_autograd::{AutogradResult as Result, Pass, Var};
use lowtide_tensor::{Conv2dGeometry, DType, Device, Pool2dGeometry, Tensor};

use crate::common::{Outcome, check_same_names, cpu, gradients_of, rust_files, values};

/// Ranges of inputs, away from poles and, almost surely, from kinks.
const AROUND_ZERO: [f64; 2] = [-1.0, 1.0];
const POSITIVE: [f64; 2] = [0.5, 2.0];
const NEGATIVE: [f64; 2] = [-2.0, -0.5];

pub(crate) type Function = Box<dyn Fn(&Pass, Vec<Var>) -> Result<Var>>;

/// One use of a rule.
pub(crate) struct Case {
    pub(crate) rule: &'static str,
    pub(crate) shapes: Vec<Vec<usize>>,
    range: [f64; 2],
    tolerance: Tolerance,
    pub(crate) function: Function,
}

impl Case {
    /// The elements of input number `at`, for case number `index` of the list.
    pub(crate) fn values(&self, index: usize, at: usize) -> Vec<f64> {
        let [low, high] = self.range;
        values(&format!("{index}.{at}"), self.shapes[at].iter().product(), low, high)
    }
}

struct Cases(Vec<Case>);

impl Cases {
    fn add(
        &mut self,
        rule: &'static str,
        shapes: &[&[usize]],
        range: [f64; 2],
        function: impl Fn(&Pass, Vec<Var>) -> Result<Var> + 'static,
    ) {
        let shapes = shapes.iter().map(|shape| shape.to_vec()).collect();
        let (tolerance, function) = (Tolerance::default(), Box::new(function));
        self.0.push(Case { rule, shapes, range, tolerance, function });
    }

    fn unary(
        &mut self,
        rule: &'static str,
        shape: &[usize],
        range: [f64; 2],
        function: impl Fn(Var) -> Result<Var> + 'static,
    ) {
        self.add(rule, &[shape], range, move |_, x| function(only(x)));
    }
}

fn only(vars: Vec<Var>) -> Var {
    let [x] = vars.try_into().unwrap_or_else(|_| panic!("one input"));
    x
}

fn pair(vars: Vec<Var>) -> (Var, Var) {
    let [a, b] = vars.try_into().unwrap_or_else(|_| panic!("two inputs"));
    (a, b)
}

/// Calls an operation on an input, a weight and an optional bias.
fn with_weight(
    vars: Vec<Var>,
    function: impl Fn(Var, Var, Option<Var>) -> Result<Var>,
) -> Result<Var> {
    let mut vars = vars.into_iter();
    let mut next = || vars.next();
    let (x, w) = (next().expect("an input"), next().expect("a weight"));
    function(x, w, next())
}

/// The cases of all rules.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = Cases(Vec::new());
    convert(&mut cases);
    elementwise::arithmetic(&mut cases);
    elementwise::functions(&mut cases);
    elementwise::choice(&mut cases);
    elementwise::fused(&mut cases);
    reduce(&mut cases);
    reductions::over_axes(&mut cases);
    reductions::along_an_axis(&mut cases);
    view(&mut cases);
    views::of_parts(&mut cases);
    views::moved(&mut cases);
    assembled::all(&mut cases);
    indices::indices(&mut cases);
    indices::places(&mut cases);
    indices::reductions(&mut cases);
    indices::parts(&mut cases);
    ranks::ranks(&mut cases);
    ranks::statistics(&mut cases);
    windows::convolutions(&mut cases);
    windows::pools(&mut cases);
    layers::products(&mut cases);
    network(&mut cases);
    layers::normalizations(&mut cases);
    layers::others(&mut cases);
    losses::all(&mut cases);
    cases.0
}

/// The conversion to f32 and back is only as exact as f32, so the step of the difference is large.
fn convert(cases: &mut Cases) {
    let narrowed = |x: Var| x.to_dtype(DType::F32)?.mul_scalar(2.0)?.to_dtype(DType::F64);
    cases.unary("to_dtype", &[2, 3], AROUND_ZERO, narrowed);
    cases.0.last_mut().expect("just added").tolerance =
        Tolerance { step: 0.25, absolute: 1e-5, relative: 0.0 };
}

fn reduce(cases: &mut Cases) {
    for chosen in 0..8_usize {
        let axes: Vec<usize> = (0..3).filter(|axis| chosen >> axis & 1 == 1).collect();
        cases.unary("sum", &[2, 3, 4], AROUND_ZERO, move |x| x.sum(&axes));
    }
    for shape in [&[3, 4][..], &[3, 1], &[1], &[], &[2, 3, 4], &[2, 1, 1]] {
        cases.unary("sum_to", &[2, 3, 4], AROUND_ZERO, move |x| x.sum_to(shape));
    }
    for shape in [&[2, 3][..], &[]] {
        cases.unary("sum_all", shape, AROUND_ZERO, Var::sum_all);
        cases.unary("mean_all", shape, AROUND_ZERO, Var::mean_all);
    }
}

fn view(cases: &mut Cases) {
    cases.unary("reshape", &[2, 3, 4], AROUND_ZERO, |x| x.reshape([4, 6]));
    cases.unary("reshape", &[2, 3], AROUND_ZERO, |x| x.reshape([1, 6, 1]));
    for axes in [0..2, 1..3, 0..3, 1..2] {
        cases.unary("flatten", &[2, 3, 4], AROUND_ZERO, move |x| x.flatten(axes.clone()));
    }
    for (a, b) in [(0, 1), (2, 0), (1, 1)] {
        cases.unary("transpose", &[2, 3, 4], AROUND_ZERO, move |x| x.transpose(a, b));
    }
    for axes in [[2, 0, 1], [1, 2, 0], [0, 2, 1], [0, 1, 2]] {
        cases.unary("permute", &[2, 3, 4], AROUND_ZERO, move |x| x.permute(&axes));
    }
    for (axis, start, len) in [(0, 1, 1), (1, 0, 2), (2, 1, 3), (2, 0, 4)] {
        cases.unary("narrow", &[2, 3, 4], AROUND_ZERO, move |x| x.narrow(axis, start, len));
    }
    for (axis, index) in [(0, 1), (1, 0), (2, 3)] {
        cases.unary("select", &[2, 3, 4], AROUND_ZERO, move |x| x.select(axis, index));
    }
    for axis in 0..3 {
        cases.unary("unsqueeze", &[2, 3], AROUND_ZERO, move |x| x.unsqueeze(axis));
    }
    cases.unary("squeeze", &[2, 1, 3], AROUND_ZERO, |x| x.squeeze(1));
    cases.unary("squeeze", &[1], AROUND_ZERO, |x| x.squeeze(0));
    cases.unary("contiguous", &[2, 3], AROUND_ZERO, Var::contiguous);
    cases.unary("contiguous", &[2, 3], AROUND_ZERO, |x| x.transpose(0, 1)?.contiguous());
    cases.unary("expand", &[3, 1], AROUND_ZERO, |x| x.expand([2, 3, 4]));
    cases.unary("expand", &[1, 3], AROUND_ZERO, |x| x.expand([2, 3]));
    cases.unary("expand", &[], AROUND_ZERO, |x| x.expand([2, 2]));
    cases.unary("expand", &[2, 2], AROUND_ZERO, |x| x.expand([2, 2]));
}

fn network(cases: &mut Cases) {
    let plain = Conv2dGeometry::default();
    let padded = Conv2dGeometry { padding: [1, 2], ..plain };
    let strided = Conv2dGeometry { stride: [2, 1], ..padded };
    let dilated = Conv2dGeometry { dilation: [1, 2], ..padded };
    let grouped = Conv2dGeometry { groups: 2, stride: [2, 2], padding: [1, 1], ..plain };
    let depthwise = Conv2dGeometry { groups: 4, dilation: [2, 1], padding: [2, 0], ..plain };
    let sizes: [(Conv2dGeometry, [usize; 4], [usize; 4]); 6] = [
        (plain, [2, 2, 4, 3], [3, 2, 2, 3]),
        (padded, [1, 2, 3, 4], [2, 2, 3, 2]),
        (strided, [1, 2, 4, 3], [2, 2, 3, 3]),
        (dilated, [1, 2, 3, 4], [2, 2, 2, 2]),
        (grouped, [2, 4, 4, 4], [4, 2, 3, 3]),
        (depthwise, [1, 4, 4, 3], [4, 1, 2, 2]),
    ];
    for (geometry, x, w) in sizes {
        let conv2d = move |_: &Pass, vars| with_weight(vars, |x, w, b| x.conv2d(w, b, geometry));
        cases.add("conv2d", &[&x, &w], AROUND_ZERO, conv2d);
        cases.add("conv2d", &[&x, &w, &[w[0]]], AROUND_ZERO, conv2d);
    }
    let overlapping = Pool2dGeometry { kernel: [3, 2], stride: [1, 2], padding: [1, 0] };
    let sparse = Pool2dGeometry { kernel: [1, 2], stride: [2, 3], padding: [0, 1] };
    for geometry in [Pool2dGeometry::square(2), overlapping, sparse] {
        let pool = move |x: Var| x.max_pool2d(geometry);
        cases.unary("max_pool2d", &[2, 2, 4, 5], AROUND_ZERO, pool);
    }
}

/// The layout of an input in its storage.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lies {
    Contiguous,
    /// Every other element of a larger storage, from the second on.
    Strided,
    /// The dimensions in reverse order.
    Reversed,
}

/// A tensor of `values` in row-major order with the given layout.
fn input(
    device: &Device,
    shape: &[usize],
    values: &[f64],
    lies: Lies,
) -> lowtide_tensor::TensorResult<Tensor> {
    let contiguous = Tensor::from_slice(device, shape, values)?;
    let rank = shape.len();
    match lies {
        Lies::Contiguous => Ok(contiguous),
        Lies::Strided => {
            let mut storage =
                Tensor::full(device, &[shape, &[2]].concat()[..], contiguous.dtype(), 9.0)?;
            storage.narrow(rank, 1, 1)?.copy_(&contiguous.unsqueeze(rank)?)?;
            storage = storage.narrow(rank, 1, 1)?;
            storage.squeeze(rank)
        }
        Lies::Reversed => {
            let reverse: Vec<usize> = (0..rank).rev().collect();
            contiguous.permute(&reverse)?.copied()?.permute(&reverse)
        }
    }
}

fn check_all(lies: Lies) -> Outcome {
    let device = cpu();
    let mut wrong = Vec::new();
    for (index, case) in all().iter().enumerate() {
        let Case { rule, shapes, tolerance, function, .. } = case;
        let inputs = shapes
            .iter()
            .enumerate()
            .map(|(at, shape)| input(&device, shape, &case.values(index, at), lies));
        let inputs = inputs.collect::<lowtide_tensor::TensorResult<Vec<_>>>()?;
        if let Err(error) = check::gradients_within(*tolerance, function, &inputs) {
            wrong.push(format!("{rule} of {shapes:?}, {lies:?}: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn rules_agree_with_differences_on_contiguous_inputs() -> Outcome {
    check_all(Lies::Contiguous)
}

#[test]
fn rules_agree_with_differences_on_strided_inputs() -> Outcome {
    check_all(Lies::Strided)
}

#[test]
fn rules_agree_with_differences_on_reversed_inputs() -> Outcome {
    check_all(Lies::Reversed)
}

/// Rules whose derivative jumps at ties, where finite differences are useless. Their gradients are
/// compared with the gradients of a contiguous input instead.
const JUMP_AT_TIES: [&str; 39] = [
    "adaptive_max_pool2d",
    "amax",
    "amax_keep",
    "amin",
    "amin_keep",
    "aminmax",
    "aminmax_keep",
    "cummax",
    "cummin",
    "dist",
    "index_reduce",
    "kthvalue",
    "kthvalue_keep",
    "matrix_norm",
    "matrix_norm_keep",
    "max",
    "max_keep",
    "max_pool1d",
    "max_pool2d",
    "max_pool2d_with",
    "median",
    "median_all",
    "median_keep",
    "min",
    "min_keep",
    "mode",
    "mode_keep",
    "nanmedian",
    "nanmedian_all",
    "nanmedian_keep",
    "nanquantile",
    "norm",
    "quantile",
    "renorm",
    "scatter_reduce",
    "sort",
    "std",
    "std_keep",
    "topk",
];

/// The gradient of `Σ f² / 2` at each input.
fn gradients_at(case: &Case, inputs: &[Tensor]) -> Result<Vec<Vec<f64>>> {
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    let (leaves, gradients) = gradients_of(&inputs, |pass, vars| {
        let y = (case.function)(pass, vars)?;
        y.clone().mul(y)?.mul_scalar(0.5)?.sum_all()
    })?;
    let gradient = |leaf| gradients.get(leaf).expect("every input has one").to_vec::<f64>();
    Ok(leaves.into_iter().map(gradient).collect::<lowtide_tensor::TensorResult<_>>()?)
}

/// Broadcasts each input, one input after the other, from one slice along a dimension.
#[test]
fn rules_agree_with_differences_on_broadcast_inputs() -> Outcome {
    let device = cpu();
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for (index, case) in all().iter().enumerate() {
        let Case { rule, shapes, tolerance, function, .. } = case;
        let plain =
            |at: usize| input(&device, &shapes[at], &case.values(index, at), Lies::Contiguous);
        let places =
            (0..shapes.len()).flat_map(|at| (0..shapes[at].len()).map(move |axis| (at, axis)));
        for (at, axis) in places.filter(|&(at, axis)| shapes[at][axis] > 1) {
            let mut inputs: Vec<Tensor> =
                (0..shapes.len()).map(plain).collect::<lowtide_tensor::TensorResult<_>>()?;
            let slice = inputs[at].narrow(axis, 0, 1)?;
            inputs[at] = slice.expand(&shapes[at][..])?;
            let found = gradients_at(case, &inputs)?;
            if !JUMP_AT_TIES.contains(rule)
                && let Err(error) = check::gradients_within(*tolerance, function, &inputs)
            {
                wrong.push(format!("{rule} of {shapes:?}, input {at} along {axis}: {error}"));
            }
            inputs[at] = inputs[at].copied()?;
            let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-12 * b.abs().max(1.0);
            let expected = gradients_at(case, &inputs)?;
            let mut pairs = found.iter().flatten().zip(expected.iter().flatten());
            if !pairs.all(near) {
                wrong.push(format!("{rule} of {shapes:?}, input {at} along {axis}: not as copied"));
            }
            checked += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 500, "{checked}");
    Ok(())
}

#[test]
fn views_used_as_inputs_are_views_of_the_same_values() -> Outcome {
    let device = cpu();
    let values = values("view", 24, -1.0, 1.0);
    for lies in [Lies::Strided, Lies::Reversed] {
        let view = input(&device, &[2, 3, 4], &values, lies)?;
        assert!(!view.layout().is_contiguous(), "{lies:?}");
        assert_eq!(view.to_vec::<f64>()?, values, "{lies:?}");
    }
    Ok(())
}

#[test]
fn the_list_names_every_rule() -> Outcome {
    let name = |line: &str| {
        let name = line.trim_start().strip_prefix("pub fn ")?.split('(').next()?;
        // The `pub fn $name` inside a macro declares no rule.
        (!name.starts_with('$')).then(|| name.to_owned())
    };
    let mut written = BTreeSet::new();
    for path in rust_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/rules")) {
        written.extend(std::fs::read_to_string(path)?.lines().filter_map(name));
    }
    let listed = all().iter().map(|case| case.rule.to_owned()).collect();
    check_same_names(&listed, &written);
    Ok(())
}
