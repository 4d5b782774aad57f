//! Every instruction set against plain loops.

use std::cell::RefCell;

use lowtide_tensor::testing::cpu::{
    LANE_COUNT_MAX, Vectors, narrow, on_every_instruction_set, widen,
};
use lowtide_tensor::{Element, bf16, f16};

/// An instruction set that is narrowed away is not used, so the tests run with each.
#[test]
fn narrowing_takes_instruction_sets_away() {
    let seen = RefCell::new(Vec::new());
    on_every_instruction_set(|| seen.borrow_mut().push(f32::lane_count()));
    let seen = seen.into_inner();
    assert_eq!((seen.len(), seen[0]), (4, 4), "{seen:?}");
    assert!(seen.is_sorted(), "{seen:?}");
    #[cfg(target_arch = "x86_64")]
    {
        let is_wide = is_x86_feature_detected!("avx512vl");
        assert!(!is_wide || seen == [4, 8, 16, 16], "{seen:?}");
    }
}

fn check_multiply_add<T: Vectors>() {
    assert!(T::lane_count() <= LANE_COUNT_MAX);
    let x: Vec<T> = (0..32).map(|i| T::from_f64(f64::from(i))).collect();
    let mut y = vec![T::ONE; 32];
    T::multiply_add(T::from_f64(3.0), &x, &mut y);
    assert!((0..32).all(|i| y[i] == T::from_f64(3.0 * i as f64 + 1.0)), "{y:?}");
}

#[test]
fn every_instruction_set_computes_the_same() {
    on_every_instruction_set(|| {
        check_multiply_add::<f32>();
        check_multiply_add::<f64>();
    });
}

/// Sums each of this number of vectors, whose sums depend on the order.
fn check_sum_each<T: Vectors>(count: usize) {
    let mut vectors = [[T::ZERO; LANE_COUNT_MAX]; 40];
    for (i, vector) in vectors.iter_mut().enumerate() {
        *vector =
            std::array::from_fn(|lane| T::from_f64(1.0 / (i * LANE_COUNT_MAX + lane + 1) as f64));
    }
    let mut sums = [T::ZERO; 40];
    T::sum_each(&vectors[..count], &mut sums[..count]);
    for (i, &sum) in sums.iter().enumerate() {
        let expected = if i < count { T::sum(&vectors[i]) } else { T::ZERO };
        assert_eq!(sum, expected, "{i} of {count}");
    }
}

#[test]
fn sums_of_many_vectors_are_those_of_each() {
    on_every_instruction_set(|| {
        for count in [0, 1, 3, 12, 16, 24, 40] {
            check_sum_each::<f32>(count);
            check_sum_each::<f64>(count);
        }
    });
}

/// A square of numbers that are all different becomes the one with rows for columns.
fn check_transpose<T: Vectors>() {
    let (lanes, from_stride, to_stride) = (T::lane_count(), 20, 17);
    let from: Vec<T> = (0..lanes * from_stride).map(|i| T::from_f64(i as f64)).collect();
    let mut to = vec![T::ZERO; lanes * to_stride];
    T::transpose((&from, from_stride), (&mut to, to_stride));
    for (r, p) in (0..lanes).flat_map(|r| (0..lanes).map(move |p| (r, p))) {
        assert!(to[p * to_stride + r] == from[r * from_stride + p], "({r}, {p}) of {lanes}");
    }
}

#[test]
fn every_instruction_set_turns_a_square() {
    on_every_instruction_set(|| {
        check_transpose::<f32>();
        check_transpose::<f64>();
    });
}

/// Thirds have a sum in every order, and rounded it tells the orders apart.
fn check_sum<T: Vectors>() {
    for seed in 0..100 {
        let number = |lane: usize| T::from_f64(((lane * 37 + seed) % 101) as f64 / 3.0);
        let mut lanes: Vec<T> = (0..T::lane_count()).map(number).collect();
        let found = T::sum(&lanes);
        while lanes.len() > 1 {
            let after = lanes.split_off(lanes.len() / 2);
            lanes.iter_mut().zip(after).for_each(|(lane, other)| *lane += other);
        }
        assert!(found == lanes[0], "{found:?} instead of {lanes:?}");
    }
}

#[test]
fn every_instruction_set_adds_lanes_up_in_the_same_order() {
    on_every_instruction_set(|| {
        check_sum::<f32>();
        check_sum::<f64>();
    });
}

/// All numbers of a half type become f32 and again themselves, and what lies between two of them
/// becomes what [`Element::cast`] makes of it.
fn check_half_type<E: Element>() {
    let halves: Vec<u16> = (0..=u16::MAX).collect();
    let halves: &[E] = bytemuck::cast_slice(&halves);
    let lanes = f32::lane_count();
    for from in halves.chunks_exact(lanes) {
        let wide = widen(from);
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
            let narrow: [E; LANE_COUNT_MAX] = narrow(&near);
            for (&near, found) in near.iter().zip(&narrow).take(lanes) {
                let expected: E = near.cast();
                let is_same = found.to_f64().to_bits() == expected.to_f64().to_bits();
                let are_nan = near.is_nan() && found.to_f64().is_nan();
                assert!(is_same || are_nan, "{near}: {found} instead of {expected}");
            }
        }
    }
}

#[test]
fn every_instruction_set_converts_half_types_as_elements_are_cast() {
    on_every_instruction_set(|| {
        check_half_type::<f16>();
        check_half_type::<bf16>();
    });
}
