//! Datasets composed of other datasets: each sample has its place, and no sample is lost.

use crate::{Faulty, Way, drain, numbered, options};
use lowtide_data::{
    Collate, Concat, ConcatError, DataError, Dataset, ElementType, Field, InMemory, Loader, Mapped,
    SampleError, SampleSlot, Sequential, Subset, split_at_random,
};
use proptest::prelude::*;
use std::sync::Arc;

/// Name, shape and bytes of each field.
type Fields = Vec<(String, Vec<usize>, Vec<u8>)>;

/// All samples of a dataset, in order.
fn samples(dataset: impl Dataset + 'static) -> Vec<Fields> {
    let loader = Loader::with_sampler(dataset, Sequential, options(1, 2, 0)).unwrap();
    drain(loader.epoch(0)).into_iter().map(|seen| seen.fields).collect()
}

#[test]
fn concatenation_has_the_samples_of_each_dataset_in_order() {
    let parts: Vec<Arc<dyn Dataset>> =
        [3, 0, 5, 0].into_iter().map(|len| Arc::new(numbered(len)) as Arc<dyn Dataset>).collect();
    let concat = Concat::new(parts.clone()).unwrap();
    assert_eq!((concat.len(), concat.place(2), concat.place(3)), (8, (0, 2), (2, 0)));
    let expected: Vec<_> = parts.iter().filter(|part| !part.is_empty()).cloned().collect();
    let expected: Vec<_> = expected.into_iter().flat_map(samples).collect();
    assert_eq!(samples(concat), expected);
    assert!(Concat::new(Vec::new()).unwrap().is_empty());
}

#[test]
fn datasets_with_other_fields_are_refused() {
    let other = InMemory::new(1).with("other", &[], vec![1_i64]).unwrap();
    let other = Arc::new(other);
    let error = Concat::new(vec![Arc::new(numbered(1)), other.clone()]).unwrap_err();
    let ConcatError::Fields { dataset: 1, first, other: fields } = &error else {
        panic!("{error}");
    };
    assert_eq!((&first[..], &fields[..]), (numbered(1).fields(), other.fields()));
    struct Endless;
    impl Dataset for Endless {
        fn len(&self) -> usize {
            usize::MAX
        }
        fn fields(&self) -> &[Field] {
            &[]
        }
        fn write(&self, _: usize, _: &mut SampleSlot<'_>) -> Result<(), SampleError> {
            Ok(())
        }
    }
    let error = Concat::new(vec![Arc::new(Endless), Arc::new(Endless)]).unwrap_err();
    assert_eq!(error, ConcatError::TooManySamples);
}

#[test]
fn mapped_samples_are_those_of_the_function_at_any_number_of_workers() {
    let fields = vec![
        Field::ragged("some", ElementType::F64, 3, &[], Collate::Packed),
        Field::new("index", ElementType::I64, &[]),
    ];
    let map = |index: usize, from: &lowtide_data::SampleView<'_>, slot: &mut SampleSlot<'_>| {
        let wide = &from.values::<f64>(0)[..index % 4];
        slot.ragged::<f64>(0, wide.len())?.copy_from_slice(wide);
        slot.values::<i64>(1)[0] = from.values::<i64>(3)[0] + from.bytes(1).len() as i64;
        Ok(())
    };
    let mapped = || Mapped::new(numbered(23), fields.clone(), map).unwrap();
    // A second function reads the ragged output of the first.
    let twice = || {
        let fields = vec![Field::new("len", ElementType::I64, &[])];
        let map = |_: usize, from: &lowtide_data::SampleView<'_>, slot: &mut SampleSlot<'_>| {
            slot.values::<i64>(0)[0] = from.values::<f64>(0).len() as i64;
            Ok(())
        };
        Mapped::new(mapped(), fields, map).unwrap()
    };
    let mut expected = None;
    for workers in [0, 1, 4] {
        let loader = Loader::with_sampler(mapped(), Sequential, options(5, workers, 0)).unwrap();
        let seen = drain(loader.epoch(0));
        assert_eq!(seen.len(), 5);
        assert_eq!(*expected.get_or_insert(seen), drain(loader.epoch(0)));
    }
    let lengths: Vec<i64> = samples(twice())
        .iter()
        .map(|sample| i64::from_ne_bytes(sample[0].2[..].try_into().unwrap()))
        .collect();
    assert_eq!(lengths, (0..23).map(|index| index % 4).collect::<Vec<_>>());
}

#[test]
fn errors_below_a_mapped_dataset_and_of_its_function_come_with_the_index() {
    for way in [Way::Error, Way::PanicText] {
        let fields = vec![Field::new("y", ElementType::I64, &[])];
        let mapped = Mapped::new(Faulty::new(9, 4, way), fields, |index, from, slot| {
            slot.values::<i64>(0).copy_from_slice(from.values(0));
            if index == 7 { Err("seven".into()) } else { Ok(()) }
        });
        let loader = Loader::with_sampler(mapped.unwrap(), Sequential, options(1, 0, 0)).unwrap();
        for (batch, expected) in [(4, 4), (7, 7)] {
            let state = lowtide_data::LoaderState { batch, ..loader.epoch(0).state() };
            let error = loader.resume(state).unwrap().next().unwrap().unwrap_err();
            match error {
                DataError::Sample { index, .. } | DataError::Panicked { index, .. } => {
                    assert_eq!(index, expected);
                }
                other => panic!("{other}"),
            }
        }
        let state = lowtide_data::LoaderState { batch: 8, ..loader.epoch(0).state() };
        assert!(loader.resume(state).unwrap().next().unwrap().is_ok());
    }
}

proptest! {
    #[test]
    fn random_parts_are_a_partition_of_the_declared_sizes(
        len in 0_usize..200,
        weights in prop::collection::vec(0_u32..10, 1..6),
        seed in any::<u64>(),
    ) {
        let total: u32 = weights.iter().sum();
        prop_assume!(total > 0);
        let fractions: Vec<f64> =
            weights.iter().map(|&weight| f64::from(weight) / f64::from(total)).collect();
        let dataset = Arc::new(numbered(len));
        let parts = split_at_random(&dataset, &fractions, seed).unwrap();
        let again = split_at_random(&dataset, &fractions, seed).unwrap();
        let mut all = Vec::new();
        for ((part, again), fraction) in parts.iter().zip(&again).zip(&fractions) {
            prop_assert_eq!(part.indices(), again.indices());
            prop_assert!(part.indices().is_sorted());
            prop_assert!((part.len() as f64 - fraction * len as f64).abs() < 1.0 + 1e-6);
            all.extend_from_slice(part.indices());
        }
        all.sort_unstable();
        prop_assert_eq!(all, (0..len).collect::<Vec<_>>());
    }
}

#[test]
fn random_parts_are_those_of_every_version() {
    let parts = |seed| split_at_random(&Arc::new(numbered(10)), &[0.7, 0.3], seed).unwrap();
    assert_eq!(parts(0)[1].indices(), FIRST_TEST_PART);
    assert_ne!(parts(1)[1].indices(), FIRST_TEST_PART);
    let whole: Vec<Subset<Arc<dyn Dataset>>> =
        split_at_random(&(Arc::new(numbered(4)) as Arc<dyn Dataset>), &[0.1; 10], 3).unwrap();
    assert_eq!(whole.iter().map(Dataset::len).sum::<usize>(), 4);
}

/// The test part of ten samples for seed 0. Computed outside this crate, as in `order.rs`.
const FIRST_TEST_PART: [usize; 3] = [0, 8, 9];

#[test]
fn fractions_that_are_no_whole_are_refused() {
    let dataset = Arc::new(numbered(10));
    for fractions in [&[][..], &[0.5], &[0.5, 0.6], &[-0.5, 1.5], &[f64::NAN], &[f64::INFINITY]] {
        assert!(split_at_random(&dataset, fractions, 0).is_err(), "{fractions:?}");
    }
}

#[test]
fn memory_of_what_is_shared_is_told_at_one_address() {
    let numbers = |len: usize| InMemory::new(len).with("x", &[], vec![0_i64; len]).unwrap();
    let shared = Arc::new(numbers(100));
    let mut parts = split_at_random(&shared, &[0.75, 0.25], 0).unwrap();
    let test = parts.pop().unwrap();
    let train = parts.pop().unwrap();
    let all = Concat::new(vec![Arc::new(train), shared, Arc::new(numbers(3))]).unwrap();
    let fields = vec![Field::new("x", ElementType::I64, &[])];
    let all = Mapped::new(all, fields, |_, from, to| {
        to.values::<i64>(0).copy_from_slice(from.values(0));
        Ok(())
    });
    let (mut told, mut parts) = (0, std::collections::BTreeMap::new());
    let mut visit = |address, bytes| {
        told += 1;
        assert_eq!(*parts.entry(address).or_insert(bytes), bytes);
    };
    all.unwrap().visit_memory(&mut visit);
    test.visit_memory(&mut visit);
    // The 100 numbers three times, training and test indices, and three numbers.
    assert_eq!((told, parts.len()), (6, 4));
    assert_eq!(parts.values().sum::<usize>(), 8 * (100 + 75 + 25 + 3));
}
