//! Operations that move elements without looking at them.

use lowtide_tensor::{DType, PadMode, RANK_MAX, Tensor};
use proptest::prelude::*;

use crate::common::{
    Style, all_floats, assert_close, assert_same, download, laid_out, sample, shapes, shared,
    styles, writable_styles,
};
use crate::golden::fixture;
use crate::naive::{Array, index_of};

fn dtypes() -> impl Strategy<Value = DType> {
    prop::sample::select(DType::ALL.to_vec())
}

/// The array of shape `dims` whose position `i` along each axis is `from(axis, i)` of `x`, and
/// `fill` if a position is outside.
fn moved(x: &Array, dims: &[usize], fill: f64, from: impl Fn(usize, isize) -> isize) -> Array {
    Array::from_fn(dims, |index| {
        let source: Vec<isize> =
            index.iter().enumerate().map(|(axis, &at)| from(axis, at as isize)).collect();
        let inside = source.iter().zip(&x.dims).all(|(&at, &dim)| (0..dim as isize).contains(&at));
        if inside { x.at(&source.iter().map(|&at| at as usize).collect::<Vec<_>>()) } else { fill }
    })
}

const MODES: [PadMode; 4] =
    [PadMode::Constant(5.0), PadMode::Reflect, PadMode::Replicate, PadMode::Circular];

/// The position that padding shows at `at`, counted from the start of x.
fn padded(mode: PadMode, mut at: isize, len: isize) -> isize {
    match mode {
        PadMode::Constant(_) => at,
        PadMode::Reflect => {
            if at < 0 {
                at = -at;
            }
            if at >= len { 2 * (len - 1) - at } else { at }
        }
        PadMode::Replicate => at.clamp(0, (len - 1).max(0)),
        PadMode::Circular => at.rem_euclid(len.max(1)),
    }
}

/// Widths for the last dimensions of `dims` that `mode` allows.
fn widths(dims: &[usize], mode: PadMode, seeds: &[usize]) -> Vec<[usize; 2]> {
    let padded = &dims[dims.len().saturating_sub(seeds.len() / 2)..];
    let width = |len: usize, seed: usize| match mode {
        PadMode::Constant(_) => seed % 4,
        PadMode::Reflect => seed % len.max(1),
        PadMode::Replicate => {
            if len > 0 {
                seed % 4
            } else {
                0
            }
        }
        PadMode::Circular => seed % (len + 1),
    };
    let pairs = padded.iter().zip(seeds.chunks(2));
    pairs.map(|(&len, seeds)| [width(len, seeds[0]), width(len, seeds[1])]).collect()
}

fn pad_naive(x: &Array, padding: &[[usize; 2]], mode: PadMode) -> Array {
    let first = x.dims.len() - padding.len();
    let mut dims = x.dims.clone();
    dims[first..].iter_mut().zip(padding).for_each(|(dim, pair)| *dim += pair[0] + pair[1]);
    let fill = if let PadMode::Constant(value) = mode { value } else { 0.0 };
    moved(x, &dims, fill, |axis, at| match axis.checked_sub(first) {
        None => at,
        Some(pair) => padded(mode, at - padding[pair][0] as isize, x.dims[axis] as isize),
    })
}

fn triangle_naive(x: &Array, keep: impl Fn(isize) -> bool) -> Array {
    let rank = x.dims.len();
    Array::from_fn(&x.dims, |at| {
        let above = at[rank - 1] as isize - at[rank - 2] as isize;
        if keep(above) { x.at(at) } else { 0.0 }
    })
}

fn cat_naive(parts: &[Array], axis: usize) -> Array {
    let mut dims = parts[0].dims.clone();
    dims[axis] = parts.iter().map(|part| part.dims[axis]).sum();
    Array::from_fn(&dims, |at| {
        let mut at = at.to_vec();
        let part = parts.iter().find(|part| {
            let inside = at[axis] < part.dims[axis];
            at[axis] -= if inside { 0 } else { part.dims[axis] };
            inside
        });
        part.expect("one of them").at(&at)
    })
}

proptest! {
    #[test]
    fn flips_rolls_and_repeats_show_the_positions_that_the_definition_shows(
        dims in shapes(), style in styles(), dtype in dtypes(),
        chosen in any::<[bool; 5]>(), axis in 0..5usize, shift in -12..12isize,
        times in prop::collection::vec(0..4usize, 0..6),
    ) {
        let (x, twin) = sample(&dims, style, dtype, 3);
        let len = |axis: usize| dims[axis] as isize;
        let axes: Vec<usize> = (0..dims.len()).filter(|&axis| chosen[axis]).collect();
        let flipped = moved(&twin, &dims, 0.0, |axis, at| {
            if chosen[axis] { len(axis) - 1 - at } else { at }
        });
        assert_same(&x.flip(&axes).unwrap(), &flipped);
        if !dims.is_empty() {
            let axis = axis % dims.len();
            let rolled = moved(&twin, &dims, 0.0, |other, at| {
                if other == axis { (at - shift).rem_euclid(len(other)) } else { at }
            });
            assert_same(&x.roll(axis, shift).unwrap(), &rolled);
            let count = times.len();
            let mut longer = dims.clone();
            longer[axis] *= count;
            let interleaved = moved(&twin, &longer, 0.0, |other, at| {
                if other == axis { at / count as isize } else { at }
            });
            assert_same(&x.repeat_interleave(axis, count).unwrap(), &interleaved);
        }
        let rank = dims.len().max(times.len());
        let [dims, times] = [&dims, &times].map(|v| [vec![1; rank - v.len()], v.clone()].concat());
        let wide: Vec<usize> = dims.iter().zip(&times).map(|(dim, times)| dim * times).collect();
        prop_assume!(wide.iter().product::<usize>() < 20_000);
        let repeated = moved(&twin.reshape(&dims), &wide, 0.0, |axis, at| {
            at % dims[axis].max(1) as isize
        });
        assert_same(&x.repeat(&times).unwrap(), &repeated);
    }

    #[test]
    fn padding_shows_what_the_mode_says(
        dims in shapes(), style in styles(), dtype in dtypes(),
        mode in prop::sample::select(MODES.to_vec()),
        seeds in prop::collection::vec(0..20usize, 0..=3).prop_map(|v| [v.clone(), v].concat()),
    ) {
        let (x, twin) = sample(&dims, style, dtype, 3);
        let padding = widths(&dims, mode, &seeds);
        let expected = pad_naive(&twin, &padding, mode);
        let is_bool = |v: f64| if dtype == DType::Bool { f64::from(u8::from(v != 0.0)) } else { v };
        assert_same(&x.pad(&padding, mode).unwrap(), &expected.map(is_bool));
    }

    #[test]
    fn gradient_of_padding_sums_what_became_of_each_position(
        dims in shapes(), style in styles(), dtype in all_floats(),
        mode in prop::sample::select(MODES.to_vec()),
        seeds in prop::collection::vec(0..20usize, 0..=3).prop_map(|v| [v.clone(), v].concat()),
    ) {
        let padding = widths(&dims, mode, &seeds);
        // The numbers of positions, to see where each position went.
        let len = dims.iter().product::<usize>();
        let numbers = Array::new(&dims, (0..len).map(|n| n as f64).collect());
        let nowhere = if let PadMode::Constant(_) = mode { PadMode::Constant(-1.0) } else { mode };
        let became = pad_naive(&numbers, &padding, nowhere);
        let (dy, twin) = sample(&became.dims, style, dtype, 4);
        let mut dx = Array::new(&dims, vec![0.0; len]);
        for (&from, &dy) in became.values.iter().zip(&twin.values) {
            if from >= 0.0 {
                dx.values[from as usize] += dy;
            }
        }
        assert_close(&dy.pad_backward(&dims[..], &padding, mode).unwrap(), &dx, 1);
    }

    #[test]
    fn triangles_keep_one_side_of_the_diagonal_in_place_too(
        mut dims in shapes(), style in styles(), to in writable_styles(), dtype in dtypes(),
        diagonal in prop_oneof![-6..6isize, Just(isize::MIN), Just(isize::MAX)],
    ) {
        dims.resize(dims.len().max(2), 3);
        let (x, twin) = sample(&dims, style, dtype, 3);
        let upper = triangle_naive(&twin, |above| above >= diagonal);
        let lower = triangle_naive(&twin, |above| above <= diagonal);
        assert_same(&x.triu(diagonal).unwrap(), &upper);
        assert_same(&x.tril(diagonal).unwrap(), &lower);
        let mut y = laid_out(&twin, to, dtype);
        y.triu_(diagonal).unwrap();
        assert_same(&y, &upper);
        let mut y = laid_out(&twin, to, dtype);
        y.tril_(diagonal).unwrap();
        assert_same(&y, &lower);
    }

    #[test]
    fn joined_tensors_follow_each_other(
        dims in shapes(), axis in 0..6usize, dtype in dtypes(),
        kinds in prop::collection::vec((styles(), 0..4usize), 1..5),
    ) {
        let (mut tensors, mut twins) = (Vec::new(), Vec::new());
        if !dims.is_empty() {
            let axis = axis % dims.len();
            for (seed, &(style, len)) in kinds.iter().enumerate() {
                let mut dims = dims.clone();
                dims[axis] = len;
                let (x, twin) = sample(&dims, style, dtype, seed);
                tensors.push(x);
                twins.push(twin);
            }
            let all: Vec<&Tensor> = tensors.iter().collect();
            assert_same(&Tensor::cat(&all, axis).unwrap(), &cat_naive(&twins, axis));
        }
        let axis = axis % (dims.len() + 1);
        (tensors, twins) = (Vec::new(), Vec::new());
        for (seed, &(style, _)) in kinds.iter().enumerate() {
            let (x, twin) = sample(&dims, style, dtype, seed);
            let mut longer = dims.clone();
            longer.insert(axis, 1);
            tensors.push(x);
            twins.push(twin.reshape(&longer));
        }
        let all: Vec<&Tensor> = tensors.iter().collect();
        assert_same(&Tensor::stack(&all, axis).unwrap(), &cat_naive(&twins, axis));
    }
}

/// Tensors of several chunks, and chunks that begin in the middle of a row.
#[test]
fn large_tensors_move_like_small_ones() {
    for (dims, style) in [
        ([7, 3, 2501], Style::Contiguous),
        ([2501, 7, 3], Style::Contiguous),
        ([3, 2501, 7], Style::Transposed),
        ([201, 5, 51], Style::Narrowed),
    ] {
        let (x, twin) = sample(&dims, style, DType::F32, 3);
        let len = |axis: usize| dims[axis] as isize;
        for axis in 0..3 {
            let flipped =
                moved(
                    &twin,
                    &dims,
                    0.0,
                    |other, at| {
                        if other == axis { len(other) - 1 - at } else { at }
                    },
                );
            assert_same(&x.flip(&[axis]).unwrap(), &flipped);
            let rolled = moved(&twin, &dims, 0.0, |other, at| {
                if other == axis { (at - 2).rem_euclid(len(other)) } else { at }
            });
            assert_same(&x.roll(axis, 2).unwrap(), &rolled);
            let mut longer = dims;
            longer[axis] *= 3;
            let interleaved =
                moved(&twin, &longer, 0.0, |other, at| if other == axis { at / 3 } else { at });
            assert_same(&x.repeat_interleave(axis, 3).unwrap(), &interleaved);
            let mut times = [1; 3];
            times[axis] = 3;
            let repeated = moved(&twin, &longer, 0.0, |other, at| at % len(other));
            assert_same(&x.repeat(&times).unwrap(), &repeated);
            let (y, other) = sample(&[dims[0], dims[1], dims[2]], Style::Transposed, DType::F32, 5);
            let cat = cat_naive(&[twin.clone(), other.clone(), twin.clone()], axis);
            assert_same(&Tensor::cat(&[&x, &y, &x], axis).unwrap(), &cat);
        }
        for mode in MODES {
            let padding = [[2, 1], [1, 2]];
            assert_same(&x.pad(&padding, mode).unwrap(), &pad_naive(&twin, &padding, mode));
        }
    }
    // Rows longer than a chunk, and pairs.
    let (x, twin) = sample(&[2, 20_011], Style::Contiguous, DType::U8, 1);
    let (y, other) = sample(&[2, 33], Style::Transposed, DType::U8, 2);
    let cat = cat_naive(&[twin.clone(), other.clone(), twin.clone()], 1);
    assert_same(&Tensor::cat(&[&x, &y, &x], 1).unwrap(), &cat);
    let pair = Tensor::stack(&[&x, &x.flip(&[1]).unwrap()], 2).unwrap();
    let pair_twin = Array::from_fn(&[2, 20_011, 2], |at| {
        twin.at(&[at[0], if at[2] == 0 { at[1] } else { 20_010 - at[1] }])
    });
    assert_same(&pair, &pair_twin);
}

#[test]
fn triangles_of_many_matrices_start_over_with_each() {
    for style in [Style::Contiguous, Style::Transposed, Style::Narrowed] {
        let (mut x, twin) = sample(&[61, 13, 29], style, DType::F32, 3);
        let upper = triangle_naive(&twin, |above| above >= 2);
        assert_same(&x.triu(2).unwrap(), &upper);
        x.triu_(2).unwrap();
        assert_same(&x, &upper);
    }
}

#[test]
fn moves_keep_the_bits_of_every_value() {
    let values = [f32::from_bits(0x7fc1_2345), -0.0, f32::from_bits(1), f32::INFINITY];
    let x = Tensor::from_slice(shared(), [2, 2], &values).unwrap();
    let bits =
        |y: Tensor| y.to_vec::<f32>().unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let there = x.flip(&[0, 1]).unwrap().roll(1, 1).unwrap();
    assert_eq!(bits(there.roll(1, -1).unwrap().flip(&[1, 0]).unwrap()), bits(x.clone()));
    assert_eq!(
        bits(Tensor::cat(&[&x.narrow(0, 0, 1).unwrap(), &x.narrow(0, 1, 1).unwrap()], 0).unwrap()),
        bits(x)
    );
}

#[test]
fn moves_equal_pytorch() {
    let fixture = fixture("moves");
    let check = |name: &str, found: Tensor| {
        let (found, expected) = (download(&found), download(&fixture[name]));
        assert_eq!(found.dims, expected.dims, "{name}");
        let bits = |x: &Array| x.values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&found), bits(&expected), "{name}");
    };
    let [x, special, source] = ["x", "special", "source"].map(|name| &fixture[name]);
    check("flip", x.flip(&[0, 2]).unwrap());
    check("roll", x.roll(2, -7).unwrap());
    check("roll_on", x.roll(1, 2).unwrap());
    check("repeat", x.repeat(&[2, 1, 3, 2]).unwrap());
    check("repeat_interleave", x.repeat_interleave(1, 3).unwrap());
    check("unfold", x.unfold(2, 3, 2).unwrap());
    check("diagonal", x.diagonal(-1, 0, 2).unwrap());
    check("slice", x.slice(1, 1..4, 2).unwrap());
    check("triu", special.triu(1).unwrap());
    check("tril", special.tril(0).unwrap());
    check("tril_far", x.tril(-2).unwrap());
    check("pad_constant", x.pad(&[[0, 3], [2, 1]], PadMode::Constant(0.5)).unwrap());
    for (name, mode, before) in [
        ("pad_reflect", PadMode::Reflect, 4),
        ("pad_replicate", PadMode::Replicate, 6),
        ("pad_circular", PadMode::Circular, 4),
    ] {
        let padding = [[before, 1]];
        check(name, x.pad(&padding, mode).unwrap());
        let dy = &fixture[&format!("{name}.dy")];
        check(&format!("{name}.grad"), dy.pad_backward(*x.shape(), &padding, mode).unwrap());
    }
    let part = source.narrow(0, 0, 3).unwrap().narrow(1, 0, 2).unwrap();
    check("cat", Tensor::cat(&[x, &part], 1).unwrap());
    check("stack", Tensor::stack(&[x, &x.flip(&[1]).unwrap()], 3).unwrap());
}

#[test]
fn repeats_and_stacks_stop_at_the_largest_rank() {
    let x = Tensor::ones(shared(), [1; RANK_MAX], DType::F32).unwrap();
    assert_eq!(x.repeat(&[2; RANK_MAX]).unwrap().element_count(), 1 << RANK_MAX);
    assert!(x.repeat(&[1; RANK_MAX + 1]).is_err() && Tensor::stack(&[&x], 0).is_err());
    let number = Tensor::full(shared(), [], DType::F32, 3.0).unwrap();
    assert_same(&number.repeat(&[]).unwrap(), &Array::new(&[], vec![3.0]));
    assert_same(&number.flip(&[0_usize; 0]).unwrap(), &Array::new(&[], vec![3.0]));
    assert_eq!(index_of(number.repeat(&[2, 3]).unwrap().shape(), 5), [1, 2]);
}
