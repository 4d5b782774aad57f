//! Resizing and sampling of images and volumes against naive versions, and gradients against finite
//! differences.

use std::slice::from_ref;

use lowtide_autograd::{Pass, Var};
use lowtide_nn::{
    Conv3dGeometry, GridMode, GridOptions, GridPadding, MaxPool3dOptions, NnError,
    NnResult as Result, Pool3dGeometry, ResizeMode, Sizes, adaptive_avg_pool3d,
    adaptive_max_pool3d, avg_pool3d, channel_shuffle, conv3d, grid_sample, max_pool3d,
    pixel_shuffle, pixel_unshuffle, resize,
};
use lowtide_tensor::{AvgPool, Corners, DType, Device, Divisor, Tensor, TensorError};

use crate::common::{Outcome, cpu, values};

/// The device of all tensors of a test. Each test has its own thread.
fn device() -> Device {
    thread_local!(static DEVICE: Device = cpu());
    DEVICE.with(Device::clone)
}

fn tensor(name: &str, shape: &[usize]) -> Tensor {
    let numbers = values(name, shape.iter().product());
    Tensor::from_slice(&device(), shape, &numbers).expect("memory")
}

fn numbers(x: &Tensor) -> Vec<f64> {
    x.contiguous().expect("memory").to_vec::<f64>().expect("f64")
}

/// The result without a gradient. First checks the gradients by finite differences.
fn checked(inputs: &[Tensor], f: impl Fn(Vec<Var>) -> Result<Var>) -> Result<Tensor> {
    let run = |vars| f(vars).map_err(NnError::into_autograd);
    let sum = |_: &Pass, vars: Vec<Var>| run(vars)?.sum_all();
    lowtide_autograd::check::gradients(sum, inputs).expect("gradients are differences");
    let pass = Pass::eval();
    Ok(f(inputs.iter().map(|x| pass.constant(x.clone())).collect())?.into_value())
}

fn one(vars: Vec<Var>) -> Var {
    vars.into_iter().next().expect("one input")
}

fn assert_close(found: &Tensor, expected: &[f64], what: &str) {
    let found = numbers(found);
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() < 1e-12, "{what}, {index}: {a}, not {b}");
    }
}

/// Keys' weight of a place at this distance, by the definition.
fn keys(distance: f64) -> f64 {
    let (a, x) = (-0.75, distance.abs());
    match x {
        x if x <= 1.0 => (a + 2.0) * x.powi(3) - (a + 3.0) * x.powi(2) + 1.0,
        x if x < 2.0 => a * x.powi(3) - 5.0 * a * x.powi(2) + 8.0 * a * x - 4.0 * a,
        _ => 0.0,
    }
}

/// A resized line: each place is the sum over all places nearby, times the weight of the distance.
/// Places beyond the ends have the value of the end.
fn resized_line(x: &[f64], to: usize, scale: f64, mode: ResizeMode) -> Vec<f64> {
    let last = x.len() as i64 - 1;
    let at = |place: i64| x[place.clamp(0, last) as usize];
    let source = |place: usize, corners| match corners {
        Corners::Aligned if to == 1 => 0.0,
        Corners::Aligned => place as f64 * last as f64 / (to - 1) as f64,
        Corners::Centers => (place as f64 + 0.5) * scale - 0.5,
    };
    let sum = |middle: f64, weight: &dyn Fn(f64) -> f64| {
        (-3..=last + 3).map(|place| at(place) * weight(middle - place as f64)).sum()
    };
    let of = |place: usize| match mode {
        ResizeMode::Before => at((place as f64 * scale).floor() as i64),
        ResizeMode::Nearest => at(((place as f64 + 0.5) * scale).floor() as i64),
        ResizeMode::Linear(corners) => {
            sum(source(place, corners).max(0.0), &|distance| (1.0 - distance.abs()).max(0.0))
        }
        ResizeMode::Cubic(corners) => sum(source(place, corners), &keys),
        ResizeMode::LinearAntialias(_) | ResizeMode::CubicAntialias(_) => {
            unreachable!("compared with PyTorch")
        }
        ResizeMode::Area => {
            let first = place * x.len() / to;
            let end = ((place + 1) * x.len()).div_ceil(to);
            x[first..end].iter().sum::<f64>() / (end - first) as f64
        }
    };
    (0..to).map(of).collect()
}

const MODES: [ResizeMode; 6] = [
    ResizeMode::Nearest,
    ResizeMode::Linear(Corners::Centers),
    ResizeMode::Linear(Corners::Aligned),
    ResizeMode::Cubic(Corners::Centers),
    ResizeMode::Cubic(Corners::Aligned),
    ResizeMode::Area,
];

#[test]
fn resized_lines_are_weighted_sums_of_their_places() -> Outcome {
    let x = tensor("line", &[1, 2, 7]);
    let lines = numbers(&x);
    for mode in MODES {
        for to in [1, 3, 7, 12] {
            let sizes = Sizes::To(vec![to]);
            let y = checked(from_ref(&x), |vars| resize(one(vars), &sizes, mode))?;
            let scale = 7.0 / to as f64;
            let line = |line: &[f64]| resized_line(line, to, scale, mode);
            let expected: Vec<f64> = lines.chunks(7).flat_map(line).collect();
            assert_close(&y, &expected, &format!("{mode:?} to {to}"));
        }
        let y = checked(from_ref(&x), |vars| resize(one(vars), &Sizes::By(vec![1.3]), mode))?;
        let line = |line: &[f64]| resized_line(line, 9, 1.0 / 1.3, mode);
        let expected: Vec<f64> = lines.chunks(7).flat_map(line).collect();
        assert_close(&y, &expected, &format!("{mode:?} by 1.3"));
    }
    Ok(())
}

#[test]
fn images_and_volumes_are_resized_along_each_dimension_in_turn() -> Outcome {
    let pass = Pass::eval();
    for mode in MODES {
        let x = pass.constant(tensor("volume", &[2, 1, 3, 4, 2]));
        let y = resize(x.clone(), &Sizes::To(vec![2, 6, 3]), mode)?;
        let mut z = x;
        for sizes in [[2, 4, 2], [2, 6, 2], [2, 6, 3]] {
            z = resize(z, &Sizes::To(sizes.to_vec()), mode)?;
        }
        assert_eq!(y.shape()[..], [2, 1, 2, 6, 3]);
        assert_close(y.value(), &numbers(z.value()), &format!("{mode:?}"));
    }
    let x = pass.constant(tensor("image", &[1, 2, 3, 4]));
    let wrong = [Sizes::To(vec![2]), Sizes::To(vec![2, 0]), Sizes::To(vec![1; 4])];
    for sizes in wrong {
        let error = resize(x.clone(), &sizes, ResizeMode::Nearest).err().expect("a shape");
        assert!(error.to_string().contains("resize"), "{error}");
    }
    let error = resize(x, &Sizes::By(vec![-1.0, 1.0]), ResizeMode::Area).err().expect("negative");
    assert!(matches!(error, NnError::Option { name: "factor", .. }), "{error}");
    Ok(())
}

#[test]
fn integers_are_resized_by_the_nearest_place_alone() -> Outcome {
    let line = Tensor::from_slice(&device(), [1, 1, 4], &[3_i64, 5, 7, 9])?;
    let x = Pass::eval().constant(line);
    let y = resize(x.clone(), &Sizes::To(vec![2]), ResizeMode::Nearest)?;
    assert_eq!(y.value().to_vec::<i64>()?, [5, 9]);
    let error = resize(x, &Sizes::To(vec![2]), ResizeMode::Area).err().expect("a type");
    assert!(error.to_string().contains("resize: element types"), "{error}");
    Ok(())
}

#[test]
fn half_types_are_rounded_once() -> Outcome {
    let pass = Pass::eval();
    let [x, grid] = [tensor("x", &[1, 2, 4, 4, 5]), tensor("grid", &[2, 3, 4, 2])];
    let half = x.to_dtype(DType::BF16)?;
    let wide = half.to_dtype(DType::F32)?;
    let check = |f: &dyn Fn(Var) -> Result<Var>| -> Outcome {
        let [y, z] = [&half, &wide].map(|x| f(pass.constant(x.clone())));
        let (y, z) = (y?.into_value(), z?.into_value().to_dtype(DType::BF16)?);
        let [y, z] = [y, z].map(|x| x.to_dtype(DType::F64));
        assert_eq!(numbers(&y?), numbers(&z?));
        Ok(())
    };
    let window = Pool3dGeometry::cube(2);
    check(&|x| avg_pool3d(x, window, AvgPool::default()))?;
    for mode in MODES {
        check(&|x| resize(x, &Sizes::To(vec![3, 5, 4]), mode))?;
    }
    let weight = tensor("w", &[2, 2, 2, 2, 2]).to_dtype(DType::BF16)?;
    check(&|x| {
        let weight = pass.constant(weight.to_dtype(x.value().dtype())?);
        conv3d(x, weight, None, Conv3dGeometry::default())
    })?;
    check(&|x| {
        let grid = grid.to_dtype(DType::BF16)?.to_dtype(x.value().dtype())?;
        grid_sample(x.reshape([2, 4, 4, 5])?, pass.constant(grid), GridOptions::default())
    })
}

#[test]
fn shuffles_move_elements_as_their_formulas_say() -> Outcome {
    let (r, channels, height, width) = (2, 3, 2, 3);
    let x = tensor("pixels", &[2, channels * r * r, height, width]);
    let y = checked(from_ref(&x), |vars| pixel_shuffle(one(vars), r))?;
    assert_eq!(y.shape()[..], [2, channels, height * r, width * r]);
    let before = numbers(&x);
    let mut expected = Vec::new();
    for index in 0..y.element_count() {
        let (column, rest) = (index % (width * r), index / (width * r));
        let (row, rest) = (rest % (height * r), rest / (height * r));
        let (channel, sample) = (rest % channels, rest / channels);
        let from = (channel * r + row % r) * r + column % r;
        let place = ((sample * channels * r * r + from) * height + row / r) * width + column / r;
        expected.push(before[place]);
    }
    assert_eq!(numbers(&y), expected);
    let back = checked(&[y], |vars| pixel_unshuffle(one(vars), r))?;
    assert_eq!(numbers(&back), before);

    let y = checked(from_ref(&x), |vars| channel_shuffle(one(vars), 4))?;
    let pixels = height * width;
    let from = |channel: usize| channel % 4 * 3 + channel / 4;
    let of = |index: usize| {
        before[index / (12 * pixels) * 12 * pixels
            + from(index / pixels % 12) * pixels
            + index % pixels]
    };
    assert_eq!(numbers(&y), (0..y.element_count()).map(of).collect::<Vec<_>>());

    let x = Pass::eval().constant(x);
    for error in [pixel_shuffle(x.clone(), 5), pixel_unshuffle(x.clone(), 2), channel_shuffle(x, 5)]
    {
        let error = error.err().expect("no divisor");
        assert!(error.to_string().contains("shuffle"), "{error}");
    }
    Ok(())
}

/// The pixel at a place, which may lie outside of the image.
fn pixel(image: &[f64], size: [usize; 2], at: [i64; 2], options: GridOptions) -> f64 {
    let mut inside = [0; 2];
    for axis in 0..2 {
        let last = size[axis] as i64 - 1;
        inside[axis] = match options.padding {
            GridPadding::Zeros if !(0..=last).contains(&at[axis]) => return 0.0,
            GridPadding::Zeros => at[axis],
            GridPadding::Border => at[axis].clamp(0, last),
            GridPadding::Reflection => {
                mirrored(at[axis] as f64, size[axis], options.corners) as i64
            }
        } as usize;
    }
    image[inside[0] * size[1] + inside[1]]
}

/// A position that is mirrored at the edges, one at a time, until it lies inside.
fn mirrored(mut place: f64, len: usize, corners: Corners) -> f64 {
    let (low, high) = match corners {
        Corners::Aligned => (0.0, len as f64 - 1.0),
        Corners::Centers => (-0.5, len as f64 - 0.5),
    };
    while place < low || place > high {
        place = if place < low { 2.0 * low - place } else { 2.0 * high - place };
    }
    place.clamp(0.0, len as f64 - 1.0)
}

fn sampled(image: &[f64], size: [usize; 2], [x, y]: [f64; 2], options: GridOptions) -> f64 {
    let place = |coordinate: f64, len: usize| {
        let len = len as f64;
        let place = match options.corners {
            Corners::Aligned => (coordinate + 1.0) / 2.0 * (len - 1.0),
            Corners::Centers => ((coordinate + 1.0) * len - 1.0) / 2.0,
        };
        match (options.mode, options.padding) {
            (GridMode::Bicubic, _) | (_, GridPadding::Zeros) => place,
            (_, GridPadding::Border) => place.clamp(0.0, len - 1.0),
            (_, GridPadding::Reflection) => mirrored(place, len as usize, options.corners),
        }
    };
    let middle = [place(y, size[0]), place(x, size[1])];
    let weight = |distance: f64| match options.mode {
        GridMode::Bilinear => (1.0 - distance.abs()).max(0.0),
        GridMode::Bicubic => keys(distance),
        GridMode::Nearest => unreachable!("one pixel"),
    };
    if options.mode == GridMode::Nearest {
        return pixel(image, size, middle.map(|place| place.round_ties_even() as i64), options);
    }
    let mut sum = 0.0;
    let [first_row, first_column] = middle.map(|place| place.floor() as i64 - 1);
    for row in first_row..first_row + 4 {
        for column in first_column..first_column + 4 {
            let share = weight(middle[0] - row as f64) * weight(middle[1] - column as f64);
            sum += share * pixel(image, size, [row, column], options);
        }
    }
    sum
}

/// PyTorch's values of `interpolate(x, .., antialias=True)` for a ramp of squares.
#[test]
fn resizing_without_aliases_weighs_all_places_below() -> Outcome {
    let ramp: Vec<f64> = (0..35_i32).map(|i| f64::from(i * i) / 100.0).collect();
    let x = Tensor::from_slice(&device(), [1, 1, 5, 7], &ramp)?;
    let smaller = Sizes::To(vec![2, 3]);
    let both = Sizes::By(vec![0.45, 1.3]);
    let (linear, cubic) = (ResizeMode::LinearAntialias, ResizeMode::CubicAntialias);
    let (centers, aligned) = (Corners::Centers, Corners::Aligned);
    let cases: [(ResizeMode, &Sizes, &[f64]); 6] = [
        (
            linear(centers),
            &smaller,
            &[
                0.9792207792207793,
                1.3657754010695187,
                1.8363636363636362,
                5.139220779220779,
                6.125775401069519,
                7.196363636363636,
            ],
        ),
        (
            linear(aligned),
            &smaller,
            &[
                2.659074074074074,
                3.4918518518518513,
                4.056666666666667,
                6.67111111111111,
                8.145555555555555,
                9.099259259259261,
            ],
        ),
        (
            linear(centers),
            &both,
            &[
                0.5918181818181819,
                0.6732517482517484,
                0.7775174825174826,
                0.8925524475524476,
                1.0191258741258742,
                1.160314685314685,
                1.3122727272727273,
                1.4749999999999999,
                1.6390909090909092,
                4.142727272727273,
                4.403076923076923,
                4.717832167832168,
                5.043356643356644,
                5.38041958041958,
                5.732097902097902,
                6.094545454545455,
                6.467762237762237,
                6.831818181818182,
            ],
        ),
        (
            cubic(centers),
            &smaller,
            &[
                0.6490827835709735,
                1.009701575764569,
                1.4704625555197066,
                5.360263611338032,
                6.451438115453863,
                7.642754807131235,
            ],
        ),
        (
            cubic(aligned),
            &smaller,
            &[
                2.5629378893778583,
                3.4711900839030925,
                4.127449688881217,
                7.563894339622642,
                9.369758046614871,
                10.602075471698113,
            ],
        ),
        (
            cubic(centers),
            &both,
            &[
                0.29144688289935683,
                0.3560347678599791,
                0.4492016976518306,
                0.548615557271444,
                0.6598637364176845,
                0.7829462350905521,
                0.9178630532900468,
                1.0742500472254068,
                1.21867906633772,
                4.301340440860018,
                4.565025969578997,
                4.916738131042713,
                5.255313965608652,
                5.605724119701216,
                5.967968593320409,
                6.342047386466227,
                6.751480581909417,
                7.1148780618407415,
            ],
        ),
    ];
    for (mode, sizes, expected) in cases {
        let y = checked(from_ref(&x), |vars| resize(one(vars), sizes, mode))?;
        assert_close(&y, expected, &format!("{mode:?} {sizes:?}"));
    }
    Ok(())
}

#[test]
fn points_of_images_are_weighted_sums_of_the_pixels_around() -> Outcome {
    let (x, size) = (tensor("image", &[2, 2, 4, 5]), [4, 5]);
    // Points beyond all edges, up to three times the size of the image.
    let grid = tensor("grid", &[2, 3, 4, 2]).mul_scalar(3.0)?;
    let (images, points) = (numbers(&x), numbers(&grid));
    for mode in [GridMode::Bilinear, GridMode::Nearest, GridMode::Bicubic] {
        for padding in [GridPadding::Zeros, GridPadding::Border, GridPadding::Reflection] {
            for corners in [Corners::Centers, Corners::Aligned] {
                let options = GridOptions { mode, padding, corners };
                let inputs = [x.clone(), grid.clone()];
                let y = checked(&inputs, |vars| {
                    let [x, grid] =
                        <[Var; 2]>::try_from(vars).unwrap_or_else(|_| panic!("two inputs"));
                    // With the nearest pixel, points have no gradient.
                    let grid = if mode == GridMode::Nearest { grid.detach() } else { grid };
                    grid_sample(x, grid, options)
                });
                let mut expected = Vec::new();
                for index in 0..2 * 2 * 12 {
                    let (point, channel, sample) = (index % 12, index / 12 % 2, index / 24);
                    let image = &images[(sample * 2 + channel) * 20..][..20];
                    let at = &points[(sample * 12 + point) * 2..][..2];
                    expected.push(sampled(image, size, [at[0], at[1]], options));
                }
                assert_close(&y?, &expected, &format!("{options:?}"));
            }
        }
    }
    Ok(())
}

#[test]
fn conv3d_is_the_sum_over_the_kernel() -> Outcome {
    let (x, w, b) =
        (tensor("x", &[2, 2, 4, 3, 4]), tensor("w", &[4, 1, 2, 2, 3]), tensor("b", &[4]));
    let geometry =
        Conv3dGeometry { stride: [1, 2, 1], padding: [1, 0, 1], dilation: [2, 1, 1], groups: 2 };
    let y = checked(&[x.clone(), w.clone(), b.clone()], |vars| {
        let [x, w, b] = <[Var; 3]>::try_from(vars).unwrap_or_else(|_| panic!("three inputs"));
        conv3d(x, w, Some(b), geometry)
    })?;
    assert_eq!(y.shape()[..], [2, 4, 4, 1, 4]);
    let (x, w, b) = (numbers(&x), numbers(&w), numbers(&b));
    let mut expected = Vec::new();
    for index in 0..2 * 4 * 4 * 4 {
        let at = [index / 4 % 4, 0, index % 4];
        let (output, sample) = (index / 16 % 4, index / 64);
        let mut sum = b[output];
        for tap in 0..12 {
            let tap_at = [tap / 6, tap / 3 % 2, tap % 3];
            let place = |i: usize| {
                (at[i] * geometry.stride[i] + tap_at[i] * geometry.dilation[i])
                    .checked_sub(geometry.padding[i])
                    .filter(|&place| place < [4, 3, 4][i])
            };
            let (Some(d), Some(r), Some(c)) = (place(0), place(1), place(2)) else { continue };
            // Each group has two outputs and one input.
            let channel = sample * 2 + output / 2;
            sum += w[output * 12 + tap] * x[((channel * 4 + d) * 3 + r) * 4 + c];
        }
        expected.push(sum);
    }
    assert_close(&y, &expected, "conv3d");
    let error = conv3d(
        Pass::eval().constant(tensor("x", &[1, 1, 1, 3, 3])),
        Pass::eval().constant(tensor("w", &[1, 1, 2, 2, 2])),
        None,
        Conv3dGeometry::default(),
    );
    let error = error.err().expect("a kernel deeper than the volume");
    let is_shape =
        matches!(error, NnError::Autograd(ref error) if error.to_string().contains("conv3d"));
    assert!(is_shape, "{error}");
    Ok(())
}

/// The elements of each window of a volume of one channel, and the size of the padded window.
fn windows(x: &[f64], size: [usize; 3], window: Pool3dGeometry) -> Vec<(Vec<f64>, usize)> {
    let Pool3dGeometry { kernel, stride, padding } = window;
    let count: [usize; 3] =
        std::array::from_fn(|i| (size[i] + 2 * padding[i] - kernel[i]) / stride[i] + 1);
    let mut all = Vec::new();
    for index in 0..count.iter().product() {
        let at = [index / (count[1] * count[2]), index / count[2] % count[1], index % count[2]];
        let mut inside = Vec::new();
        let total = kernel.iter().product();
        for tap in 0..total {
            let tap = [tap / (kernel[1] * kernel[2]), tap / kernel[2] % kernel[1], tap % kernel[2]];
            let place = |i: usize| {
                (at[i] * stride[i] + tap[i]).checked_sub(padding[i]).filter(|&at| at < size[i])
            };
            if let (Some(d), Some(r), Some(c)) = (place(0), place(1), place(2)) {
                inside.push(x[(d * size[1] + r) * size[2] + c]);
            }
        }
        all.push((inside, total));
    }
    all
}

#[test]
fn pools_of_volumes_are_those_of_their_windows() -> Outcome {
    let size = [4, 5, 3];
    let x = tensor("volume", &[1, 1, 4, 5, 3]);
    let window = Pool3dGeometry { kernel: [2, 3, 2], stride: [2, 1, 1], padding: [1, 1, 0] };
    let all = windows(&numbers(&x), size, window);
    let y =
        checked(from_ref(&x), |vars| max_pool3d(one(vars), window, MaxPool3dOptions::default()))?;
    let largest = |(inside, _): &(Vec<f64>, usize)| inside.iter().copied().fold(f64::MIN, f64::max);
    assert_close(&y, &all.iter().map(largest).collect::<Vec<_>>(), "max_pool3d");
    for divisor in [Divisor::Window, Divisor::Inside] {
        let options = AvgPool { divisor, ..Default::default() };
        let y = checked(from_ref(&x), |vars| avg_pool3d(one(vars), window, options))?;
        let mean = |(inside, total): &(Vec<f64>, usize)| {
            let count = if divisor == Divisor::Window { *total } else { inside.len() };
            inside.iter().sum::<f64>() / count as f64
        };
        assert_close(&y, &all.iter().map(mean).collect::<Vec<_>>(), "avg_pool3d");
    }

    // A window with dilation 2 holds every second place along the depth.
    let options = MaxPool3dOptions { dilation: [2, 1, 2], ..Default::default() };
    let line = Pool3dGeometry { kernel: [2, 1, 1], stride: [1; 3], padding: [0; 3] };
    let y = checked(from_ref(&x), |vars| max_pool3d(one(vars), line, options))?;
    let volume = numbers(&x);
    let pair = |index: usize| volume[index].max(volume[index + 2 * 15]);
    assert_close(&y, &(0..2 * 15).map(pair).collect::<Vec<_>>(), "max_pool3d with dilation");

    let whole = Pool3dGeometry::cube(1);
    let numbers = windows(&numbers(&x), size, whole);
    let to = [2, 2, 2];
    let part =
        |i: usize, place: usize| place * size[i] / to[i]..((place + 1) * size[i]).div_ceil(to[i]);
    let mut expected = Vec::new();
    for index in 0..8 {
        let mut inside = Vec::new();
        for d in part(0, index / 4) {
            for r in part(1, index / 2 % 2) {
                inside.extend(part(2, index % 2).map(|c| numbers[(d * 5 + r) * 3 + c].0[0]));
            }
        }
        expected.push(inside);
    }
    let y = checked(from_ref(&x), |vars| adaptive_avg_pool3d(one(vars), to))?;
    let mean = |inside: &Vec<f64>| inside.iter().sum::<f64>() / inside.len() as f64;
    assert_close(&y, &expected.iter().map(mean).collect::<Vec<_>>(), "adaptive_avg_pool3d");
    let y = checked(&[x], |vars| adaptive_max_pool3d(one(vars), to))?;
    let largest = |inside: &Vec<f64>| inside.iter().copied().fold(f64::MIN, f64::max);
    assert_close(&y, &expected.iter().map(largest).collect::<Vec<_>>(), "adaptive_max_pool3d");

    let image = Pass::eval().constant(tensor("image", &[1, 4, 5, 3]));
    let error = max_pool3d(image, whole, MaxPool3dOptions::default()).err().expect("an image");
    let NnError::Autograd(error) = error else { panic!("{error}") };
    let lowtide_autograd::AutogradError::Tensor(TensorError::Shape { op, .. }) = error else {
        panic!("{error}")
    };
    assert_eq!(op, "max_pool3d");
    Ok(())
}
