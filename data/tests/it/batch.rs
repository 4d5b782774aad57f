//! The contents of batches, and slices of them.

use crate::{WORKERS, drain, numbered, options};
use lowtide_data::{
    DataError, Dataset, Element, ElementType, Field, InMemory, Loader, LoaderOptions, NotBool,
    Random, SampleError, SampleSlot, Sequential, bf16,
};
use std::error::Error;

#[test]
fn fields_have_name_type_shape_and_the_values_of_their_samples() {
    let loader = Loader::with_sampler(numbered(10), Sequential, options(4, 0, 0)).unwrap();
    let batch = loader.epoch(0).nth(1).unwrap().unwrap();
    assert_eq!((batch.len(), batch.index(), batch.is_empty()), (4, 1, false));
    assert_eq!(batch.sample_indices(), [4, 5, 6, 7]);
    let x = batch.field("x").unwrap();
    assert_eq!((x.name(), x.element(), x.shape()), ("x", ElementType::F32, vec![4, 1, 2]));
    assert_eq!(x.sample_shape(), [1, 2]);
    assert_eq!(x.values::<f32>().unwrap(), [-8.0, -9.0, -10.0, -11.0, -12.0, -13.0, -14.0, -15.0]);
    let y = batch.field("y").unwrap();
    assert_eq!((y.element(), y.shape()), (ElementType::I64, vec![4]));
    assert_eq!(y.values::<i64>().unwrap(), [4, 5, 6, 7]);
    assert_eq!(y.bytes().len(), 4 * y.element().size_bytes());
    assert_eq!(batch.field("wide").unwrap().values::<f64>().unwrap()[..2], [12.25, 13.25]);
    assert_eq!(batch.field("odd").unwrap().values::<u8>().unwrap()[..2], [20, 21]);
    assert!(x.values::<f64>().is_none());
    assert!(batch.field("z").is_none());
    let names: Vec<_> = batch.fields().map(|field| field.name()).collect();
    assert_eq!(names, ["wide", "odd", "x", "y"]);
}

#[test]
fn every_field_of_every_batch_is_aligned_to_64() {
    for batch_size in [1, 3, 7] {
        let loader = Loader::new(numbered(20), options(batch_size, 2, 0)).unwrap();
        for batch in loader.epoch(0) {
            for field in batch.unwrap().fields() {
                assert_eq!(field.bytes().as_ptr().addr() % 64, 0, "{}", field.name());
            }
        }
    }
}

#[test]
fn slices_are_the_same_memory_and_nest() {
    let loader = Loader::with_sampler(numbered(10), Sequential, options(10, 0, 0)).unwrap();
    let batch = loader.epoch(0).next().unwrap().unwrap();
    let whole = batch.field("x").unwrap();
    let view = batch.slice(2..9);
    assert_eq!((view.len(), view.sample_indices()), (7, &[2, 3, 4, 5, 6, 7, 8][..]));
    let part = view.slice(1..3);
    assert_eq!(part.sample_indices(), [3, 4]);
    let field = part.field("x").unwrap();
    assert_eq!(field.shape(), [2, 1, 2]);
    assert_eq!(field.values::<f32>().unwrap(), [-6.0, -7.0, -8.0, -9.0]);
    assert_eq!(field.bytes().as_ptr(), whole.bytes()[3 * 8..].as_ptr());
    assert!(batch.slice(4..4).is_empty());
    assert!(batch.slice(10..10).field("y").unwrap().bytes().is_empty());
}

#[test]
#[should_panic(expected = "0..3 of 2 samples")]
fn slice_beyond_its_view_is_refused_even_if_the_batch_is_longer() {
    let loader = Loader::new(numbered(10), options(10, 0, 0)).unwrap();
    let batch = loader.epoch(0).next().unwrap().unwrap();
    let _ = batch.slice(0..2).slice(0..3);
}

#[test]
fn last_batch_is_short_or_left_out() {
    let lens = |len, batch_size, drop_last| {
        let options = LoaderOptions { drop_last, ..options(batch_size, 1, 0) };
        let loader = Loader::new(numbered(len), options).unwrap();
        let lens: Vec<_> = drain(loader.epoch(0)).iter().map(|seen| seen.samples.len()).collect();
        assert_eq!(lens.len(), loader.batches_per_epoch());
        lens
    };
    assert_eq!(lens(10, 4, false), [4, 4, 2]);
    assert_eq!(lens(10, 4, true), [4, 4]);
    assert_eq!(lens(8, 4, false), [4, 4]);
    assert_eq!(lens(8, 4, true), [4, 4]);
    assert_eq!(lens(3, 4, false), [3]);
    assert_eq!(lens(3, 4, true), [0; 0]);
    assert_eq!(lens(3, usize::MAX, false), [3]);
}

#[test]
fn empty_dataset_has_no_batches() {
    for workers in WORKERS {
        let loader = Loader::new(numbered(0), options(4, workers, 0)).unwrap();
        assert_eq!(loader.batches_per_epoch(), 0);
        assert!(loader.dataset().is_empty());
        let mut epoch = loader.epoch(0);
        assert!(epoch.next().is_none());
        assert!(epoch.next().is_none());
    }
}

#[test]
fn bytes_that_a_sample_does_not_write_are_zero_even_in_a_used_buffer() {
    /// A dataset whose sample `i` writes `i` of its eight bytes.
    struct Ragged([Field; 1]);
    impl Dataset for Ragged {
        fn len(&self) -> usize {
            9
        }
        fn fields(&self) -> &[Field] {
            &self.0
        }
        fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
            slot.bytes(0)[..index].fill(0xff);
            Ok(())
        }
    }
    let options = LoaderOptions { prefetch: 1, ..options(1, 0, 0) };
    let dataset = Ragged([Field::new("tokens", ElementType::U8, &[8])]);
    let loader = Loader::new(dataset, options).unwrap();
    for batch in loader.epoch(0).chain(loader.epoch(1)) {
        let batch = batch.unwrap();
        let expected: Vec<u8> =
            (0..8).map(|at| if at < batch.sample_indices()[0] { 0xff } else { 0 }).collect();
        assert_eq!(batch.field("tokens").unwrap().bytes(), expected);
    }
}

#[test]
fn sample_written_as_the_wrong_type_is_an_error_that_names_both() {
    struct Mistaken([Field; 1]);
    impl Dataset for Mistaken {
        fn len(&self) -> usize {
            1
        }
        fn fields(&self) -> &[Field] {
            &self.0
        }
        fn write(&self, _index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
            slot.values::<f64>(0)[0] = 1.0;
            Ok(())
        }
    }
    let dataset = Mistaken([Field::new("y", ElementType::I64, &[])]);
    let loader = Loader::new(dataset, options(1, 0, 0)).unwrap();
    let error = loader.epoch(0).next().unwrap().unwrap_err().to_string();
    assert!(error.contains("field y holds i64, not f64"), "{error}");
}

#[test]
fn each_element_type_is_written_and_read_as_its_rust_type_and_as_no_other() {
    fn check<T: Element + PartialEq + std::fmt::Debug>(values: Vec<T>) {
        let name = format!("a {}", T::TYPE);
        let data = InMemory::new(2).with(name.clone(), &[2], values.clone()).unwrap();
        let loader = Loader::with_sampler(data, Sequential, options(2, 0, 0)).unwrap();
        let batch = loader.epoch(0).next().unwrap().unwrap();
        let field = batch.field(&name).unwrap();
        assert_eq!(field.element(), T::TYPE);
        assert_eq!(field.values::<T>(), Some(&values[..]));
        assert_eq!(field.bytes().len(), 4 * T::TYPE.size_bytes());
        assert_eq!(T::TYPE.size_bytes(), size_of::<T>());
        assert_eq!(field.values::<u8>().is_some(), T::TYPE == ElementType::U8);
        assert_eq!(field.values::<bool>().is_some(), T::TYPE == ElementType::Bool);
    }
    check(vec![1.5_f32, -2.0, f32::MIN_POSITIVE, f32::INFINITY]);
    check(vec![1.5_f64, -2.0, f64::MIN_POSITIVE, f64::INFINITY]);
    check([1.5, -2.0, 0.0, f32::INFINITY].map(bf16::from_f32).to_vec());
    check(vec![i64::MIN, -1, 0, i64::MAX]);
    check(vec![i32::MIN, -1, 0, i32::MAX]);
    check(vec![0_u16, 1, 50_256, u16::MAX]);
    check(vec![0_u8, 1, 254, u8::MAX]);
    check(vec![true, false, false, true]);
}

#[test]
fn byte_that_is_no_truth_value_is_an_error_of_its_sample() {
    /// A dataset whose samples are their index as a byte.
    struct Bytes([Field; 1]);
    impl Dataset for Bytes {
        fn len(&self) -> usize {
            3
        }
        fn fields(&self) -> &[Field] {
            &self.0
        }
        fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
            slot.bytes(0)[1] = index as u8;
            Ok(())
        }
    }
    let dataset = Bytes([Field::new("mask", ElementType::Bool, &[2])]);
    let loader = Loader::with_sampler(dataset, Sequential, options(1, 0, 0)).unwrap();
    let mut epoch = loader.epoch(0);
    let read = |batch: &lowtide_data::Batch| batch.view().field("mask").unwrap().bytes().to_vec();
    assert_eq!(read(&epoch.next().unwrap().unwrap()), [0, 0]);
    assert_eq!(read(&epoch.next().unwrap().unwrap()), [0, 1]);
    let error = epoch.next().unwrap().unwrap_err();
    assert!(matches!(error, DataError::Sample { index: 2, .. }), "{error}");
    let cause = error.source().and_then(|cause| cause.downcast_ref::<NotBool>());
    assert_eq!(cause, Some(&NotBool { field: "mask".into(), byte: 2 }));
}

#[test]
fn noise_of_every_element_type_is_within_its_bounds() {
    let field = |&element: &ElementType| Field::new(element.to_string(), element, &[50]);
    let fields: Vec<Field> = ElementType::ALL.iter().map(field).collect();
    for (bound, i32_bound, u16_bound) in [(7, 7, 7), (u64::MAX, i32::MAX, u16::MAX)] {
        let noise = Random::new(4, fields.clone(), bound);
        let loader = Loader::with_sampler(noise, Sequential, options(4, 0, 0)).unwrap();
        let batch = loader.epoch(0).next().unwrap().unwrap();
        assert!(batch.fields().all(|field| field.bytes().iter().any(|&byte| byte != 0)));
        let f32s = batch.field("f32").unwrap().values::<f32>().unwrap();
        assert!(f32s.iter().all(|value| (0.0..1.0).contains(value)));
        let bf16s = batch.field("bf16").unwrap().values::<bf16>().unwrap();
        assert!(bf16s.iter().all(|value| (0.0..=1.0).contains(&value.to_f32())));
        let i32s = batch.field("i32").unwrap().values::<i32>().unwrap();
        assert!(i32s.iter().all(|value| (0..=i32_bound).contains(value)));
        let u16s = batch.field("u16").unwrap().values::<u16>().unwrap();
        assert!(u16s.iter().all(|value| (0..=u16_bound).contains(value)));
        assert!(batch.field("bool").unwrap().values::<bool>().is_some());
    }
}
