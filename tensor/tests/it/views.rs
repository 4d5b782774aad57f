//! Views: the same storage under other layouts.

use lowtide_tensor::{DType, RANK_MAX, Tensor};
use proptest::prelude::*;

use crate::common::{
    Style, assert_same, cpu, laid_out, sample, shapes, shared, styles, writable_styles,
};
use crate::naive::Array;

/// True if strides can describe elements at these places, of an array of shape `dims`. Each stride
/// is read off the neighbour along its dimension, and then all places have to agree.
fn is_strided(places: &[f64], dims: &[usize]) -> bool {
    let array = Array::new(dims, places.to_vec());
    if places.is_empty() {
        return true;
    }
    let origin = vec![0; dims.len()];
    let stride = |axis: usize| {
        let mut next = origin.clone();
        next[axis] = 1;
        if dims[axis] > 1 { array.at(&next) - array.at(&origin) } else { 0.0 }
    };
    let strides: Vec<f64> = (0..dims.len()).map(stride).collect();
    let expected = Array::from_fn(dims, |at| {
        let steps = at.iter().zip(&strides).map(|(&at, stride)| at as f64 * stride);
        places[0] + steps.sum::<f64>()
    });
    strides.iter().all(|&stride| stride >= 0.0) && expected == array
}

/// A shape of `len` elements, cut as `cuts` says, with some dimensions of length 1.
fn factors(mut len: usize, cuts: &[usize]) -> Vec<usize> {
    let mut dims = Vec::new();
    for cut in cuts {
        let divisors: Vec<usize> = (1..=len.max(1)).filter(|d| len.is_multiple_of(*d)).collect();
        let divisor = divisors[cut % divisors.len()];
        dims.push(divisor);
        len /= divisor;
    }
    dims.push(len);
    dims
}

proptest! {
    #[test]
    fn chains_of_views_show_the_elements_that_the_definition_shows(
        dims in shapes(),
        style in styles(),
        steps in prop::collection::vec((0..11u8, 0..60usize, 0..60usize), 0..6),
    ) {
        let (mut view, mut twin) = sample(&dims, style, DType::F32, 2);
        let base = view.clone();
        for (kind, a, b) in steps {
            let rank = twin.dims.len();
            let axis = a % rank.max(1);
            match kind {
                0 if rank > 0 => {
                    let mut axes: Vec<usize> = (0..rank).collect();
                    axes.rotate_left(axis);
                    axes.swap(0, b % rank);
                    view = view.permute(&axes).unwrap();
                    twin = twin.permute(&axes);
                }
                1 if rank > 0 => {
                    let mut axes: Vec<usize> = (0..rank).collect();
                    axes.swap(axis, b % rank);
                    view = view.transpose(axis, b % rank).unwrap();
                    twin = twin.permute(&axes);
                }
                2 if rank > 0 => {
                    let start = b % (twin.dims[axis] + 1);
                    let len = (a + b) % (twin.dims[axis] - start + 1);
                    view = view.narrow(axis, start, len).unwrap();
                    twin = twin.narrow(axis, start, len);
                }
                3 if rank > 0 && twin.dims[axis] > 0 => {
                    let at = b % twin.dims[axis];
                    view = view.select(axis, at).unwrap();
                    twin = twin.select(axis, at);
                }
                4 if rank < RANK_MAX => {
                    let mut dims = twin.dims.clone();
                    dims.insert(b % (rank + 1), 1);
                    view = view.unsqueeze(b % (rank + 1)).unwrap();
                    twin = twin.reshape(&dims);
                }
                5 if rank > 0 && twin.dims[axis] == 1 => {
                    let mut dims = twin.dims.clone();
                    dims.remove(axis);
                    view = view.squeeze(axis).unwrap();
                    twin = twin.reshape(&dims);
                }
                6 if rank < RANK_MAX => {
                    let grown = |&dim: &usize| if dim == 1 { 1 + b % 3 } else { dim };
                    let mut dims: Vec<usize> = twin.dims.iter().map(grown).collect();
                    dims.insert(0, 1 + a % 2);
                    if dims.iter().product::<usize>() > 2000 {
                        continue;
                    }
                    view = view.expand(&dims[..]).unwrap();
                    twin = twin.expand(&dims);
                }
                7 if rank > 0 => {
                    let start = b % (twin.dims[axis] + 1);
                    let step = 1 + a % 3;
                    view = view.slice(axis, start..twin.dims[axis], step).unwrap();
                    twin = twin.slice(axis, start, step);
                }
                8 if rank > 1 => {
                    let other = (axis + 1 + b % (rank - 1)) % rank;
                    let offset = b as isize % 9 - 4;
                    view = view.diagonal(offset, axis, other).unwrap();
                    twin = twin.diagonal(offset, axis, other);
                }
                9 if (1..RANK_MAX).contains(&rank) => {
                    let (len, step) = (b % (twin.dims[axis] + 1), 1 + a % 3);
                    view = view.unfold(axis, len, step).unwrap();
                    twin = twin.unfold(axis, len, step);
                }
                10 if rank > 0 => {
                    let mut axes: Vec<usize> = (0..rank).collect();
                    let moved = axes.remove(axis);
                    axes.insert(b % rank, moved);
                    view = view.movedim(axis, b % rank).unwrap();
                    twin = twin.permute(&axes);
                }
                _ => continue,
            }
            if twin.len() > 2000 {
                break;
            }
            assert_same(&view, &twin);
            prop_assert!(view.shares_storage(&base));
        }
        assert_same(&view.contiguous().unwrap(), &twin);
        assert_same(&view.copied().unwrap(), &twin);
    }

    #[test]
    fn reshape_and_flatten_keep_row_major_order(
        dims in shapes(), style in styles(), cut in 0..5usize, width in 1..5usize,
    ) {
        let (x, twin) = sample(&dims, style, DType::F64, 1);
        let len = twin.len();
        assert_same(&x.reshape([len, 1]).unwrap(), &twin.reshape(&[len, 1]));
        if !dims.is_empty() {
            let start = cut % dims.len();
            let end = (start + width).min(dims.len());
            let merged: usize = dims[start..end].iter().product();
            let flat = [&dims[..start], &[merged], &dims[end..]].concat();
            let view = x.flatten(start..end).unwrap();
            assert_same(&view, &twin.reshape(&flat));
            // A copy is made only if no strides exist.
            prop_assert_eq!(view.shares_storage(&x), x.view(&flat[..]).is_ok());
        }
    }

    #[test]
    fn view_exists_exactly_where_strides_give_the_order(
        dims in shapes(),
        steps in prop::collection::vec((0..5u8, 0..60usize, 0..60usize), 0..5),
        cuts in prop::collection::vec(0..60usize, 0..6),
    ) {
        // Each element is its own place in memory.
        let len = dims.iter().product::<usize>();
        let places = Array::new(&dims, (0..len).map(|place| place as f64).collect());
        let mut x = laid_out(&places, Style::Contiguous, DType::F64);
        for (kind, a, b) in steps {
            let rank = x.shape().len();
            if rank == 0 || rank == RANK_MAX {
                break;
            }
            x = match kind {
                0 => x.transpose(a % rank, b % rank),
                1 => x.slice(a % rank, 0..x.shape()[a % rank], 1 + b % 2),
                2 => x.narrow(a % rank, 0, b % (x.shape()[a % rank] + 1)),
                3 => x.unsqueeze(a % (rank + 1)),
                _ => {
                    let grown = |&dim: &usize| if dim == 1 { 1 + b % 3 } else { dim };
                    x.expand(&x.shape().iter().map(grown).collect::<Vec<_>>()[..])
                }
            }
            .unwrap();
        }
        let len = x.element_count();
        let dims = factors(len, &cuts);
        let order = x.to_vec::<f64>().unwrap();
        let found = x.view(&dims[..]);
        prop_assert_eq!(found.is_ok(), is_strided(&order, &dims), "{:?} as {:?}", x.layout(), dims);
        if let Ok(view) = found {
            assert_same(&view, &Array::new(&dims, order));
            prop_assert!(view.shares_storage(&x));
        }
    }

    #[test]
    fn parts_put_together_are_the_whole(
        dims in shapes(), style in styles(), axis in 0..5usize, len in 1..7usize,
    ) {
        prop_assume!(!dims.is_empty());
        let axis = axis % dims.len();
        let (x, twin) = sample(&dims, style, DType::I32, 1);
        let check = |parts: &[Tensor], lens: &[usize]| {
            assert_eq!(parts.len(), lens.len());
            let mut start = 0;
            for (part, &len) in parts.iter().zip(lens) {
                assert_same(part, &twin.narrow(axis, start, len));
                assert!(part.shares_storage(&x));
                start += len;
            }
            assert_eq!(start, dims[axis]);
        };
        let dim = dims[axis];
        let even = |len: usize| -> Vec<usize> {
            (0..dim.max(1)).step_by(len).map(|start| len.min(dim - start)).collect()
        };
        check(&x.split(axis, len).unwrap(), &even(len));
        let chunks = if dim == 0 { vec![0; len] } else { even(dim.div_ceil(len)) };
        check(&x.chunk(axis, len).unwrap(), &chunks);
        let sizes = [dim / 3, 0, dim - dim / 3];
        check(&x.split_with_sizes(axis, &sizes).unwrap(), &sizes);
    }

    #[test]
    fn round_trips_return_to_the_same_layout(dims in shapes(), style in writable_styles()) {
        let (x, _) = sample(&dims, style, DType::U8, 1);
        for axis in 0..dims.len() {
            let there = x.transpose(axis, 0).unwrap();
            prop_assert_eq!(*there.transpose(axis, 0).unwrap().layout(), *x.layout());
            let wider = x.unsqueeze(axis).unwrap();
            prop_assert_eq!(*wider.squeeze(axis).unwrap().layout(), *x.layout());
        }
    }
}

#[test]
fn dimensions_of_length_one_are_no_obstacle_to_a_view() {
    // Every second of 12 places, with other strides on dimensions of length 1.
    let places = Array::new(&[12], (0..12).map(f64::from).collect());
    let even = laid_out(&places, Style::Contiguous, DType::F64).slice(0, 0..12, 2).unwrap();
    let x = even.view([2, 3]).unwrap().unsqueeze(1).unwrap().unsqueeze(3).unwrap();
    for dims in [&[6][..], &[3, 2], &[1, 6, 1], &[2, 1, 3]] {
        let y = x.view(dims).unwrap();
        assert_same(&y, &Array::new(dims, vec![0.0, 2.0, 4.0, 6.0, 8.0, 10.0]));
    }
    assert!(x.transpose(0, 2).unwrap().view([6]).is_err());
}

#[test]
fn views_allocate_nothing() {
    let device = cpu(1);
    let x = Tensor::zeros(&device, [2, 3, 4], DType::F32).unwrap();
    let before = device.allocator().request_count();
    let y = x.transpose(0, 2).unwrap().narrow(1, 1, 2).unwrap().select(0, 3).unwrap();
    y.unsqueeze(1).unwrap().expand([2, 5, 2]).unwrap();
    x.reshape([6, 4]).unwrap().flatten(0..2).unwrap().contiguous().unwrap();
    assert_eq!(device.allocator().request_count(), before);
    x.transpose(0, 2).unwrap().contiguous().unwrap();
    assert_eq!(device.allocator().request_count(), before + 1);
}

#[test]
fn views_without_elements_may_start_anywhere() {
    for dtype in DType::ALL {
        let mut rows = Tensor::empty(shared(), [2, 0], dtype).unwrap().select(0, 1).unwrap();
        rows.fill_(1.0).unwrap();
        assert_same(&rows, &Array::new(&[0], vec![]));
        let mut end = Tensor::zeros(shared(), [3], dtype).unwrap().narrow(0, 3, 0).unwrap();
        end.fill_(1.0).unwrap();
        assert_same(&end, &Array::new(&[0], vec![]));
    }
}

#[test]
fn element_shows_itself_at_every_index_of_an_expanded_view() {
    let x = laid_out(&Array::new(&[1, 2], vec![3.0, 4.0]), Style::Contiguous, DType::I64);
    let wide = x.expand([2, 3, 2]).unwrap();
    assert_eq!(wide.layout().strides(), [0, 0, 1]);
    assert_eq!(wide.to_vec::<i64>().unwrap(), [3, 4, 3, 4, 3, 4, 3, 4, 3, 4, 3, 4]);
}
