use lowtide_autograd::{AutogradResult as Result, Var};
use lowtide_tensor::{Covariance, DType, MatrixNorm, QuantileRule, Tensor};

use super::{AROUND_ZERO, Cases, NEGATIVE, POSITIVE, pair};
use crate::common::{Outcome, cpu, gradients_of};

type Along = fn(Var, usize) -> Result<Var>;

const SHAPE: &[usize] = &[2, 3, 4];
const QUANTILES: [f64; 3] = [0.3, 0.5, 0.9];

pub(super) fn ranks(cases: &mut Cases) {
    use QuantileRule as R;
    let rules: [(&'static str, Along); 16] = [
        ("kthvalue", |x, axis| Ok(x.kthvalue(2, axis)?.0)),
        ("kthvalue_keep", |x, axis| Ok(x.kthvalue_keep(1, axis)?.0)),
        ("median", |x, axis| Ok(x.median(axis)?.0)),
        ("median_keep", |x, axis| Ok(x.median_keep(axis)?.0)),
        ("nanmedian", |x, axis| Ok(x.nanmedian(axis)?.0)),
        ("nanmedian_keep", |x, axis| Ok(x.nanmedian_keep(axis)?.0)),
        ("mode", |x, axis| Ok(x.mode(axis)?.0)),
        ("mode_keep", |x, axis| Ok(x.mode_keep(axis)?.0)),
        ("quantile", |x, axis| x.quantile(&QUANTILES, axis, R::Linear)),
        ("quantile", |x, axis| x.quantile(&QUANTILES, axis, R::Midpoint)),
        ("quantile", |x, axis| x.quantile(&QUANTILES, axis, R::Lower)),
        ("nanquantile", |x, axis| x.nanquantile(&QUANTILES, axis, R::Higher)),
        ("nanquantile", |x, axis| x.nanquantile(&QUANTILES[..1], axis, R::Nearest)),
        ("cummax", |x, axis| Ok(x.cummax(axis)?.0)),
        ("cummin", |x, axis| Ok(x.cummin(axis)?.0)),
        ("logcumsumexp", Var::logcumsumexp),
    ];
    for (rule, function) in rules {
        for axis in 0..3 {
            cases.unary(rule, SHAPE, AROUND_ZERO, move |x| function(x, axis));
        }
    }
    cases.unary("median_all", &[3, 3], AROUND_ZERO, Var::median_all);
    cases.unary("nanmedian_all", &[2, 3], AROUND_ZERO, Var::nanmedian_all);
}

pub(super) fn statistics(cases: &mut Cases) {
    for axes in [&[0][..], &[2, 1], &[0, 1, 2]] {
        cases.unary("nansum", SHAPE, AROUND_ZERO, move |x| x.nansum(axes));
        cases.unary("nansum_keep", SHAPE, AROUND_ZERO, move |x| x.nansum_keep(axes));
        cases.unary("nanmean", SHAPE, AROUND_ZERO, move |x| x.nanmean(axes));
        cases.unary("nanmean_keep", SHAPE, AROUND_ZERO, move |x| x.nanmean_keep(axes));
        let both = |(low, high): (Var, Var)| low.mul_scalar(2.0)?.add(high);
        cases.unary("aminmax", SHAPE, AROUND_ZERO, move |x| both(x.aminmax(axes)?));
        cases.unary("aminmax_keep", SHAPE, AROUND_ZERO, move |x| both(x.aminmax_keep(axes)?));
    }
    cases.unary("trace", &[3, 4], AROUND_ZERO, Var::trace);
    for (times, axis) in [(1, 0), (2, 1), (3, 2), (0, 0)] {
        cases.unary("diff", SHAPE, AROUND_ZERO, move |x| x.diff(times, axis));
    }
    for order in [1.0, 2.0, 3.5] {
        cases.add("dist", &[&[2, 3], &[3]], AROUND_ZERO, move |_, vars| {
            let (x, y) = pair(vars);
            x.dist(y, order)
        });
        for axis in 0..3 {
            // One limit scales all slices down, the other none. No norm is close to a limit.
            cases.unary("renorm", SHAPE, POSITIVE, move |x| x.renorm(order, axis, 0.5));
            cases.unary("renorm", SHAPE, NEGATIVE, move |x| x.renorm(order, axis, 50.0));
        }
    }
    cases.unary("renorm", &[3, 2], AROUND_ZERO, |x| x.renorm(f64::INFINITY, 0, 0.1));
    for shape in [&[3, 5][..], &[6]] {
        cases.unary("cov", shape, AROUND_ZERO, |x| x.cov(Covariance::default()));
    }
    cases.unary("cov", &[3, 4], AROUND_ZERO, |x| {
        let device = x.value().device();
        let frequencies = Tensor::from_slice(device, [4], &[1_i64, 3, 0, 2])?;
        let weights = Tensor::from_slice(device, [4], &[0.5, 1.0, 0.25, 2.0])?;
        let (frequencies, weights) = (Some(&frequencies), Some(&weights));
        x.cov(Covariance { correction: 1.0, frequencies, weights })
    });
    // Constant rows have no correlation, so this makes broadcast rows differ.
    cases.unary("corrcoef", &[3, 5], AROUND_ZERO, |x| {
        let apart: Vec<f64> = (0..15).map(|i| f64::from(i * i * 7 % 11 - 5)).collect();
        let apart = Tensor::from_slice(x.value().device(), [3, 5], &apart)?;
        let apart = x.pass().constant(apart);
        x.add(apart)?.corrcoef()
    });
    use MatrixNorm as M;
    for norm in [M::Frobenius, M::LargestColumn, M::SmallestColumn, M::LargestRow, M::SmallestRow] {
        cases.unary("matrix_norm", SHAPE, AROUND_ZERO, move |x| x.matrix_norm(norm, [0, 2]));
        cases.unary("matrix_norm_keep", SHAPE, AROUND_ZERO, move |x| {
            x.matrix_norm_keep(norm, [2, 1])
        });
    }
}

/// A gradient computed from a rounded sum or norm would contain its rounding error as a factor.
#[test]
fn gradients_of_half_types_do_not_follow_the_rounding_of_results() -> Outcome {
    type Rule = fn(Var) -> Result<Var>;
    let rules: [(&str, Rule); 6] = [
        ("logcumsumexp", |x| x.logcumsumexp(0)),
        ("norm 2", |x| x.norm(&[0], 2.0)),
        ("norm 2.5", |x| x.norm(&[0], 2.5)),
        ("norm inf", |x| x.norm(&[0], f64::INFINITY)),
        ("renorm", |x| x.reshape([1, 5])?.renorm(2.5, 0, 3.0)),
        ("dist", |x| {
            let other = Tensor::from_slice(x.value().device(), [1], &[-0.21875_f32])?;
            let other = x.pass().constant(other.to_dtype(x.value().dtype())?);
            x.dist(other, 2.5)
        }),
    ];
    let x = Tensor::from_slice(&cpu(), [5], &[100.0_f32, 100.5, 99.0, 101.0, 60.0])?;
    for (name, rule) in rules {
        let dx = |x: &Tensor| -> Result<Vec<f32>> {
            let (leaves, gradients) =
                gradients_of(&[x], |_, vars| rule(vars[0].clone())?.sum_all())?;
            let dx = gradients.get(leaves[0]).expect("it has one").to_dtype(DType::BF16)?;
            Ok(dx.to_dtype(DType::F32)?.to_vec()?)
        };
        assert_eq!(dx(&x.to_dtype(DType::BF16)?)?, dx(&x)?, "{name}");
    }
    Ok(())
}
