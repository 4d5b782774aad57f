//! Products of integers against the definition, with every instruction set.

use lowtide_tensor::testing::cpu::{
    DEPTH_MAX, Int8Multiplied, Int8Rows, STEP_LEN_MAX, cpu, on_every_instruction_set, row_stride,
};
use lowtide_tensor::{Cpu, Element, Float, bf16, f16};
use proptest::prelude::*;

/// Numbers from -1 to 1, the same for the same place.
fn noise<E: Element>(len: usize, seed: usize) -> Vec<E> {
    let number = |i: usize| ((i + seed * 7919) as u32).wrapping_mul(2_654_435_761) >> 8;
    (0..len).map(|i| E::from_f64(f64::from(number(i)) / f64::from(1 << 23) - 1.0)).collect()
}

/// All codes that a byte has.
fn codes(len: usize) -> Vec<i8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 as i8).collect()
}

fn bits<E: Element>(values: &[E]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

/// The rows of x quantised, in memory with other numbers.
fn quantized<E: Int8Multiplied>(
    cpu: &Cpu,
    [m, k]: [usize; 2],
    x: (&[E], [usize; 2]),
) -> Int8Rows<E::Sum> {
    let mut rows = Int8Rows {
        codes: vec![77; m * row_stride(k)],
        scales: vec![E::Sum::ONE; m],
        sums: vec![7; m],
    };
    E::quantize(cpu, [m, k], x, &mut rows);
    rows
}

/// x, w and bias of a product.
struct Case<E> {
    size: [usize; 3],
    x: Vec<E>,
    w: Vec<i8>,
    w_scales: Vec<f32>,
    bias: Vec<E>,
}

impl<E: Int8Multiplied> Case<E> {
    fn new([m, k, n]: [usize; 3], has_bias: bool) -> Self {
        let (x, w_scales) = (noise(m * k, 1), noise(n, 2));
        let bias = if has_bias { noise(n, 3) } else { Vec::new() };
        Case { size: [m, k, n], x, w: codes(n * k), w_scales, bias }
    }

    /// The product by the kernels; x is read row by row or column by column.
    fn product(&self, cpu: &Cpu, is_turned: bool) -> Vec<E> {
        let Case { size: [m, k, n], x, w, w_scales, bias } = self;
        let mut turned = x.clone();
        let mut matrix = (&x[..], [*k, 1]);
        if is_turned {
            for (at, value) in x.iter().enumerate() {
                turned[at % k * m + at / k] = *value;
            }
            matrix = (&turned, [1, *m]);
        }
        let rows = quantized(cpu, [*m, *k], matrix);
        let mut y = vec![E::from_f64(f64::NAN); m * n];
        E::multiply_int8(cpu, self.size, &rows, (w, w_scales), bias, &mut y);
        y
    }

    /// The definition, element by element.
    fn expected(&self) -> Vec<E> {
        let of = <E::Sum as Element>::from_f64;
        let Case { size: [m, k, n], x, w, w_scales, bias } = self;
        let mut y = Vec::new();
        for i in 0..*m {
            let x: Vec<E::Sum> = x[i * k..][..*k].iter().map(|x| x.cast()).collect();
            let magnitude = |x: E::Sum| if x < E::Sum::ZERO { -x } else { x };
            let largest = x.iter().fold(E::Sum::ZERO, |most, &x| most.maximum(magnitude(x)));
            let code = |x: E::Sum| match (x / largest).to_f64() * 127.0 {
                _ if largest == E::Sum::ZERO => 0,
                // The quotient has been rounded to the type, and so is the product.
                product => of(product).to_f64().round_ties_even() as i64,
            };
            for j in 0..*n {
                let product = |p: usize| code(x[p]) * i64::from(w[j * k + p]);
                let sum: i64 = (0..*k).map(product).sum();
                let scale = E::Sum::from_f32(w_scales[j]) * (E::Sum::ONE / of(127.0));
                let mut value = E::Sum::from_i64(sum) * (largest / of(127.0)) * scale;
                if let Some(bias) = bias.get(j) {
                    value += bias.cast();
                }
                y.push(value.cast());
            }
        }
        y
    }
}

fn check<E: Int8Multiplied>(size: [usize; 3], has_bias: bool) {
    let case = Case::<E>::new(size, has_bias);
    let expected = bits(&case.expected());
    on_every_instruction_set(|| {
        for is_turned in [false, true] {
            let found = case.product(&cpu(1), is_turned);
            assert!(bits(&found) == expected, "{} of {size:?}, {is_turned}", E::DTYPE);
        }
    });
    for threads in [2, 3] {
        let found = case.product(&cpu(threads), false);
        assert!(bits(&found) == expected, "{} of {size:?} on {threads}", E::DTYPE);
    }
}

fn rows() -> impl Strategy<Value = usize> {
    prop_oneof![0..=18usize, Just(130)]
}

fn depth() -> impl Strategy<Value = usize> {
    prop_oneof![0..=9usize, 60..=68usize, 120..=130usize, 250..=260usize, 510..=516usize]
}

fn columns() -> impl Strategy<Value = usize> {
    prop_oneof![0..=5usize, 14..=18usize, 46..=52usize, 95..=99usize]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn product_has_the_bits_of_the_definition_on_every_instruction_set_and_any_threads(
        m in rows(), k in depth(), n in columns(), has_bias in any::<bool>(),
    ) {
        check::<f32>([m, k, n], has_bias);
        check::<f64>([m, k, n], has_bias);
        check::<bf16>([m, k, n], has_bias);
        check::<f16>([m, k, n], has_bias);
    }
}

#[test]
fn several_tasks_have_the_bits_of_the_definition() {
    for size in [[1, 1100, 1000], [3, 1030, 600], [260, 70, 200], [300, 1100, 20]] {
        check::<f32>(size, true);
    }
}

#[test]
fn sums_of_the_largest_codes_over_the_longest_rows_are_exact() {
    let k = DEPTH_MAX;
    let expected = [-128.0, 127.0].map(|code| {
        let sum = 127.0 * code * k as f64;
        sum * (1.0 / 127.0) * (127.0 * (1.0 / 127.0))
    });
    for m in [1, 6] {
        let case = Case::<f64> {
            size: [m, k, 2],
            x: (0..m * k).map(|i| if (i / k).is_multiple_of(2) { 1.0 } else { -1.0 }).collect(),
            w: [vec![-128; k], vec![127; k]].concat(),
            w_scales: vec![127.0; 2],
            bias: Vec::new(),
        };
        on_every_instruction_set(|| {
            for (i, y) in case.product(&cpu(1), false).chunks(2).enumerate() {
                let sign = if i % 2 == 0 { 1.0 } else { -1.0 };
                assert_eq!(y, expected.map(|y| sign * y), "row {i} of {m}");
            }
        });
    }
}

#[test]
fn codes_are_rounded_to_the_even_one_and_special_rows_are_what_they_are() {
    let nan = f32::NAN;
    let least = f32::from_bits(1);
    let rows: [([f32; 4], [i8; 4], f32); 8] = [
        ([127.0, 0.5, 1.5, -2.5], [127, 0, 2, -2], 1.0),
        ([-254.0, 1.0, 3.0, 253.0], [-127, 0, 2, 126], 2.0),
        ([0.0, -0.0, 0.0, 0.0], [0; 4], 0.0),
        ([1.0, nan, 1.0, 1.0], [0; 4], nan),
        ([1.0, 1.0, f32::INFINITY, 1.0], [0; 4], nan),
        ([nan, f32::NEG_INFINITY, 0.0, 0.0], [0; 4], nan),
        ([least, -least, 0.0, least], [127, -127, 0, 127], 0.0),
        ([f32::MAX, -f32::MAX, 0.0, 1.0], [127, -127, 0, 0], f32::MAX / 127.0),
    ];
    let x: Vec<f32> = rows.iter().flat_map(|(x, ..)| *x).collect();
    on_every_instruction_set(|| {
        let found = quantized(&cpu(1), [8, 4], (&x[..], [4, 1]));
        let stored = found.codes.chunks(row_stride(4)).zip(&found.scales).zip(&found.sums);
        for ((x, codes, scale), ((found, found_scale), sum)) in rows.iter().zip(stored) {
            assert_eq!(found[..4], *codes, "{x:?}");
            assert!(found[4..].iter().all(|&code| code == 0), "{x:?}");
            assert!(found_scale.total_cmp(scale).is_eq() || scale.is_nan(), "{x:?}");
            assert_eq!(found_scale.is_nan(), scale.is_nan(), "{x:?}");
            assert_eq!(*sum, codes.iter().map(|&code| i32::from(code)).sum::<i32>(), "{x:?}");
        }
    });
}

#[test]
fn rows_do_not_share_a_set_of_the_cache_and_are_whole_steps() {
    for depth in 0..2000 {
        let stride = row_stride(depth);
        assert!(stride >= depth && stride < depth + 2 * STEP_LEN_MAX + 1, "{depth}");
        assert_eq!(stride / STEP_LEN_MAX % 2, 1, "{depth}");
    }
}
