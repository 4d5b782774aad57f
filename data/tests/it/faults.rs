//! Samples that fail: the error arrives in order, with its index, and the loader continues.

use crate::{Faulty, Seen, Unreadable, WORKERS, Way, numbered, options};
use lowtide_data::{
    DataError, Dataset, ElementType, EpochKey, Field, IndexOutOfRange, Loader, LoaderOptions,
    Order, SampleError, SampleSlot, Sampler, Sequential,
};
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

const LEN: usize = 20;
const BATCH: usize = 3;

/// The batches before the fault, and the error. Checks that nothing comes after the error.
fn run_into_fault(loader: &Loader, fault: usize) -> DataError {
    let mut epoch = loader.epoch(0);
    for index in 0..fault / BATCH {
        assert_eq!(Seen::of(&epoch.next().unwrap().unwrap()).index, index);
    }
    let error = epoch.next().unwrap().unwrap_err();
    assert!(epoch.next().is_none(), "an epoch is over after an error");
    assert_eq!(epoch.state().batch, fault / BATCH, "the state names the batch that failed");
    error
}

#[test]
fn error_at_any_sample_arrives_in_its_place_with_its_index_and_cause() {
    for workers in WORKERS {
        for fault in 0..LEN {
            let dataset = Faulty::new(LEN, fault, Way::Error);
            let loader =
                Loader::with_sampler(dataset, Sequential, options(BATCH, workers, 0)).unwrap();
            let error = run_into_fault(&loader, fault);
            assert!(matches!(error, DataError::Sample { index, .. } if index == fault), "{error}");
            let cause = error.source().and_then(|cause| cause.downcast_ref::<Unreadable>());
            assert_eq!(cause, Some(&Unreadable));
        }
    }
}

#[test]
fn panic_at_a_sample_arrives_as_an_error_with_its_message() {
    let ways = [
        (Way::PanicText, "torn page"),
        (Way::PanicFormatted, "torn page 7"),
        (Way::PanicValue, "payload is not text"),
    ];
    for workers in WORKERS {
        for (way, expected) in ways {
            let dataset = Faulty::new(LEN, 7, way);
            let loader =
                Loader::with_sampler(dataset, Sequential, options(BATCH, workers, 0)).unwrap();
            for _ in 0..3 {
                match run_into_fault(&loader, 7) {
                    DataError::Panicked { index: 7, message } => assert_eq!(message, expected),
                    error => panic!("{way:?} gave {error}"),
                }
            }
        }
    }
}

#[test]
fn loader_gives_whole_epochs_after_a_fault_is_gone() {
    /// A dataset that fails at sample 7 until it is repaired.
    struct Mended {
        inner: Faulty,
        whole: AtomicBool,
    }
    impl Dataset for Mended {
        fn len(&self) -> usize {
            self.inner.len()
        }
        fn fields(&self) -> &[Field] {
            self.inner.fields()
        }
        fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
            match self.inner.write(index, slot) {
                Err(_) if self.whole.load(Ordering::Relaxed) => Ok(()),
                result => result,
            }
        }
    }
    for workers in WORKERS {
        let dataset = Arc::new(Mended {
            inner: Faulty::new(LEN, 7, Way::Error),
            whole: AtomicBool::new(false),
        });
        let options = options(BATCH, workers, 0);
        let loader = Loader::with_sampler(Arc::clone(&dataset), Sequential, options).unwrap();
        let mut epoch = loader.epoch(0);
        let failed_at = loop {
            let before = epoch.state();
            if epoch.next().unwrap().is_err() {
                break before;
            }
        };
        assert_eq!(failed_at, epoch.state());
        dataset.whole.store(true, Ordering::Relaxed);
        let rest: Vec<_> = loader
            .resume(failed_at)
            .unwrap()
            .flat_map(|batch| batch.unwrap().sample_indices().to_vec())
            .collect();
        assert_eq!(rest, (6..LEN).collect::<Vec<_>>());
        assert_eq!(loader.epoch(1).filter(Result::is_ok).count(), LEN.div_ceil(BATCH));
    }
}

#[test]
fn first_of_two_faults_is_reported_even_if_the_second_happens_before_it() {
    /// A dataset whose sample 0 fails only after sample 1 has failed on the other worker.
    struct Crossed {
        fields: [Field; 1],
        second_is_done: Barrier,
    }
    impl Dataset for Crossed {
        fn len(&self) -> usize {
            2
        }
        fn fields(&self) -> &[Field] {
            &self.fields
        }
        fn write(&self, index: usize, _slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
            self.second_is_done.wait();
            Err(Box::new(IndexOutOfRange { index, len: 0 }))
        }
    }
    let fields = [Field::new("y", ElementType::I64, &[])];
    let dataset = Crossed { fields, second_is_done: Barrier::new(2) };
    let loader = Loader::with_sampler(dataset, Sequential, options(1, 2, 0)).unwrap();
    for epoch in 0..20 {
        let error = loader.epoch(epoch).next().unwrap().unwrap_err();
        assert!(matches!(error, DataError::Sample { index: 0, .. }), "{error}");
    }
}

#[test]
fn sampler_that_leaves_the_dataset_is_an_error() {
    struct Beyond;
    impl Sampler for Beyond {
        fn order(&self, _key: EpochKey, len: usize) -> Box<dyn Order> {
            Box::new(vec![0, len, 0])
        }
    }
    let loader = Loader::with_sampler(numbered(3), Beyond, options(3, 0, 0)).unwrap();
    let error = loader.epoch(0).next().unwrap().unwrap_err();
    let cause = error.source().and_then(|cause| cause.downcast_ref::<IndexOutOfRange>());
    assert_eq!(cause, Some(&IndexOutOfRange { index: 3, len: 3 }));
}

#[test]
fn dropping_the_loader_and_its_epochs_leaves_no_thread_with_the_dataset() {
    for workers in WORKERS {
        for taken in [0, 1, 2, 7] {
            let dataset = Arc::new(numbered(LEN));
            let loader = Loader::new(Arc::clone(&dataset), options(BATCH, workers, 0)).unwrap();
            let mut epoch = loader.epoch(0);
            drop(loader);
            let held = epoch.by_ref().take(taken).last();
            drop(epoch);
            // Each worker holds a handle of the dataset until the worker ends.
            assert_eq!(Arc::strong_count(&dataset), 1, "{workers} workers, {taken} batches");
            if let Some(batch) = held {
                assert_eq!(Seen::of(&batch.unwrap()).index, taken.min(7) - 1);
            }
        }
    }
}

#[test]
fn dropping_an_epoch_early_stops_its_work() {
    /// A dataset whose sample 1 is not done before its epoch is dropped.
    struct Slow {
        fields: [Field; 1],
        writes: AtomicUsize,
        begun: Barrier,
    }
    impl Dataset for Slow {
        fn len(&self) -> usize {
            1000
        }
        fn fields(&self) -> &[Field] {
            &self.fields
        }
        fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
            self.writes.fetch_add(1, Ordering::Relaxed);
            if index == 1 {
                self.begun.wait();
                while !slot.is_cancelled() {
                    std::thread::yield_now();
                }
            }
            Ok(())
        }
    }
    let fields = [Field::new("y", ElementType::U8, &[])];
    let dataset = Arc::new(Slow { fields, writes: AtomicUsize::new(0), begun: Barrier::new(2) });
    let options = LoaderOptions { prefetch: 100, ..options(1, 1, 0) };
    let loader = Loader::with_sampler(Arc::clone(&dataset), Sequential, options).unwrap();
    let mut epoch = loader.epoch(0);
    drop(epoch.next());
    dataset.begun.wait();
    drop(epoch);
    // A hundred batches were submitted; the batches after sample 1 are not read.
    assert_eq!(dataset.writes.load(Ordering::Relaxed), 2);
}
