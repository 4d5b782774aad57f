//! Transposed convolutions and convolutions of sequences against the definition.

use lowtide_tensor::{
    Conv1dGeometry, Conv2dGeometry, ConvTranspose1dGeometry, ConvTranspose2dGeometry, DType, Tensor,
};
use proptest::prelude::*;

use crate::common::{all_floats, assert_rounded, download, sample, shared, styles};
use crate::naive::{Array, index_of};

/// Calls `visit(y, x, w)` with the indices of each product: input pixel (h, w) adds to output
/// (h · stride + kh · dilation - padding, ..).
fn products(
    [y, x, w]: [&[usize]; 3],
    geometry: ConvTranspose2dGeometry,
    mut visit: impl FnMut([usize; 4], [usize; 4], [usize; 4]),
) {
    let ConvTranspose2dGeometry { stride, padding, dilation, groups, .. } = geometry;
    for place in 0..x.iter().product() {
        let [n, i, p, q] = index_of(x, place)[..] else { unreachable!("four dimensions") };
        let first_channel = i / (x[1] / groups) * w[1];
        for tap in 0..w[1..].iter().product() {
            let [o, kh, kw] = index_of(&w[1..], tap)[..] else { unreachable!("three dimensions") };
            let to = |axis: usize, at: usize, k: usize| {
                (at * stride[axis] + k * dilation[axis])
                    .checked_sub(padding[axis])
                    .filter(|&to| to < y[2 + axis])
            };
            if let (Some(row), Some(col)) = (to(0, p, kh), to(1, q, kw)) {
                visit([n, first_channel + o, row, col], [n, i, p, q], [i, o, kh, kw]);
            }
        }
    }
}

fn add(to: &mut Array, at: [usize; 4], value: f64) {
    let place = at.iter().zip(&to.dims).fold(0, |place, (at, dim)| place * dim + at);
    to.values[place] += value;
}

fn pair(range: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = [usize; 2]> {
    [range.clone(), range]
}

/// A geometry, and shapes of x, w and y that go with it.
fn cases() -> impl Strategy<Value = (ConvTranspose2dGeometry, [Vec<usize>; 3])> {
    let geometry = (pair(1..=3), pair(0..=2), pair(0..=2), pair(1..=2), 1..=3usize);
    let sizes = (0..=3usize, 0..=3usize, 1..=5usize, pair(1..=3), pair(1..=6));
    (geometry, sizes).prop_filter_map("nothing is left", |(geometry, sizes)| {
        let (stride, padding, extra, dilation, groups) = geometry;
        let (batch, ins, outs, kernel, size) = sizes;
        let output_padding = [0, 1].map(|axis| extra[axis] % stride[axis]);
        let len = |axis: usize| {
            let whole = (size[axis] - 1) * stride[axis]
                + dilation[axis] * (kernel[axis] - 1)
                + output_padding[axis]
                + 1;
            whole.checked_sub(2 * padding[axis]).filter(|&len| len > 0)
        };
        let geometry =
            ConvTranspose2dGeometry { stride, padding, output_padding, dilation, groups };
        let x = vec![batch, ins * groups, size[0], size[1]];
        let w = vec![ins * groups, outs, kernel[0], kernel[1]];
        Some((geometry, [x, w, vec![batch, outs * groups, len(0)?, len(1)?]]))
    })
}

proptest! {
    #[test]
    fn transposed_convolution_and_its_gradients_follow_the_definition(
        (geometry, [x_dims, w_dims, y_dims]) in cases(),
        styles in [styles(), styles(), styles(), styles()],
        dtype in all_floats(),
    ) {
        let (x, x_twin) = sample(&x_dims, styles[0], dtype, 1);
        let (w, w_twin) = sample(&w_dims, styles[1], dtype, 2);
        let (b, b_twin) = sample(&y_dims[1..2], styles[2], dtype, 3);
        let (dy, dy_twin) = sample(&y_dims, styles[3], dtype, 4);
        let mut expected = Array::from_fn(&y_dims, |_| 0.0);
        let [mut dx, mut dw] = [x_twin.map(|_| 0.0), w_twin.map(|_| 0.0)];
        products([&y_dims, &x_dims, &w_dims], geometry, |to, from, tap| {
            add(&mut expected, to, x_twin.at(&from) * w_twin.at(&tap));
            add(&mut dx, from, dy_twin.at(&to) * w_twin.at(&tap));
            add(&mut dw, tap, dy_twin.at(&to) * x_twin.at(&from));
        });
        assert_rounded(&x.conv_transpose2d(&w, None, geometry).unwrap(), &expected);
        let with_bias = Array::from_fn(&y_dims, |at| expected.at(at) + b_twin.values[at[1]]);
        assert_rounded(&x.conv_transpose2d(&w, Some(&b), geometry).unwrap(), &with_bias);
        let found = dy.conv_transpose2d_backward_input(&w, *x.shape(), geometry).unwrap();
        assert_rounded(&found, &dx);
        let found = dy.conv_transpose2d_backward_weight(&x, *w.shape(), geometry).unwrap();
        assert_rounded(&found, &dw);
    }

    #[test]
    fn sequences_are_images_one_row_high(
        (stride, padding, dilation, groups) in (1..=3usize, 0..=2usize, 1..=2usize, 1..=2usize),
        (batch, ins, outs) in (0..=2usize, 1..=3usize, 1..=3usize),
        (kernel, len) in (1..=3usize, 5..=9usize),
        styles in [styles(), styles(), styles()],
        dtype in all_floats(),
    ) {
        let line = Conv1dGeometry { stride, padding, dilation, groups };
        let flat = Conv2dGeometry {
            stride: [1, stride], padding: [0, padding], dilation: [1, dilation], groups,
        };
        let (x, _) = sample(&[batch, ins * groups, len], styles[0], dtype, 1);
        let (w, _) = sample(&[outs * groups, ins, kernel], styles[1], dtype, 2);
        let (b, _) = sample(&[outs * groups], styles[2], dtype, 3);
        let [x4, w4] = [&x, &w].map(|tensor| tensor.unsqueeze(2).unwrap());
        let same = |found: &Tensor, image: &Tensor| {
            assert_eq!(download(found), download(&image.squeeze(2).unwrap()));
        };
        let y = x.conv1d(&w, Some(&b), line).unwrap();
        let y4 = x4.conv2d(&w4, Some(&b), flat).unwrap();
        same(&y, &y4);
        same(
            &y.conv1d_backward_input(&w, *x.shape(), line).unwrap(),
            &y4.conv2d_backward_input(&w4, *x4.shape(), flat).unwrap(),
        );
        same(
            &y.conv1d_backward_weight(&x, *w.shape(), line).unwrap(),
            &y4.conv2d_backward_weight(&x4, *w4.shape(), flat).unwrap(),
        );

        // Goes from y back to the length of x, including positions that the stride dropped.
        let reach = dilation * (kernel - 1) + 1;
        let output_padding = (len + 2 * padding - reach) % stride;
        let line = ConvTranspose1dGeometry { stride, padding, output_padding, dilation, groups };
        let z = y.conv_transpose1d(&w, None, line).unwrap();
        same(&z, &y4.conv2d_backward_input(&w4, *x4.shape(), flat).unwrap());
        same(&z.conv_transpose1d_backward_input(&w, *y.shape(), line).unwrap(), &z
            .unsqueeze(2).unwrap().conv2d(&w4, None, flat).unwrap());
        same(&z.conv_transpose1d_backward_weight(&y, *w.shape(), line).unwrap(), &y4
            .conv2d_backward_weight(&z.unsqueeze(2).unwrap(), *w4.shape(), flat).unwrap());
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let zeros = |dims: &[usize]| Tensor::zeros(shared(), dims, DType::F32).unwrap();
    let x = zeros(&[1, 4, 3, 3]);
    let default = ConvTranspose2dGeometry::default();
    let refused = [
        (&[3, 1, 1, 1][..], default),
        (&[4, 1, 1], default),
        (&[4, 1, 0, 1], default),
        (&[4, 1, 2, 2], ConvTranspose2dGeometry { groups: 0, ..default }),
        (&[4, 1, 2, 2], ConvTranspose2dGeometry { groups: 3, ..default }),
        (&[4, 1, 2, 2], ConvTranspose2dGeometry { output_padding: [1, 0], ..default }),
        (&[4, 1, 2, 2], ConvTranspose2dGeometry { padding: [2, 0], ..default }),
        (&[4, 1, 2, 2], ConvTranspose2dGeometry { padding: [usize::MAX, 0], ..default }),
        (&[4, 1, 2, 2], ConvTranspose2dGeometry { stride: [usize::MAX, 1], ..default }),
        (&[4, 1, 2, 2], ConvTranspose2dGeometry { dilation: [0, 1], ..default }),
    ];
    for (w, geometry) in refused {
        let error = x.conv_transpose2d(&zeros(w), None, geometry).unwrap_err().to_string();
        assert!(error.starts_with("conv_transpose2d: shapes"), "{w:?} {geometry:?}: {error}");
    }
    let line = zeros(&[1, 4, 3]);
    let error = line.conv1d(&zeros(&[1, 3, 1]), None, Conv1dGeometry::default()).unwrap_err();
    assert!(error.to_string().starts_with("conv1d: shapes"), "{error}");
    let error = x.conv1d(&line, None, Conv1dGeometry::default()).unwrap_err();
    assert!(error.to_string().starts_with("conv1d: shapes"), "{error}");
    let error = x.conv_transpose2d(&zeros(&[4, 1, 1, 1]), Some(&zeros(&[2])), default);
    assert!(error.unwrap_err().to_string().starts_with("conv_transpose2d: shapes"));
}
