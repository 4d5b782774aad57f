//! Updates by a formula of the user's.

use lowtide_tensor::{DType, Float, RandomKey, Rounding, Tensor, TensorError, UpdateFormula, bf16};
use proptest::prelude::*;

use crate::common::{
    all_floats, assert_close, assert_same, download, sample, shapes, shared, sim, styles,
    writable_styles,
};
use crate::naive::Array;

/// `m = m/2 + g`, `v = v + g·m`, `p = p - s·v`: all operands meet.
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
        is_wide_gradient in any::<bool>(),
    ) {
        let states = wide(dtype);
        let (mut p, p_twin) = sample(&dims, styles.0, dtype, 1);
        let gradient = if is_wide_gradient { states } else { dtype };
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

#[test]
fn many_chunks_are_updated_by_many_threads() {
    let len = 100_003;
    let (mut p, p_twin) = sample(&[len], crate::common::Style::Contiguous, DType::F32, 1);
    let (g, g_twin) = sample(&[len], crate::common::Style::Contiguous, DType::F32, 2);
    p.update_(&g, &mut [], [], Descend, Rounding::Nearest).unwrap();
    let values = p_twin.values.iter().zip(&g_twin.values).map(|(p, g)| p - g).collect();
    assert_same(&p, &Array::new(&[len], values));
}

#[test]
fn stochastic_rounding_keeps_the_mean_and_the_neighbours() {
    let len = 1 << 16;
    // A quarter of the way from 1 to the next value of bf16.
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
    let style = crate::common::Style::Contiguous;
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
    // States stay below 8 and 24; each step's error is 0.7 % of that, over 64 in p.
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
        attempt(&full(&[2, 3], DType::F16), None, &scale, nearest),
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
