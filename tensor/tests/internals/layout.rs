use lowtide_tensor::testing::{
    axes_by_stride, narrow, nest_rows, permute, repeats_elements, select, span, unsqueeze,
    with_strides,
};
use lowtide_tensor::{Layout, Shape};

#[test]
fn span_is_from_the_first_element_to_the_last() {
    let rows = Layout::contiguous(Shape::new(&[4, 6]));
    assert_eq!(span(&narrow(&narrow(&rows, 0, 1, 2), 1, 2, 3)), 8..17);
    assert_eq!(span(&narrow(&rows, 1, 5, 1)), 5..24);
    assert!(span(&narrow(&rows, 1, 3, 0)).is_empty());
}

#[test]
fn elements_repeat_where_a_stride_steps_into_what_smaller_ones_reach() {
    let of = |dims: &[usize], strides: &[usize]| {
        repeats_elements(&with_strides(Shape::new(dims), strides))
    };
    assert!(of(&[2, 3], &[0, 1]) && of(&[3, 2], &[1, 2]) && of(&[4, 3], &[2, 1]));
    assert!(!of(&[2, 3], &[3, 1]) && !of(&[3, 2], &[1, 3]) && !of(&[2, 2, 2], &[4, 1, 2]));
    // One element, or none, does not repeat, whatever the stride.
    assert!(!of(&[1, 3], &[0, 1]) && !of(&[0, 3], &[0, 0]) && !of(&[], &[]));
    let turned = permute(&Layout::contiguous(Shape::new(&[2, 3, 4])), &[2, 0, 1]);
    assert_eq!(axes_by_stride(&turned), [1, 2, 0]);
}

#[test]
fn select_and_unsqueeze_are_inverse() {
    let layout = Layout::contiguous(Shape::new(&[2, 3, 4]));
    let row = narrow(&layout, 1, 2, 1);
    let selected = unsqueeze(&select(&row, 1, 0), 1);
    assert_eq!(select(&selected, 1, 0), select(&layout, 1, 2));
    assert_eq!(select(&layout, 1, 2).strides(), [12, 1]);
}

#[test]
fn nest_merges_contiguous_dimensions_and_keeps_order() {
    let whole = Layout::contiguous(Shape::new(&[2, 3, 4]));
    assert_eq!(nest_rows(&whole, 5..20).rows, [(5, 15)]);

    let turned = nest_rows(&permute(&whole, &[2, 0, 1]), 0..24);
    let step = turned.inner_stride;
    let places = |&(start, len)| (0..len).map(move |i| start + i * step);
    let seen: Vec<usize> = turned.rows.iter().flat_map(places).collect();
    let expected: Vec<usize> = (0..4).flat_map(|c| (0..6).map(move |ab| ab * 4 + c)).collect();
    assert_eq!(seen, expected);
}

#[test]
fn broadcast_aligns_trailing_dimensions() {
    let of = |a: &[usize], b: &[usize]| Shape::new(a).broadcast(&Shape::new(b));
    assert_eq!(of(&[4, 1, 3], &[2, 1]), Some(Shape::new(&[4, 2, 3])));
    assert_eq!(of(&[], &[5]), Some(Shape::new(&[5])));
    assert_eq!(of(&[0], &[1]), Some(Shape::new(&[0])));
    assert_eq!(of(&[2], &[3]), None);
}
