//! Elementwise operations: formulas, broadcasting, in place.

use lowtide_tensor::{
    CpuOptions, DType, Device, Element, PairLoss, Tensor, TensorResult as Result, testing,
};
use proptest::prelude::*;

use crate::common::{
    Style, all_floats, assert_close, assert_same, broadcast_shapes, download, laid_out, sample,
    shapes, shared, styles, writable_styles,
};
use crate::naive::Array;

const LOGITS: PairLoss = PairLoss::BinaryCrossEntropyOfLogits;

/// A formula: name, its form with a result, its form in place, and the definition.
struct Unary {
    name: &'static str,
    op: fn(&Tensor) -> Result<Tensor>,
    in_place: fn(&mut Tensor) -> Result<()>,
    formula: fn(f64) -> f64,
}

struct Binary {
    name: &'static str,
    op: fn(&Tensor, &Tensor) -> Result<Tensor>,
    in_place: fn(&mut Tensor, &Tensor) -> Result<()>,
    formula: fn(f64, f64) -> f64,
}

macro_rules! unary {
    ($($name:ident $in_place:ident $(($($number:expr),+))? = $formula:expr;)*) => {
        [$(Unary {
            name: stringify!($name),
            op: |x| x.$name($($($number),+)?),
            in_place: |x| x.$in_place($($($number),+)?),
            formula: $formula,
        }),*]
    };
}

macro_rules! binary {
    ($($name:ident $in_place:ident $(($($number:expr),+))? = $formula:expr;)*) => {
        [$(Binary {
            name: stringify!($name),
            op: |a, b| a.$name(b $(, $($number),+)?),
            in_place: |a, b| a.$in_place(b $(, $($number),+)?),
            formula: $formula,
        }),*]
    };
}

fn truth(is: bool) -> f64 {
    f64::from(u8::from(is))
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// 2/√π · e^(-x²) · Σ 2ⁿ x²ⁿ⁺¹ / (2n + 1)!!, a series whose terms do not cancel.
fn erf(x: f64) -> f64 {
    let terms = (1..200).scan(x, |term, n| {
        let now = *term;
        *term *= 2.0 * x * x / f64::from(2 * n + 1);
        Some(now)
    });
    2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp() * terms.sum::<f64>()
}

const FLOAT_FUNCTIONS: &[Unary] = &unary! {
    exp exp_ = f64::exp;
    expm1 expm1_ = f64::exp_m1;
    log log_ = f64::ln;
    log1p log1p_ = f64::ln_1p;
    sqrt sqrt_ = f64::sqrt;
    rsqrt rsqrt_ = |x| 1.0 / x.sqrt();
    reciprocal reciprocal_ = |x| 1.0 / x;
    sin sin_ = f64::sin;
    cos cos_ = f64::cos;
    tan tan_ = f64::tan;
    atan atan_ = f64::atan;
    tanh tanh_ = f64::tanh;
    asin asin_ = f64::asin;
    acos acos_ = f64::acos;
    sinh sinh_ = f64::sinh;
    cosh cosh_ = f64::cosh;
    asinh asinh_ = |x| x.signum() * (x.abs() + (x * x + 1.0).sqrt()).ln();
    acosh acosh_ = |x| (x + (x - 1.0).sqrt() * (x + 1.0).sqrt()).ln();
    atanh atanh_ = |x| 0.5 * ((1.0 + x) / (1.0 - x)).ln();
    erfc erfc_ = |x| 1.0 - erf(x);
    frac frac_ = f64::fract;
    log2 log2_ = f64::log2;
    log10 log10_ = f64::log10;
    exp2 exp2_ = f64::exp2;
    mish mish_ = |x| x * x.exp().ln_1p().tanh();
    hardswish hardswish_ = |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0;
    hardsigmoid hardsigmoid_ = |x| (x + 3.0).clamp(0.0, 6.0) / 6.0;
    selu selu_ = |x| {
        1.0507009873554805 * if x > 0.0 { x } else { 1.6732632423543772 * x.exp_m1() }
    };
    softsign softsign_ = |x| x / (1.0 + x.abs());
    logsigmoid logsigmoid_ = |x| -(-x).exp().ln_1p();
    div_floor_scalar div_floor_scalar_ (-0.75) = |x| (x / -0.75).floor();
    div_trunc_scalar div_trunc_scalar_ (-0.75) = |x| (x / -0.75).trunc();
    erf erf_ = erf;
    sigmoid sigmoid_ = sigmoid;
    silu silu_ = |x| x * sigmoid(x);
    gelu gelu_ = |x| 0.5 * x * (1.0 + erf(x / 2.0f64.sqrt()));
    gelu_tanh gelu_tanh_ = |x| {
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        0.5 * x * (1.0 + inner.tanh())
    };
    floor floor_ = f64::floor;
    ceil ceil_ = f64::ceil;
    round round_ = f64::round_ties_even;
    trunc trunc_ = f64::trunc;
    leaky_relu leaky_relu_ (0.25) = |x| if x > 0.0 { x } else { 0.25 * x };
    elu elu_ (1.5) = |x| if x > 0.0 { x } else { 1.5 * x.exp_m1() };
    celu celu_ (1.5) = |x| if x > 0.0 { x } else { 1.5 * (x / 1.5).exp_m1() };
    fmod_scalar fmod_scalar_ (-0.75) = |x| x % -0.75;
    softplus softplus_ (2.0, 2.0) = |x| {
        if 2.0 * x > 2.0 { x } else { (2.0 * x).exp().ln_1p() / 2.0 }
    };
    div_scalar div_scalar_ (0.75) = |x| x / 0.75;
    remainder_scalar remainder_scalar_ (-0.75) = |x| x - -0.75 * (x / -0.75).floor();
    add_scalar add_scalar_ (0.375) = |x| x + 0.375;
    mul_scalar mul_scalar_ (-1.5) = |x| x * -1.5;
    pow_scalar pow_scalar_ (0.0) = |_| 1.0;
    pow_scalar pow_scalar_ (1.0) = |x| x;
    pow_scalar pow_scalar_ (2.0) = |x| x * x;
    pow_scalar pow_scalar_ (3.0) = |x| x * x * x;
    pow_scalar pow_scalar_ (5.0) = |x| x.powi(5);
    pow_scalar pow_scalar_ (0.5) = f64::sqrt;
    pow_scalar pow_scalar_ (-0.5) = |x| 1.0 / x.sqrt();
    pow_scalar pow_scalar_ (-1.0) = |x| 1.0 / x;
    pow_scalar pow_scalar_ (-2.0) = |x| 1.0 / (x * x);
    pow_scalar pow_scalar_ (1.25) = |x| x.powf(1.25);
    clamp clamp_ (-0.375, 0.625) = |x| x.clamp(-0.375, 0.625);
    clamp clamp_ (f64::NEG_INFINITY, 0.5) = |x| x.min(0.5);
};

/// The definition of a function of the table. Its scalars are those of `common::scalars`.
pub(crate) fn definition(name: &str) -> fn(f64) -> f64 {
    let defined = FLOAT_FUNCTIONS.iter().chain(FUNCTIONS).find(|unary| unary.name == name);
    defined.unwrap_or_else(|| panic!("no definition of {name} in elementwise.rs")).formula
}

#[test]
fn every_function_of_the_table_has_a_definition() {
    // Functions that are defined by integrals and series; see `special.rs`.
    let elsewhere = ["erfinv", "lgamma", "digamma"];
    for function in testing::functions().filter(|of| !elsewhere.contains(&of.name)) {
        definition(function.name);
    }
}

const FLOAT_PAIRS: &[Binary] = &binary! {
    div div_ = |a, b| a / b;
    remainder remainder_ = |a, b| a - b * (a / b).floor();
    pow pow_ = f64::powf;
    atan2 atan2_ = f64::atan2;
    fmod fmod_ = |a, b| a % b;
    hypot hypot_ = f64::hypot;
    copysign copysign_ = f64::copysign;
    logaddexp logaddexp_ = |a, b| (a.exp() + b.exp()).ln();
    xlogy xlogy_ = |a, b| if a == 0.0 { 0.0 } else { a * b.ln() };
    lerp lerp_ (0.75) = |a, b| a + 0.75 * (b - a);
};

/// Exact in every type, as long as no integer type overflows.
const FUNCTIONS: &[Unary] = &unary! {
    abs abs_ = f64::abs;
    neg neg_ = |x| -x;
    sign sign_ = |x| truth(x > 0.0) - truth(x < 0.0);
    relu relu_ = |x| x.max(0.0);
    clamp clamp_ (1.0, 12.0) = |x| x.clamp(1.0, 12.0);
    add_scalar add_scalar_ (7.0) = |x| x + 7.0;
    sub_scalar sub_scalar_ (3.0) = |x| x - 3.0;
    mul_scalar mul_scalar_ (2.0) = |x| x * 2.0;
    maximum_scalar maximum_scalar_ (1.0) = |x| x.max(1.0);
    minimum_scalar minimum_scalar_ (1.0) = |x| x.min(1.0);
    eq_scalar eq_scalar_ (1.0) = |x| truth(x == 1.0);
    ne_scalar ne_scalar_ (1.0) = |x| truth(x != 1.0);
    lt_scalar lt_scalar_ (1.0) = |x| truth(x < 1.0);
    le_scalar le_scalar_ (1.0) = |x| truth(x <= 1.0);
    gt_scalar gt_scalar_ (1.0) = |x| truth(x > 1.0);
    ge_scalar ge_scalar_ (1.0) = |x| truth(x >= 1.0);
    logical_not logical_not_ = |x| truth(x == 0.0);
    mul_scalar mul_scalar_ (-1.0) = |x| -x;
};

const PAIRS: &[Binary] = &binary! {
    add add_ = |a, b| a + b;
    sub sub_ = |a, b| a - b;
    mul mul_ = |a, b| a * b;
    maximum maximum_ = f64::max;
    minimum minimum_ = f64::min;
    fmax fmax_ = f64::max;
    fmin fmin_ = f64::min;
    heaviside heaviside_ = |x, v| if x == 0.0 { v } else { truth(x > 0.0) };
    eq eq_ = |a, b| truth(a == b);
    ne ne_ = |a, b| truth(a != b);
    lt lt_ = |a, b| truth(a < b);
    le le_ = |a, b| truth(a <= b);
    gt gt_ = |a, b| truth(a > b);
    ge ge_ = |a, b| truth(a >= b);
    logical_and logical_and_ = |a, b| truth(a != 0.0 && b != 0.0);
    logical_or logical_or_ = |a, b| truth(a != 0.0 || b != 0.0);
    logical_xor logical_xor_ = |a, b| truth((a != 0.0) != (b != 0.0));
};

fn is_comparison(name: &str) -> bool {
    let heads = ["eq", "ne", "lt", "le", "gt", "ge", "logical"];
    heads.iter().any(|head| name.split('_').next() == Some(head))
}

/// The element that an integer type stores for a value beyond its range.
fn wrapped(dtype: DType, x: f64) -> f64 {
    match dtype {
        DType::U8 => x.rem_euclid(256.0),
        _ => x,
    }
}

/// Compares texts, because `x == x` is false for NaN.
#[track_caller]
fn assert_same_text(found: &Tensor, expected: &Tensor, name: &str) {
    let [found, expected] = [found, expected].map(|x| format!("{:?}", download(x)));
    assert_eq!(found, expected, "{name}");
}

/// Checks that the operation in place, through another handle to the view, gives the result of the
/// other form.
#[track_caller]
fn assert_in_place(
    name: &str,
    mut target: Tensor,
    result: &Tensor,
    op: impl Fn(&mut Tensor) -> Result<()>,
) {
    let handle = target.clone();
    op(&mut target).unwrap();
    assert_same_text(&handle, &result.to_dtype(target.dtype()).unwrap(), name);
}

/// The number types and truth values.
fn all_types() -> impl Strategy<Value = DType> {
    prop::sample::select(DType::ALL.to_vec())
}

proptest! {
    #[test]
    fn function_of_floats_holds_for_every_layout(
        dims in shapes(), styles in (styles(), writable_styles()), dtype in all_floats(),
        seed in 0..50usize,
    ) {
        let (x, twin) = sample(&dims, styles.0, dtype, seed);
        for Unary { name, op, in_place, formula } in FLOAT_FUNCTIONS {
            let y = op(&x).unwrap();
            assert_close(&y, &twin.map(formula), 8);
            // Layouts do not change the bits, nor does writing in place.
            let target = laid_out(&twin, styles.1, dtype);
            assert_in_place(name, target, &y, in_place);
        }
    }

    #[test]
    fn function_of_two_floats_broadcasts_over_every_layout(
        [dims, left, right] in broadcast_shapes(),
        styles in [styles(), styles()],
        dtype in all_floats(),
        seed in 0..50usize,
    ) {
        let (a, a_twin) = sample(&left, styles[0], dtype, seed);
        let (b, b_twin) = sample(&right, styles[1], dtype, seed + 1);
        for Binary { name, op, formula, .. } in FLOAT_PAIRS {
            let y = op(&a, &b).unwrap();
            // Where a power is infinite, the definition of the remainder is NaN, and the reverse.
            let expected = a_twin.zip(&b_twin, &dims, formula);
            prop_assert_eq!(&y.shape()[..], &dims[..], "{}", name);
            assert_close(&y, &expected, 8);
        }
    }

    #[test]
    fn exact_function_holds_for_every_type_and_layout(
        dims in shapes(), styles in (styles(), writable_styles()), dtype in all_types(),
        seed in 0..50usize,
    ) {
        let (x, twin) = sample(&dims, styles.0, dtype, seed);
        for Unary { name, op, in_place, formula } in FUNCTIONS {
            if dtype == DType::Bool && !is_comparison(name) {
                prop_assert!(op(&x).is_err());
                continue;
            }
            let y = op(&x).unwrap();
            let dtype_expected = if is_comparison(name) { DType::Bool } else { dtype };
            prop_assert_eq!(y.dtype(), dtype_expected, "{}", name);
            assert_same(&y, &twin.map(|x| wrapped(dtype, formula(x))));
            assert_in_place(name, laid_out(&twin, styles.1, dtype), &y, in_place);
        }
    }

    #[test]
    fn exact_function_of_two_broadcasts_for_every_type_and_layout(
        [dims, left, right] in broadcast_shapes(),
        styles in [styles(), styles()],
        dtype in all_types(),
        seed in 0..50usize,
    ) {
        let (a, a_twin) = sample(&left, styles[0], dtype, seed);
        let (b, b_twin) = sample(&right, styles[1], dtype, seed + 1);
        for Binary { name, op, formula, .. } in PAIRS {
            if dtype == DType::Bool && !is_comparison(name) {
                prop_assert!(op(&a, &b).is_err());
                continue;
            }
            let y = op(&a, &b).unwrap();
            let expected = a_twin.zip(&b_twin, &dims, |a, b| wrapped(dtype, formula(a, b)));
            let dtype_expected = if is_comparison(name) { DType::Bool } else { dtype };
            prop_assert_eq!(y.dtype(), dtype_expected, "{}", name);
            // The products of the pattern need one bit more than a bf16 has.
            assert_close(&y, &expected, 1);
        }
    }

    #[test]
    fn in_place_equals_out_of_place_and_writes_through_the_view(
        dims in shapes(),
        ones in any::<[bool; 5]>(),
        styles in (writable_styles(), styles()),
        dtype in all_types(),
        seed in 0..50usize,
    ) {
        let small: Vec<usize> =
            dims.iter().zip(ones).map(|(&dim, one)| if one { 1 } else { dim }).collect();
        let (b, _) = sample(&small, styles.1, dtype, seed + 1);
        for Binary { name, op, in_place, .. } in PAIRS.iter().chain(FLOAT_PAIRS) {
            let (a, _) = sample(&dims, styles.0, dtype, seed);
            let Ok(y) = op(&a, &b) else {
                prop_assert!(!dtype.is_float());
                continue;
            };
            assert_in_place(name, a, &y, |a| in_place(a, &b));
        }
    }

    #[test]
    fn formulas_of_three_broadcast_and_work_in_place(
        [dims, left, right] in broadcast_shapes(),
        styles in (writable_styles(), styles(), styles()),
        dtype in all_floats(),
        seed in 0..50usize,
    ) {
        let (a, a_twin) = sample(&left, styles.1, dtype, seed);
        let (b, b_twin) = sample(&right, styles.2, dtype, seed + 1);
        let (x, x_twin) = sample(&dims, styles.0, dtype, seed + 2);
        // A half-integer scale, and quotients by powers of two, keep the f32 arithmetic exact.
        let two = b_twin.map(|b| if b > 0.0 { 2.0 } else { -0.5 });
        let b2 = laid_out(&two, styles.2, dtype);
        let product = a_twin.zip(&b_twin, &dims, |a, b| 0.5 * a * b);
        let y = x.addcmul(&a, &b, 0.5).unwrap();
        assert_close(&y, &x_twin.zip(&product, &dims, |x, p| x + p), 2);
        assert_in_place("addcmul", laid_out(&x_twin, styles.0, dtype), &y, |x| {
            x.addcmul_(&a, &b, 0.5)
        });
        let quotient = a_twin.zip(&two, &dims, |a, b| -2.0 * a / b);
        let y = x.addcdiv(&a, &b2, -2.0).unwrap();
        assert_close(&y, &x_twin.zip(&quotient, &dims, |x, q| x + q), 2);
        assert_in_place("addcdiv", laid_out(&x_twin, styles.0, dtype), &y, |x| {
            x.addcdiv_(&a, &b2, -2.0)
        });
        let mut x = x;
        x.add_scaled_(&a, -0.5).unwrap();
        assert_close(&x, &x_twin.zip(&a_twin, &dims, |x, a| x - 0.5 * a), 1);
    }

    #[test]
    fn masks_choose_in_every_type(
        [dims, left, right] in broadcast_shapes(),
        styles in (writable_styles(), styles(), styles()),
        dtype in all_types(),
        seed in 0..50usize,
    ) {
        let (mask, mask_twin) = sample(&left, styles.1, DType::Bool, seed);
        let (a, a_twin) = sample(&dims, styles.0, dtype, seed + 1);
        let (b, b_twin) = sample(&right, styles.2, dtype, seed + 2);
        let expected = mask_twin.zip(&a_twin, &dims, |m, a| if m == 0.0 { f64::NAN } else { a });
        let expected = expected.zip(&b_twin, &dims, |x, b| if x.is_nan() { b } else { x });
        assert_same(&mask.where_cond(&a, &b).unwrap(), &expected);
        let filled = mask_twin.zip(&a_twin, &dims, |m, a| if m == 0.0 { a } else { 1.0 });
        let y = a.masked_fill(&mask, 1.0).unwrap();
        assert_same(&y, &filled);
        assert_in_place("masked_fill", a.clone(), &y, |a| a.masked_fill_(&mask, 1.0));
        let y = mask.where_cond(&b, &a).unwrap();
        assert_in_place("masked_copy", a, &y, |a| a.masked_copy_(&mask, &b));
    }

    #[test]
    fn relu_backward_passes_where_the_output_is_positive(
        dims in shapes(), styles in (writable_styles(), styles()), dtype in all_floats(),
    ) {
        let (mut dy, dy_twin) = sample(&dims, styles.0, dtype, 3);
        let (y, y_twin) = sample(&dims, styles.1, dtype, 4);
        let expected = dy_twin.zip(&y_twin, &dims, |dy, y| if y > 0.0 { dy } else { 0.0 });
        assert_same(&dy.relu_backward(&y).unwrap(), &expected);
        dy.relu_backward_(&y).unwrap();
        assert_same(&dy, &expected);
    }

    #[test]
    fn integers_wrap(a in any::<i64>(), b in any::<i64>()) {
        fn of<T: Element>(a: i64, b: i64) -> [T; 6] {
            let [a, b] = [a, b].map(|x| Tensor::from_slice(shared(), [1], &[T::from_i64(x)]));
            let (a, b) = (a.unwrap(), b.unwrap());
            let sum = a.addcmul(&a, &b, 3.0).unwrap();
            [a.add(&b), a.sub(&b), a.mul(&b), a.neg(), a.abs(), Ok(sum)]
                .map(|y| y.unwrap().item().unwrap())
        }
        macro_rules! check {
            ($($type:ident),*) => {$({
                let (x, y) = (a as $type, b as $type);
                let abs = if i128::from(x) < 0 { x.wrapping_neg() } else { x };
                prop_assert_eq!(of::<$type>(a, b), [
                    x.wrapping_add(y),
                    x.wrapping_sub(y),
                    x.wrapping_mul(y),
                    x.wrapping_neg(),
                    abs,
                    x.wrapping_add(x.wrapping_mul(y).wrapping_mul(3)),
                ]);
            })*};
        }
        check!(i64, i32, u8);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn large_permuted_views_are_written_by_many_threads(
        dims in [50..80usize, 1..12usize, 50..80usize],
        axes in Just([0usize, 1, 2]).prop_shuffle(),
    ) {
        // A window of several chunks in a permuted tensor, from a source in another order.
        let twin = Array::pattern(&dims, 1);
        let whole = laid_out(&twin, Style::Contiguous, DType::F32);
        let mut window = whole.narrow(2, 1, dims[2] - 2).unwrap().permute(&axes).unwrap();
        let source_twin = Array::pattern(window.shape(), 2);
        let source = laid_out(&source_twin, Style::Transposed, DType::F32);
        let product = download(&window).zip(&source_twin, window.shape(), |a, b| a * b);
        window.mul_(&source).unwrap();
        assert_same(&window, &product);
        for edge in [0, dims[2] - 1] {
            assert_same(&whole.narrow(2, edge, 1).unwrap(), &twin.narrow(2, edge, 1));
        }
        let mut turned = whole.permute(&axes).unwrap();
        let source_twin = Array::pattern(turned.shape(), 3);
        turned.copy_(&laid_out(&source_twin, Style::Contiguous, DType::F32)).unwrap();
        assert_same(&turned, &source_twin);
    }
}

#[test]
fn writing_a_view_leaves_its_surroundings_alone() {
    let whole = laid_out(&Array::pattern(&[4, 5], 1), Style::Contiguous, DType::F32);
    let mut inside = whole.narrow(0, 1, 2).unwrap().narrow(1, 2, 2).unwrap();
    inside.fill_(100.0).unwrap();
    let expected = Array::from_fn(&[4, 5], |at| {
        let is_inside = (1..3).contains(&at[0]) && (2..4).contains(&at[1]);
        if is_inside { 100.0 } else { Array::pattern(&[4, 5], 1).at(at) }
    });
    assert_same(&whole, &expected);
}

/// A formula gets contiguous operands of one type in longer runs than other operands.
#[test]
fn formula_gives_an_element_the_same_in_a_run_of_any_length() {
    const LEN: usize = 40_000;
    let x = laid_out(&Array::pattern(&[LEN], 1), Style::Contiguous, DType::F32);
    let y = laid_out(&Array::pattern(&[LEN], 2), Style::Contiguous, DType::F32);
    let ops: [fn(&Tensor, &Tensor) -> Result<Tensor>; 7] = [
        |x, y| x.pow(y),
        |x, _| x.pow_scalar(1.7),
        |x, y| x.lerp(y, 0.3),
        |x, y| x.gelu_backward(y),
        |x, y| Tensor::full(shared(), [], DType::F32, 0.5)?.pair_loss_backward(x, y, LOGITS),
        |x, y| {
            let dy = Tensor::full(shared(), [], DType::F32, 0.5)?;
            dy.pair_loss_weighted_backward(x, y, LOGITS, Some(y))
        },
        |x, y| {
            let mut sum = x.mul_scalar(1.0)?;
            sum.add_(y)?;
            Ok(sum)
        },
    ];
    for (index, op) in ops.iter().enumerate() {
        let bits = |y: &Tensor| y.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits);
        let whole: Vec<u32> = bits(&op(&x, &y).unwrap()).collect();
        let mut parts = Vec::new();
        for at in (0..LEN).step_by(300) {
            let part = |x: &Tensor| x.narrow(0, at, 300.min(LEN - at)).unwrap();
            parts.extend(bits(&op(&part(&x), &part(&y)).unwrap()));
        }
        assert!(whole == parts, "formula {index}");
    }
}

#[test]
fn tests_of_single_numbers_know_infinity_and_nan() {
    let values = [1.0f64, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 0.0];
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let x = Tensor::from_slice(shared(), [5], &values).unwrap().to_dtype(dtype).unwrap();
        let of = |y: Result<Tensor>| y.unwrap().to_vec::<bool>().unwrap();
        assert_eq!(of(x.is_finite()), [true, false, false, false, true]);
        assert_eq!(of(x.is_inf()), [false, true, true, false, false]);
        assert_eq!(of(x.is_nan()), [false, false, false, true, false]);
    }
    for dtype in [DType::I64, DType::I32, DType::U8, DType::Bool] {
        let x = Tensor::full(shared(), [2], dtype, 1.0).unwrap();
        assert_eq!(x.is_finite().unwrap().to_vec::<bool>().unwrap(), [true; 2]);
        assert_eq!(x.is_nan().unwrap().to_vec::<bool>().unwrap(), [false; 2]);
    }
}

#[test]
fn upper_bound_wins_over_the_lower_one() {
    let x = Tensor::from_slice(shared(), [3], &[0.0f32, 1.5, 9.0]).unwrap();
    assert_eq!(x.clamp(2.0, 1.0).unwrap().to_vec::<f32>().unwrap(), [1.0; 3]);
}

#[test]
fn numbers_beside_integers_are_integers() {
    let x = Tensor::full(shared(), [2], DType::I32, 5.0).unwrap();
    assert!(x.add_scalar(0.5).is_err());
    assert!(x.clamp(0.5, 2.0).is_err());
    assert!(x.maximum_scalar(f64::NAN).is_err());
    assert!(x.masked_fill(&x.gt_scalar(1.0).unwrap(), 0.5).is_err());
    let clamped = x.clamp(f64::NEG_INFINITY, 3.0).unwrap();
    assert_eq!(clamped.to_vec::<i32>().unwrap(), [3, 3]);
}

#[test]
fn nan_goes_through_relu() {
    let x = Tensor::from_slice(shared(), [2], &[f32::NAN, -0.0]).unwrap();
    let values = x.relu().unwrap().to_vec::<f32>().unwrap();
    assert!(values[0].is_nan() && values[1] == 0.0);
}

#[test]
fn relu_passes_nan_on_in_both_directions() {
    let device = Device::cpu(CpuOptions::default()).unwrap();
    let of = |values: &[f32]| Tensor::from_slice(&device, [values.len()], values).unwrap();
    let y = of(&[f32::NAN, -1.0, 0.0, 2.0]).relu().unwrap();
    let dx = of(&[5.0; 4]).relu_backward(&y).unwrap().to_vec::<f32>().unwrap();
    assert!(y.to_vec::<f32>().unwrap()[0].is_nan());
    assert_eq!(dx, [5.0, 0.0, 0.0, 5.0]);
}

/// Such results are written past the caches.
#[test]
fn results_that_no_cache_holds_are_the_same() {
    let device = shared();
    let len = (8 << 20) + 4099;
    let x = Tensor::arange(device, 0.0..len as f64, 1.0, DType::F32).unwrap();
    let expect = |found: &Tensor, value: fn(f32) -> f32| {
        let found = found.to_vec::<f32>().unwrap();
        assert_eq!(found.len(), len);
        let wrong = (0..len).find(|&at| found[at] != value(at as f32));
        assert_eq!(wrong.map(|at| (at, found[at])), None);
    };
    expect(&x.add(&x).unwrap(), |x| x + x);
    expect(&x.sqrt().unwrap(), f32::sqrt);
    let mut copy = Tensor::empty(device, [len], DType::F32).unwrap();
    copy.copy_(&x).unwrap();
    expect(&copy, |x| x);
    copy.mul_(&x).unwrap();
    expect(&copy, |x| x * x);
}
