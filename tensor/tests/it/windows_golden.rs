//! The reference values of PyTorch in `tests/fixtures/windows.safetensors`.

use lowtide_tensor::{
    AvgPool, Conv1dGeometry, Conv2dGeometry, ConvTranspose1dGeometry, ConvTranspose2dGeometry,
    Corners, Divisor, Interpolation, MaxPool, Pool1dGeometry, Pool2dGeometry, Resize, SizeRounding,
    Tensor,
};
use safetensors::SafeTensors;

use crate::common::{assert_close, assert_same, download, file_dtype, shared};

struct Fixture(Vec<u8>);

impl Fixture {
    fn open() -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/windows.safetensors");
        Fixture(std::fs::read(path).expect("the fixture is part of the repository"))
    }

    fn tensor(&self, case: &str, name: &str) -> Tensor {
        let file = SafeTensors::deserialize(&self.0).expect("a safetensors file");
        let view = file.tensor(&format!("{case}.{name}")).expect("a tensor of this name");
        let dtype = file_dtype(view.dtype());
        Tensor::from_bytes(shared(), view.shape(), dtype, view.data()).unwrap()
    }

    #[track_caller]
    fn check(&self, case: &str, name: &str, found: &Tensor, roundings: usize) {
        let expected = download(&self.tensor(case, name));
        match roundings {
            0 => assert_same(found, &expected),
            _ => assert_close(found, &expected, roundings),
        }
    }
}

#[test]
fn convolutions_equal_pytorch() {
    let fixture = Fixture::open();
    let of = |case: &str| ["x", "w", "dy"].map(|name| fixture.tensor(case, name));

    let case = "conv_transpose2d";
    let ([x, w, dy], b) = (of(case), fixture.tensor(case, "b"));
    let geometry = ConvTranspose2dGeometry {
        stride: [2, 3],
        padding: [1, 0],
        output_padding: [1, 2],
        dilation: [2, 1],
        groups: 2,
    };
    fixture.check(case, "out", &x.conv_transpose2d(&w, Some(&b), geometry).unwrap(), 0);
    let dx = dy.conv_transpose2d_backward_input(&w, *x.shape(), geometry).unwrap();
    fixture.check(case, "dx", &dx, 0);
    let dw = dy.conv_transpose2d_backward_weight(&x, *w.shape(), geometry).unwrap();
    fixture.check(case, "dw", &dw, 0);

    let case = "conv_transpose1d";
    let [x, w, dy] = of(case);
    let geometry =
        ConvTranspose1dGeometry { stride: 2, padding: 1, output_padding: 1, ..Default::default() };
    fixture.check(case, "out", &x.conv_transpose1d(&w, None, geometry).unwrap(), 0);
    let dx = dy.conv_transpose1d_backward_input(&w, *x.shape(), geometry).unwrap();
    fixture.check(case, "dx", &dx, 0);
    let dw = dy.conv_transpose1d_backward_weight(&x, *w.shape(), geometry).unwrap();
    fixture.check(case, "dw", &dw, 0);

    let case = "conv1d";
    let ([x, w, dy], b) = (of(case), fixture.tensor(case, "b"));
    let geometry = Conv1dGeometry { stride: 2, padding: 2, dilation: 2, groups: 2 };
    fixture.check(case, "out", &x.conv1d(&w, Some(&b), geometry).unwrap(), 0);
    fixture.check(case, "dx", &dy.conv1d_backward_input(&w, *x.shape(), geometry).unwrap(), 0);
    fixture.check(case, "dw", &dy.conv1d_backward_weight(&x, *w.shape(), geometry).unwrap(), 0);

    for case in ["conv2d_f16", "conv2d_bf16"] {
        let ([x, w, dy], b) = (of(case), fixture.tensor(case, "b"));
        let geometry = Conv2dGeometry { padding: [1, 1], ..Default::default() };
        fixture.check(case, "out", &x.conv2d(&w, Some(&b), geometry).unwrap(), 0);
        // PyTorch adds up gradients in bf16 here, with up to 6 roundings from the exact sum.
        fixture.check(case, "dx", &dy.conv2d_backward_input(&w, *x.shape(), geometry).unwrap(), 8);
        let dw = dy.conv2d_backward_weight(&x, *w.shape(), geometry).unwrap();
        fixture.check(case, "dw", &dw, 8);
    }
}

#[test]
fn poolings_agree_with_pytorch() {
    let fixture = Fixture::open();
    let of = |case: &str| ["x", "dy"].map(|name| fixture.tensor(case, name));
    let window = Pool2dGeometry { kernel: [3, 4], stride: [2, 3], padding: [1, 2] };
    for (name, divisor, rounding) in [
        ("", Divisor::Window, SizeRounding::Down),
        ("_inside", Divisor::Inside, SizeRounding::Down),
        ("_up", Divisor::Window, SizeRounding::Up),
        ("_inside_up", Divisor::Inside, SizeRounding::Up),
    ] {
        let case = &format!("avg_pool2d{name}");
        let (options, [x, dy]) = (AvgPool { divisor, rounding }, of(case));
        fixture.check(case, "out", &x.avg_pool2d(window, options).unwrap(), 2);
        let dx = dy.avg_pool2d_backward(*x.shape(), window, options).unwrap();
        fixture.check(case, "dx", &dx, 4);
    }
    let line = Pool1dGeometry { kernel: 3, stride: 2, padding: 1 };
    let [x, dy] = of("avg_pool1d");
    let options = AvgPool::default();
    fixture.check("avg_pool1d", "out", &x.avg_pool1d(line, options).unwrap(), 2);
    let dx = dy.avg_pool1d_backward(*x.shape(), line, options).unwrap();
    fixture.check("avg_pool1d", "dx", &dx, 4);
    let [x, dy] = of("max_pool1d");
    let (y, winners) = x.max_pool1d(line).unwrap();
    fixture.check("max_pool1d", "out", &y, 0);
    let dx = dy.max_pool1d_backward(&winners, *x.shape(), line).unwrap();
    fixture.check("max_pool1d", "dx", &dx, 0);

    let window = Pool2dGeometry { kernel: [2, 3], stride: [2, 3], padding: [1, 1] };
    for (name, dilation, rounding) in [
        ("dilated", [2, 3], SizeRounding::Down),
        ("up", [1, 1], SizeRounding::Up),
        ("dilated_up", [2, 1], SizeRounding::Up),
    ] {
        let case = &format!("max_pool2d_{name}");
        let (options, [x, dy]) = (MaxPool { dilation, rounding }, of(case));
        let (y, winners) = x.max_pool2d_with(window, options).unwrap();
        fixture.check(case, "out", &y, 0);
        let dx = dy.max_pool2d_with_backward(&winners, *x.shape(), window, options).unwrap();
        fixture.check(case, "dx", &dx, 0);
    }

    for out_size in [[1, 1], [3, 4], [7, 9], [10, 5]] {
        let case = &format!("adaptive_avg_{}x{}", out_size[0], out_size[1]);
        let [x, dy] = of(case);
        fixture.check(case, "out", &x.adaptive_avg_pool2d(out_size).unwrap(), 2);
        fixture.check(case, "dx", &dy.adaptive_avg_pool2d_backward(*x.shape()).unwrap(), 4);
        let case = &format!("adaptive_max_{}x{}", out_size[0], out_size[1]);
        let [x, dy] = of(case);
        let (y, winners) = x.adaptive_max_pool2d(out_size).unwrap();
        fixture.check(case, "out", &y, 0);
        fixture.check(case, "at", &winners, 0);
        let dx = dy.adaptive_max_pool2d_backward(&winners, *x.shape()).unwrap();
        fixture.check(case, "dx", &dx, 0);
    }
}

#[test]
fn resized_images_agree_with_pytorch() {
    let fixture = Fixture::open();
    let modes = [
        ("nearest", Interpolation::Nearest),
        ("centers", Interpolation::Bilinear(Corners::Centers)),
        ("aligned", Interpolation::Bilinear(Corners::Aligned)),
    ];
    let sizes = [[1, 1], [14, 18], [10, 5], [5, 31]].map(Resize::To);
    let names = ["1x1", "14x18", "10x5", "5x31", "by"];
    let sizes = sizes.into_iter().chain([Resize::By([1.7, 0.6])]);
    for (size, name) in sizes.zip(names) {
        for (mode_name, mode) in modes {
            let case = &format!("{mode_name}_{name}");
            let [x, dy] = ["x", "dy"].map(|name| fixture.tensor(case, name));
            let roundings = if mode == Interpolation::Nearest { 0 } else { 16 };
            fixture.check(case, "out", &x.upsample2d(size, mode).unwrap(), roundings);
            let dx = dy.upsample2d_backward(*x.shape(), size, mode).unwrap();
            fixture.check(case, "dx", &dx, roundings * 8);
        }
    }
}
