//! Updates by formulas of users.

use lowtide_tensor::{
    DType, Float, NormFormula, RandomKey, Rounding, Tensor, TensorError, TensorUpdate,
    UpdateFormula, bf16, update_all_,
};
use proptest::prelude::*;

use crate::common::{
    Style, all_floats, assert_close, assert_same, cpu, download, sample, shapes, shared, sim,
    styles, writable_styles,
};
use crate::naive::Array;

/// `m = m/2 + g`, `v = v + g·m`, `p = p - s·v`: a formula that uses all operands.
#[derive(Clone, Copy)]
pub(crate) struct Mixed;

impl UpdateFormula<2, 1> for Mixed {
    const NAME: &'static str = "mixed";
    const FLOPS: f64 = 6.0;

    #[inline(always)]
    fn element<T: Float>(&self, [s]: [T; 1], p: T, g: T, [m, v]: [T; 2]) -> (T, [T; 2]) {
        let m = T::from_f64(0.5) * m + g;
        let v = v + g * m;
        (p - s * v, [m, v])
    }
}

/// The norms of `p - g` and of `g·v`.
impl NormFormula<2, 2> for Mixed {
    const NAME: &'static str = "mixed_norms";
    const FLOPS: f64 = 2.0;

    #[inline(always)]
    fn element<T: Float>(&self, p: T, g: T, [_, v]: [T; 2]) -> [T; 2] {
        [p - g, g * v]
    }
}

/// `p = p - g`.
#[derive(Clone, Copy)]
struct Descend;

impl UpdateFormula<0, 0> for Descend {
    const NAME: &'static str = "descend";
    const FLOPS: f64 = 1.0;

    #[inline(always)]
    fn element<T: Float>(&self, _: [T; 0], p: T, g: T, _: [T; 0]) -> (T, [T; 0]) {
        (p - g, [])
    }
}

fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

proptest! {
    #[test]
    fn formula_reaches_every_element_wherever_it_lies(
        dims in shapes(),
        styles in (writable_styles(), styles(), writable_styles(), writable_styles()),
        dtype in all_floats(),
        is_other_gradient in any::<bool>(),
    ) {
        let states = wide(dtype);
        let (mut p, p_twin) = sample(&dims, styles.0, dtype, 1);
        let gradient = match (dtype, is_other_gradient) {
            (DType::F32, true) => DType::BF16,
            (_, true) => states,
            (_, false) => dtype,
        };
        let (g, g_twin) = sample(&dims, styles.1, gradient, 2);
        let (m, m_twin) = sample(&dims, styles.2, states, 3);
        let (v, v_twin) = sample(&dims, styles.3, states, 4);
        let scale = Tensor::full(shared(), [], states, 0.25).unwrap();
        let mut states = [m, v];
        p.update_(&g, &mut states, [&scale], Mixed, Rounding::Nearest).unwrap();

        let at = |twin: &Array, i: usize| twin.values[i];
        let of = |f: &dyn Fn(usize) -> f64| {
            Array::new(&dims, (0..p_twin.len()).map(f).collect())
        };
        let m_new = of(&|i| at(&m_twin, i) / 2.0 + at(&g_twin, i));
        let v_new = of(&|i| at(&v_twin, i) + at(&g_twin, i) * at(&m_new, i));
        let p_new = of(&|i| at(&p_twin, i) - at(&v_new, i) / 4.0);
        assert_close(&p, &p_new, 4);
        assert_close(&states[0], &m_new, 4);
        assert_close(&states[1], &v_new, 4);
    }
}

proptest! {
    #[test]
    fn norms_see_every_element_wherever_it_lies(
        dims in shapes(),
        styles in (styles(), styles(), styles(), styles()),
        dtype in all_floats(),
    ) {
        let states = wide(dtype);
        let (p, p_twin) = sample(&dims, styles.0, dtype, 1);
        let (g, g_twin) = sample(&dims, styles.1, dtype, 2);
        let (m, _) = sample(&dims, styles.2, states, 3);
        let (v, v_twin) = sample(&dims, styles.3, states, 4);
        let norms = p.update_norms(&g, &[m, v], Mixed).unwrap();
        let norm = |value: &dyn Fn(usize) -> f64| {
            (0..p_twin.len()).map(|i| value(i) * value(i)).sum::<f64>().sqrt()
        };
        let step = norm(&|i| p_twin.values[i] - g_twin.values[i]);
        let product = norm(&|i| g_twin.values[i] * v_twin.values[i]);
        prop_assert_eq!(norms.dtype(), states);
        // The values are exact; their squares and sums are in f64.
        assert_close(&norms, &Array::new(&[2], vec![step, product]), 4);
    }
}

#[test]
fn norms_of_many_parts_do_not_depend_on_threads_or_on_8_bits() {
    let len = 3_000_011;
    let all = [1, 3].map(|threads| {
        let device = cpu(threads);
        let make = |seed, scale| {
            let array = Array::pattern(&[len], seed).map(|x| x / scale);
            crate::common::upload(&device, &array, DType::F32)
        };
        let (p, g) = (make(1, 3.0), make(2, 7.0));
        let exact = p.update_norms(&g, &[make(3, 1.0), make(4, 1.0)], Mixed).unwrap();
        let twin = download(&p).values.into_iter().zip(download(&g).values);
        let twin = twin.map(|(p, g)| f64::from(p as f32 - g as f32).powi(2)).sum::<f64>().sqrt();
        let found = exact.to_vec::<f32>().unwrap();
        assert!((f64::from(found[0]) - twin).abs() <= 1e-6 * twin, "{found:?} {twin}");

        let zeros = || Tensor::quantized_state(&device, len).unwrap();
        let small = p.update_norms(&g, &[zeros(), zeros()], Mixed).unwrap();
        assert_eq!(small.to_vec::<f32>().unwrap(), [found[0], 0.0]);
        found.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    });
    assert_eq!(all[0], all[1]);
}

/// Operands of `Mixed` of all layouts and all types.
fn mixed_operands(count: usize) -> Vec<(Tensor, Tensor, [Tensor; 2], Tensor)> {
    let styles = [Style::Contiguous, Style::Contiguous, Style::Contiguous, Style::Transposed];
    let dtypes = [DType::F32, DType::BF16, DType::F32, DType::F64, DType::F16];
    let dims = [vec![3, 5], vec![70, 331], vec![0, 4], vec![], vec![8, 1024]];
    let operands = |index: usize| {
        let (dims, dtype) = (&dims[index % 5], dtypes[index / 3 % 5]);
        let style = if dims.len() == 2 { styles[index % 4] } else { Style::Contiguous };
        let state = |seed| {
            if index % 7 == 2 && matches!(style, Style::Contiguous) && dtype != DType::F64 {
                return Tensor::quantized_state(shared(), dims.iter().product()).unwrap();
            }
            sample(dims, style, wide(dtype), seed).0
        };
        let (p, _) = sample(dims, style, dtype, index);
        let (g, _) =
            sample(dims, style, if index.is_multiple_of(2) { dtype } else { wide(dtype) }, 2);
        let scalar = Tensor::full(shared(), [], wide(dtype), 0.25 + index as f64).unwrap();
        (p, g, [state(3), state(4)], scalar)
    };
    (0..count).map(operands).collect()
}

#[test]
fn many_tensors_at_once_give_the_bits_of_one_by_one() {
    // There are more tensors than two launches have destinations.
    let (mut all, mut each) = (mixed_operands(60), mixed_operands(60));
    let rounding = |p: &Tensor, index| match p.dtype() {
        DType::BF16 => Rounding::Stochastic(RandomKey::new(index as u64)),
        _ => Rounding::Nearest,
    };
    let mut updates: Vec<_> = all
        .iter_mut()
        .enumerate()
        .map(|(index, (p, g, states, scalar))| TensorUpdate {
            rounding: rounding(p, index),
            parameter: p,
            gradient: g,
            states,
            scalars: std::slice::from_ref(scalar),
            formula: Mixed,
        })
        .collect();
    update_all_(shared(), &mut updates).unwrap();
    drop(updates);
    for (index, (p, g, states, scalar)) in each.iter_mut().enumerate() {
        let rounding = rounding(p, index);
        p.update_(g, states, [scalar], Mixed, rounding).unwrap();
    }
    for (index, (all, each)) in all.iter().zip(&each).enumerate() {
        let bytes = |(p, _, [m, v], _): &(Tensor, Tensor, [Tensor; 2], Tensor)| {
            [p, m, v].map(|tensor| tensor.contiguous().unwrap().to_bytes().unwrap())
        };
        assert_eq!(bytes(all), bytes(each), "{index}");
        assert_eq!(all.0.version(), each.0.version(), "{index}");
    }
}

#[test]
fn nothing_is_updated_when_one_of_the_tensors_is_refused() {
    let full = |dims: &[usize]| Tensor::full(shared(), dims, DType::F32, 1.0).unwrap();
    let frozen = full(&[2]);
    frozen.freeze();
    let elsewhere = Tensor::full(&sim(1), [2], DType::F32, 1.0).unwrap();
    let shape = full(&[3]);
    let integers = Tensor::full(shared(), [2], DType::I64, 1.0).unwrap();
    for refused in [frozen, elsewhere, shape, integers] {
        // Enough parameters for several launches, with the wrong one in the last launch.
        let mut parameters: Vec<Tensor> = (0..100).map(|_| full(&[2])).collect();
        parameters.push(refused);
        let (g, starts) = (full(&[2]), parameters.clone());
        let update = |parameter| TensorUpdate {
            parameter,
            gradient: &g,
            states: &mut [],
            scalars: &[],
            formula: Descend,
            rounding: Rounding::Nearest,
        };
        let mut updates: Vec<_> = parameters.iter_mut().map(update).collect();
        let error = update_all_(shared(), &mut updates).unwrap_err();
        assert!(error.to_string().starts_with("descend"), "{error}");
        assert!(starts[..100].iter().all(|p| p.to_vec::<f32>().unwrap() == [1.0, 1.0]));
    }
}

#[test]
fn updates_that_share_elements_are_refused_wherever_they_are_in_the_list() {
    let full = |dims: &[usize]| Tensor::full(shared(), dims, DType::F32, 1.0).unwrap();
    let whole = full(&[200]);
    for (twice, gradient) in [(true, false), (false, true), (false, false)] {
        let mut parts: Vec<Tensor> = (0..100).map(|i| whole.narrow(0, i, 1).unwrap()).collect();
        let mut gradients = vec![full(&[1]); 100];
        if twice {
            parts[99] = parts[0].clone();
        }
        if gradient {
            gradients[99] = parts[0].clone();
        }
        let pairs = parts.iter_mut().zip(&gradients);
        let update = |(parameter, gradient)| TensorUpdate {
            parameter,
            gradient,
            states: &mut [],
            scalars: &[],
            formula: Descend,
            rounding: Rounding::Nearest,
        };
        let outcome = update_all_(shared(), &mut pairs.map(update).collect::<Vec<_>>());
        let sum =
            |range: std::ops::Range<usize>| download(&whole).values[range].iter().sum::<f64>();
        if twice || gradient {
            let error = outcome.unwrap_err();
            assert!(matches!(error, TensorError::Overlap { op: "descend", .. }), "{error}");
            assert_eq!(sum(0..200), 200.0);
        } else {
            outcome.unwrap();
            assert_eq!([sum(0..100), sum(100..200)], [0.0, 100.0]);
        }
    }
}

#[test]
fn many_chunks_are_updated_by_many_threads() {
    let len = 100_003;
    let (mut p, p_twin) = sample(&[len], Style::Contiguous, DType::F32, 1);
    let (g, g_twin) = sample(&[len], Style::Contiguous, DType::F32, 2);
    p.update_(&g, &mut [], [], Descend, Rounding::Nearest).unwrap();
    let values = p_twin.values.iter().zip(&g_twin.values).map(|(p, g)| p - g).collect();
    assert_same(&p, &Array::new(&[len], values));
}

#[test]
fn stochastic_rounding_keeps_the_mean_and_the_neighbours() {
    let len = 1 << 16;
    // The start is a quarter of the way from 1 to the next bf16.
    let (low, high) = (1.0, 1.0 + 1.0 / 128.0);
    let start = 1.0 + 1.0 / 512.0;
    let update = |key: u64| {
        let mut p = Tensor::full(shared(), [len], DType::BF16, 0.0).unwrap();
        let g = Tensor::full(shared(), [len], DType::F32, -start).unwrap();
        let rounding = Rounding::Stochastic(RandomKey::new(key));
        p.update_(&g, &mut [], [], Descend, rounding).unwrap();
        download(&p).values
    };
    let values = update(1);
    assert!(values.iter().all(|&x| x == low || x == high));
    let share = values.iter().filter(|&&x| x == high).count() as f64 / len as f64;
    // Six standard deviations of a share of 1/4.
    let deviation = (0.25 * 0.75 / len as f64).sqrt();
    assert!((share - 0.25).abs() < 6.0 * deviation, "{share}");
    assert_eq!(values, update(1));
    assert_ne!(values, update(2));
}

#[test]
fn stochastic_rounding_leaves_what_needs_none() {
    let values = [0.0, -0.0, 1.5, -2.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    let g = Tensor::from_slice(shared(), [7], &values.map(|x| -x)).unwrap();
    let mut p = Tensor::zeros(shared(), [7], DType::BF16).unwrap();
    let rounding = Rounding::Stochastic(RandomKey::new(1));
    p.update_(&g, &mut [], [], Descend, rounding).unwrap();
    for (found, expected) in p.to_vec::<bf16>().unwrap().into_iter().zip(values) {
        let found = found.to_f32();
        assert!(found == expected || (found.is_nan() && expected.is_nan()), "{found} {expected}");
    }
}

#[test]
fn quantized_states_follow_the_exact_ones() {
    let len = 20_003;
    let dims = [len];
    let style = Style::Contiguous;
    let (p_start, _) = sample(&dims, style, DType::F32, 1);
    let (g, _) = sample(&dims, style, DType::F32, 2);
    let scale = Tensor::full(shared(), [], DType::F32, 1.0 / 64.0).unwrap();
    let zeros = || Tensor::zeros(shared(), [len], DType::F32).unwrap();
    let small = || Tensor::quantized_state(shared(), len).unwrap();
    let run = |mut states: [Tensor; 2]| {
        let mut p = p_start.copied().unwrap();
        for _ in 0..3 {
            p.update_(&g, &mut states, [&scale], Mixed, Rounding::Nearest).unwrap();
        }
        let bytes = states[0].size_bytes() + states[1].size_bytes();
        (download(&p).values, bytes)
    };
    let (exact, exact_bytes) = run([zeros(), zeros()]);
    let (found, bytes) = run([small(), small()]);
    assert!(bytes * 3 < exact_bytes, "{bytes} {exact_bytes}");
    let errors = || found.iter().zip(&exact).map(|(x, y)| (x - y).abs());
    // The states stay below 8 and 24. The error of a step is 0.7 % of a state, divided by 64 in p.
    assert!(errors().fold(0.0, f64::max) < 3.0 * 0.0071 * 32.0 / 64.0);
    assert!(errors().any(|error| error > 0.0), "8 bits are not 32");
    assert_eq!(found, run([small(), small()]).0);
}

#[test]
fn quantized_states_want_contiguous_operands_of_the_right_size() {
    let full = |dims: &[usize]| Tensor::full(shared(), dims, DType::F32, 1.0).unwrap();
    let scale = full(&[]);
    let small = |len| Tensor::quantized_state(shared(), len).unwrap();
    let update = |p: &mut Tensor, g: &Tensor, mut states: [Tensor; 2]| {
        p.update_(g, &mut states, [&scale], Mixed, Rounding::Nearest)
    };
    let turned = full(&[30, 20]).transpose(0, 1).unwrap();
    let states = || [small(600), small(600)];
    let error = update(&mut turned.clone(), &full(&[20, 30]), states()).unwrap_err();
    assert!(matches!(error, TensorError::Strided { op: "mixed" }), "{error}");
    let error = update(&mut full(&[20, 30]), &turned, states()).unwrap_err();
    assert!(matches!(error, TensorError::Strided { op: "mixed" }), "{error}");
    let error = update(&mut full(&[20, 30]), &full(&[20, 30]), [small(600), small(5)]).unwrap_err();
    assert!(matches!(error, TensorError::Shape { op: "mixed", .. }), "{error}");
    let mixed = [small(600), full(&[20, 30])];
    let error = update(&mut full(&[20, 30]), &full(&[20, 30]), mixed).unwrap_err();
    assert!(matches!(error, TensorError::DType { op: "mixed", .. }), "{error}");
    update(&mut full(&[0]), &full(&[0]), [small(0), small(0)]).unwrap();
}

#[test]
fn operands_that_do_not_fit_are_refused_and_nothing_is_written() {
    let device = shared();
    let full = |dims: &[usize], dtype| Tensor::full(device, dims, dtype, 1.0).unwrap();
    let (mut p, g) = (full(&[2, 3], DType::F32), full(&[2, 3], DType::F32));
    let good = full(&[2, 3], DType::F32);
    let scale = full(&[], DType::F32);
    let mut attempt = |g: &Tensor, v: Option<Tensor>, scale: &Tensor, rounding| {
        let mut states = [good.copied().unwrap(), v.unwrap_or_else(|| good.copied().unwrap())];
        p.update_(g, &mut states, [scale], Mixed, rounding).unwrap_err()
    };
    let nearest = Rounding::Nearest;
    let shape = attempt(&full(&[3, 2], DType::F32), None, &scale, nearest);
    assert!(matches!(shape, TensorError::Shape { op: "mixed", .. }), "{shape}");
    let state = attempt(&g, Some(full(&[6], DType::F32)), &scale, nearest);
    assert!(matches!(state, TensorError::Shape { op: "mixed", .. }), "{state}");
    let many = attempt(&g, None, &full(&[2], DType::F32), nearest);
    assert!(matches!(many, TensorError::Shape { op: "mixed", .. }), "{many}");
    let types = [
        attempt(&full(&[2, 3], DType::F64), None, &scale, nearest),
        attempt(&g, Some(full(&[2, 3], DType::F64)), &scale, nearest),
        attempt(&g, None, &full(&[], DType::F64), nearest),
        attempt(&g, None, &scale, Rounding::Stochastic(RandomKey::new(1))),
    ];
    for error in types {
        assert!(matches!(error, TensorError::DType { op: "mixed", .. }), "{error}");
    }
    assert!(download(&p).values.iter().all(|&x| x == 1.0));
    assert_eq!(p.version(), full(&[2, 3], DType::F32).version());
}

#[test]
fn simulated_update_costs_the_bytes_that_it_moves() {
    let device = sim(2);
    let full = |dtype| Tensor::full(&device, [1 << 16], dtype, 1.0).unwrap();
    let time = |p: &mut Tensor, g: &Tensor| {
        let before = device.simulated_seconds();
        p.update_(g, &mut [], [], Descend, Rounding::Nearest).unwrap();
        device.simulated_seconds() - before
    };
    let wide = time(&mut full(DType::F32), &full(DType::F32));
    let narrow = time(&mut full(DType::BF16), &full(DType::BF16));
    assert!(narrow < wide, "{narrow} {wide}");
}
