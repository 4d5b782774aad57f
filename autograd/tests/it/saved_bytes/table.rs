use lowtide_autograd::{AutogradResult as Result, Var};
use lowtide_tensor::{
    Arrival, AttentionOptions, AvgPool, Conv1dGeometry, Conv2dGeometry, ConvTranspose1dGeometry,
    ConvTranspose2dGeometry, Corners, Covariance, DType, Device, Dropout, Existing, Interpolation,
    Labelling, LinearCrossEntropyOptions, MatrixNorm, PadMode, PairLoss, Pool1dGeometry,
    Pool2dGeometry, QuantileRule, RandomKey, Replacements, Resize, RotaryPairs, Scales,
    ScatterReduction, SortOrder, Tensor,
};

const X: &[usize] = &[64, 100];
const ROW: &[usize] = &[100];
const BATCH: &[usize] = &[4, 16, 100];
const LINE: &[usize] = &[4, 8, 100];
const IMAGE: &[usize] = &[4, 8, 12, 12];
const HEADS: &[usize] = &[2, 4, 16, 8];

/// Tensors that operations read beside their inputs. The caller holds them, so they do not count.
pub(super) struct Beside {
    pub(super) mask: Tensor,
    places: Tensor,
    rows: Tensor,
    labels: Tensor,
    len: Tensor,
    target: Tensor,
    cos: Tensor,
    sin: Tensor,
}

impl Beside {
    pub(super) fn new(device: &Device) -> lowtide_tensor::TensorResult<Self> {
        let numbers = |of: fn(i64) -> i64, len: i64| -> Vec<i64> { (0..len).map(of).collect() };
        let truths: Vec<bool> = (0..6400).map(|i| i % 3 == 0).collect();
        Ok(Beside {
            mask: Tensor::from_slice(device, X, &truths)?,
            places: Tensor::from_slice(device, X, &numbers(|i| i % 64, 6400))?,
            rows: Tensor::from_slice(device, [64], &numbers(|i| i % 7, 64))?,
            len: Tensor::from_slice(device, [1], &[20_i64])?,
            labels: Tensor::from_slice(device, [64], &numbers(|i| i % 100, 64))?,
            target: Tensor::full(device, X, DType::F32, 0.01)?,
            cos: Tensor::full(device, [16, 50], DType::F32, 0.6)?,
            sin: Tensor::full(device, [16, 50], DType::F32, 0.8)?,
        })
    }
}

pub(super) type Run = fn(Vec<Var>, &Beside) -> Result<Var>;
pub(super) type Row = (&'static str, &'static [&'static [usize]], Run);

fn one(vars: Vec<Var>) -> Var {
    <[Var; 1]>::try_from(vars).map(|[x]| x).unwrap_or_else(|_| panic!("one input"))
}

fn two(vars: Vec<Var>) -> [Var; 2] {
    vars.try_into().unwrap_or_else(|_| panic!("two inputs"))
}

fn three(vars: Vec<Var>) -> [Var; 3] {
    vars.try_into().unwrap_or_else(|_| panic!("three inputs"))
}

/// Rows `NAME(x, ..) = formula;` for rules whose inputs have one shape.
macro_rules! rows {
    ($shapes:expr, $take:ident: $($name:ident($($x:pat),*) = $run:expr;)*) => {
        vec![$((stringify!($name), $shapes as &[&[usize]], {
            let run: Run = |vars, _| {
                rows!(@bind $take vars; $($x),*);
                $run
            };
            run
        })),*]
    };
    (@bind one $vars:ident; $x:pat) => { let $x = one($vars); };
    (@bind two $vars:ident; $a:pat, $b:pat) => { let [$a, $b] = two($vars); };
    (@bind three $vars:ident; $a:pat, $b:pat, $c:pat) => { let [$a, $b, $c] = three($vars); };
}

fn functions() -> Vec<Row> {
    rows! { &[X], one:
        neg(x) = x.neg();
        exp(x) = x.exp();
        expm1(x) = x.expm1();
        log(x) = x.log();
        log1p(x) = x.log1p();
        sqrt(x) = x.sqrt();
        rsqrt(x) = x.rsqrt();
        reciprocal(x) = x.reciprocal();
        sin(x) = x.sin();
        cos(x) = x.cos();
        tan(x) = x.tan();
        atan(x) = x.atan();
        asin(x) = x.asin();
        acos(x) = x.acos();
        sinh(x) = x.sinh();
        cosh(x) = x.cosh();
        asinh(x) = x.asinh();
        acosh(x) = x.acosh();
        atanh(x) = x.atanh();
        erfc(x) = x.erfc();
        erfinv(x) = x.erfinv();
        lgamma(x) = x.lgamma();
        digamma(x) = x.digamma();
        frac(x) = x.frac();
        log2(x) = x.log2();
        log10(x) = x.log10();
        exp2(x) = x.exp2();
        tanh(x) = x.tanh();
        erf(x) = x.erf();
        sign(x) = x.sign();
        floor(x) = x.floor();
        ceil(x) = x.ceil();
        round(x) = x.round();
        trunc(x) = x.trunc();
        relu(x) = x.relu();
        sigmoid(x) = x.sigmoid();
        abs(x) = x.abs();
        add_scalar(x) = x.add_scalar(0.5);
        sub_scalar(x) = x.sub_scalar(0.5);
        mul_scalar(x) = x.mul_scalar(0.5);
        div_scalar(x) = x.div_scalar(3.0);
        remainder_scalar(x) = x.remainder_scalar(0.4);
        fmod_scalar(x) = x.fmod_scalar(0.4);
        pow_scalar(x) = x.pow_scalar(2.5);
        div_floor_scalar(x) = x.div_floor_scalar(0.3);
        div_trunc_scalar(x) = x.div_trunc_scalar(0.3);
        clamp(x) = x.clamp(-0.4, 0.3);
        maximum_scalar(x) = x.maximum_scalar(0.1);
        minimum_scalar(x) = x.minimum_scalar(0.1);
        hardtanh(x) = x.hardtanh(-0.4, 0.3);
        leaky_relu(x) = x.leaky_relu(0.1);
        elu(x) = x.elu(1.0);
        celu(x) = x.celu(1.5);
        nan_to_num(x) = x.nan_to_num(Replacements::default());
        selu(x) = x.selu();
        silu(x) = x.silu();
        softplus(x) = x.softplus(1.0, 20.0);
        gelu(x) = x.gelu();
        gelu_tanh(x) = x.gelu_tanh();
        mish(x) = x.mish();
        hardswish(x) = x.hardswish();
        hardsigmoid(x) = x.hardsigmoid();
        softsign(x) = x.softsign();
        logsigmoid(x) = x.logsigmoid();
        to_dtype(x) = x.to_dtype(DType::BF16);
        softmax(x) = x.softmax(1);
        log_softmax(x) = x.log_softmax(1);
    }
}

fn several() -> Vec<Row> {
    let mut rows: Vec<Row> = rows! { &[X, X], two:
        add(a, b) = a.add(b);
        sub(a, b) = a.sub(b);
        mul(a, b) = a.mul(b);
        div(a, b) = a.div(b);
        pow(a, b) = a.pow(b);
        maximum(a, b) = a.maximum(b);
        minimum(a, b) = a.minimum(b);
        remainder(a, b) = a.remainder(b);
        atan2(a, b) = a.atan2(b);
        fmod(a, b) = a.fmod(b);
        hypot(a, b) = a.hypot(b);
        copysign(a, b) = a.copysign(b);
        logaddexp(a, b) = a.logaddexp(b);
        xlogy(a, b) = a.xlogy(b);
        fmax(a, b) = a.fmax(b);
        fmin(a, b) = a.fmin(b);
        lerp(a, b) = a.lerp(b, 0.3);
        div_floor(a, b) = a.div_floor(b);
        div_trunc(a, b) = a.div_trunc(b);
        dist(a, b) = a.dist(b, 2.0);
        cat(a, b) = Var::cat(vec![a, b], 0);
        block_diag(a, b) = Var::block_diag(vec![a, b]);
        stack(a, b) = Var::stack(vec![a, b], 0);
    };
    rows.extend(rows! { &[X, X, X], three:
        addcmul(x, a, b) = x.addcmul(a, b, 1.0);
        addcdiv(x, a, b) = x.addcdiv(a, b, 1.0);
    });
    rows.push(("where_cond", &[X, X], |x, beside| {
        let [a, b] = two(x);
        a.where_cond(&beside.mask, b)
    }));
    rows.push(("masked_fill", &[X], |x, beside| one(x).masked_fill(&beside.mask, 7.0)));
    rows
}

fn reductions() -> Vec<Row> {
    rows! { &[X], one:
        sum(x) = x.sum(&[1]);
        sum_all(x) = x.sum_all();
        sum_to(x) = x.sum_to([1, 100]);
        mean(x) = x.mean(&[1]);
        mean_all(x) = x.mean_all();
        prod(x) = x.prod(&[1]);
        logsumexp(x) = x.logsumexp(&[1]);
        amax(x) = x.amax(&[1]);
        amin(x) = x.amin(&[1]);
        norm(x) = x.norm(&[1], 2.0);
        var(x) = x.var(&[1], 1.0);
        std(x) = x.std(&[1], 1.0);
        max(x) = Ok(x.max(1)?.0);
        min(x) = Ok(x.min(1)?.0);
        sort(x) = Ok(x.sort(1, SortOrder::Ascending)?.0);
        topk(x) = Ok(x.topk(10, 1, SortOrder::Descending)?.0);
        cumsum(x) = x.cumsum(1);
        cumprod(x) = x.cumprod(1);
        cummax(x) = Ok(x.cummax(1)?.0);
        logcumsumexp(x) = x.logcumsumexp(1);
        kthvalue(x) = Ok(x.kthvalue(3, 1)?.0);
        median_all(x) = x.median_all();
        quantile(x) = x.quantile(&[0.3], 1, QuantileRule::Linear);
        nansum(x) = x.nansum(&[1]);
        nanmean(x) = x.nanmean(&[1]);
        trace(x) = x.trace();
        diff(x) = x.diff(1, 1);
        renorm(x) = x.renorm(2.0, 0, 0.5);
        cov(x) = x.cov(Covariance::default());
        corrcoef(x) = x.corrcoef();
        matrix_norm(x) = x.matrix_norm(MatrixNorm::LargestColumn, [0, 1]);
        dropout(x) = x.dropout(Dropout { probability: 0.5, key: RandomKey::new(5), first: 0 });
    }
}

fn moved() -> Vec<Row> {
    let mut rows: Vec<Row> = rows! { &[X], one:
        reshape(x) = x.reshape([100, 64]);
        transpose(x) = x.transpose(0, 1);
        narrow(x) = x.narrow(1, 3, 20);
        select(x) = x.select(1, 3);
        diagonal(x) = x.diagonal(0, 0, 1);
        unfold(x) = x.unfold(1, 3, 2);
        repeat(x) = x.repeat(&[2, 3]);
        repeat_interleave(x) = x.repeat_interleave(1, 3);
        pad(x) = x.pad(&[[3, 4], [1, 2]], PadMode::Constant(0.0));
        flip(x) = x.flip(&[0]);
        roll(x) = x.roll(1, 3);
        triu(x) = x.triu(0);
        tril(x) = x.tril(0);
    };
    rows.push(("expand", &[ROW], |x, _| one(x).expand([64, 100])));
    rows.push(("gather", &[X], |x, beside| one(x).gather(0, &beside.places)));
    rows.push(("index_select", &[X], |x, beside| one(x).index_select(0, &beside.rows)));
    rows.push(("masked_select", &[X], |x, beside| one(x).masked_select(&beside.mask)));
    rows.push(("embedding", &[X], |x, beside| one(x).embedding(&beside.rows)));
    let placed: [(&'static str, Run); 4] = [
        ("scatter", |x, beside| {
            let [x, source] = two(x);
            x.scatter(0, &beside.places, source)
        }),
        ("scatter_add", |x, beside| {
            let [x, source] = two(x);
            x.scatter_add(0, &beside.places, source)
        }),
        ("index_add", |x, beside| {
            let [x, source] = two(x);
            x.index_add(0, &beside.rows, source)
        }),
        ("index_copy", |x, beside| {
            let [x, source] = two(x);
            x.index_copy(0, &beside.rows, source)
        }),
    ];
    rows.extend(placed.map(|(name, run)| (name, &[X, X] as &[&[usize]], run)));
    rows.extend(named());
    rows
}

fn named() -> Vec<Row> {
    vec![
        ("index", &[X], |x, beside| one(x).index(&[&beside.rows])),
        ("index_put", &[X, X], |x, beside| {
            let [x, values] = two(x);
            x.index_put(&[&beside.rows], values, Arrival::Replace)
        }),
        ("take", &[X], |x, beside| one(x).take(&beside.places)),
        ("put", &[X, X], |x, beside| {
            let [x, source] = two(x);
            x.put(&beside.places, source, Arrival::Replace)
        }),
        ("index_fill", &[X], |x, beside| one(x).index_fill(0, &beside.rows, 2.0)),
        ("scatter_reduce", &[X, X], |x, beside| {
            let [x, source] = two(x);
            let how = (ScatterReduction::Amax, Existing::Included);
            x.scatter_reduce(0, &beside.places, source, how.0, how.1)
        }),
        ("masked_scatter", &[X, X], |x, beside| {
            let [x, source] = two(x);
            x.masked_scatter(&beside.mask, source)
        }),
        ("select_scatter", &[X, ROW], |x, _| {
            let [x, source] = two(x);
            x.select_scatter(source, 0, 3)
        }),
    ]
}

fn products() -> Vec<Row> {
    vec![
        ("matmul", &[X, &[100, 30]], |x, _| {
            let [a, b] = two(x);
            a.matmul(b)
        }),
        ("bmm", &[BATCH, &[4, 100, 30]], |x, _| {
            let [a, b] = two(x);
            a.bmm(b)
        }),
        ("addmm", &[&[64, 30], X, &[100, 30]], |x, _| {
            let [x, a, b] = three(x);
            x.addmm(a, b, Scales::default())
        }),
        ("dot", &[ROW, ROW], |x, _| {
            let [a, b] = two(x);
            a.dot(b)
        }),
        ("matvec", &[X, ROW], |x, _| {
            let [a, b] = two(x);
            a.matvec(b)
        }),
        ("outer", &[ROW, ROW], |x, _| {
            let [a, b] = two(x);
            a.outer(b)
        }),
        ("kron", &[X, &[2, 3]], |x, _| {
            let [a, b] = two(x);
            a.kron(b)
        }),
        ("tensordot", &[X, X], |x, _| {
            let [a, b] = two(x);
            a.tensordot(b, &[1], &[1])
        }),
        ("multi_dot", &[X, &[100, 30], &[30, 5]], |x, _| Var::multi_dot(x)),
        ("linear", &[X, &[30, 100], &[30]], |x, _| {
            let [x, w, b] = three(x);
            x.linear(w, Some(b))
        }),
        ("conv1d", &[LINE, &[6, 8, 3], &[6]], |x, _| {
            let [x, w, b] = three(x);
            x.conv1d(w, Some(b), Conv1dGeometry::default())
        }),
        ("conv2d", &[IMAGE, &[6, 8, 3, 3], &[6]], |x, _| {
            let [x, w, b] = three(x);
            x.conv2d(w, Some(b), Conv2dGeometry::default())
        }),
        ("conv_transpose1d", &[LINE, &[8, 6, 3], &[6]], |x, _| {
            let [x, w, b] = three(x);
            x.conv_transpose1d(w, Some(b), ConvTranspose1dGeometry::default())
        }),
        ("conv_transpose2d", &[IMAGE, &[8, 6, 3, 3], &[6]], |x, _| {
            let [x, w, b] = three(x);
            x.conv_transpose2d(w, Some(b), ConvTranspose2dGeometry::default())
        }),
        ("attention", &[HEADS, HEADS, HEADS], |x, _| {
            let [q, k, v] = three(x);
            q.attention(k, v, None, AttentionOptions::default())
        }),
        ("rotary", &[BATCH], |x, beside| {
            one(x).rotary(&beside.cos, &beside.sin, RotaryPairs::HalfSplit)
        }),
    ]
}

fn windows() -> Vec<Row> {
    let (line, image) = (&[LINE] as &[&[usize]], &[IMAGE] as &[&[usize]]);
    vec![
        ("max_pool1d", line, |x, _| one(x).max_pool1d(Pool1dGeometry::side_by_side(2))),
        ("avg_pool1d", line, |x, _| {
            one(x).avg_pool1d(Pool1dGeometry::side_by_side(2), AvgPool::default())
        }),
        ("max_pool2d", image, |x, _| one(x).max_pool2d(Pool2dGeometry::square(2))),
        ("avg_pool2d", image, |x, _| {
            one(x).avg_pool2d(Pool2dGeometry::square(2), AvgPool::default())
        }),
        ("adaptive_avg_pool2d", image, |x, _| one(x).adaptive_avg_pool2d([3, 3])),
        ("adaptive_max_pool2d", image, |x, _| one(x).adaptive_max_pool2d([3, 3])),
        ("upsample2d", image, |x, _| {
            let smooth = Interpolation::Bilinear(Corners::Centers);
            one(x).upsample2d(Resize::By([2.0, 2.0]), smooth)
        }),
    ]
}

fn normalizations_and_losses() -> Vec<Row> {
    vec![
        ("layer_norm", &[X, ROW, ROW], |x, _| {
            let [x, w, b] = three(x);
            x.layer_norm(1, Some(w), Some(b), 1e-5)
        }),
        ("rms_norm", &[X, ROW], |x, _| {
            let [x, w] = two(x);
            x.rms_norm(1, Some(w), 1e-5)
        }),
        ("group_norm", &[IMAGE, &[8], &[8]], |x, _| {
            let [x, w, b] = three(x);
            x.group_norm(4, Some(w), Some(b), 1e-5)
        }),
        ("batch_norm", &[IMAGE, &[8], &[8]], |x, _| {
            let [x, w, b] = three(x);
            Ok(x.batch_norm(Some(w), Some(b), 1e-5)?.0)
        }),
        ("cross_entropy", &[X], |x, beside| Ok(one(x).cross_entropy(&beside.labels, -100)?.0)),
        ("soft_cross_entropy", &[X], |x, beside| {
            one(x).soft_cross_entropy(&beside.target, Labelling::default())
        }),
        ("nll_loss", &[X], |x, beside| Ok(one(x).nll_loss(&beside.labels, -100, None)?.0)),
        ("linear_cross_entropy", &[X, &[100, 100]], |x, beside| {
            let [x, w] = two(x);
            let options = LinearCrossEntropyOptions::default();
            Ok(x.linear_cross_entropy(w, None, &beside.labels, options)?.0)
        }),
        ("cdist", &[X, &[30, 100]], |x, _| {
            let [x, y] = two(x);
            x.cdist(y, 2.0)
        }),
        ("ctc_loss", &[&[64, 1, 100]], |x, beside| {
            let targets = beside.labels.narrow(0, 0, 20)?.reshape([1, 20])?;
            one(x).ctc_loss(&targets, [&beside.len; 2], 0)
        }),
        ("pair_loss", &[X], |x, beside| one(x).pair_loss(&beside.target, PairLoss::SquaredError)),
    ]
}

pub(super) fn table() -> Vec<Row> {
    let parts = [
        functions(),
        several(),
        reductions(),
        moved(),
        products(),
        windows(),
        normalizations_and_losses(),
    ];
    parts.concat()
}
