//! Images resized to other sizes, against the definition.

use lowtide_tensor::{Corners, DType, Interpolation, Resize, Shape, Tensor};
use proptest::prelude::*;

use crate::common::{all_floats, assert_close, assert_rounded, sample, shared, styles};
use crate::naive::Array;

const MODES: [Interpolation; 3] = [
    Interpolation::Nearest,
    Interpolation::Bilinear(Corners::Centers),
    Interpolation::Bilinear(Corners::Aligned),
];

/// The weight of each input, for each output along an axis.
fn weights(
    in_len: usize,
    out_len: usize,
    factor: Option<f64>,
    mode: Interpolation,
) -> Vec<Vec<f64>> {
    let scale = factor.map_or(in_len as f64 / out_len as f64, |factor| 1.0 / factor);
    let last = (in_len - 1) as f64;
    let row = |at: usize| {
        let mut row = vec![0.0; in_len];
        // In these cases PyTorch ignores the factor.
        let is_doubled = mode == Interpolation::Nearest && out_len == 2 * in_len;
        if out_len == in_len || is_doubled {
            row[at * in_len / out_len] = 1.0;
            return row;
        }
        let place = match mode {
            Interpolation::Nearest => {
                // The place is computed in f32, as in PyTorch: it decides between two pixels.
                let scale = factor.map_or(in_len as f32 / out_len as f32, |f| (1.0 / f) as f32);
                row[((at as f32 * scale).floor() as usize).min(in_len - 1)] = 1.0;
                return row;
            }
            Interpolation::Bilinear(Corners::Centers) => scale * (at as f64 + 0.5) - 0.5,
            Interpolation::Bilinear(Corners::Aligned) if out_len == 1 => 0.0,
            Interpolation::Bilinear(Corners::Aligned) => last / (out_len - 1) as f64 * at as f64,
        };
        let place = place.clamp(0.0, last);
        for (input, weight) in row.iter_mut().enumerate() {
            *weight = (1.0 - (place - input as f64).abs()).max(0.0);
        }
        row
    };
    (0..out_len).map(row).collect()
}

fn resized(x: &Array, [rows, cols]: [&[Vec<f64>]; 2]) -> Array {
    Array::from_fn(&[x.dims[0], x.dims[1], rows.len(), cols.len()], |at| {
        let mut sum = 0.0;
        for (row, along) in rows[at[2]].iter().enumerate().filter(|(_, w)| **w > 0.0) {
            for (col, across) in cols[at[3]].iter().enumerate().filter(|(_, w)| **w > 0.0) {
                sum += along * across * x.at(&[at[0], at[1], row, col]);
            }
        }
        sum
    })
}

fn transposed(rows: &[Vec<f64>], in_len: usize) -> Vec<Vec<f64>> {
    (0..in_len).map(|input| rows.iter().map(|row| row[input]).collect()).collect()
}

proptest! {
    #[test]
    fn upsample2d_and_its_gradient_follow_the_definition(
        dims in (0..=2usize, 0..=3usize, 1..=9usize, 1..=9usize),
        out_size in [1..=14usize, 1..=14usize],
        factors in prop::option::of([0.3..3.0f64, 0.3..3.0f64]),
        mode in prop::sample::select(MODES.to_vec()),
        styles in [styles(), styles()],
        dtype in all_floats(),
    ) {
        let dims = [dims.0, dims.1, dims.2, dims.3];
        let floors = factors.map(|f| [0, 1].map(|axis| (dims[2 + axis] as f64 * f[axis]) as usize));
        prop_assume!(floors.is_none_or(|size| !size.contains(&0)));
        let size = factors.map_or(Resize::To(out_size), Resize::By);
        let out_size = floors.unwrap_or(out_size);
        let [rows, cols] = [0, 1].map(|axis| {
            weights(dims[2 + axis], out_size[axis], factors.map(|f| f[axis]), mode)
        });
        let (x, x_twin) = sample(&dims, styles[0], dtype, 1);
        let y = x.upsample2d(size, mode).unwrap();
        let (dy, dy_twin) = sample(y.shape(), styles[1], dtype, 2);
        let dx = dy.upsample2d_backward(*x.shape(), size, mode).unwrap();
        let back = [transposed(&rows, dims[2]), transposed(&cols, dims[3])];
        let [expected, dx_expected] =
            [resized(&x_twin, [&rows, &cols]), resized(&dy_twin, [&back[0], &back[1]])];
        if mode == Interpolation::Nearest {
            assert_rounded(&y, &expected);
            assert_rounded(&dx, &dx_expected);
        } else {
            // The error of a weight is a rounding of its place, which is up to 14.
            assert_close(&y, &expected, 128);
            assert_close(&dx, &dx_expected, 2048);
        }
    }
}

#[test]
fn same_size_is_the_same_image() {
    let (x, x_twin) = sample(&[1, 2, 5, 7], crate::common::Style::Contiguous, DType::F32, 1);
    for mode in MODES {
        for size in [Resize::To([5, 7]), Resize::By([1.0, 1.0])] {
            assert_rounded(&x.upsample2d(size, mode).unwrap(), &x_twin);
        }
    }
}

/// `F.interpolate(x, scale_factor=(1, factor), mode=mode)` of PyTorch 2.15 for x = 0, 1, .. in one
/// row, and x's gradient for dy = 1, 2, ..
#[test]
fn a_side_that_keeps_its_length_or_doubles_is_copied_whatever_the_factor_as_in_pytorch() {
    let bilinear = Interpolation::Bilinear(Corners::Centers);
    let (same, ones) = (vec![0.0, 1.0, 2.0, 3.0, 4.0], vec![1.0, 2.0, 3.0, 4.0, 5.0]);
    let twice = vec![0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0];
    let cases = [
        (Interpolation::Nearest, 5, 1.15, same.clone(), ones.clone()),
        (bilinear, 5, 1.15, same, ones),
        (Interpolation::Nearest, 4, 2.2, twice, vec![3.0, 7.0, 11.0, 15.0]),
        // The length is neither kept nor doubled: pixels lie at multiples of the factor.
        (
            Interpolation::Nearest,
            3,
            2.9,
            vec![0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 2.0],
            vec![6.0, 15.0, 15.0],
        ),
    ];
    for (mode, len, factor, expected, expected_dx) in cases {
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            let row = |values: Vec<f64>| {
                let shape = [1, 1, 1, values.len()];
                let x = Tensor::from_slice(shared(), shape, &values).unwrap();
                x.to_dtype(dtype).unwrap()
            };
            let values = |x: Tensor| x.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
            let x = row((0..len).map(f64::from).collect());
            let size = Resize::By([1.0, factor]);
            let y = x.upsample2d(size, mode).unwrap();
            let dy = row((1..=y.element_count()).map(|at| at as f64).collect());
            let dx = dy.upsample2d_backward(*x.shape(), size, mode).unwrap();
            assert_eq!(values(y), expected, "{mode:?} of {dtype} by {factor}");
            assert_eq!(values(dx), expected_dx, "{mode:?} of {dtype} by {factor}");
        }
    }
}

#[test]
fn sizes_without_pixels_or_beyond_reason_are_refused() {
    let x = Tensor::zeros(shared(), [1, 2, 3, 3], DType::F32).unwrap();
    let sizes = [
        Resize::To([0, 2]),
        Resize::To([usize::MAX, 2]),
        Resize::By([0.3, 1.0]),
        Resize::By([f64::NAN, 1.0]),
        Resize::By([f64::INFINITY, 1.0]),
        Resize::By([-1.0, 1.0]),
        Resize::By([1e300, 1e300]),
    ];
    for size in sizes {
        let error = x.upsample2d(size, Interpolation::Nearest).unwrap_err().to_string();
        assert!(error.starts_with("upsample2d: shapes"), "{size:?}: {error}");
    }
    let empty = Tensor::zeros(shared(), [1, 2, 0, 3], DType::F32).unwrap();
    assert!(empty.upsample2d(Resize::To([2, 2]), Interpolation::Nearest).is_err());
    let wrong = x.upsample2d_backward(Shape::new(&[1, 2, 3, 3]), Resize::To([6, 6]), MODES[0]);
    assert!(wrong.unwrap_err().to_string().starts_with("upsample2d_backward: shapes"));
}
