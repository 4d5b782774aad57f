//! Convolution and pooling against the definition.

use lowtide_tensor::{
    Conv2dGeometry, Conv2dWorkspace, DType, Device, DeviceKind, MaxPool, Pool2dGeometry, Shape,
    SimSpec, SizeRounding, Tensor,
};
use proptest::prelude::*;

use crate::common::{Style, all_floats, assert_rounded, sample, shared, styles};
use crate::naive::{self, Array};

/// A geometry with shapes of x and w that go with it.
fn convolutions() -> impl Strategy<Value = (Conv2dGeometry, Vec<usize>, Vec<usize>)> {
    let pair = |range: std::ops::RangeInclusive<usize>| [range.clone(), range];
    let geometry = (pair(1..=3), pair(0..=2), pair(1..=2), 1..=3usize);
    let sizes = (0..=3usize, 1..=3usize, 1..=5usize, pair(1..=3), pair(0..=9));
    (geometry, sizes).prop_map(|((stride, padding, dilation, groups), sizes)| {
        let (batch, channels, outs, kernel, extra) = sizes;
        let geometry = Conv2dGeometry { stride, padding, dilation, groups };
        let size = |axis: usize| {
            // The size is at least as large as the kernel needs, and never 0.
            let reach = dilation[axis] * (kernel[axis] - 1) + 1;
            (reach + extra[axis]).saturating_sub(2 * padding[axis]).max(1)
        };
        let x = vec![batch, channels * groups, size(0), size(1)];
        (geometry, x, vec![outs * groups, channels, kernel[0], kernel[1]])
    })
}

proptest! {
    #[test]
    fn conv2d_and_its_gradients_follow_the_definition(
        (geometry, x_dims, w_dims) in convolutions(),
        styles in [styles(), styles(), styles(), styles()],
        dtype in all_floats(),
    ) {
        let (x, x_twin) = sample(&x_dims, styles[0], dtype, 1);
        let (w, w_twin) = sample(&w_dims, styles[1], dtype, 2);
        let (b, b_twin) = sample(&w_dims[..1], styles[2], dtype, 3);
        assert_rounded(
            &x.conv2d(&w, None, geometry).unwrap(),
            &naive::conv2d(&x_twin, &w_twin, None, geometry),
        );
        let y = x.conv2d(&w, Some(&b), geometry).unwrap();
        assert_rounded(&y, &naive::conv2d(&x_twin, &w_twin, Some(&b_twin), geometry));

        let (dy, dy_twin) = sample(y.shape(), styles[3], dtype, 4);
        let [dx, dw] = naive::conv2d_backward(&dy_twin, &x_twin, &w_twin, geometry);
        assert_rounded(&dy.conv2d_backward_input(&w, *x.shape(), geometry).unwrap(), &dx);
        assert_rounded(&dy.conv2d_backward_weight(&x, *w.shape(), geometry).unwrap(), &dw);
    }

    /// The sums of this gradient run over pixels: the generated shapes are seldom large enough.
    #[test]
    fn gradient_for_few_channels_of_large_images_follows_the_definition(
        (batch, channels, outs) in (1..=3usize, 1..=3usize, 1..=9usize),
        size in [9..=14usize, 9..=14usize],
        dtype in all_floats(),
    ) {
        let geometry = Conv2dGeometry { padding: [1, 1], ..Default::default() };
        let (x, x_twin) = sample(&[batch, channels, size[0], size[1]], Style::Contiguous, dtype, 1);
        let (w, w_twin) = sample(&[outs, channels, 3, 3], Style::Contiguous, dtype, 2);
        let (dy, dy_twin) = sample(&[batch, outs, size[0], size[1]], Style::Contiguous, dtype, 3);
        let [_, dw] = naive::conv2d_backward(&dy_twin, &x_twin, &w_twin, geometry);
        assert_rounded(&dy.conv2d_backward_weight(&x, *w.shape(), geometry).unwrap(), &dw);
    }

    #[test]
    fn max_pool2d_and_its_gradient_follow_the_definition(
        (batch, channels, extra) in (0..=3usize, 1..=3usize, [0..=9usize, 0..=9usize]),
        (kernel, stride) in ([1..=4usize, 1..=4usize], [1..=4usize, 1..=4usize]),
        padded in any::<[bool; 2]>(),
        styles in [styles(), styles()],
        dtype in all_floats(),
        seed in 0..50usize,
    ) {
        let padding = [0, 1].map(|axis| if padded[axis] { kernel[axis] / 2 } else { 0 });
        let size = |axis: usize| (kernel[axis] + extra[axis] - padding[axis]).max(1);
        let geometry = Pool2dGeometry { kernel, stride, padding };
        let dims = [batch, channels, size(0), size(1)];
        let (x, x_twin) = sample(&dims, styles[0], dtype, seed);
        let (y, winners) = x.max_pool2d(geometry).unwrap();
        let (dy, dy_twin) = sample(y.shape(), styles[1], dtype, seed + 1);
        let options = MaxPool::default();
        let [expected, dx] = naive::max_pool2d(&x_twin, geometry, options, |at| dy_twin.at(at));
        assert_rounded(&y, &expected);
        assert_rounded(&dy.max_pool2d_backward(&winners, *x.shape(), geometry).unwrap(), &dx);
    }

    #[test]
    fn windows_with_steps_and_partial_windows_follow_the_definition(
        (batch, channels, size) in (0..=2usize, 1..=2usize, [3..=12usize, 3..=12usize]),
        (kernel, stride) in ([1..=3usize, 1..=3usize], [1..=4usize, 1..=4usize]),
        (dilation, padding) in ([1..=3usize, 1..=3usize], [0..=2usize, 0..=2usize]),
        rounding in prop::sample::select(vec![SizeRounding::Down, SizeRounding::Up]),
        styles in [styles(), styles()],
        dtype in all_floats(),
        seed in 0..50usize,
    ) {
        let reach = |axis: usize| dilation[axis] * (kernel[axis] - 1) + 1;
        let padding = [0, 1].map(|axis| padding[axis].min(reach(axis) / 2));
        let (geometry, options) =
            (Pool2dGeometry { kernel, stride, padding }, MaxPool { dilation, rounding });
        let dims = [batch, channels, size[0], size[1]];
        let (x, x_twin) = sample(&dims, styles[0], dtype, seed);
        let slack = |axis: usize| if rounding == SizeRounding::Up { stride[axis] - 1 } else { 0 };
        let fits = |axis: usize| size[axis] + 2 * padding[axis] + slack(axis) >= reach(axis);
        if !fits(0) || !fits(1) {
            prop_assert!(x.max_pool2d_with(geometry, options).is_err());
            return Ok(());
        }
        let (y, winners) = x.max_pool2d_with(geometry, options).unwrap();
        let (dy, dy_twin) = sample(y.shape(), styles[1], dtype, seed + 1);
        let [expected, dx] = naive::max_pool2d(&x_twin, geometry, options, |at| dy_twin.at(at));
        assert_rounded(&y, &expected);
        let found = dy.max_pool2d_with_backward(&winners, *x.shape(), geometry, options).unwrap();
        assert_rounded(&found, &dx);
    }

    #[test]
    fn workspace_of_a_convolution_is_what_it_says(
        (geometry, x_dims, w_dims) in convolutions(),
        dtype in all_floats(),
    ) {
        let like_cuda = Device::sim(SimSpec::like_cuda(1 << 30)).unwrap();
        for device in [crate::common::cpu(1), like_cuda] {
            let zeros = |dims: &[usize]| Tensor::zeros(&device, dims, dtype).unwrap();
            let (x, w) = (zeros(&x_dims), zeros(&w_dims));
            let kind = device.kind();
            let of = Conv2dWorkspace::of(kind, *x.shape(), *w.shape(), geometry, dtype).unwrap();
            let expected = [of.forward_bytes, of.backward_input_bytes, of.backward_weight_bytes];
            if kind == DeviceKind::Cuda && dtype.size_bytes() > 2 {
                prop_assert_eq!(expected, [0; 3]);
            }
            // A convolution of one tap is a product by the library, which has its own workspace.
            if kind == DeviceKind::Cuda && w_dims[2..] == [1, 1] {
                continue;
            }
            let mut y = None;
            let forward = crate::common::workspace_bytes(&device, || {
                y = Some(x.conv2d(&w, None, geometry).unwrap());
            });
            let y = y.expect("made above");
            let of_input = crate::common::workspace_bytes(&device, || {
                y.conv2d_backward_input(&w, *x.shape(), geometry).unwrap();
            });
            let of_weight = crate::common::workspace_bytes(&device, || {
                y.conv2d_backward_weight(&x, *w.shape(), geometry).unwrap();
            });
            prop_assert_eq!([forward, of_input, of_weight], expected);
        }
    }
}

#[test]
fn winners_may_lie_anywhere() {
    let geometry = Pool2dGeometry::square(2);
    let (x, x_twin) = sample(&[1, 2, 4, 6], Style::Contiguous, DType::F32, 1);
    let (y, winners) = x.max_pool2d(geometry).unwrap();
    let turned = winners.transpose(2, 3).unwrap().copied().unwrap().transpose(2, 3).unwrap();
    assert!(!turned.layout().is_contiguous());
    let [_, dx] = naive::max_pool2d(&x_twin, geometry, MaxPool::default(), |_| 1.0);
    let dy = Tensor::full(shared(), *y.shape(), DType::F32, 1.0).unwrap();
    assert_rounded(&dy.max_pool2d_backward(&turned, *x.shape(), geometry).unwrap(), &dx);
}

#[test]
fn pooling_lets_nan_win_and_minus_infinity_lose_to_nothing() {
    let low = f32::NEG_INFINITY;
    let x =
        Tensor::from_slice(shared(), [1, 1, 2, 4], &[1.0, f32::NAN, low, low, 9.0, 2.0, low, low]);
    let (y, winners) = x.unwrap().max_pool2d(Pool2dGeometry::square(2)).unwrap();
    let values = y.to_vec::<f32>().unwrap();
    assert!(values[0].is_nan() && values[1] == low);
    assert_eq!(winners.to_vec::<u8>().unwrap(), [1, 0]);
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let zeros = |dims: &[usize]| Tensor::zeros(shared(), dims, DType::F32).unwrap();
    let x = zeros(&[1, 2, 3, 3]);
    let default = Conv2dGeometry::default();
    let refused = [
        (&[1, 2, 4, 1][..], default),
        (&[1, 3, 1, 1], default),
        (&[2, 2, 0, 1], default),
        (&[3, 1, 1, 1], Conv2dGeometry { groups: 2, ..default }),
        (&[2, 2, 1, 1], Conv2dGeometry { groups: 0, ..default }),
        (&[2, 2, 1, 1], Conv2dGeometry { stride: [1, 0], ..default }),
        (&[2, 2, 2, 2], Conv2dGeometry { dilation: [3, 1], ..default }),
        (&[2, 2, 1], default),
    ];
    for (w, geometry) in refused {
        let error = x.conv2d(&zeros(w), None, geometry).unwrap_err().to_string();
        assert!(error.starts_with("conv2d: shapes"), "{w:?}: {error}");
    }
    let square = Pool2dGeometry::square(2);
    for geometry in [
        Pool2dGeometry::square(4),
        Pool2dGeometry::square(17),
        Pool2dGeometry { padding: [2, 0], ..square },
        Pool2dGeometry { stride: [0, 1], ..square },
        Pool2dGeometry { kernel: [0, 2], ..square },
    ] {
        assert!(x.max_pool2d(geometry).is_err(), "{geometry:?}");
        let error = zeros(&[1, 2, 1, 1]).max_pool2d_backward(&x, *x.shape(), geometry);
        assert!(error.unwrap_err().to_string().starts_with("max_pool2d_backward"));
    }
}

#[test]
fn windows_that_could_meet_nothing_are_refused() {
    let zeros = |dims: &[usize]| Tensor::zeros(shared(), dims, DType::F32).unwrap();
    let padded = Pool2dGeometry { padding: [1, 0], ..Pool2dGeometry::square(2) };
    let of = |dims: &[usize], dilation| {
        let options = MaxPool { dilation, ..Default::default() };
        zeros(dims).max_pool2d_with(padded, options)
    };
    assert!(of(&[1, 1, 2, 2], [2, 1]).is_ok());
    for (dims, dilation) in [
        ([1, 1, 1, 2], [2, 1]),
        ([1, 1, 0, 2], [1, 1]),
        ([1, 1, 2, 2], [0, 1]),
        ([1, 1, 2, 2], [usize::MAX, 1]),
    ] {
        let error = of(&dims, dilation).unwrap_err().to_string();
        assert!(error.starts_with("max_pool2d_with: shapes"), "{dims:?}: {error}");
    }
    let error = zeros(&[1, 1, 0, 2]).max_pool2d(padded).unwrap_err().to_string();
    assert!(error.starts_with("max_pool2d: shapes"), "{error}");
    let vast = Pool2dGeometry { kernel: [usize::MAX, 2], ..padded };
    assert!(zeros(&[1, 1, 2, 2]).max_pool2d(vast).is_err());
}

#[test]
fn result_shapes_round_down() {
    let twin = Array::pattern(&[1, 1, 6, 7], 1);
    let x = crate::common::upload(shared(), &twin, DType::F32);
    let geometry = Pool2dGeometry { kernel: [3, 2], stride: [2, 3], padding: [0, 0] };
    assert_eq!(*x.max_pool2d(geometry).unwrap().0.shape(), Shape::new(&[1, 1, 2, 2]));
}
