//! In-memory datasets and subsets refuse parts that do not fit together.

use crate::{numbered, options, samples_of};
use lowtide_data::{
    DataError, Dataset, ElementType, Field, InMemory, IndexOutOfRange, Loader, Sequential, Subset,
};

#[test]
fn column_of_another_length_is_refused_with_both_lengths() {
    let refused = |shape: &[usize], len| match InMemory::new(3).with("x", shape, vec![0_u8; len]) {
        Err(DataError::FieldLength { field, expected, actual }) if &*field == "x" => {
            (expected, actual)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&[2], 5), (6, 5));
    assert_eq!(refused(&[], 4), (3, 4));
    assert_eq!(refused(&[usize::MAX], 4), (usize::MAX, 4));
}

#[test]
fn fields_are_listed_in_the_order_they_were_added() {
    let data = InMemory::new(1).with("b", &[2], vec![0.0_f32; 2]).unwrap();
    let data = data.with("a", &[0], Vec::<u8>::new()).unwrap();
    let b = Field::new("b", ElementType::F32, &[2]);
    let a = Field::new("a", ElementType::U8, &[0]);
    assert_eq!(data.fields(), [b, a]);
}

#[test]
fn samples_without_fields_or_elements_are_still_counted() {
    let loader = Loader::new(InMemory::new(5), options(2, 1, 0)).unwrap();
    assert_eq!(samples_of(&loader, 0).len(), 5);
    let empty = InMemory::new(5).with("x", &[0, 3], Vec::<f32>::new()).unwrap();
    let loader = Loader::new(empty, options(2, 1, 0)).unwrap();
    for batch in loader.epoch(0) {
        let batch = batch.unwrap();
        assert_eq!(batch.field("x").unwrap().shape(), [batch.len(), 0, 3]);
        assert_eq!(batch.field("x").unwrap().values::<f32>(), Some(&[][..]));
    }
}

#[test]
fn subset_refuses_the_first_index_outside() {
    let error = Subset::new(numbered(3), [0, 2, 3, 9]).unwrap_err();
    assert_eq!(error, IndexOutOfRange { index: 3, len: 3 });
    assert_eq!(error.to_string(), "index 3 is outside the dataset's 3 samples");
}

#[test]
fn subset_may_repeat_and_reorder() {
    let subset = Subset::new(numbered(5), [4, 1, 1]).unwrap();
    assert_eq!((subset.len(), subset.is_empty()), (3, false));
    let loader = Loader::with_sampler(subset, Sequential, options(3, 0, 0)).unwrap();
    let batch = loader.epoch(0).next().unwrap().unwrap();
    assert_eq!(batch.field("y").unwrap().values::<i64>().unwrap(), [4, 1, 1]);
}
