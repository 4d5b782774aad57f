//! Rotary embedding against pairs that are rotated one by one, forwards and back.

use lowtide_tensor::{DType, RotaryPairs, Tensor, TensorError};
use proptest::prelude::*;

use crate::common::{
    Style, all_floats, assert_close, sample, shared, styles, upload, writable_styles,
};
use crate::golden::fixture;
use crate::naive::Array;

/// The angle of each pair at each position, as cosines and sines.
fn tables(len: usize, half: usize, dtype: DType) -> [(Tensor, Array); 2] {
    let angle = |at: &[usize]| (at[0] * 3 + at[1] + 1) as f64 * 0.7;
    [f64::cos, f64::sin].map(|function| {
        let table =
            upload(shared(), &Array::from_fn(&[len, half], |at| function(angle(at))), dtype);
        let rounded = crate::common::download(&table);
        (table, rounded)
    })
}

fn turned(x: &Array, [cos, sin]: [&Array; 2], pairs: RotaryPairs, sign: f64) -> Array {
    let (rank, half) = (x.dims.len(), cos.dims[1]);
    Array::from_fn(&x.dims, |at| {
        let (position, c) = (at[rank - 2], at[rank - 1]);
        if c >= 2 * half {
            return x.at(at);
        }
        let (pair, is_second) = match pairs {
            RotaryPairs::Interleaved => (c / 2, c % 2 == 1),
            RotaryPairs::HalfSplit => (c % half, c >= half),
        };
        let mut other = at.to_vec();
        other[rank - 1] = match (pairs, is_second) {
            (RotaryPairs::Interleaved, false) => c + 1,
            (RotaryPairs::Interleaved, true) => c - 1,
            (RotaryPairs::HalfSplit, false) => c + half,
            (RotaryPairs::HalfSplit, true) => c - half,
        };
        let (cos, sin) = (cos.at(&[position, pair]), sign * sin.at(&[position, pair]));
        let sin = if is_second { sin } else { -sin };
        x.at(at) * cos + x.at(&other) * sin
    })
}

proptest! {
    #[test]
    fn pairs_are_turned_and_turned_back(
        outer in prop::collection::vec(0..=3usize, 0..=3),
        [len, half, rest] in [0..=9usize, 0..=5usize, 0..=2usize],
        style in styles(),
        in_place_style in writable_styles(),
        dtype in all_floats(),
        pairs in prop::sample::select(vec![RotaryPairs::Interleaved, RotaryPairs::HalfSplit]),
    ) {
        let dims = [&outer[..], &[len, 2 * half + rest]].concat();
        let (x, x_twin) = sample(&dims, style, dtype, 1);
        let [(cos, cos_twin), (sin, sin_twin)] = tables(len, half, dtype);
        let tables = [&cos_twin, &sin_twin];
        let y = turned(&x_twin, tables, pairs, 1.0);
        assert_close(&x.rotary(&cos, &sin, pairs).unwrap(), &y, 4);
        let dx = turned(&x_twin, tables, pairs, -1.0);
        assert_close(&x.rotary_backward(&cos, &sin, pairs).unwrap(), &dx, 4);
        let (mut x, x_twin) = sample(&dims, in_place_style, dtype, 1);
        x.rotary_(&cos, &sin, pairs).unwrap();
        assert_close(&x, &turned(&x_twin, tables, pairs, 1.0), 4);
        x.rotary_backward_(&cos, &sin, pairs).unwrap();
        assert_close(&x, &x_twin, 16);
    }
}

#[test]
fn tables_that_do_not_fit_are_named() {
    let (x, _) = sample(&[2, 3, 4], Style::Contiguous, DType::F32, 1);
    for dims in [[4, 2], [3, 3]] {
        let table = Tensor::zeros(shared(), dims, DType::F32).unwrap();
        let error = x.rotary(&table, &table, RotaryPairs::HalfSplit).unwrap_err();
        assert!(matches!(error, TensorError::Shape { op: "rotary", .. }), "{error}");
    }
    let table = Tensor::zeros(shared(), [3, 2], DType::F64).unwrap();
    let error = x.rotary_backward(&table, &table, RotaryPairs::HalfSplit).unwrap_err();
    assert!(matches!(error, TensorError::DType { op: "rotary_backward", .. }), "{error}");
}

#[test]
fn rotary_agrees_with_complex_numbers_of_pytorch() {
    let fixture = fixture("language");
    let [x, dy, cos, sin] =
        ["x", "dy", "cos", "sin"].map(|name| &fixture[&format!("rotary.{name}")]);
    for (name, pairs) in
        [("interleaved", RotaryPairs::Interleaved), ("half_split", RotaryPairs::HalfSplit)]
    {
        let of = |part: &str| crate::common::download(&fixture[&format!("rotary.{name}.{part}")]);
        assert_close(&x.rotary(cos, sin, pairs).unwrap(), &of("y"), 4);
        assert_close(&dy.rotary_backward(cos, sin, pairs).unwrap(), &of("dx"), 4);
    }
}

#[test]
fn positions_of_many_rows_start_again_with_each_head() {
    // Several tasks, which end in the middle of the positions.
    let (x, x_twin) = sample(&[3, 3000, 8], Style::Contiguous, DType::F32, 1);
    let [(cos, cos_twin), (sin, sin_twin)] = tables(3000, 4, DType::F32);
    let y = turned(&x_twin, [&cos_twin, &sin_twin], RotaryPairs::HalfSplit, 1.0);
    assert_close(&x.rotary(&cos, &sin, RotaryPairs::HalfSplit).unwrap(), &y, 4);
}
