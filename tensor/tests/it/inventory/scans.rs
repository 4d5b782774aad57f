use lowtide_tensor::{
    Covariance, MatrixNorm, NanRule, QuantileRule, Side, SortOrder, Tensor, Unique, UniqueOptions,
};

use super::{Entry, out};

/// An operation with two results.
macro_rules! pair {
    ($name:ident, $inputs:ident => $result:expr) => {
        Entry {
            name: stringify!($name),
            run: |$inputs| {
                let (values, positions): (Tensor, Tensor) = $result?;
                Ok(vec![values, positions])
            },
            half: true,
        }
    };
}

fn all_of(found: Unique) -> Vec<Tensor> {
    vec![found.values, found.inverse, found.counts]
}

pub(super) fn ops() -> Vec<Entry> {
    let mut ops = vec![
        out!(cumsum, i => i.image.cumsum(1)),
        out!(cumsum_backward, i => i.a.reshape([65 * 1001])?.cumsum_backward(0)),
        out!(cumprod, i => i.a.cumprod(1)),
        out!(argsort, i => i.a.argsort(0, SortOrder::Descending)),
        Entry {
            name: "sort",
            run: |i| {
                let (values, positions) = i.a.sort(1, SortOrder::Ascending)?;
                Ok(vec![values, positions])
            },
            half: true,
        },
        Entry {
            name: "topk",
            run: |i| {
                let (values, positions) = i.a.topk(17, 1, SortOrder::Descending)?;
                Ok(vec![values, positions])
            },
            half: true,
        },
    ];
    ops.extend(running());
    ops.extend(ranks());
    ops.extend(different());
    ops.extend(statistics());
    ops
}

fn running() -> Vec<Entry> {
    vec![
        pair!(cummax, i => i.image.cummax(1)),
        pair!(cummin, i => i.a.cummin(1)),
        out!(logcumsumexp, i => i.image.logcumsumexp(2)),
        out!(logcumsumexp_backward, i => {
            let y = i.a.logcumsumexp(1)?;
            i.b.logcumsumexp_backward(&i.a, &y, 1)
        }),
    ]
}

fn ranks() -> Vec<Entry> {
    const QUANTILES: [f64; 3] = [0.25, 0.5, 0.9];
    vec![
        pair!(kthvalue, i => i.a.kthvalue(17, 1)),
        pair!(kthvalue_keep, i => i.a.kthvalue_keep(17, 0)),
        pair!(median, i => i.a.median(1)),
        pair!(median_keep, i => i.a.median_keep(0)),
        out!(median_all, i => i.a.median_all()),
        pair!(nanmedian, i => i.a.nanmedian(0)),
        pair!(nanmedian_keep, i => i.a.nanmedian_keep(1)),
        out!(nanmedian_all, i => i.a.transpose(0, 1)?.nanmedian_all()),
        pair!(mode, i => i.a.mode(1)),
        pair!(mode_keep, i => i.a.mode_keep(0)),
        out!(quantile, i => i.a.quantile(&QUANTILES, 1, QuantileRule::Linear)),
        out!(nanquantile, i => i.a.nanquantile(&QUANTILES, 0, QuantileRule::Nearest)),
        Entry {
            name: "quantiles_at",
            run: |i| {
                let (sorted, _) = i.a.sort(0, SortOrder::Ascending)?;
                let rules = (QuantileRule::Linear, NanRule::Propagate);
                let places = sorted.quantile_places(&QUANTILES, 0, rules)?;
                Ok(vec![sorted.quantiles_at(&places, 0)?])
            },
            half: true,
        },
        Entry {
            name: "quantile_places",
            run: |i| {
                let (sorted, _) = i.a.sort(1, SortOrder::Ascending)?;
                let rules = (QuantileRule::Midpoint, NanRule::Ignore);
                let places = sorted.quantile_places(&QUANTILES, 1, rules)?;
                let (above, weight) = places.above.expect("it lies between two");
                Ok(vec![places.below, above, weight])
            },
            half: true,
        },
    ]
}

fn different() -> Vec<Entry> {
    vec![
        Entry {
            name: "unique",
            run: |i| {
                // Labels are 0 to 36 and -100; the pattern has 31 different columns.
                let options = UniqueOptions { along: None, assumed_count: Some(38) };
                let mut found = all_of(i.labels.unique(options)?);
                let options = UniqueOptions { along: Some(1.into()), assumed_count: Some(31) };
                found.extend(all_of(i.a.unique(options)?));
                Ok(found)
            },
            half: true,
        },
        Entry {
            name: "unique_consecutive",
            run: |i| {
                let options = UniqueOptions { along: None, assumed_count: Some(500) };
                Ok(all_of(i.labels.unique_consecutive(options)?))
            },
            half: true,
        },
        out!(bincount_assuming, i => {
            let weights = i.b.select(0, 0)?.narrow(0, 0, 500)?;
            i.rows.bincount_assuming(Some(&weights), 40, 36)
        }),
        out!(histc, i => i.a.histc(50, -0.5..0.5)),
        out!(searchsorted, i => {
            let (sorted, _) = i.a.sort(1, SortOrder::Ascending)?;
            sorted.searchsorted(&i.b, Side::Right)
        }),
        out!(bucketize, i => {
            let (sorted, _) = i.row.select(0, 0)?.sort(0, SortOrder::Ascending)?;
            i.b.bucketize(&sorted, Side::Left)
        }),
        out!(isin, i => i.a.isin(&i.row)),
    ]
}

fn statistics() -> Vec<Entry> {
    vec![
        out!(nansum, i => i.a.nansum(&[0])),
        out!(nansum_keep, i => i.a.nansum_keep(&[1])),
        out!(nanmean, i => i.a.nanmean(&[1])),
        out!(nanmean_keep, i => i.a.nanmean_keep(&[0])),
        pair!(aminmax, i => i.a.aminmax(&[0])),
        pair!(aminmax_keep, i => i.a.aminmax_keep(&[1])),
        out!(trace, i => i.a.trace()),
        out!(diff, i => i.a.diff(2, 1)),
        out!(dist, i => i.a.dist(&i.row, 2.0)),
        out!(renorm, i => i.a.renorm(2.0, 0, 0.5)),
        out!(cov, i => {
            let weights = i.positive.select(0, 0)?.to_dtype(i.a.dtype())?;
            i.a.cov(Covariance { weights: Some(&weights), ..Covariance::default() })
        }),
        out!(cov_backward, i => {
            let dy = i.left.narrow(0, 0, 65)?.narrow(1, 0, 65)?;
            dy.cov_backward(&i.a, Covariance::default())
        }),
        out!(corrcoef, i => i.a.corrcoef()),
        out!(matrix_norm, i => i.image.matrix_norm(MatrixNorm::LargestColumn, [2, 3])),
        out!(matrix_norm_keep, i => i.image.matrix_norm_keep(MatrixNorm::Frobenius, [0, 3])),
    ]
}
