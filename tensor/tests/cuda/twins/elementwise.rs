use lowtide_tensor::cuda::gate::{Argument, Grid, Signature};
use proptest::prelude::*;

use super::{
    Lab, Read, U32, U64, Values, Words, Write, assert_close, indices, noise, strides, walk,
};

/// Sizes, the order of the axes of two tensors, and the axes that the second tensor repeats.
fn walks() -> impl Strategy<Value = (Vec<usize>, [Vec<usize>; 2], Vec<bool>)> {
    prop::collection::vec(prop_oneof![4 => 1..5_usize, 1 => 0..1_usize, 1 => 33..34_usize], 0..4)
        .prop_flat_map(|sizes| {
            let axes: Vec<usize> = (0..sizes.len()).collect();
            let orders = [Just(axes.clone()).prop_shuffle(), Just(axes).prop_shuffle()];
            let repeats = prop::collection::vec(any::<bool>(), sizes.len());
            (Just(sizes), orders, repeats)
        })
}

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) }
}

const GRID: Grid = Grid { blocks: [3, 1, 1], threads: [32, 1, 1], shared_bytes: 0 };

#[test]
fn fill_and_copy_reach_every_element_of_a_view_and_no_other() {
    let Some(lab) = Lab::open() else { return };
    proptest!(config(), |((sizes, orders, repeats) in walks(), size_log in 0..4_usize)| {
        let (size_bytes, none) = (1 << size_log, vec![false; sizes.len()]);
        let [fill, copy] = [["fill_1", "fill_2", "fill_4", "fill_8"], ["copy_1", "copy_2", "copy_4",
            "copy_8"]].map(|names| names[size_log]);
        let to = strides(&sizes, &orders[0], &none);
        let from = strides(&sizes, &orders[1], &repeats);
        // The view has every second element.
        let spread: Vec<i64> = to.iter().map(|stride| 2 * stride).collect();
        let [to_at, from_at] = [indices(&sizes, &spread), indices(&sizes, &from)];
        let len = |at: &[usize]| at.iter().max().map_or(1, |max| max + 1) * size_bytes;
        let source: Vec<u8> = (0..len(&from_at)).map(|i| (i * 7 + 1) as u8).collect();
        let value = 0x0807_0605_0403_0201_u64;
        let mut filled = vec![0xcd; len(&to_at)];
        let mut copied = filled.clone();
        for (&to, &from) in to_at.iter().zip(&from_at) {
            let to = to * size_bytes..(to + 1) * size_bytes;
            filled[to.clone()].copy_from_slice(&value.to_le_bytes()[..size_bytes]);
            copied[to].copy_from_slice(&source[from * size_bytes..][..size_bytes]);
        }
        let x = lab.bytes(&source);
        lab.in_each_order(|| {
            let y = lab.room(filled.len());
            let words = walk(&sizes, &[&spread]);
            let kernel = Signature { name: fill, parameters: &[Write, U64, Words(26)] };
            let arguments = [y.write(), Argument::U64(value), Argument::Words(&words)];
            lab.run("fill", kernel, GRID, &arguments);
            assert_eq!(lab.bytes_of(&y), filled);

            let y = lab.room(copied.len());
            let words = walk(&sizes, &[&spread, &from]);
            let kernel = Signature { name: copy, parameters: &[Write, Read, Words(34)] };
            lab.run("fill", kernel, GRID, &[y.write(), x.read(), Argument::Words(&words)]);
            assert_eq!(lab.bytes_of(&y), copied);
        });
    });
}

/// The value of 16 bits, `exponent_bits` of which are the exponent.
fn value_of(bits: u16, exponent_bits: u32) -> f64 {
    let mantissa_bits = 15 - exponent_bits;
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    let mantissa = f64::from(bits & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
    let bias = (1 << (exponent_bits - 1)) - 1;
    if exponent == (1 << exponent_bits) - 1 {
        return if mantissa == 0.0 { sign * f64::INFINITY } else { f64::NAN };
    }
    let scale = |exponent: i32| 2_f64.powi(exponent - bias);
    sign * if exponent == 0 { mantissa * scale(1) } else { (1.0 + mantissa) * scale(exponent) }
}

/// The 16 bits nearest to a value, found by a search of all values; any NaN for NaN.
fn nearest(value: f64, exponent_bits: u32) -> Vec<u16> {
    let all = 0..=u16::MAX;
    if value.is_nan() {
        return all.filter(|&bits| value_of(bits, exponent_bits).is_nan()).collect();
    }
    // The next number after the largest rounds to infinity.
    let infinity = 2_f64.powi(1 << (exponent_bits - 1));
    let within = |value: f64| value.clamp(-infinity, infinity);
    let candidates = all.filter(|&bits| {
        !value_of(bits, exponent_bits).is_nan() && (bits >> 15 == 1) == value.is_sign_negative()
    });
    let distance = |bits: u16| (within(value_of(bits, exponent_bits)) - within(value)).abs();
    let best = candidates.min_by(|&one, &two| {
        let order = distance(one).total_cmp(&distance(two));
        order.then_with(|| (one & 1).cmp(&(two & 1)))
    });
    best.into_iter().collect()
}

#[test]
fn casts_round_to_the_nearest() {
    let Some(lab) = Lab::open() else { return };
    let mut values: Vec<f32> = noise(8, 1);
    values.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 65504.0, 65519.9]);
    values.extend([65520.0, -1e9, f32::MAX, 6e-8, 2.9e-8, 2.98e-8, 1e-40, 1.0 + 1.0 / 2048.0]);
    values.extend([1.0 + 3.0 / 2048.0, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, 2049.0, 1e-7]);
    let len = values.len();
    let halves: Vec<u16> = (0..=u16::MAX).step_by(13).collect();
    let half_bytes: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
    let parameters = &[Write, Read, Words(34)];
    let cast = |name, from: &super::Values, to: &super::Values, len| {
        let words = walk(&[len], &[&[1], &[1]]);
        let kernel = Signature { name, parameters };
        lab.run("cast", kernel, GRID, &[to.write(), from.read(), Argument::Words(&words)]);
    };
    let bits_of = |values: &super::Values| -> Vec<u16> {
        lab.bytes_of(values).chunks(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect()
    };
    for (bits, other_bits, down, up, across) in [
        (5, 8, "cast_f32_f16", "cast_f16_f32", "cast_f16_bf16"),
        (8, 5, "cast_f32_bf16", "cast_bf16_f32", "cast_bf16_f16"),
    ] {
        let (x, y) = (lab.floats(&values), lab.room(2 * len));
        cast(down, &x, &y, len);
        for (half, &value) in bits_of(&y).into_iter().zip(&values) {
            let expected = nearest(f64::from(value), bits);
            assert!(expected.contains(&half), "{down} of {value}: {half:#x}, {expected:x?}");
        }
        let (x, y) = (lab.bytes(&half_bytes), lab.room(4 * halves.len()));
        cast(up, &x, &y, halves.len());
        let expected: Vec<f64> = halves.iter().map(|&half| value_of(half, bits)).collect();
        assert_close(&lab.floats_of(&y), &expected, 0, 0.0);
        let y = lab.room(2 * 64);
        cast(across, &x, &y, 64);
        for (found, &half) in bits_of(&y).into_iter().zip(&halves) {
            let expected = nearest(value_of(half, bits), other_bits);
            assert!(expected.contains(&found), "{across} of {half:#x}: {found:#x}");
        }
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The error function by its series (Abramowitz and Stegun, 7.1.5), for small arguments.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..60 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

fn gelu_tanh(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    0.5 * x * (1.0 + inner.tanh())
}

/// The formulas of one source in the order of their numbers, with p = 0.5 and q = 1.5.
const UNARY: [fn(f64) -> f64; 49] = [
    f64::abs,
    |x| -x,
    |x| if x == 0.0 { 0.0 } else { x.signum() },
    |x| x.max(0.0),
    |x| x.clamp(0.5, 1.5),
    f64::exp,
    f64::exp_m1,
    f64::ln,
    f64::ln_1p,
    f64::sqrt,
    |x| 1.0 / x.sqrt(),
    |x| 1.0 / x,
    f64::sin,
    f64::cos,
    f64::tanh,
    erf,
    sigmoid,
    |x| if x > 0.0 { x } else { 0.5 * x },
    |x| if x > 0.0 { x } else { 0.5 * x.exp_m1() },
    |x| 0.5 * x * (1.0 + erf(x / 2_f64.sqrt())),
    gelu_tanh,
    |x| x * sigmoid(x),
    |x| if 0.5 * x > 1.5 { x } else { (0.5 * x).exp().ln_1p() / 0.5 },
    f64::floor,
    f64::ceil,
    f64::round_ties_even,
    f64::trunc,
    f64::sqrt,
    f64::tan,
    f64::atan,
    f64::asin,
    f64::acos,
    f64::sinh,
    f64::cosh,
    f64::asinh,
    f64::acosh,
    f64::atanh,
    |x| 1.0 - erf(x),
    f64::fract,
    f64::log2,
    f64::log10,
    f64::exp2,
    |x| x * x.exp().ln_1p().tanh(),
    |x| x * hard_sigmoid(x),
    hard_sigmoid,
    selu,
    |x| x / (1.0 + x.abs()),
    |x| -(-x).exp().ln_1p(),
    |x| if x > 0.0 { x } else { 0.5 * (x / 0.5).exp_m1() },
];

/// The slope of a formula, from both sides.
fn slope(f: impl Fn(f64) -> f64, x: f64) -> f64 {
    (f(x + 1e-5) - f(x - 1e-5)) / 2e-5
}

fn hard_sigmoid(x: f64) -> f64 {
    (x + 3.0).clamp(0.0, 6.0) / 6.0
}

/// Klambauer et al., "Self-normalizing neural networks" (2017).
fn selu(x: f64) -> f64 {
    let alpha = 1.673_263_242_354_377_2;
    1.050_700_987_355_480_5 * if x > 0.0 { x } else { alpha * x.exp_m1() }
}

/// The formulas of two sources in the order of their numbers, which follow the formulas of one
/// source, with p = 0.5.
const BINARY: [fn(f64, f64) -> f64; 20] = [
    |a, b| a + 0.5 * b,
    |a, b| a - b,
    |a, b| a * b,
    |a, b| a / b,
    f64::max,
    f64::min,
    f64::powf,
    |a, b| a + 0.5 * (b - a),
    |a, b| if b == 0.0 { a / b } else { (a / b).floor() },
    |a, b| (a / b).trunc(),
    |a, b| a - b * (a / b).floor(),
    |a, b| a % b,
    f64::max,
    f64::min,
    |a, b| if a == 0.0 { b } else { f64::from(u8::from(a > 0.0)) },
    f64::atan2,
    f64::hypot,
    f64::copysign,
    |a, b| (a.exp() + b.exp()).ln(),
    |a, b| if a == 0.0 { 0.0 } else { a * b.ln() },
];

/// The number of the first gradient. Five other formulas come between the formulas of two sources
/// and the gradients.
const SLOPES_FROM: usize = UNARY.len() + BINARY.len() + 5;

/// The gradients of dy = a and of y or x = b, in the order of their numbers, with p = 0.5 and q =
/// 1.5.
const SLOPES: [fn(f64, f64) -> f64; 17] = [
    |a, b| if b > 0.0 { a } else { 0.0 },
    |a, b| a * b * (1.0 - b),
    |a, b| a * (1.0 - b * b),
    |a, b| a * slope(|x| 0.5 * x * (1.0 + erf(x / 2_f64.sqrt())), b),
    |a, b| a * slope(gelu_tanh, b),
    |a, b| a * slope(|x| x * sigmoid(x), b),
    |a, b| if b > 0.0 { a } else { 0.5 * a },
    |a, b| if b > 0.0 { a } else { a * 0.5 * b.exp() },
    |a, b| if b > 0.0 { a } else { a * (b / 0.5).exp() },
    |a, b| a * sigmoid(0.5 * b),
    |a, b| a * slope(|x| x * x.exp().ln_1p().tanh(), b),
    |a, b| a * (b / 3.0 + 0.5),
    |a, _| a / 6.0,
    |a, b| if b > 0.5 && b < 1.5 { a } else { 0.0 },
    |a, b| {
        let slope = if b > 0.0 { 1.0 } else { 1.673_263_242_354_377_2 * b.exp() };
        a * 1.050_700_987_355_480_5 * slope
    },
    |a, b| a / (1.0 + b.abs()).powi(2),
    |a, b| a * sigmoid(-b),
];

/// Every formula of two sources, with its number.
fn of_two() -> impl Iterator<Item = (usize, fn(f64, f64) -> f64)> {
    let numbered = |first: usize, all: &'static [fn(f64, f64) -> f64]| {
        all.iter().enumerate().map(move |(index, &twin)| (first + index, twin))
    };
    numbered(UNARY.len(), &BINARY).chain(numbered(SLOPES_FROM, &SLOPES))
}

const ROW: Signature = Signature {
    name: "formula_f32",
    parameters: &[Write, Read, Read, Read, Read, U32, Words(3), U64],
};
const WALK: Signature = Signature {
    name: "formula_walk_f32",
    parameters: &[Write, Read, Read, Read, Read, U32, Words(3), Words(58)],
};

/// The number that stands for a source, and the scalars p = 0.5 and q = 1.5.
fn numbers() -> [u64; 3] {
    [0.0, 0.5, 1.5].map(f64::to_bits)
}

/// Computes y from the sources, which are all contiguous.
fn run_row(lab: &Lab, op: usize, y: &Values, sources: &[&Values], len: usize) {
    let given = sources.iter().map(|source| source.read());
    let sources: Vec<Argument<'_>> =
        given.chain(std::iter::repeat(Argument::Nothing)).take(4).collect();
    let numbers = numbers();
    let rest = [Argument::U32(op as u32), Argument::Words(&numbers), Argument::U64(len as u64)];
    lab.run("elementwise_f32", ROW, GRID, &[&[y.write()], &sources[..], &rest].concat());
}

/// Roundings of the functions, of their arguments, and of finite differences.
const ROUNDING: f64 = 8.0;
const ROUNDING_OF_SLOPES: f64 = 40.0;

#[test]
fn formulas_of_one_source_are_those_of_their_twins() {
    let Some(lab) = Lab::open() else { return };
    let values = noise(300, 3);
    for (op, twin) in UNARY.into_iter().enumerate() {
        let (x, y) = (lab.floats(&values), lab.room(4 * values.len()));
        let expected: Vec<f64> = values.iter().map(|&x| twin(f64::from(x))).collect();
        run_row(&lab, op, &y, &[&x], values.len());
        assert_close(&lab.floats_of(&y), &expected, 1, ROUNDING);
        // The result overwrites the source.
        run_row(&lab, op, &x, &[&x], values.len());
        assert_eq!(lab.bytes_of(&x), lab.bytes_of(&y));
    }
}

#[test]
fn formulas_of_two_sources_are_those_of_their_twins() {
    let Some(lab) = Lab::open() else { return };
    let (a_values, b_values) = (noise(300, 5), noise(300, 6));
    for (op, twin) in of_two() {
        let [a, b] = [&a_values, &b_values].map(|values| lab.floats(values));
        let y = lab.room(4 * a_values.len());
        let pairs = a_values.iter().zip(&b_values);
        let expected: Vec<f64> = pairs.map(|(&a, &b)| twin(f64::from(a), f64::from(b))).collect();
        run_row(&lab, op, &y, &[&a, &b], a_values.len());
        assert_close(&lab.floats_of(&y), &expected, 1, ROUNDING_OF_SLOPES);
        // The result overwrites the first source.
        run_row(&lab, op, &a, &[&a, &b], a_values.len());
        assert_eq!(lab.bytes_of(&a), lab.bytes_of(&y));
    }
}

#[test]
fn nan_and_signed_zeros_go_where_pytorch_has_them() {
    let Some(lab) = Lab::open() else { return };
    let values = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0];
    let (x, y) = (lab.floats(&values), lab.room(16));
    let run = |op: usize| {
        run_row(&lab, op, &y, &[&x], 4);
        lab.floats_of(&y).iter().map(|value| value.to_string()).collect::<Vec<_>>().join(" ")
    };
    // relu, clamp, exp, silu, softplus
    let found = [3, 4, 5, 21, 22].map(run);
    let softplus = format!("NaN inf 0 {}", 2.0 * 2_f32.ln());
    assert_eq!(
        found,
        ["NaN inf 0 0", "NaN 1.5 0.5 0.5", "NaN inf 0 1", "NaN inf NaN 0", &softplus]
    );
    // maximum and minimum
    let other = lab.floats(&[1.0, f32::NAN, 1.0, f32::NAN]);
    for op in [4, 5] {
        run_row(&lab, UNARY.len() + op, &y, &[&x, &other], 4);
        let is_nan = lab.floats_of(&y).iter().map(|value| value.is_nan()).collect::<Vec<_>>();
        assert_eq!(is_nan, [true, true, false, true]);
    }
}

#[test]
fn formulas_over_views_that_repeat_are_those_of_their_twins() {
    let Some(lab) = Lab::open() else { return };
    let all: Vec<_> = of_two().collect();
    let draws = (0..all.len(), 0..100_u64);
    proptest!(config(), |((sizes, orders, repeats) in walks(), (op, seed) in draws)| {
        let none = vec![false; sizes.len()];
        let y_strides = strides(&sizes, &orders[0], &none);
        let a_strides = strides(&sizes, &orders[1], &none);
        let b_strides = strides(&sizes, &orders[0], &repeats);
        let len: usize = sizes.iter().product();
        let (a, b) = (noise(len.max(1), seed), noise(len.max(1), seed + 1));
        let (number, twin) = all[op];
        let [y_at, a_at, b_at] =
            [&y_strides, &a_strides, &b_strides].map(|strides| indices(&sizes, strides));
        let mut expected = vec![0.0; len];
        for ((&y_at, &a_at), &b_at) in y_at.iter().zip(&a_at).zip(&b_at) {
            expected[y_at] = twin(f64::from(a[a_at]), f64::from(b[b_at]));
        }
        let (a, b) = (lab.floats(&a), lab.floats(&b));
        lab.in_each_order(|| {
            let y = lab.room(4 * len);
            let absent = vec![0; sizes.len()];
            let words = walk(&sizes, &[&y_strides, &a_strides, &b_strides, &absent, &absent]);
            let numbers = numbers();
            let sources = [a.read(), b.read(), Argument::Nothing, Argument::Nothing];
            let rest = [
                Argument::U32(number as u32),
                Argument::Words(&numbers),
                Argument::Words(&words),
            ];
            let arguments = [&[y.write()], &sources[..], &rest].concat();
            lab.run("elementwise_f32", WALK, GRID, &arguments);
            assert_close(&lab.floats_of(&y), &expected, 1, ROUNDING_OF_SLOPES);
        });
    });
}
