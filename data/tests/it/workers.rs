//! Workers share the samples of a batch, and their timing has no visible effect.

use crate::{Seen, WORKERS, drain, numbered, options};
use lowtide_data::{
    DataError, Dataset, ElementType, Field, InMemory, Loader, LoaderOptions, SampleError,
    SampleSlot, Sequential,
};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

fn one_field() -> [Field; 1] {
    [Field::new("y", ElementType::I64, &[])]
}

/// A dataset whose `write` waits at a barrier, until the barrier's number of samples are being
/// written.
struct Together {
    fields: [Field; 1],
    len: usize,
    barrier: Barrier,
}

impl Dataset for Together {
    fn len(&self) -> usize {
        self.len
    }
    fn fields(&self) -> &[Field] {
        &self.fields
    }
    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        self.barrier.wait();
        slot.values::<i64>(0)[0] = index as i64;
        Ok(())
    }
}

#[test]
fn workers_share_the_samples_of_one_batch() {
    // There is one batch of 64, so all 8 samples at once are in one batch.
    let dataset = Together { fields: one_field(), len: 64, barrier: Barrier::new(8) };
    let loader = Loader::with_sampler(dataset, Sequential, options(64, 8, 0)).unwrap();
    for epoch in 0..3 {
        let batch = loader.epoch(epoch).next().unwrap().unwrap();
        let expected: Vec<i64> = (0..64).collect();
        assert_eq!(batch.field("y").unwrap().values::<i64>().unwrap(), expected);
    }
}

/// The samples of another dataset, each delayed by a different number of yields.
struct Delayed {
    inner: InMemory,
    salt: AtomicU64,
}

impl Dataset for Delayed {
    fn len(&self) -> usize {
        self.inner.len()
    }
    fn fields(&self) -> &[Field] {
        self.inner.fields()
    }
    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        let salt = self.salt.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        if salt.is_multiple_of(3) {
            std::thread::sleep(Duration::from_micros(salt >> 56));
        }
        for _ in 0..salt >> 60 {
            std::thread::yield_now();
        }
        self.inner.write(index, slot)
    }
}

#[test]
fn batches_are_the_same_under_delays_resumed_anywhere_in_any_epoch() {
    const LEN: usize = 37;
    let loader = |workers| {
        let dataset = Delayed { inner: numbered(LEN), salt: AtomicU64::new(1) };
        Loader::new(dataset, options(8, workers, 3)).unwrap()
    };
    let plain = Loader::new(numbered(LEN), options(8, 0, 3)).unwrap();
    for workers in WORKERS {
        let loader = loader(workers);
        for epoch in [0, 1, 2, 7] {
            let whole = drain(plain.epoch(epoch));
            assert_eq!(drain(loader.epoch(epoch)), whole);
            for taken in 0..=whole.len() {
                let mut begun = loader.epoch(epoch);
                let head = drain(begun.by_ref().take(taken));
                assert_eq!(head, whole[..taken]);
                let state = begun.state();
                drop(begun);
                assert_eq!(drain(loader.resume(state).unwrap()), whole[taken..]);
            }
        }
    }
}

#[test]
fn lowest_fault_of_a_batch_is_reported_even_if_it_happens_last() {
    /// A dataset whose sample 2 fails only after samples 3 and 4 have failed on other workers.
    struct Late {
        fields: [Field; 1],
        failed: AtomicUsize,
    }
    impl Dataset for Late {
        fn len(&self) -> usize {
            5
        }
        fn fields(&self) -> &[Field] {
            &self.fields
        }
        fn write(&self, index: usize, _slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
            match index {
                0 | 1 => return Ok(()),
                2 => {
                    while self.failed.load(Ordering::SeqCst) == 0 {
                        std::thread::yield_now();
                    }
                }
                _ => drop(self.failed.fetch_add(1, Ordering::SeqCst)),
            }
            Err(format!("{index} is torn").into())
        }
    }
    for _ in 0..200 {
        let dataset = Late { fields: one_field(), failed: AtomicUsize::new(0) };
        let loader = Loader::with_sampler(dataset, Sequential, options(5, 3, 0)).unwrap();
        let error = loader.epoch(0).next().unwrap().unwrap_err();
        assert!(matches!(error, DataError::Sample { index: 2, .. }), "{error}");
    }
}

#[test]
fn next_epoch_is_built_ahead_while_the_last_batches_are_consumed() {
    /// A dataset that counts the samples that were begun.
    struct Counting {
        inner: InMemory,
        begun: AtomicUsize,
    }
    impl Dataset for Counting {
        fn len(&self) -> usize {
            self.inner.len()
        }
        fn fields(&self) -> &[Field] {
            self.inner.fields()
        }
        fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
            self.begun.fetch_add(1, Ordering::SeqCst);
            self.inner.write(index, slot)
        }
    }
    let wait_for = |dataset: &Counting, count| {
        while dataset.begun.load(Ordering::SeqCst) < count {
            std::thread::yield_now();
        }
    };
    let dataset = Arc::new(Counting { inner: numbered(12), begun: AtomicUsize::new(0) });
    let loader = Loader::new(Arc::clone(&dataset), options(3, 1, 0)).unwrap();
    let plain = Loader::new(numbered(12), options(3, 0, 0)).unwrap();
    let mut epoch = loader.epoch(0);
    epoch.build_ahead(1);
    let last = epoch.by_ref().map(Result::unwrap).last().unwrap();
    // The last batch holds one of three buffers. The other two have batches of epoch 1.
    wait_for(&dataset, 12 + 6);
    drop(epoch);
    assert_eq!(last.index(), 3);
    let mut second = loader.epoch(1);
    assert_eq!(Seen::of(&second.next().unwrap().unwrap()), drain(plain.epoch(1))[0]);
    drop((last, second));

    // The state is between two epochs.
    let before = dataset.begun.load(Ordering::SeqCst);
    loader.build_ahead(5);
    loader.build_ahead(5);
    wait_for(&dataset, before + 9);
    assert_eq!(drain(loader.epoch(5)), drain(plain.epoch(5)));
    // No sample was read twice.
    assert_eq!(dataset.begun.load(Ordering::SeqCst), before + 12);
}

#[test]
fn what_was_built_ahead_in_vain_costs_no_buffer_and_no_order() {
    for workers in WORKERS {
        let loader = Loader::new(numbered(20), options(3, workers, 1)).unwrap();
        let plain = Loader::new(numbered(20), options(3, 0, 1)).unwrap();
        for epoch in [0, 3, 4] {
            loader.build_ahead(epoch + 1);
            let mut begun = loader.epoch(epoch);
            begun.build_ahead(99);
            // In the middle of an epoch, the epoch takes the buffers built ahead and gives them
            // back.
            let first = Seen::of(&begun.next().unwrap().unwrap());
            loader.build_ahead(7);
            let mut seen = vec![first];
            seen.extend(drain(begun));
            assert_eq!(seen, drain(plain.epoch(epoch)));
            let state = plain.epoch(epoch + 1).nth(1).unwrap().unwrap().state_after();
            loader.build_ahead(epoch + 1);
            assert_eq!(drain(loader.resume(state).unwrap()), drain(plain.epoch(epoch + 1))[2..]);
        }
        let mut epoch = loader.epoch(0);
        let held: Vec<_> = epoch.by_ref().take(2 + workers).collect();
        assert!(held.iter().all(Result::is_ok), "every buffer is there");
    }
}

#[test]
fn epoch_that_ends_early_takes_what_it_built_ahead_with_it() {
    for taken in [0, 1, 3, 4] {
        let dataset = Arc::new(numbered(12));
        let loader = Loader::new(Arc::clone(&dataset), options(3, 2, 0)).unwrap();
        let mut epoch = loader.epoch(0);
        epoch.build_ahead(1);
        drop(epoch.by_ref().take(taken).last());
        drop((loader, epoch));
        assert_eq!(Arc::strong_count(&dataset), 1);
    }
}

/// A dataset that hangs at one sample until it is freed or, if allowed, cancelled.
struct Hanging {
    fields: [Field; 1],
    hangs: usize,
    hears: bool,
    freed: AtomicUsize,
}

impl Hanging {
    fn new(hangs: usize, hears: bool) -> Arc<Self> {
        Arc::new(Self { fields: one_field(), hangs, hears, freed: AtomicUsize::new(0) })
    }
}

impl Dataset for Hanging {
    fn len(&self) -> usize {
        30
    }
    fn fields(&self) -> &[Field] {
        &self.fields
    }
    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        while index == self.hangs
            && self.freed.load(Ordering::SeqCst) == 0
            && !(self.hears && slot.is_cancelled())
        {
            std::thread::yield_now();
        }
        slot.values::<i64>(0)[0] = index as i64;
        Ok(())
    }
}

fn with_timeout(workers: usize) -> LoaderOptions {
    LoaderOptions { timeout: Some(Duration::from_millis(30)), ..options(5, workers, 0) }
}

#[test]
fn hung_sample_is_a_timeout_that_names_it() {
    for hears in [true, false] {
        for workers in [1, 3] {
            let dataset = Hanging::new(12, hears);
            let options = with_timeout(workers);
            let loader = Loader::with_sampler(Arc::clone(&dataset), Sequential, options).unwrap();
            let mut epoch = loader.epoch(0);
            assert_eq!(drain(epoch.by_ref().take(2)).len(), 2);
            match epoch.next().unwrap().unwrap_err() {
                DataError::Timeout { index: 12, timeout } => {
                    assert_eq!(Some(timeout), options.timeout);
                }
                error => panic!("{error}"),
            }
            assert!(epoch.next().is_none());
            assert_eq!(epoch.state().batch, 2);
            // After a repair, the same loader continues from the state.
            dataset.freed.store(1, Ordering::SeqCst);
            assert_eq!(drain(loader.resume(epoch.state()).unwrap()).len(), 4);
        }
    }
}

#[test]
fn shutdown_does_not_wait_for_a_sample_that_hangs_for_ever() {
    let dataset = Hanging::new(0, false);
    let loader = Loader::with_sampler(Arc::clone(&dataset), Sequential, with_timeout(2)).unwrap();
    let mut epoch = loader.epoch(0);
    assert!(matches!(epoch.next(), Some(Err(DataError::Timeout { index: 0, .. }))));
    drop((epoch, loader));
    // The hanging worker keeps the dataset until its call of `write` returns.
    assert_eq!(Arc::strong_count(&dataset), 2);
    dataset.freed.store(1, Ordering::SeqCst);
    while Arc::strong_count(&dataset) > 1 {
        std::thread::yield_now();
    }
}

#[test]
fn batch_that_takes_longer_than_the_timeout_is_no_error_while_samples_come() {
    /// A dataset that needs 12 ms per sample.
    struct Slow([Field; 1]);
    impl Dataset for Slow {
        fn len(&self) -> usize {
            10
        }
        fn fields(&self) -> &[Field] {
            &self.0
        }
        fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
            std::thread::sleep(Duration::from_millis(12));
            slot.values::<i64>(0)[0] = index as i64;
            Ok(())
        }
    }
    let timeout = Some(Duration::from_millis(100));
    let options = LoaderOptions { timeout, ..options(10, 1, 0) };
    let loader = Loader::with_sampler(Slow(one_field()), Sequential, options).unwrap();
    assert_eq!(drain(loader.epoch(0)).len(), 1);
}
