//! Transposed convolutions of volumes, points of volumes, and places of maxima.

use std::slice::from_ref;

use lowtide_autograd::{Attempt, LeafId, Pass, Var, check};
use lowtide_nn::{
    ConvTranspose3dGeometry, GridMode, GridOptions, GridPadding, MaxPool3dOptions, NnError,
    NnResult as Result, Pool3dGeometry, ResizeMode, Sizes, adaptive_max_pool3d_with_places,
    avg_pool3d, conv_transpose3d, grid_sample, max_pool2d_with_places, max_pool3d,
    max_pool3d_with_places, max_unpool, resize,
};
use lowtide_tensor::{
    AvgPool, Corners, DType, Device, Divisor, MaxPool, Pool2dGeometry, RandomKey, SizeRounding,
    Tensor,
};

use crate::common::{Outcome, cpu, values};

fn tensor(device: &Device, name: &str, shape: &[usize]) -> Tensor {
    let numbers = values(name, shape.iter().product());
    Tensor::from_slice(device, shape, &numbers).expect("memory")
}

fn numbers(x: &Tensor) -> Vec<f64> {
    x.contiguous().expect("memory").to_vec::<f64>().expect("f64")
}

/// The result without a gradient. First checks the gradients by finite differences.
fn checked(inputs: &[Tensor], f: impl Fn(Vec<Var>) -> Result<Var>) -> Result<Tensor> {
    let run = |vars| f(vars).map_err(NnError::into_autograd);
    let sum = |_: &Pass, vars: Vec<Var>| {
        let y = run(vars)?;
        y.clone().mul(y)?.sum_all()
    };
    check::gradients(sum, inputs).expect("gradients are differences");
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

#[test]
fn a_transposed_convolution_of_volumes_sends_every_input_to_its_places() -> Outcome {
    let device = cpu();
    let walked = ConvTranspose3dGeometry {
        stride: [2, 1, 3],
        padding: [2, 1, 0],
        output_padding: [1, 0, 2],
        dilation: [1, 2, 1],
        groups: 2,
    };
    let whole = ConvTranspose3dGeometry::default();
    for (geometry, kernel, groups) in [(walked, [3, 2, 2], 2), (whole, [2, 1, 2], 1)] {
        let (ins, outs, from) = (4, 2 * groups, [3, 2, 2]);
        let per_group = [ins / groups, outs / groups];
        let x = tensor(&device, "x", &[&[2, ins][..], &from].concat());
        let w = tensor(&device, "w", &[&[ins, per_group[1]][..], &kernel].concat());
        let b = tensor(&device, "b", &[outs]);
        let y = checked(&[x.clone(), w.clone(), b.clone()], |vars| {
            let [x, w, b] = vars.try_into().unwrap_or_else(|_| panic!("three inputs"));
            conv_transpose3d(x, w, Some(b), geometry)
        })?;
        let to: [usize; 3] = std::array::from_fn(|i| {
            (from[i] - 1) * geometry.stride[i]
                + geometry.dilation[i] * (kernel[i] - 1)
                + geometry.output_padding[i]
                + 1
                - 2 * geometry.padding[i]
        });
        assert_eq!(y.shape()[..], [&[2, outs][..], &to].concat());
        let (x, w, b) = (numbers(&x), numbers(&w), numbers(&b));
        let mut expected: Vec<f64> =
            (0..2 * outs).flat_map(|plane| vec![b[plane % outs]; to.iter().product()]).collect();
        let split = |index: usize, size: [usize; 3]| {
            [index / (size[1] * size[2]), index / size[2] % size[1], index % size[2]]
        };
        let [places, taps] = [from, kernel].map(|size| size.iter().product::<usize>());
        for (index, x) in x.iter().enumerate() {
            let (at, plane) = (split(index % places, from), index / places);
            let (sample, input) = (plane / ins, plane % ins);
            for (tap, out) in (0..taps).flat_map(|tap| (0..per_group[1]).map(move |o| (tap, o))) {
                let step = split(tap, kernel);
                let place: [Option<usize>; 3] = std::array::from_fn(|i| {
                    (at[i] * geometry.stride[i] + step[i] * geometry.dilation[i])
                        .checked_sub(geometry.padding[i])
                        .filter(|&place| place < to[i])
                });
                let [Some(d), Some(r), Some(c)] = place else { continue };
                let output = input / per_group[0] * per_group[1] + out;
                expected[(((sample * outs + output) * to[0] + d) * to[1] + r) * to[2] + c] +=
                    x * w[(input * per_group[1] + out) * taps + tap];
            }
        }
        assert_close(&y, &expected, "conv_transpose3d");
    }
    Ok(())
}

#[test]
fn transposed_convolutions_that_there_cannot_be_are_errors() -> Outcome {
    let (device, pass) = (cpu(), Pass::eval());
    let var = |shape: &[usize]| pass.constant(tensor(&device, "x", shape));
    let plain = ConvTranspose3dGeometry::default();
    let padded = ConvTranspose3dGeometry { padding: [3, 0, 0], ..plain };
    let beyond = ConvTranspose3dGeometry { output_padding: [1, 0, 0], ..plain };
    let (x, w): (&[usize], &[usize]) = (&[1, 2, 3, 3, 3], &[2, 1, 2, 2, 2]);
    for (x, w, geometry) in [
        (x, w, padded),
        (x, w, beyond),
        (&x[1..], w, plain),
        (x, &w[1..], plain),
        (x, &[3, 1, 2, 2, 2], plain),
        (x, &[2, 1, 0, 2, 2], plain),
    ] {
        let error = conv_transpose3d(var(x), var(w), None, geometry).err();
        let text = error.expect("no such convolution").to_string();
        assert!(text.contains("conv_transpose"), "{x:?} {w:?}: {text}");
    }
    let wrong_bias = conv_transpose3d(var(x), var(w), Some(var(&[2])), plain);
    assert!(wrong_bias.is_err());
    Ok(())
}

/// The value at a position between voxels; voxels outside are 0.
fn between(volume: &[f64], size: [usize; 3], at: [f64; 3]) -> f64 {
    let mut sum = 0.0;
    for corner in 0..8 {
        let offset = [corner / 4, corner / 2 % 2, corner % 2];
        let mut weight = 1.0;
        let mut index = Some(0);
        for axis in 0..3 {
            let first = at[axis].floor();
            let share = at[axis] - first;
            weight *= if offset[axis] == 1 { share } else { 1.0 - share };
            let place = first as i64 + offset[axis] as i64;
            let place = usize::try_from(place).ok().filter(|&place| place < size[axis]);
            index = index.zip(place).map(|(index, place)| index * size[axis] + place);
        }
        sum += weight * index.map_or(0.0, |index| volume[index]);
    }
    sum
}

#[test]
fn points_of_volumes_are_means_of_the_voxels_around() -> Outcome {
    let device = cpu();
    let size = [3, 4, 2];
    let x = tensor(&device, "volume", &[1, 1, 3, 4, 2]);
    let grid = tensor(&device, "grid", &[1, 2, 2, 3, 3]).mul_scalar(1.2)?;
    let points = numbers(&grid);
    for corners in [Corners::Centers, Corners::Aligned] {
        let place = |coordinate: f64, len: usize| match corners {
            Corners::Centers => (coordinate + 1.0) * 0.5 * len as f64 - 0.5,
            Corners::Aligned => (coordinate + 1.0) * 0.5 * (len as f64 - 1.0),
        };
        for padding in [GridPadding::Zeros, GridPadding::Border] {
            let options = GridOptions { mode: GridMode::Bilinear, padding, corners };
            let y = checked(&[x.clone(), grid.clone()], |vars| {
                let [x, grid] = vars.try_into().unwrap_or_else(|_| panic!("two inputs"));
                grid_sample(x, grid, options)
            })?;
            assert_eq!(y.shape()[..], [1, 1, 2, 2, 3]);
            let expected: Vec<f64> = points
                .chunks_exact(3)
                .map(|point| {
                    let at: [f64; 3] = std::array::from_fn(|axis| {
                        let at = place(point[2 - axis], size[axis]);
                        let last = size[axis] as f64 - 1.0;
                        if padding == GridPadding::Border { at.clamp(0.0, last) } else { at }
                    });
                    between(&numbers(&x), size, at)
                })
                .collect();
            assert_close(&y, &expected, &format!("{padding:?} {corners:?}"));
        }
        let options =
            GridOptions { mode: GridMode::Nearest, padding: GridPadding::Border, corners };
        let pass = Pass::eval();
        let y = grid_sample(pass.constant(x.clone()), pass.constant(grid.clone()), options)?;
        let nearest = points.chunks_exact(3).map(|point| {
            let at = [0, 1, 2].map(|axis| {
                let at = place(point[2 - axis], size[axis]).clamp(0.0, size[axis] as f64 - 1.0);
                at.round_ties_even()
            });
            between(&numbers(&x), size, at)
        });
        assert_close(y.value(), &nearest.collect::<Vec<_>>(), "nearest");
    }
    let pass = Pass::eval();
    // At the middle of three slices, a volume equals an image.
    let corners = Corners::Aligned;
    let cubic = GridOptions { mode: GridMode::Bicubic, corners, ..Default::default() };
    let flat = grid.select(1, 0)?.narrow(3, 0, 2)?;
    let middle = Tensor::cat(&[&flat, &Tensor::zeros(&device, [1, 2, 3, 1], DType::F64)?], 3)?;
    let of_volume = pass.constant(middle.unsqueeze(1)?);
    let of_volume = grid_sample(pass.constant(x.clone()), of_volume, cubic)?;
    let image = pass.constant(x.select(2, 1)?);
    let of_image = grid_sample(image, pass.constant(flat), cubic)?;
    assert_close(of_volume.value(), &numbers(of_image.value()), "cubic");
    let flat = pass.constant(tensor(&device, "grid", &[1, 2, 2, 3, 2]));
    assert!(grid_sample(pass.constant(x), flat, GridOptions::default()).is_err());
    Ok(())
}

#[test]
fn points_of_volumes_keep_nothing_for_each_of_their_corners() -> Outcome {
    let device = cpu();
    let (channels, points) = (256, 8 * 8 * 8);
    let x = tensor(&device, "volume", &[1, channels, 4, 4, 4]);
    let grid = tensor(&device, "grid", &[1, 8, 8, 8, 3]);
    // Bytes of the result. An earlier version kept a tensor of this size for each of the 64
    // corners.
    let result_bytes = channels * points * size_of::<f64>();
    for padding in [GridPadding::Zeros, GridPadding::Border, GridPadding::Reflection] {
        let options = GridOptions { mode: GridMode::Bicubic, padding, ..Default::default() };
        let requested = || device.allocator().statistics().requested;
        let before = requested().current_bytes;
        let attempt = Attempt::new();
        let pass = Pass::train(RandomKey::new(1), &attempt);
        let leaves = [LeafId::new(), LeafId::new()];
        let (image, at) = (pass.leaf(leaves[0], &x)?, pass.leaf(leaves[1], &grid)?);
        let y = grid_sample(image, at, options)?;
        let kept = requested().current_bytes - before;
        assert!(kept < 2 * result_bytes, "{padding:?}: {kept} bytes are kept");
        device.allocator().reset_peaks();
        pass.backward(y.sum_all()?)?;
        let peak = requested().peak_bytes - before;
        assert!(peak < 8 * result_bytes, "{padding:?}: {peak} bytes in backward");
        let gradients = attempt.into_gradients();
        assert!(leaves.iter().all(|leaf| gradients.get(*leaf).is_some()), "{padding:?}");
    }
    Ok(())
}

#[test]
fn nearest_places_of_lines_and_volumes_begin_at_or_before() -> Outcome {
    let (device, pass) = (cpu(), Pass::eval());
    let x = tensor(&device, "line", &[1, 1, 5]);
    for to in 1..13_usize {
        let y = resize(pass.constant(x.clone()), &Sizes::To(vec![to]), ResizeMode::Before)?;
        let line = numbers(&x);
        let at = |place: usize| line[((place as f32 * (5.0 / to as f32)).floor() as usize).min(4)];
        assert_close(y.value(), &(0..to).map(at).collect::<Vec<_>>(), "a line");
    }
    let x = tensor(&device, "volume", &[1, 2, 2, 3, 2]);
    let y = resize(pass.constant(x.clone()), &Sizes::By(vec![2.0; 3]), ResizeMode::Before)?;
    let mut each = x;
    for axis in 2..5 {
        each = each.repeat_interleave(axis, 2)?;
    }
    assert_close(y.value(), &numbers(&each), "a volume");
    let whole = Tensor::arange(&device, 0.0..6.0, 1.0, DType::I64)?.reshape([1, 2, 3])?;
    let y = resize(pass.constant(whole), &Sizes::To(vec![2]), ResizeMode::Before)?;
    assert_eq!(y.value().contiguous()?.to_vec::<i64>()?, [0, 1, 3, 4]);
    Ok(())
}

#[test]
fn a_fixed_divisor_divides_the_sums_of_boxes() -> Outcome {
    let (device, pass) = (cpu(), Pass::eval());
    let x = tensor(&device, "volume", &[1, 2, 4, 3, 5]);
    let window = Pool3dGeometry { kernel: [2, 3, 2], stride: [2, 1, 2], padding: [1, 1, 0] };
    let mean = AvgPool::default();
    let fixed = AvgPool { divisor: Divisor::Exactly(5.try_into()?), ..mean };
    let y = checked(from_ref(&x), |vars| avg_pool3d(one(vars), window, fixed))?;
    // Padding counts in the mean, so a sum is 12 times the mean.
    let sums = avg_pool3d(pass.constant(x), window, mean)?.mul_scalar(12.0 / 5.0)?;
    assert_close(&y, &numbers(sums.value()), "divisor");
    Ok(())
}

#[test]
fn largest_values_stand_at_their_places_and_go_back_there() -> Outcome {
    let (device, pass) = (cpu(), Pass::eval());
    let x = tensor(&device, "volume", &[2, 2, 5, 4, 6]);
    let window = Pool3dGeometry { kernel: [2, 3, 2], stride: [2, 1, 2], padding: [1, 1, 0] };
    let dilated = MaxPool3dOptions { dilation: [2, 1, 2], rounding: SizeRounding::Up };
    for options in [MaxPool3dOptions::default(), dilated] {
        let pool = |vars| Ok(max_pool3d_with_places(one(vars), window, options)?.0);
        let y = checked(from_ref(&x), pool)?;
        let (again, places) = max_pool3d_with_places(pass.constant(x.clone()), window, options)?;
        let plain = max_pool3d(pass.constant(x.clone()), window, options)?;
        assert_eq!(numbers(again.value()), numbers(plain.value()));
        let taken = x.reshape([4, 120])?.gather(1, &places.reshape([4, y.element_count() / 4])?)?;
        assert_eq!(numbers(&taken), numbers(&y), "{options:?}");
    }
    let pool = |vars| Ok(adaptive_max_pool3d_with_places(one(vars), [2, 3, 4])?.0);
    let y = checked(from_ref(&x), pool)?;
    let (_, places) = adaptive_max_pool3d_with_places(pass.constant(x.clone()), [2, 3, 4])?;
    let taken = x.reshape([4, 120])?.gather(1, &places.reshape([4, 24])?)?;
    assert_eq!(numbers(&taken), numbers(&y), "adaptive");

    let image = tensor(&device, "image", &[1, 2, 4, 6]);
    let (y, places) = max_pool2d_with_places(
        pass.constant(image.clone()),
        Pool2dGeometry::square(2),
        MaxPool::default(),
    )?;
    let pooled = y.value().clone();
    let back = checked(from_ref(&pooled), |vars| max_unpool(one(vars), &places, &[4, 6]))?;
    let mut expected = vec![0.0; 48];
    for (index, (value, place)) in numbers(&pooled).iter().zip(places.to_vec::<i64>()?).enumerate()
    {
        expected[index / 6 * 24 + place as usize] = *value;
    }
    assert_close(&back, &expected, "max_unpool");
    // Two values with one place both get the gradient.
    let twice = Tensor::zeros(&device, [1, 2, 2, 3], DType::I64)?;
    let leaf = lowtide_autograd::LeafId::new();
    let attempt = lowtide_autograd::Attempt::new();
    let training = Pass::train(crate::common::KEY, &attempt);
    let y = max_unpool(training.leaf(leaf, &pooled)?, &twice, &[4, 6])?;
    training.backward(y.sum_all()?)?;
    let gradient = attempt.into_gradients();
    assert_eq!(numbers(gradient.get(leaf).ok_or("a gradient")?), [1.0; 12]);
    let pooled = pass.constant(pooled);
    assert!(max_unpool(pooled.clone(), &places, &[4]).is_err(), "one size for two dimensions");
    assert!(max_unpool(pooled.clone(), &places, &[2, 3]).is_err(), "a place outside");
    assert!(max_unpool(pooled.narrow(1, 0, 1)?, &places, &[4, 6]).is_err(), "other places");
    Ok(())
}
