//! Views: the same storage under other layouts.

use lowtide_tensor::{DType, RANK_MAX, Tensor};
use proptest::prelude::*;

use crate::common::{
    Style, assert_same, cpu, laid_out, sample, shapes, shared, styles, writable_styles,
};
use crate::naive::Array;

proptest! {
    #[test]
    fn chains_of_views_show_the_elements_that_the_definition_shows(
        dims in shapes(),
        style in styles(),
        steps in prop::collection::vec((0..7u8, 0..60usize, 0..60usize), 0..6),
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
                _ => continue,
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
            prop_assert_eq!(view.shares_storage(&x), x.layout().is_contiguous());
        }
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
