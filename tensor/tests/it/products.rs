//! Matrix products over operands of all layouts.

use lowtide_tensor::{DType, Tensor, TensorError};
use proptest::prelude::*;

use crate::common::{
    Style, all_floats, assert_close, assert_same, cpu, floats, sample, shared, styles,
    writable_styles,
};
use crate::naive::Array;

/// Lengths below and above the panels of the product.
fn lens() -> impl Strategy<Value = usize> {
    prop_oneof![0..=5usize, 6..=20usize, 60..=70usize, Just(200)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn matmul_is_the_sum_of_products(
        [m, k, n] in [lens(), lens(), lens()], styles in [styles(), styles()], dtype in floats(),
    ) {
        let (a, a_twin) = sample(&[m, k], styles[0], dtype, 1);
        let (b, b_twin) = sample(&[k, n], styles[1], dtype, 2);
        assert_same(&a.matmul(&b).unwrap(), &a_twin.matmul(&b_twin));
    }

    #[test]
    fn linear_multiplies_by_the_transpose_and_adds_the_bias(
        [rows, ins, outs] in [lens(), lens(), lens()],
        styles in [styles(), styles(), styles()],
        dtype in floats(),
    ) {
        let (x, x_twin) = sample(&[rows, ins], styles[0], dtype, 1);
        let (w, w_twin) = sample(&[outs, ins], styles[1], dtype, 2);
        let (b, b_twin) = sample(&[outs], styles[2], dtype, 3);
        let product = x_twin.matmul(&w_twin.permute(&[1, 0]));
        assert_same(&x.linear(&w, None).unwrap(), &product);
        let expected = product.zip(&b_twin, &[rows, outs], |y, b| y + b);
        assert_same(&x.linear(&w, Some(&b)).unwrap(), &expected);
    }
}

/// The dimensions of two factors as `torch.matmul` takes them: vectors, matrices, batches of up to
/// three dimensions that broadcast.
fn factors() -> impl Strategy<Value = [Vec<usize>; 2]> {
    let dim = || prop_oneof![1 => Just(0usize), 6 => 1..=3usize];
    let size = || prop_oneof![1 => Just(0usize), 8 => 1..=9usize, 1 => Just(33)];
    let batch = prop::collection::vec((dim(), any::<[bool; 2]>()), 0..=3);
    (batch, [0..=3usize, 0..=3], [size(), size(), size()], any::<[bool; 2]>()).prop_map(
        |(batch, dropped, [m, k, n], is_vector)| {
            let of = |which: usize, matrix: [usize; 2], vector: usize| {
                if is_vector[which] {
                    return vec![vector];
                }
                let stretched = |&(dim, ones): &(usize, [bool; 2])| {
                    // At most one of the two is stretched.
                    if ones[which] && (which == 0 || !ones[0]) { 1 } else { dim }
                };
                let dims: Vec<usize> = batch.iter().map(stretched).collect();
                // Missing dimensions are stretched too, so one factor keeps all of its own.
                let drop = if which == 0 { 0 } else { dropped[which].min(dims.len()) };
                [&dims[drop..], &matrix[..]].concat()
            };
            [of(0, [m, k], k), of(1, [k, n], k)]
        },
    )
}

/// Sums of half types round once, at the end.
fn roundings(dtype: DType) -> usize {
    if dtype.size_bytes() == 2 { 1 } else { 0 }
}

proptest! {
    #[test]
    fn batches_broadcast_and_vectors_are_rows_and_columns(
        [left, right] in factors(), styles in [styles(), styles()], dtype in all_floats(),
    ) {
        let (a, a_twin) = sample(&left, styles[0], dtype, 1);
        let (b, b_twin) = sample(&right, styles[1], dtype, 2);
        let y = a.matmul(&b).unwrap();
        assert_close(&y, &a_twin.matmul(&b_twin), roundings(dtype));
        let found = match [left.len(), right.len()] {
            [1, 1] => a.dot(&b),
            [2, 1] => a.matvec(&b),
            [3, 3] if left[0] == right[0] => a.bmm(&b),
            _ => return Ok(()),
        };
        prop_assert_eq!(found.unwrap().to_bytes().unwrap(), y.to_bytes().unwrap());
    }

    #[test]
    fn products_are_added_to_what_was_there(
        [left, right] in factors(),
        styles in [styles(), styles()],
        style in writable_styles(),
        dtype in all_floats(),
        is_wide in any::<bool>(),
    ) {
        let (a, a_twin) = sample(&left, styles[0], dtype, 1);
        let (b, b_twin) = sample(&right, styles[1], dtype, 2);
        let product = a_twin.matmul(&b_twin);
        let is_half = dtype.size_bytes() == 2;
        let sum_dtype = if is_wide && is_half { DType::F32 } else { dtype };
        let (mut y, y_twin) = sample(&product.dims, style, sum_dtype, 3);
        y.matmul_add_(&a, &b).unwrap();
        let expected = y_twin.zip(&product, &product.dims, |y, product| y + product);
        assert_close(&y, &expected, roundings(sum_dtype));
    }

    #[test]
    fn linear_takes_any_number_of_dimensions(
        dims in prop::collection::vec(0..=4usize, 0..=3),
        [ins, outs] in [0..=40usize, 0..=40],
        styles in [styles(), styles()],
        dtype in all_floats(),
    ) {
        let (x, x_twin) = sample(&[&dims[..], &[ins]].concat(), styles[0], dtype, 1);
        let (w, w_twin) = sample(&[outs, ins], styles[1], dtype, 2);
        let (b, b_twin) = sample(&[outs], Style::Contiguous, dtype, 3);
        let product = x_twin.matmul(&w_twin.permute(&[1, 0]));
        let expected = product.zip(&b_twin, &product.dims, |y, b| y + b);
        assert_close(&x.linear(&w, Some(&b)).unwrap(), &expected, roundings(dtype));
    }

    #[test]
    fn outer_multiplies_everything_with_everything(
        [rows, cols] in [0..=40usize, 0..=40], dtype in all_floats(),
    ) {
        let (a, a_twin) = sample(&[rows], Style::Transposed, dtype, 1);
        let (b, b_twin) = sample(&[cols], Style::Narrowed, dtype, 2);
        let product = |at: &[usize]| a_twin.at(&at[..1]) * b_twin.at(&at[1..]);
        let expected = Array::from_fn(&[rows, cols], product);
        assert_close(&a.outer(&b).unwrap(), &expected, roundings(dtype));
    }
}

/// Products deeper than a panel, in batches that cannot become one product.
#[test]
fn large_products_of_every_type_agree_with_the_definition() {
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        for styles in [[Style::Contiguous, Style::Transposed], [Style::Transposed, Style::Narrowed]]
        {
            let (a, a_twin) = sample(&[2, 1, 70, 210], styles[0], dtype, 1);
            let (b, b_twin) = sample(&[3, 210, 67], styles[1], dtype, 2);
            assert_close(&a.matmul(&b).unwrap(), &a_twin.matmul(&b_twin), roundings(dtype));
        }
    }
}

#[test]
fn products_do_not_copy_their_operands() {
    let device = cpu(2);
    let allocator = device.allocator();
    let x = Tensor::zeros(&device, [6, 20, 4, 30], DType::F32).unwrap();
    let [a, b] = [x.permute(&[0, 2, 1, 3]).unwrap(), x.permute(&[2, 0, 3, 1]).unwrap()];
    let b = b.transpose(0, 1).unwrap();
    let before = allocator.request_count();
    let y = a.matmul(&b).unwrap();
    assert_eq!((&**y.shape(), allocator.request_count()), (&[6, 4, 20, 20][..], before + 1));
}

#[test]
fn factors_that_do_not_fit_are_named() {
    let of = |dims: &[usize]| Tensor::zeros(shared(), dims, DType::F32).unwrap();
    let check = |op: &str, found: Result<Tensor, TensorError>| match found.unwrap_err() {
        TensorError::Shape { op: named, .. } => assert_eq!(named, op),
        other => panic!("{other}"),
    };
    check("matmul", of(&[]).matmul(&of(&[2])));
    check("matmul", of(&[2, 3]).matmul(&of(&[2, 3])));
    check("matmul", of(&[2, 4, 3]).matmul(&of(&[3, 3, 5])));
    check("bmm", of(&[1, 4, 3]).bmm(&of(&[2, 3, 5])));
    check("dot", of(&[2, 3]).dot(&of(&[3])));
    check("matvec", of(&[3]).matvec(&of(&[3])));
    check("outer", of(&[3, 1]).outer(&of(&[3])));
    check("linear", of(&[]).linear(&of(&[3, 3]), None));
    let mut y = of(&[2, 2]);
    let error = y.matmul_add_(&of(&[2, 3]), &of(&[3, 4])).unwrap_err();
    assert!(matches!(error, TensorError::Shape { op: "matmul_add", .. }), "{error}");
    let error = y.matmul_add_(&y.clone(), &of(&[2, 2])).unwrap_err();
    assert!(matches!(error, TensorError::Overlap { op: "matmul_add", .. }), "{error}");
    let integers = Tensor::zeros(shared(), [2, 2], DType::I64).unwrap();
    let error = integers.matmul(&integers).unwrap_err();
    assert!(matches!(error, TensorError::DType { op: "matmul", .. }), "{error}");
}

#[test]
fn products_in_place_run_while_the_allocator_is_sealed() {
    let device = cpu(2);
    let make = |dims: &[usize]| Tensor::full(&device, dims, DType::F32, 0.5).unwrap();
    let (mut y, a, b) = (make(&[600, 700]), make(&[600, 800]), make(&[800, 700]));
    let seal = device.allocator().seal();
    y.matmul_add_(&a, &b).unwrap();
    drop(seal);
    assert_eq!(device.allocator().statistics().charged.peak_bytes, 0);
    let expected = 0.5 + 800.0 * 0.25;
    assert!(y.to_vec::<f32>().unwrap().iter().all(|&y| y == expected));
}
