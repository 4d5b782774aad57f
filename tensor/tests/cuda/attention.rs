use lowtide_tensor::{
    AttentionDropout, AttentionOptions, AttentionWorkspace, Causal, DType, RandomKey, Tensor,
    TensorResult,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::alike::{assert_alike, each_float, on};
use crate::elementwise::noise;
use crate::gpu::Gpu;
use crate::storage::cpu;

#[derive(Clone, Copy, Debug)]
enum MaskKind {
    None,
    Keep,
    Add,
}

#[derive(Clone, Debug)]
struct Case {
    /// B, G and the number of heads of q that share one head of k and v.
    heads: [usize; 3],
    /// T, S, D and E.
    sizes: [usize; 4],
    mask: MaskKind,
    options: AttentionOptions,
    /// True if operands are not contiguous.
    is_turned: bool,
}

fn cases() -> impl Strategy<Value = Case> {
    let heads = [0..=2_usize, 1..=2_usize, 1..=2_usize];
    let len = || prop_oneof![1 => Just(0), 4 => 1..=9_usize, 3 => 30..=35_usize, 1 => Just(70)];
    let columns = || prop_oneof![4 => 1..=20_usize, 1 => 63..=66_usize, 1 => Just(130)];
    let mask = prop::sample::select(vec![MaskKind::None, MaskKind::Keep, MaskKind::Add]);
    let causal = prop::sample::select(vec![Causal::No, Causal::UpperLeft, Causal::LowerRight]);
    let probability = prop::option::of(Just(0.375));
    let sizes = (len(), len(), columns(), columns());
    (heads, sizes, mask, (causal, probability), any::<bool>()).prop_map(
        |(heads, (queries, keys, dim, v_dim), mask, (causal, probability), is_turned)| {
            let (key, first_sample) = (RandomKey::new(9), 5);
            let dropout =
                probability.map(|probability| AttentionDropout { key, probability, first_sample });
            let options = AttentionOptions { causal, scale: None, dropout };
            Case { heads, sizes: [queries, keys, dim, v_dim], mask, options, is_turned }
        },
    )
}

/// q, k, v, dy, and the mask if there is one.
fn inputs(case: &Case, dtype: DType) -> Vec<Tensor> {
    let Case { heads: [batch, groups, shared], sizes: [queries, keys, dim, v_dim], .. } = *case;
    let heads = groups * shared;
    let of = |name: &str, shape: &[usize]| {
        noise(&cpu(), name, shape, [-2.0, 2.0]).to_dtype(dtype).unwrap()
    };
    let mut inputs = vec![
        of("q", &[batch, heads, queries, dim]),
        of("k", &[batch, groups, keys, dim]),
        of("v", &[batch, groups, keys, v_dim]),
        of("dy", &[batch, heads, queries, v_dim]),
    ];
    match case.mask {
        MaskKind::None => {}
        MaskKind::Add => inputs.push(of("mask", &[heads, queries, keys])),
        MaskKind::Keep => {
            let pattern = noise(&cpu(), "mask", &[batch, 1, queries, keys], [-1.0, 2.0]);
            inputs.push(pattern.gt_scalar(0.0).unwrap());
        }
    }
    inputs
}

/// y, the logarithms of the sums, dq, dk and dv.
fn run(case: &Case, operands: &[Tensor]) -> TensorResult<Vec<Tensor>> {
    let turn = |x: &Tensor| match case.is_turned {
        true => x.permute(&[0, 2, 1, 3])?.contiguous()?.permute(&[0, 2, 1, 3]),
        false => Ok(x.clone()),
    };
    let [q, k, v, dy] = [0, 1, 2, 3].map(|index: usize| turn(&operands[index]));
    let (q, k, v, dy) = (q?, k?, v?, dy?);
    let mask = operands.get(4);
    let found = q.attention(&k, &v, mask, &case.options)?;
    let gradients = dy.attention_backward([&q, &k, &v], mask, &found, &case.options)?;
    Ok([found.y, found.log_sum_exp].into_iter().chain(gradients).collect())
}

fn check(gpu: &Gpu, case: &Case, dtype: DType, tolerance: f64) {
    let inputs = inputs(case, dtype);
    let inputs: Vec<&Tensor> = inputs.iter().collect();
    let [queries, keys, dim, _] = case.sizes;
    // Sums over all pairs, of terms of up to 4 · 4 · D.
    let tolerance = tolerance * (1.0 + (dim + queries + keys) as f64);
    let name = format!("{case:?} {dtype}");
    assert_alike(&gpu.device(), &name, &inputs, tolerance, |operands| run(case, operands));
}

#[test]
fn attention_and_its_gradients_are_those_of_the_processor_over_generated_shapes() {
    let Some(gpu) = Gpu::take() else { return };
    gpu.in_every_order(|| {
        let config = Config { cases: 12, failure_persistence: None, ..Config::default() };
        let checked = TestRunner::new(config).run(&cases(), |case| {
            check(&gpu, &case, DType::F32, 2e-6);
            Ok(())
        });
        checked.unwrap();
    });
}

#[test]
fn attention_in_every_type_is_that_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let key = RandomKey::new(4);
    let dropout = Some(AttentionDropout { key, probability: 0.25, first_sample: 0 });
    let options = AttentionOptions { causal: Causal::UpperLeft, scale: Some(0.2), dropout };
    for (dtype, tolerance) in each_float([2e-6, 1e-14]) {
        for (mask, is_turned) in [(MaskKind::Add, true), (MaskKind::Keep, false)] {
            let (heads, sizes) = ([1, 2, 2], [37, 37, 70, 20]);
            check(&gpu, &Case { heads, sizes, mask, options, is_turned }, dtype, tolerance);
        }
    }
}

/// |x - y| / |y| of all elements as vectors, where -∞ equals -∞.
fn distance(x: &Tensor, y: &Tensor) -> f64 {
    let wide = |x: &Tensor| on(&cpu(), x).to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
    let (x, y) = (wide(x), wide(y));
    assert_eq!(x.len(), y.len());
    let pairs = || x.iter().zip(&y).filter(|(x, y)| x != y || y.is_finite());
    let apart: f64 = pairs().map(|(x, y)| (x - y).powi(2)).sum();
    let size: f64 = pairs().map(|(_, y)| y.powi(2)).sum();
    (apart / size).sqrt()
}

/// Cases of half types that tensor cores multiply: whole tiles and parts of tiles, rows that are
/// loaded in packs and other rows.
fn half_cases() -> [Case; 5] {
    let (key, first_sample) = (RandomKey::new(3), 2);
    let case = |heads, sizes, causal, is_turned| Case {
        heads,
        sizes,
        mask: MaskKind::None,
        options: AttentionOptions { causal, ..AttentionOptions::default() },
        is_turned,
    };
    let mut cases = [
        case([1, 1, 1], [66, 130, 64, 64], Causal::No, true),
        case([1, 1, 2], [65, 70, 40, 64], Causal::UpperLeft, false),
        case([1, 1, 1], [70, 66, 128, 72], Causal::LowerRight, false),
        case([2, 2, 1], [37, 70, 13, 5], Causal::LowerRight, true),
        case([1, 1, 1], [30, 65, 99, 128], Causal::No, false),
    ];
    cases[1].mask = MaskKind::Add;
    cases[3].mask = MaskKind::Keep;
    for case in &mut cases[2..] {
        case.options.dropout = Some(AttentionDropout { key, probability: 0.25, first_sample });
    }
    cases
}

#[test]
fn attention_of_half_types_is_some_roundings_from_that_of_the_processor() {
    let Some(gpu) = Gpu::take() else { return };
    let (device, processor) = (gpu.device(), cpu());
    gpu.in_every_order(|| {
        let types = [(DType::F16, 11), (DType::BF16, 8)];
        for (case, (dtype, digits)) in half_cases().iter().zip(types.into_iter().cycle()) {
            let inputs = inputs(case, dtype);
            let [there, here] = [&device, &processor]
                .map(|device| inputs.iter().map(|x| on(device, x)).collect::<Vec<_>>());
            let found = run(case, &there).unwrap();
            let expected = run(case, &here).unwrap();
            for (index, (x, y)) in found.iter().zip(&expected).enumerate() {
                let distance = distance(x, y);
                // A rounding of each weight, of each result, and of each y in Σ dy·y.
                let tolerance = 3.0 * 0.5_f64.powi(digits);
                assert!(distance <= tolerance, "{case:?} {dtype} {index}: {distance}");
            }
        }
    });
}

#[test]
fn attention_on_a_device_keeps_a_number_for_each_query() {
    let Some(gpu) = Gpu::take() else { return };
    let shapes = [[2, 4, 300, 16], [2, 2, 200, 16], [2, 2, 200, 8]].map(Into::into);
    let found = AttentionWorkspace::of(&gpu.device(), shapes, DType::BF16).unwrap();
    let expected = AttentionWorkspace { forward_bytes: 0, backward_bytes: 2 * 4 * 300 * 4 };
    assert_eq!(found, expected);
}
