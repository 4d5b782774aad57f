use lowtide_tensor::{DType, Tensor};
use proptest::prelude::*;

use crate::common::{assert_close, assert_same, shared};
use crate::naive::Array;

proptest! {
    #[test]
    fn ranges_count_from_start_to_end(
        start in -50..50i32, end in -50..50i32, step in -7..7i32,
        dtype in prop::sample::select(vec![DType::F64, DType::F32, DType::F16, DType::I64]),
    ) {
        prop_assume!(step != 0);
        let mut values = Vec::new();
        let mut at = start;
        while (step > 0 && at < end) || (step < 0 && at > end) {
            values.push(f64::from(at));
            at += step;
        }
        let range = f64::from(start)..f64::from(end);
        let y = Tensor::arange(shared(), range, f64::from(step), dtype).unwrap();
        assert_same(&y, &Array::new(&[values.len()], values));
    }

    #[test]
    fn eye_is_one_on_the_diagonal(
        rows in 0..6usize,
        columns in 0..6usize,
        dtype in prop::sample::select(DType::ALL.to_vec()),
    ) {
        let y = Tensor::eye(shared(), rows, columns, dtype).unwrap();
        prop_assert_eq!(y.dtype(), dtype);
        let one = |at: &[usize]| f64::from(u8::from(at[0] == at[1]));
        assert_same(&y, &Array::from_fn(&[rows, columns], one));
    }
}

#[test]
fn fractions_of_a_range_do_not_add_up_errors() {
    let y = Tensor::arange(shared(), 0.0..1000.0, 0.1, DType::F32).unwrap();
    let expected = (0..10_000).map(|i| f64::from(i) * 0.1).collect();
    assert_close(&y, &Array::new(&[10_000], expected), 1);
    assert_eq!(
        Tensor::arange(shared(), 0.0..1.0, f64::NAN, DType::F32).unwrap().element_count(),
        0
    );
    assert!(Tensor::arange(shared(), 0.0..1.0, 0.0, DType::F32).is_err());
}

#[test]
fn constants_fill_every_type() {
    for dtype in DType::ALL {
        assert_same(
            &Tensor::zeros(shared(), [2, 2], dtype).unwrap(),
            &Array::new(&[2, 2], vec![0.0; 4]),
        );
        assert_same(&Tensor::ones(shared(), [3], dtype).unwrap(), &Array::new(&[3], vec![1.0; 3]));
    }
    let twos = Tensor::full(shared(), [2], DType::U8, -1.0).unwrap();
    assert_eq!(twos.to_vec::<u8>().unwrap(), [255; 2]);
}
