use lowtide_allocator::cuda::{Argument, Grid, Kernel};
use proptest::prelude::*;

use super::{F32, Lab, Read, U64, Write, assert_close, noise};

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(16) }
}

/// The sum and the maximum over the middle of `[outer, len, inner]`.
fn twins(x: &[f32], outer: usize, len: usize, inner: usize) -> [Vec<f64>; 2] {
    let over = |start: f64, join: fn(f64, f64) -> f64| {
        let of = |at: usize| {
            let (row, column) = (at / inner, at % inner);
            let terms = (0..len).map(|k| f64::from(x[(row * len + k) * inner + column]));
            terms.fold(start, join)
        };
        (0..outer * inner).map(of).collect()
    };
    let greater = |x: f64, y: f64| if x.is_nan() || y.is_nan() { f64::NAN } else { x.max(y) };
    [over(0.0, |x, y| x + y), over(f64::NEG_INFINITY, greater)]
}

#[test]
fn rows_and_columns_are_reduced_as_by_their_twins() {
    let Some(lab) = Lab::open() else { return };
    let sizes = (0..5_usize, prop_oneof![0..5_usize, 60..200_usize], 1..40_usize, any::<bool>());
    proptest!(config(), |((outer, len, inner, has_nan) in sizes, seed in 0..100_u64)| {
        for inner in [1, inner] {
            let mut values = noise(outer * len * inner, seed);
            if let (true, Some(value)) = (has_nan, values.get_mut(seed as usize)) {
                *value = f32::NAN;
            }
            let x = lab.floats(&values);
            let expected = twins(&values, outer, len, inner);
            let sizes = [outer, len, inner].map(|size| Argument::U64(size as u64));
            let names = [["sum_rows_f32", "sum_columns_f32"], ["max_rows_f32", "max_columns_f32"]];
            for ([rows, columns], expected) in names.into_iter().zip(&expected) {
                let mut found = Vec::new();
                lab.in_each_order(|| {
                    let y = lab.room(4 * outer * inner);
                    let [outer_size, len_size, inner_size] = sizes;
                    if inner == 1 {
                        let kernel = Kernel { name: rows, parameters: &[Write, Read, U64, U64] };
                        let arguments = [y.write(), x.read(), outer_size, len_size];
                        lab.run("reduce", kernel, Grid::row(2, 96), &arguments);
                    } else {
                        let parameters = &[Write, Read, U64, U64, U64];
                        let kernel = Kernel { name: columns, parameters };
                        let arguments = [y.write(), x.read(), outer_size, len_size, inner_size];
                        lab.run("reduce", kernel, Grid::row(3, 32), &arguments);
                    }
                    assert_close(&lab.floats_of(&y), expected, len, 2.0);
                    found.push(lab.bytes_of(&y));
                });
                assert!(found.iter().all(|bytes| *bytes == found[0]), "the order changes the bits");
            }
        }
    });
}

#[test]
fn gradients_are_scaled_checked_and_measured() {
    let Some(lab) = Lab::open() else { return };
    let scale = Kernel { name: "scale_and_check_f32", parameters: &[Write, Write, U64, F32] };
    let squares = Kernel { name: "squares_f32", parameters: &[Write, Read, U64] };
    let clip = Kernel { name: "clip_factor", parameters: &[Write, Write, Read, U64, F32] };
    for len in [0, 1, 31, 1000] {
        let values = noise(len, 5);
        let count = Argument::U64(len as u64);
        lab.in_each_order(|| {
            for bad in [None, Some(f32::NAN), Some(f32::INFINITY), Some(f32::MAX)] {
                let mut values = values.clone();
                if let (Some(bad), Some(last)) = (bad, values.last_mut()) {
                    *last = bad;
                }
                let (x, found) = (lab.floats(&values), lab.bytes(&[0; 4]));
                let arguments = [x.write(), found.write(), count, Argument::F32(2.0)];
                lab.run("finite", scale, Grid::row(2, 64), &arguments);
                let expected: Vec<f64> = values.iter().map(|&x| f64::from(2.0 * x)).collect();
                assert_close(&lab.floats_of(&x), &expected, 0, 0.0);
                assert_eq!(lab.words_of(&found), [u32::from(bad.is_some() && len > 0)]);
            }
            let (x, partials) = (lab.floats(&values), lab.room(8 * 3));
            let arguments = [partials.write(), x.read(), count];
            lab.run("finite", squares, Grid::row(3, 64), &arguments);
            let norm = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
            for limit in [0.5, 1e6] {
                let (root, factor) = (lab.room(4), lab.room(4));
                let arguments = [root.write(), factor.write(), partials.read()];
                let rest = [Argument::U64(3), Argument::F32(limit)];
                lab.run("finite", clip, Grid::row(1, 32), &[&arguments[..], &rest].concat());
                assert_close(&lab.floats_of(&root), &[norm], 1, norm);
                let expected = (f64::from(limit) / (norm + 1e-6)).min(1.0);
                assert_close(&lab.floats_of(&factor), &[expected], 1, expected);
            }
        });
    }
}
