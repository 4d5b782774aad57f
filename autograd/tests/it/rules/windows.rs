use lowtide_autograd::Pass;
use lowtide_tensor::{
    AvgPool, Conv1dGeometry, ConvTranspose1dGeometry, ConvTranspose2dGeometry, Corners, Divisor,
    Interpolation, MaxPool, Pool1dGeometry, Pool2dGeometry, Resize, SizeRounding,
};

use super::{AROUND_ZERO, Cases, with_weight};

pub(super) fn convolutions(cases: &mut Cases) {
    let plain = Conv1dGeometry::default();
    let walked = Conv1dGeometry { stride: 2, padding: 1, dilation: 2, groups: 2 };
    for (geometry, w) in [(plain, [3, 2, 2]), (walked, [4, 1, 2])] {
        let conv = move |_: &Pass, vars| with_weight(vars, |x, w, b| x.conv1d(w, b, geometry));
        cases.add("conv1d", &[&[2, 2, 5], &w], AROUND_ZERO, conv);
        cases.add("conv1d", &[&[2, 2, 5], &w, &[w[0]]], AROUND_ZERO, conv);
    }
    let plain = ConvTranspose1dGeometry::default();
    let walked = ConvTranspose1dGeometry {
        stride: 2,
        padding: 1,
        output_padding: 1,
        dilation: 2,
        groups: 2,
    };
    for (geometry, w, outputs) in [(plain, [2, 3, 2], 3), (walked, [2, 2, 2], 4)] {
        let conv =
            move |_: &Pass, vars| with_weight(vars, |x, w, b| x.conv_transpose1d(w, b, geometry));
        cases.add("conv_transpose1d", &[&[2, 2, 4], &w], AROUND_ZERO, conv);
        cases.add("conv_transpose1d", &[&[2, 2, 4], &w, &[outputs]], AROUND_ZERO, conv);
    }
    let plain = ConvTranspose2dGeometry::default();
    let walked = ConvTranspose2dGeometry {
        stride: [2, 1],
        padding: [1, 0],
        output_padding: [1, 0],
        dilation: [1, 2],
        groups: 2,
    };
    for (geometry, w, outputs) in [(plain, [2, 3, 2, 1], 3), (walked, [2, 2, 2, 2], 4)] {
        let conv =
            move |_: &Pass, vars| with_weight(vars, |x, w, b| x.conv_transpose2d(w, b, geometry));
        cases.add("conv_transpose2d", &[&[1, 2, 3, 2], &w], AROUND_ZERO, conv);
        cases.add("conv_transpose2d", &[&[1, 2, 3, 2], &w, &[outputs]], AROUND_ZERO, conv);
    }
}

pub(super) fn pools(cases: &mut Cases) {
    let inside = AvgPool { divisor: Divisor::Inside, rounding: SizeRounding::Up };
    let (line, image) = ([2, 2, 7], [2, 2, 5, 4]);
    for window in
        [Pool1dGeometry::side_by_side(2), Pool1dGeometry { kernel: 3, stride: 2, padding: 1 }]
    {
        cases.unary("max_pool1d", &line, AROUND_ZERO, move |x| x.max_pool1d(window));
        for options in [AvgPool::default(), inside] {
            cases.unary("avg_pool1d", &line, AROUND_ZERO, move |x| x.avg_pool1d(window, options));
        }
    }
    for window in [
        Pool2dGeometry::square(2),
        Pool2dGeometry { kernel: [3, 2], stride: [1, 2], padding: [1, 0] },
    ] {
        for options in [AvgPool::default(), inside] {
            cases.unary("avg_pool2d", &image, AROUND_ZERO, move |x| x.avg_pool2d(window, options));
        }
        for options in [
            MaxPool { dilation: [2, 1], rounding: SizeRounding::Down },
            MaxPool { dilation: [1, 2], rounding: SizeRounding::Up },
        ] {
            let pool = move |x: lowtide_autograd::Var| x.max_pool2d_with(window, options);
            cases.unary("max_pool2d_with", &image, AROUND_ZERO, pool);
        }
    }
    for size in [[1, 1], [2, 3], [7, 4]] {
        let mean = move |x: lowtide_autograd::Var| x.adaptive_avg_pool2d(size);
        cases.unary("adaptive_avg_pool2d", &image, AROUND_ZERO, mean);
        let largest = move |x: lowtide_autograd::Var| x.adaptive_max_pool2d(size);
        cases.unary("adaptive_max_pool2d", &image, AROUND_ZERO, largest);
    }
    let interpolations = [
        Interpolation::Nearest,
        Interpolation::Bilinear(Corners::Centers),
        Interpolation::Bilinear(Corners::Aligned),
    ];
    for interpolation in interpolations {
        for size in [Resize::To([7, 3]), Resize::By([2.0, 1.5])] {
            let resize = move |x: lowtide_autograd::Var| x.upsample2d(size, interpolation);
            cases.unary("upsample2d", &[1, 2, 3, 4], AROUND_ZERO, resize);
        }
    }
}
