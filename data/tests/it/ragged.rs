//! Samples of different lengths in one batch.

use crate::{WORKERS, drain, options};
use lowtide_data::{
    Collate, DataError, Dataset, ElementType, Field, Loader, LoaderOptions, OnBadSample,
    SampleError, SampleSlot, Sequential, TooLong,
};
use proptest::prelude::*;
use std::error::Error;

const LEN_MAX: usize = 5;

/// A dataset whose sample `i` has `lengths[i]` items of two numbers in both fields, and label `i`.
struct Texts {
    fields: [Field; 3],
    lengths: Vec<usize>,
}

impl Texts {
    fn new(lengths: &[usize]) -> Self {
        let fields = [
            Field::ragged("padded", ElementType::I32, LEN_MAX, &[2], Collate::Padded),
            Field::ragged("packed", ElementType::U16, LEN_MAX, &[2], Collate::Packed),
            Field::new("y", ElementType::I64, &[]),
        ];
        Self { fields, lengths: lengths.to_vec() }
    }
}

/// The numbers of sample `index`, none of them 0.
fn numbers(index: usize, len: usize) -> impl Iterator<Item = usize> {
    (0..2 * len).map(move |at| 1 + index * 2 * LEN_MAX + at)
}

impl Dataset for Texts {
    fn len(&self) -> usize {
        self.lengths.len()
    }
    fn fields(&self) -> &[Field] {
        &self.fields
    }
    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        let len = self.lengths[index];
        for (to, from) in slot.ragged::<i32>(0, len)?.iter_mut().zip(numbers(index, len)) {
            *to = from as i32;
        }
        for (to, from) in slot.ragged::<u16>(1, len)?.iter_mut().zip(numbers(index, len)) {
            *to = from as u16;
        }
        slot.values::<i64>(2)[0] = index as i64;
        Ok(())
    }
}

/// Compares a view with its samples, looked up one by one.
fn check_view(view: &lowtide_data::BatchView<'_>, lengths: &[usize]) {
    let samples = view.sample_indices();
    let of: Vec<i64> = samples.iter().map(|&index| lengths[index] as i64).collect();
    let padded = view.field("padded").unwrap();
    assert_eq!(padded.shape(), [samples.len(), LEN_MAX, 2]);
    let packed = view.field("packed").unwrap();
    assert_eq!(packed.shape(), [of.iter().sum::<i64>() as usize, 2]);
    assert_eq!((padded.lengths(), packed.lengths()), (Some(&of[..]), Some(&of[..])));
    for name in ["padded.length", "packed.length"] {
        assert_eq!(view.field(name).unwrap().values::<i64>(), Some(&of[..]));
    }
    let mask = view.field("padded.mask").unwrap();
    assert_eq!(mask.shape(), [samples.len(), LEN_MAX]);
    assert!(view.field("packed.mask").is_none());
    let (mask, padded) = (mask.values::<bool>().unwrap(), padded.values::<i32>().unwrap());
    assert_eq!(view.field("padded").unwrap().offsets(), None);
    let (offsets, packed) = (packed.offsets().unwrap(), packed.values::<u16>().unwrap());
    assert_eq!((offsets.len(), offsets[0]), (samples.len() + 1, 0));
    for (row, &index) in samples.iter().enumerate() {
        let len = lengths[index];
        let there: Vec<bool> = (0..LEN_MAX).map(|at| at < len).collect();
        assert_eq!(mask[row * LEN_MAX..][..LEN_MAX], there);
        let expected: Vec<usize> = numbers(index, len).collect();
        let own: Vec<usize> = packed[2 * offsets[row]..2 * offsets[row + 1]]
            .iter()
            .map(|&value| usize::from(value))
            .collect();
        assert_eq!(own, expected);
        let filled = expected.iter().map(|&value| value as i32).chain(std::iter::repeat(0));
        let filled: Vec<i32> = filled.take(2 * LEN_MAX).collect();
        assert_eq!(padded[row * 2 * LEN_MAX..][..2 * LEN_MAX], filled);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..Default::default() })]

    #[test]
    fn ragged_batches_and_their_slices_equal_their_naive_twins(
        lengths in prop::collection::vec(0_usize..=LEN_MAX + 1, 1..24),
        cut in any::<prop::sample::Index>(),
        workers in 0_usize..3,
    ) {
        // Samples that are too long are skipped, so packing must work with gaps too.
        let on_bad_sample = OnBadSample::Skip(usize::MAX);
        let options = LoaderOptions { on_bad_sample, ..options(6, workers, 4) };
        let loader = Loader::new(Texts::new(&lengths), options).unwrap();
        for epoch in 0..2 {
            for batch in loader.epoch(epoch) {
                let Ok(batch) = batch else { break };
                check_view(&batch.view(), &lengths);
                let cut = cut.index(batch.len() + 1);
                check_view(&batch.slice(0..cut), &lengths);
                check_view(&batch.slice(cut..batch.len()), &lengths);
                let labels = batch.field("y").unwrap().values::<i64>().unwrap().to_vec();
                let expected: Vec<_> =
                    batch.sample_indices().iter().map(|&index| index as i64).collect();
                prop_assert_eq!(labels, expected);
                prop_assert!(batch.skipped().iter().all(|bad| lengths[bad.index] > LEN_MAX));
            }
        }
    }
}

#[test]
fn ragged_batches_are_the_same_at_any_number_of_workers() {
    let lengths: Vec<usize> = (0..31).map(|index| index * 7 % (LEN_MAX + 1)).collect();
    let batches = |workers| {
        let loader = Loader::new(Texts::new(&lengths), options(4, workers, 1)).unwrap();
        drain(loader.epoch(0).chain(loader.epoch(1)))
    };
    for workers in WORKERS {
        assert_eq!(batches(workers), batches(0));
    }
}

#[test]
fn sample_longer_than_the_declared_maximum_is_an_error_with_both_lengths() {
    let dataset = Texts::new(&[0, LEN_MAX, LEN_MAX + 1]);
    let loader = Loader::with_sampler(dataset, Sequential, options(3, 0, 0)).unwrap();
    let error = loader.epoch(0).next().unwrap().unwrap_err();
    assert!(matches!(error, DataError::Sample { index: 2, .. }), "{error}");
    let cause = error.source().and_then(|cause| cause.downcast_ref::<TooLong>());
    let expected = TooLong { field: "padded".into(), len: LEN_MAX + 1, len_max: LEN_MAX };
    assert_eq!(cause, Some(&expected));
}

#[test]
fn ragged_field_asked_for_as_a_whole_has_the_greatest_length() {
    struct Whole([Field; 1]);
    impl Dataset for Whole {
        fn len(&self) -> usize {
            2
        }
        fn fields(&self) -> &[Field] {
            &self.0
        }
        fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
            if index == 1 {
                slot.values::<u8>(0).fill(9);
            }
            Ok(())
        }
    }
    let field = Field::ragged("x", ElementType::U8, 3, &[], Collate::Packed);
    let loader = Loader::with_sampler(Whole([field]), Sequential, options(2, 0, 0)).unwrap();
    let batch = loader.epoch(0).next().unwrap().unwrap();
    let x = batch.field("x").unwrap();
    assert_eq!((x.lengths(), x.bytes()), (Some(&[0, 3][..]), &[9, 9, 9][..]));
}
