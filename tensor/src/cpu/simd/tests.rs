//! Every instruction set against plain loops.

use super::*;
use crate::cpu::math::SimdFloat;
use crate::dtype::Float;

/// An instruction set that is narrowed away is not used, so the tests run with each.
#[test]
fn narrowing_takes_instruction_sets_away() {
    struct Lanes<'a>(&'a mut Vec<usize>);
    impl SimdKernel<f32> for Lanes<'_> {
        fn run<S: Simd<f32>, const ROWS: usize, const COLS: usize>(self, _: S) {
            self.0.push(S::LANE_COUNT);
        }
    }
    let seen = std::cell::RefCell::new(Vec::new());
    on_every_instruction_set(|| f32::dispatch(Lanes(&mut seen.borrow_mut())));
    let seen = seen.into_inner();
    assert_eq!((seen.len(), seen[0]), (4, 4), "{seen:?}");
    assert!(seen.is_sorted(), "{seen:?}");
    #[cfg(target_arch = "x86_64")]
    {
        let is_wide = is_x86_feature_detected!("avx512vl");
        assert!(!is_wide || seen == [4, 8, 16, 16], "{seen:?}");
    }
}

/// y += a·x.
struct Axpy<'a, T>(T, &'a [T], &'a mut [T]);

impl<T: Float> SimdKernel<T> for Axpy<'_, T> {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let Axpy(a, x, y) = self;
        assert!(S::LANE_COUNT <= LANE_COUNT_MAX);
        for (x, y) in x.chunks_exact(S::LANE_COUNT).zip(y.chunks_exact_mut(S::LANE_COUNT)) {
            simd.store(simd.mul_add(simd.splat(a), simd.load(x), simd.load(y)), y);
        }
    }
}

fn check_axpy<T: SimdFloat>() {
    let x: Vec<T> = (0..32).map(|i| T::from_f64(f64::from(i))).collect();
    let mut y = vec![T::ONE; 32];
    T::dispatch(Axpy(T::from_f64(3.0), &x, &mut y));
    assert!((0..32).all(|i| y[i] == T::from_f64(3.0 * i as f64 + 1.0)), "{y:?}");
}

#[test]
fn every_instruction_set_computes_the_same() {
    on_every_instruction_set(|| {
        check_axpy::<f32>();
        check_axpy::<f64>();
    });
}

/// Sums each of this number of vectors, whose sums depend on the order.
struct SumEach(usize);

impl<T: Float> SimdKernel<T> for SumEach {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let mut vectors = [simd.splat(T::ZERO); 40];
        for (i, vector) in vectors.iter_mut().enumerate() {
            let lanes = std::array::from_fn::<_, LANE_COUNT_MAX, _>(|lane| {
                T::from_f64(1.0 / (i * LANE_COUNT_MAX + lane + 1) as f64)
            });
            *vector = simd.load(&lanes);
        }
        let mut sums = [T::ZERO; 40];
        simd.sum_each(&vectors[..self.0], &mut sums[..self.0]);
        for (i, &sum) in sums.iter().enumerate() {
            let expected = if i < self.0 { simd.sum(vectors[i]) } else { T::ZERO };
            assert_eq!(sum, expected, "{i} of {}", self.0);
        }
    }
}

#[test]
fn sums_of_many_vectors_are_those_of_each() {
    on_every_instruction_set(|| {
        for count in [0, 1, 3, 12, 16, 24, 40] {
            f32::dispatch(SumEach(count));
            f64::dispatch(SumEach(count));
        }
    });
}

/// A square of numbers that are all different becomes the one with rows for columns.
struct Turn;

impl<T: Float> SimdKernel<T> for Turn {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let (lanes, from_stride, to_stride) = (S::LANE_COUNT, 20, 17);
        let from: Vec<T> = (0..lanes * from_stride).map(|i| T::from_f64(i as f64)).collect();
        let mut to = vec![T::ZERO; lanes * to_stride];
        simd.transpose(&from, from_stride, &mut to, to_stride);
        for (r, p) in (0..lanes).flat_map(|r| (0..lanes).map(move |p| (r, p))) {
            assert!(to[p * to_stride + r] == from[r * from_stride + p], "({r}, {p}) of {lanes}");
        }
    }
}

#[test]
fn every_instruction_set_turns_a_square() {
    on_every_instruction_set(|| {
        f32::dispatch(Turn);
        f64::dispatch(Turn);
    });
}

/// Thirds have a sum in every order, and rounded it tells the orders apart.
struct AddUp;

impl<T: Float> SimdKernel<T> for AddUp {
    #[inline(always)]
    fn run<S: Simd<T>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        for seed in 0..100 {
            let number = |lane: usize| T::from_f64(((lane * 37 + seed) % 101) as f64 / 3.0);
            let mut lanes: Vec<T> = (0..S::LANE_COUNT).map(number).collect();
            let found = simd.sum(simd.load(&lanes));
            while lanes.len() > 1 {
                let after = lanes.split_off(lanes.len() / 2);
                lanes.iter_mut().zip(after).for_each(|(lane, other)| *lane += other);
            }
            assert!(found == lanes[0], "{found:?} instead of {lanes:?}");
        }
    }
}

#[test]
fn every_instruction_set_adds_lanes_up_in_the_same_order() {
    on_every_instruction_set(|| {
        f32::dispatch(AddUp);
        f64::dispatch(AddUp);
    });
}

/// All numbers of a half type become f32 and again themselves, and what lies between two of them
/// becomes what [`Element::cast`] makes of it.
struct Halves<E>(std::marker::PhantomData<E>);

impl<E: Element> SimdKernel<f32> for Halves<E> {
    #[inline(always)]
    fn run<S: Simd<f32>, const ROWS: usize, const COLS: usize>(self, simd: S) {
        let halves: Vec<u16> = (0..=u16::MAX).collect();
        let halves: &[E] = bytemuck::cast_slice(&halves);
        for from in halves.chunks_exact(S::LANE_COUNT) {
            let mut wide = [0.0f32; LANE_COUNT_MAX];
            simd.store(simd.widen(from), &mut wide);
            for (&wide, from) in wide.iter().zip(from) {
                let expected: f32 = from.cast();
                let is_same = wide.to_bits() == expected.to_bits();
                assert!(is_same || (wide.is_nan() && expected.is_nan()), "{from}: {wide}");
            }
            // Ties, their neighbours, and what is beyond the largest or below the smallest.
            for offset in [-0x1001, -0x1000, -0xFFF, -1, 0, 1, 0xFFF, 0x1000, 0x1001]
                .into_iter()
                .flat_map(|offset| [offset, 8 * offset])
            {
                let near = wide.map(|x| f32::from_bits(x.to_bits().wrapping_add_signed(offset)));
                let mut narrow = [E::ZERO; LANE_COUNT_MAX];
                simd.narrow(simd.load(&near), &mut narrow);
                for (&near, found) in near.iter().zip(&narrow).take(S::LANE_COUNT) {
                    let expected: E = near.cast();
                    let is_same = found.to_f64().to_bits() == expected.to_f64().to_bits();
                    let are_nan = near.is_nan() && found.to_f64().is_nan();
                    assert!(is_same || are_nan, "{near}: {found} instead of {expected}");
                }
            }
        }
    }
}

#[test]
fn every_instruction_set_converts_half_types_as_elements_are_cast() {
    on_every_instruction_set(|| {
        f32::dispatch(Halves::<half::f16>(std::marker::PhantomData));
        f32::dispatch(Halves::<half::bf16>(std::marker::PhantomData));
    });
}
