//! Samples that are skipped because they cannot be read.

use crate::{Faulty, Way, options};
use lowtide_data::{
    Batch, DataError, Dataset, ElementType, Field, Loader, LoaderOptions, OnBadSample, SampleError,
    SampleSlot, Sequential,
};
use proptest::prelude::*;

const WORKERS: [usize; 4] = [0, 1, 2, 8];

/// A dataset of one number per sample; the listed samples fail, every second of these by a panic.
struct Torn {
    fields: [Field; 2],
    len: usize,
    bad: Vec<usize>,
}

impl Torn {
    fn new(len: usize, bad: &[usize]) -> Self {
        let field = |name, shape: &[usize]| Field::new(name, ElementType::I64, shape);
        Self { fields: [field("y", &[]), field("x", &[3])], len, bad: bad.to_vec() }
    }
}

impl Dataset for Torn {
    fn len(&self) -> usize {
        self.len
    }
    fn fields(&self) -> &[Field] {
        &self.fields
    }
    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        slot.values::<i64>(0)[0] = index as i64;
        slot.values::<i64>(1).fill(index as i64);
        match self.bad.iter().position(|&bad| bad == index) {
            None => Ok(()),
            Some(at) if at % 2 == 0 => Err(format!("{index} is torn").into()),
            Some(_) => panic!("{index} is torn"),
        }
    }
}

fn loader(len: usize, bad: &[usize], skip_max: usize, workers: usize) -> Loader {
    let on_bad_sample = OnBadSample::Skip(skip_max);
    let options = LoaderOptions { on_bad_sample, ..options(4, workers, 0) };
    Loader::with_sampler(Torn::new(len, bad), Sequential, options).unwrap()
}

/// Values, samples and skipped samples of a batch, or the index of an error.
type Outcome = Result<(Vec<i64>, Vec<usize>, Vec<usize>), usize>;

fn outcome(batch: Result<Batch, DataError>) -> Outcome {
    match batch {
        Ok(batch) => {
            let [y, x] = ["y", "x"].map(|name| {
                batch.field(name).expect("there").values::<i64>().expect("i64").to_vec()
            });
            assert_eq!(x.chunks(3).map(|x| x[0]).collect::<Vec<_>>(), y);
            assert_eq!(batch.field("x").expect("there").shape(), [batch.len(), 3]);
            let skipped = batch.skipped().iter().map(|skipped| skipped.index).collect();
            Ok((y, batch.sample_indices().to_vec(), skipped))
        }
        Err(DataError::Sample { index, .. } | DataError::Panicked { index, .. }) => Err(index),
        Err(error) => panic!("{error}"),
    }
}

/// The expected outcomes, computed without a loader.
fn naive(len: usize, bad: &[usize], skip_max: usize) -> Vec<Outcome> {
    let (mut outcomes, mut left) = (Vec::new(), skip_max);
    for start in (0..len).step_by(4) {
        let batch = start..len.min(start + 4);
        let (skipped, kept): (Vec<usize>, Vec<usize>) =
            batch.partition(|index| bad.contains(index));
        if skipped.len() > left || kept.is_empty() {
            let fatal = if skipped.len() > left { left } else { 0 };
            outcomes.push(Err(skipped[fatal]));
            break;
        }
        left -= skipped.len();
        outcomes.push(Ok((kept.iter().map(|&at| at as i64).collect(), kept, skipped)));
    }
    outcomes
}

#[test]
fn batch_comes_without_its_bad_samples_and_names_them_with_their_errors() {
    for workers in WORKERS {
        let loader = loader(12, &[0, 5, 6], 3, workers);
        let mut epoch = loader.epoch(0);
        let first = epoch.next().unwrap().unwrap();
        assert_eq!((first.sample_indices(), first.len()), (&[1, 2, 3][..], 3));
        assert!(matches!(first.skipped()[0].error, DataError::Sample { index: 0, .. }));
        let second = epoch.next().unwrap().unwrap();
        assert_eq!(second.sample_indices(), [4, 7]);
        let skipped: Vec<_> = second.skipped().iter().map(|skipped| skipped.index).collect();
        assert_eq!((skipped, epoch.skipped()), (vec![5, 6], 3));
        assert!(matches!(&second.skipped()[0].error, DataError::Panicked { index: 5, .. }));
        drop((first, second));
        let third = epoch.next().unwrap().unwrap();
        assert_eq!((third.len(), third.skipped().len()), (4, 0));
        assert!(epoch.next().is_none());
        // The next epoch may skip the full number again.
        assert!(loader.epoch(1).all(|batch| batch.is_ok()));
    }
}

#[test]
fn one_bad_sample_too_many_is_the_error() {
    for workers in WORKERS {
        let loader = loader(12, &[0, 5, 6], 2, workers);
        let mut epoch = loader.epoch(0);
        assert!(epoch.next().unwrap().is_ok());
        assert_eq!(outcome(epoch.next().unwrap()), Err(6));
        assert!(epoch.next().is_none());
        assert_eq!((epoch.state().batch, epoch.skipped()), (1, 1));
    }
}

#[test]
fn batch_without_a_good_sample_is_the_error_of_its_first() {
    for workers in WORKERS {
        let loader = loader(12, &[4, 5, 6, 7], 100, workers);
        let outcomes: Vec<_> = loader.epoch(0).map(outcome).collect();
        assert_eq!((outcomes.len(), &outcomes[1]), (2, &Err(4)));
    }
}

#[test]
fn nothing_is_skipped_unless_it_is_asked_for() {
    let dataset = Faulty::new(8, 3, Way::Error);
    let loader = Loader::with_sampler(dataset, Sequential, options(4, 0, 0)).unwrap();
    assert_eq!(loader.options().on_bad_sample, OnBadSample::Fail);
    assert!(loader.epoch(0).next().unwrap().is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..Default::default() })]

    #[test]
    fn skipping_equals_its_naive_twin_at_any_number_of_workers(
        len in 1_usize..40,
        bad in prop::collection::btree_set(0_usize..40, 0..12),
        skip_max in 0_usize..12,
    ) {
        let bad: Vec<usize> = bad.into_iter().filter(|&index| index < len).collect();
        let expected = naive(len, &bad, skip_max);
        for workers in WORKERS {
            let loader = loader(len, &bad, skip_max, workers);
            let outcomes: Vec<_> = loader.epoch(2).map(outcome).collect();
            prop_assert_eq!(&outcomes, &expected);
        }
    }
}
