//! Attention against the weights of all pairs, and against PyTorch.

use lowtide_tensor::{
    AttentionDropout, AttentionOptions, AttentionWorkspace, Causal, DType, RandomKey, Tensor,
    TensorError,
};
use proptest::prelude::*;

use crate::common::{
    Style, all_floats, assert_close, cpu, download, epsilon, laid_out, sample, shared, styles,
    workspace_bytes,
};
use crate::naive::{self, Array};

const LOW: f64 = f64::NEG_INFINITY;

/// The bias of a query and a key by their places: 0 if the query sees the key, else -∞.
fn causal_bias(dims: &[usize], causal: Causal) -> Array {
    Array::from_fn(dims, |at| {
        let is_seen = match causal {
            Causal::No => true,
            Causal::UpperLeft => at[3] <= at[2],
            Causal::LowerRight => at[3] + dims[2] <= at[2] + dims[3],
        };
        if is_seen { 0.0 } else { LOW }
    })
}

fn kept(dims: &[usize], dropout: Option<AttentionDropout>) -> Array {
    let Some(AttentionDropout { key, probability, first_sample }) = dropout else {
        return Array::from_fn(dims, |_| 1.0);
    };
    Array::from_fn(dims, |at| {
        let sample = first_sample as usize + at[0];
        let row = (sample * dims[1] + at[1]) * dims[2] + at[2];
        let words = key.block((row * dims[3].div_ceil(4) + at[3] / 4) as u64);
        let unit = f64::from(words[at[3] % 4]) / 2f64.powi(32);
        if unit < probability { 0.0 } else { 1.0 / (1.0 - probability) }
    })
}

#[derive(Clone, Copy, Debug)]
enum MaskKind {
    None,
    Keep,
    Add,
}

/// A mask of a shape that broadcasts to `dims`, and the numbers that it adds to the scores.
fn mask(kind: MaskKind, dims: &[usize], ones: [bool; 4], dtype: DType) -> (Option<Tensor>, Array) {
    let shape: Vec<usize> =
        dims.iter().zip(ones).map(|(&dim, one)| if one { 1 } else { dim }).collect();
    let pattern = Array::pattern(&shape, 5);
    match kind {
        MaskKind::None => (None, Array::from_fn(dims, |_| 0.0)),
        MaskKind::Keep => {
            let keep = pattern.map(|x| f64::from(u8::from(x > -1.0)));
            let bias = keep.map(|keep| if keep == 0.0 { LOW } else { 0.0 });
            (Some(laid_out(&keep, Style::Transposed, DType::Bool)), bias.expand(dims))
        }
        MaskKind::Add => {
            let bias = pattern.map(|x| if x < -1.5 { LOW } else { x });
            (Some(laid_out(&bias, Style::Narrowed, dtype)), bias.expand(dims))
        }
    }
}

/// Checks values to within some roundings of the numbers that are summed.
#[track_caller]
fn check(found: &Tensor, expected: &Array, roundings: f64) {
    let found_dtype = found.dtype();
    let tolerance = roundings * epsilon(found_dtype).max(f64::EPSILON);
    let array = download(found);
    assert_eq!(array.dims, expected.dims);
    for (at, (x, y)) in array.values.iter().zip(&expected.values).enumerate() {
        let agrees = x == y || (x - y).abs() <= tolerance * y.abs().max(1.0);
        assert!(agrees, "element {at}: {x}, not {y}");
    }
}

fn len() -> impl Strategy<Value = usize> {
    let long = prop_oneof![2 => 15..=18usize, 3 => 60..=70usize, 1 => Just(130)];
    prop_oneof![1 => Just(0usize), 6 => 1..=9usize, 6 => long]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn attention_and_its_gradients_are_those_of_all_pairs(
        [batch, groups, shared] in [0..=2usize, 1..=2usize, 1..=3usize],
        [queries, keys] in [len(), len()],
        [dim, v_dim] in [1..=20usize, 0..=20usize],
        styles in [styles(), styles(), styles(), styles()],
        dtype in all_floats(),
        kind in prop::sample::select(vec![MaskKind::None, MaskKind::Keep, MaskKind::Add]),
        ones in any::<[bool; 4]>(),
        causal in prop::sample::select(vec![Causal::No, Causal::UpperLeft, Causal::LowerRight]),
        scale in prop::option::of(Just(0.25)),
        probability in prop::option::of(Just(0.375)),
    ) {
        let heads = groups * shared;
        let (q, q_twin) = sample(&[batch, heads, queries, dim], styles[0], dtype, 1);
        let (k, k_twin) = sample(&[batch, groups, keys, dim], styles[1], dtype, 2);
        let (v, v_twin) = sample(&[batch, groups, keys, v_dim], styles[2], dtype, 3);
        let (dy, dy_twin) = sample(&[batch, heads, queries, v_dim], styles[3], dtype, 4);
        let dims = [batch, heads, queries, keys];
        let (mask, bias) = mask(kind, &dims, ones, dtype);
        let bias = bias.zip(&causal_bias(&dims, causal), &dims, |a, b| a + b);
        let key = RandomKey::new(9);
        let first_sample = 3 * batch as u64;
        let dropout =
            probability.map(|probability| AttentionDropout { key, probability, first_sample });
        let options = AttentionOptions { causal, scale, dropout };
        let scale = scale.unwrap_or(1.0 / (dim as f64).sqrt());

        let weights = naive::attention_weights(&q_twin, &k_twin, &bias, scale);
        let kept = kept(&dims, dropout);
        let y_twin = naive::attention(&weights, &kept, &v_twin);
        let found = q.attention(&k, &v, mask.as_ref(), &options).unwrap();
        check(&found.y, &y_twin, 128.0);
        check(&found.log_sum_exp, &weights.log_sum_exp, 64.0);

        let operands = [&q, &k, &v];
        let gradients =
            dy.attention_backward(operands, mask.as_ref(), &found, &options).unwrap();
        let twins = [&q_twin, &k_twin, &v_twin];
        let expected = naive::attention_backward(&dy_twin, twins, &weights, &kept, scale);
        // Sums over up to 130 pairs of terms of up to 20 · 2 · 2; y is rounded to the half types.
        for (found, expected) in gradients.iter().zip(&expected) {
            check(found, expected, 4096.0);
        }
    }
}

/// If dy is 1 and there is one query, the gradients of v are the weights.
#[test]
fn weights_of_backward_sum_to_1_also_of_large_scores() {
    let (heads, keys, dim) = (512, 7, 3);
    for dtype in [DType::F32, DType::F64] {
        let large = Array::pattern(&[1, heads, 1, dim], 1).map(|x| 60.0 * x);
        let q = laid_out(&large, Style::Contiguous, dtype);
        let (k, _) = sample(&[1, heads, keys, dim], Style::Contiguous, dtype, 2);
        let (v, _) = sample(&[1, heads, keys, 1], Style::Contiguous, dtype, 3);
        let options = AttentionOptions::default();
        let found = q.attention(&k, &v, None, &options).unwrap();
        let dy = Tensor::ones(shared(), [1, heads, 1, 1], dtype).unwrap();
        let [_, _, dv] = dy.attention_backward([&q, &k, &v], None, &found, &options).unwrap();
        let (sums, scores) = (download(&dv.sum(&[2]).unwrap()), download(&found.log_sum_exp));
        assert!(scores.values.iter().any(|&lse| lse > 100.0), "large scores");
        for (sum, lse) in sums.values.iter().zip(&scores.values) {
            // Half a unit of the log-sum-exp, and the roundings of powers and sums.
            let allowed = (lse.abs() / 2.0 + 16.0) * epsilon(dtype);
            assert!((sum - 1.0).abs() <= allowed, "{dtype}: {sum}, of scores up to {lse}");
        }
    }
}

#[test]
fn nothing_is_copied_and_memory_is_linear() {
    let device = cpu(2);
    let peak = |len: usize| {
        let x = Tensor::zeros(&device, [1, len, 2, 3 * 16], DType::F32).unwrap();
        let of = |at: usize| x.narrow(3, 16 * at, 16).unwrap().permute(&[0, 2, 1, 3]).unwrap();
        let [q, k, v] = [of(0), of(1), of(2)];
        let allocator = device.allocator();
        let before = allocator.request_count();
        allocator.reset_peaks();
        let held = allocator.statistics().allocated.current_bytes;
        let options = AttentionOptions { causal: Causal::UpperLeft, ..Default::default() };
        let found = q.attention(&k, &v, None, &options).unwrap();
        assert_eq!(allocator.request_count(), before + 3, "y, log-sum-exp and scratch");
        let dy = found.y.clone();
        dy.attention_backward([&q, &k, &v], None, &found, &options).unwrap();
        assert_eq!(allocator.request_count(), before + 7, "three gradients and scratch");
        allocator.statistics().allocated.peak_bytes - held
    };
    let (short, long) = (peak(1024), peak(4096));
    assert!(long <= 4 * short, "{short} {long}");
}

#[test]
fn operands_that_do_not_fit_are_named() {
    let of = |dims: [usize; 4]| Tensor::zeros(shared(), dims, DType::F32).unwrap();
    let options = AttentionOptions::default();
    let q = of([2, 4, 5, 8]);
    let (k, v) = (of([2, 2, 7, 8]), of([2, 2, 7, 3]));
    for (k, v) in [
        (of([2, 3, 7, 8]), v.clone()),
        (of([1, 2, 7, 8]), v.clone()),
        (of([2, 2, 7, 9]), v.clone()),
        (of([2, 2, 6, 8]), v.clone()),
        (of([2, 0, 7, 8]), of([2, 0, 7, 3])),
    ] {
        let error = q.attention(&k, &v, None, &options).unwrap_err();
        assert!(matches!(error, TensorError::Shape { op: "attention", .. }), "{error}");
    }
    let error = q.attention(&k, &v, Some(&of([1, 1, 5, 6])), &options).unwrap_err();
    assert!(matches!(error, TensorError::Shape { op: "attention", .. }), "{error}");
    let mask = Tensor::zeros(shared(), [5, 7], DType::F64).unwrap();
    let error = q.attention(&k, &v, Some(&mask), &options).unwrap_err();
    assert!(matches!(error, TensorError::DType { op: "attention", .. }), "{error}");
    let found = q.attention(&k, &v, None, &options).unwrap();
    let error = q.attention_backward([&q, &k, &v], None, &found, &options).unwrap_err();
    assert!(matches!(error, TensorError::Shape { op: "attention_backward", .. }), "{error}");
}

fn fixture(name: &str) -> Tensor {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/attention.safetensors");
    let bytes = std::fs::read(path).expect("the fixture is part of the repository");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let view = file.tensor(name).expect("a tensor of this name");
    let dtype = crate::common::file_dtype(view.dtype());
    Tensor::from_bytes(shared(), view.shape(), dtype, view.data()).unwrap()
}

#[test]
fn attention_agrees_with_pytorch_and_hidden_rows_are_zero() {
    for (case, causal, has_mask) in [
        ("plain", Causal::No, false),
        ("causal", Causal::UpperLeft, false),
        ("hidden", Causal::No, true),
        ("bias", Causal::No, true),
    ] {
        let of = |name: &str| fixture(&format!("{case}.{name}"));
        let [q, k, v, dy] = ["q", "k", "v", "dy"].map(of);
        let mask = has_mask.then(|| of("mask"));
        let options = AttentionOptions { causal, ..Default::default() };
        let found = q.attention(&k, &v, mask.as_ref(), &options).unwrap();
        assert_close(&found.y, &download(&of("y")), 16);
        let gradients = dy.attention_backward([&q, &k, &v], mask.as_ref(), &found, &options);
        for (found, name) in gradients.unwrap().iter().zip(["dq", "dk", "dv"]) {
            assert_close(found, &download(&of(name)), 64);
        }
    }
}

#[test]
fn workspace_of_attention_is_what_it_says_and_linear_in_the_length() {
    let options = AttentionOptions::default();
    for threads in [1, 3] {
        let device = cpu(threads);
        for (dtype, len) in [(DType::F32, 70), (DType::F16, 300), (DType::F64, 5)] {
            let make = |heads| Tensor::zeros(&device, [2, heads, len, 8], dtype).unwrap();
            let [q, k, v] = [make(4), make(2), make(2)];
            let shapes = [&q, &k, &v].map(|x| *x.shape());
            let expected = AttentionWorkspace::of(&device, shapes, dtype).unwrap();
            let mut found = None;
            let taken = workspace_bytes(&device, || {
                found = Some(q.attention(&k, &v, None, &options).unwrap());
            });
            assert_eq!(taken, expected.forward_bytes);
            let found = found.expect("made above");
            let taken = workspace_bytes(&device, || {
                found.y.attention_backward([&q, &k, &v], None, &found, &options).unwrap();
            });
            assert_eq!(taken, expected.backward_bytes);
            let text = expected.to_string();
            assert!(text.contains(&taken.to_string()), "{text}");
        }
    }
    let device = cpu(2);
    let of = |len| {
        let shape = [1, 2, len, 16].into();
        AttentionWorkspace::of(&device, [shape; 3], DType::F32).unwrap()
    };
    let (short, long) = (of(1 << 12), of(1 << 16));
    assert_eq!(short.forward_bytes, long.forward_bytes);
    assert!(long.backward_bytes <= 16 * short.backward_bytes);
    assert!(AttentionWorkspace::of(&device, [[1, 2, 3].into(); 3], DType::F32).is_err());
}
