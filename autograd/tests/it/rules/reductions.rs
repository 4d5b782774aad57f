use lowtide_autograd::{AutogradResult as Result, Var};
use lowtide_tensor::SortOrder;

use super::{AROUND_ZERO, Cases, NEGATIVE, POSITIVE};

type Over = fn(Var, &[usize]) -> Result<Var>;
type Along = fn(Var, usize) -> Result<Var>;

const SHAPE: &[usize] = &[2, 3, 4];
const AXES: [&[usize]; 6] = [&[], &[0], &[2], &[0, 2], &[2, 1], &[0, 1, 2]];

pub(super) fn over_axes(cases: &mut Cases) {
    let rules: [(&'static str, [f64; 2], Over); 18] = [
        ("sum_keep", AROUND_ZERO, |x, axes| x.sum_keep(axes)),
        ("mean", AROUND_ZERO, |x, axes| x.mean(axes)),
        ("mean_keep", AROUND_ZERO, |x, axes| x.mean_keep(axes)),
        ("prod", AROUND_ZERO, |x, axes| x.prod(axes)),
        ("prod_keep", NEGATIVE, |x, axes| x.prod_keep(axes)),
        ("logsumexp", AROUND_ZERO, |x, axes| x.logsumexp(axes)),
        ("logsumexp_keep", NEGATIVE, |x, axes| x.logsumexp_keep(axes)),
        ("amax", AROUND_ZERO, |x, axes| x.amax(axes)),
        ("amax_keep", AROUND_ZERO, |x, axes| x.amax_keep(axes)),
        ("amin", AROUND_ZERO, |x, axes| x.amin(axes)),
        ("amin_keep", AROUND_ZERO, |x, axes| x.amin_keep(axes)),
        ("norm", AROUND_ZERO, |x, axes| x.norm(axes, 2.0)),
        ("norm", AROUND_ZERO, |x, axes| x.norm(axes, 1.0)),
        ("norm", AROUND_ZERO, |x, axes| x.norm(axes, 0.0)),
        ("norm", AROUND_ZERO, |x, axes| x.norm(axes, f64::INFINITY)),
        ("norm", AROUND_ZERO, |x, axes| x.norm(axes, f64::NEG_INFINITY)),
        ("norm", NEGATIVE, |x, axes| x.norm(axes, 3.5)),
        ("norm_keep", POSITIVE, |x, axes| x.norm_keep(axes, 0.5)),
    ];
    for (rule, range, function) in rules {
        for axes in AXES {
            cases.unary(rule, SHAPE, range, move |x| function(x, axes));
        }
        cases.unary(rule, &[], range, move |x| function(x, &[]));
    }
    // One element has no deviation.
    let spreads: [(&'static str, Over); 5] = [
        ("var", |x, axes| x.var(axes, 1.0)),
        ("var", |x, axes| x.var(axes, 0.0)),
        ("var_keep", |x, axes| x.var_keep(axes, 0.5)),
        ("std", |x, axes| x.std(axes, 1.0)),
        ("std_keep", |x, axes| x.std_keep(axes, 0.0)),
    ];
    for (rule, function) in spreads {
        for axes in &AXES[1..] {
            cases.unary(rule, SHAPE, AROUND_ZERO, move |x| function(x, axes));
        }
    }
    for rule in ["sum_keep", "prod"] {
        let function = rules.iter().find(|&&(name, ..)| name == rule).expect("listed").2;
        cases.unary(rule, &[0, 2], AROUND_ZERO, move |x| function(x, &[0]));
    }
}

pub(super) fn along_an_axis(cases: &mut Cases) {
    let rules: [(&'static str, Along); 10] = [
        ("max", |x, axis| Ok(x.max(axis)?.0)),
        ("max_keep", |x, axis| Ok(x.max_keep(axis)?.0)),
        ("min", |x, axis| Ok(x.min(axis)?.0)),
        ("min_keep", |x, axis| Ok(x.min_keep(axis)?.0)),
        ("sort", |x, axis| Ok(x.sort(axis, SortOrder::Ascending)?.0)),
        ("sort", |x, axis| Ok(x.sort(axis, SortOrder::Descending)?.0)),
        ("topk", |x, axis| Ok(x.topk(2, axis, SortOrder::Descending)?.0)),
        ("topk", |x, axis| Ok(x.topk(1, axis, SortOrder::Ascending)?.0)),
        ("cumsum", Var::cumsum),
        ("cumprod", Var::cumprod),
    ];
    for (rule, function) in rules {
        for axis in 0..3 {
            cases.unary(rule, SHAPE, AROUND_ZERO, move |x| function(x, axis));
        }
    }
}
