//! Tests of PyTorch's `test_dataloader.py` and of torchdata's `StatefulDataLoader`, re-created
//! under their names: the same intent, our own code.
//!
//! In another file: `samplers::test_large_sampler_indices`. Without a counterpart: `test_segfault`
//! (workers are threads, and a process that crashes has no loader left) and
//! `test_worker_seed_reproducibility` (workers have no seeds: a sample is a function of its index,
//! and `test_multi_epochs_reproducibility` shows it).

use crate::{Faulty, Seen, Way, drain, numbered, options, samples_of};
use lowtide_allocator::{HostSource, PinnedCache, SimStreams, Stream};
use lowtide_data::{
    DataError, Dataset, ElementType, Field, Loader, LoaderOptions, LoaderState, SampleError,
    SampleSlot, Sequential,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const WORKERS: [usize; 4] = [0, 1, 2, 8];

/// A fault in a worker reaches the consumer as an error, with its cause, and ends no thread.
#[test]
fn test_error_workers() {
    for way in [Way::Error, Way::PanicText] {
        let loader = Loader::new(Faulty::new(40, 17, way), options(4, 4, 0)).unwrap();
        // There are more errors than workers, so no error ends a worker.
        for epoch in 0..10 {
            let error = loader.epoch(epoch).find_map(Result::err).unwrap();
            let (DataError::Sample { index, .. } | DataError::Panicked { index, .. }) = error
            else {
                panic!("{error}");
            };
            assert_eq!(index, 17);
        }
    }
}

/// A worker fails during its set-up, here at the first sample that it reads.
#[test]
fn test_error_in_init() {
    struct NotThere([Field; 1]);
    impl Dataset for NotThere {
        fn len(&self) -> usize {
            10
        }
        fn fields(&self) -> &[Field] {
            &self.0
        }
        fn write(&self, _index: usize, _slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
            Err(std::io::Error::from(std::io::ErrorKind::NotFound).into())
        }
    }
    for workers in WORKERS {
        let fields = [Field::new("y", ElementType::I64, &[])];
        let options = options(4, workers, 0);
        let loader = Loader::with_sampler(NotThere(fields), Sequential, options).unwrap();
        let error = loader.epoch(0).next().unwrap().unwrap_err();
        assert!(matches!(error, DataError::Sample { index: 0, .. }), "{error}");
        let cause = std::error::Error::source(&error).unwrap();
        assert!(cause.downcast_ref::<std::io::Error>().is_some());
    }
}

/// A dataset that sleeps for ever at sample 3, unless its epoch is dropped.
struct Sleeps([Field; 1]);

impl Dataset for Sleeps {
    fn len(&self) -> usize {
        8
    }
    fn fields(&self) -> &[Field] {
        &self.0
    }
    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        while index == 3 && !slot.is_cancelled() {
            std::thread::yield_now();
        }
        Ok(())
    }
}

#[test]
fn test_timeout() {
    let timeout = Some(Duration::from_millis(20));
    let options = LoaderOptions { timeout, ..options(2, 2, 0) };
    let dataset = Sleeps([Field::new("y", ElementType::I64, &[])]);
    let loader = Loader::with_sampler(dataset, Sequential, options).unwrap();
    for epoch in 0..3 {
        let mut epoch = loader.epoch(epoch);
        assert!(epoch.next().unwrap().is_ok());
        let error = epoch.next().unwrap().unwrap_err();
        assert_eq!(error.to_string(), "sample 3 was not loaded within 20ms");
    }
}

/// Every worker ends, in whichever order loader, epoch and batches are dropped.
#[test]
fn test_proper_exit() {
    for workers in WORKERS {
        for order in 0..4 {
            let dataset = Arc::new(numbered(30));
            let loader = Loader::new(Arc::clone(&dataset), options(2, workers, 0)).unwrap();
            let mut epoch = loader.epoch(0);
            let batch = epoch.next();
            match order {
                0 => drop((loader, epoch, batch)),
                1 => drop((epoch, loader, batch)),
                2 => drop((batch, loader, epoch)),
                _ => drop((epoch, batch, loader)),
            }
            assert_eq!(Arc::strong_count(&dataset), 1);
        }
    }
}

/// The consumer panics in the middle of an epoch.
#[test]
fn test_early_exit() {
    let dataset = Arc::new(numbered(1000));
    let theirs = Arc::clone(&dataset);
    let consumer = std::thread::spawn(move || {
        let loader = Loader::new(theirs, options(1, 2, 0)).unwrap();
        for (count, batch) in loader.epoch(0).enumerate() {
            let _batch = batch.unwrap();
            if count == 5 {
                std::panic::resume_unwind(Box::new("enough"));
            }
        }
    });
    assert!(consumer.join().is_err());
    assert_eq!(Arc::strong_count(&dataset), 1);
}

/// There are more workers than samples, or than batches.
#[test]
fn test_partial_workers() {
    let loader = Loader::with_sampler(numbered(3), Sequential, options(1, 16, 0)).unwrap();
    assert_eq!(samples_of(&loader, 0), [0, 1, 2]);
    let loader = Loader::with_sampler(numbered(3), Sequential, options(8, 16, 0)).unwrap();
    assert_eq!(samples_of(&loader, 0), [0, 1, 2]);
}

#[test]
fn test_multi_epochs_reproducibility() {
    let epochs = |workers| {
        let loader = Loader::new(numbered(20), options(3, workers, 9)).unwrap();
        let epochs: Vec<_> = (0..4).map(|epoch| drain(loader.epoch(epoch))).collect();
        epochs
    };
    let first = epochs(0);
    assert!(first.windows(2).all(|pair| pair[0] != pair[1]), "epochs differ");
    for workers in WORKERS {
        assert_eq!(epochs(workers), first);
    }
}

#[test]
fn test_shuffle_reproducibility() {
    let order = |workers, seed| {
        samples_of(&Loader::new(numbered(50), options(4, workers, seed)).unwrap(), 0)
    };
    for workers in WORKERS {
        assert_eq!(order(workers, 42), order(0, 42));
        assert_ne!(order(workers, 42), order(0, 43));
    }
}

/// Sample 0 is read last, and its batch comes first.
#[test]
fn test_in_order_index_ds() {
    struct Slow {
        inner: lowtide_data::InMemory,
        others: AtomicUsize,
    }
    impl Dataset for Slow {
        fn len(&self) -> usize {
            self.inner.len()
        }
        fn fields(&self) -> &[Field] {
            self.inner.fields()
        }
        fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
            self.inner.write(index, slot)?;
            if index > 0 {
                self.others.fetch_add(1, Ordering::SeqCst);
            }
            while index == 0 && self.others.load(Ordering::SeqCst) < 3 {
                std::thread::yield_now();
            }
            Ok(())
        }
    }
    let dataset = Slow { inner: numbered(8), others: AtomicUsize::new(0) };
    let loader = Loader::with_sampler(dataset, Sequential, options(1, 2, 0)).unwrap();
    assert_eq!(samples_of(&loader, 0), (0..8).collect::<Vec<_>>());
}

/// The state that a dataset keeps between samples survives epochs, because nothing copies it.
#[test]
fn test_dataset_not_reset() {
    let dataset = Arc::new(Faulty::new(10, usize::MAX, Way::Error));
    let loader = Loader::new(Arc::clone(&dataset), options(2, 2, 0)).unwrap();
    for epoch in 0..3 {
        assert_eq!(drain(loader.epoch(epoch)).len(), 5);
        assert_eq!(dataset.writes.load(Ordering::Relaxed), 10 * (epoch as usize + 1));
    }
}

#[test]
fn test_invalid_ctor_args_combinations() {
    let refused = |options: LoaderOptions| match Loader::new(numbered(4), options) {
        Err(DataError::InvalidOption { option, value: 0 }) => option,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(options(0, 1, 0)), "batch_size");
    assert_eq!(refused(LoaderOptions { prefetch: 0, ..options(1, 1, 0) }), "prefetch");
    let timeout = Some(Duration::ZERO);
    assert_eq!(refused(LoaderOptions { timeout, ..options(1, 1, 0) }), "timeout");
    let timeout = Some(Duration::from_secs(1));
    assert_eq!(refused(LoaderOptions { timeout, ..options(1, 0, 0) }), "workers with a timeout");
}

/// States are taken after every n-th batch.
#[test]
fn test_mp_every_n_steps() {
    let loader = |workers| Loader::new(numbered(45), options(4, workers, 2)).unwrap();
    let whole = drain(loader(0).epoch(2));
    for every in [1, 2, 3, 7] {
        for workers in WORKERS {
            let loader = loader(workers);
            let mut epoch = loader.epoch(2);
            let mut taken = 0;
            while epoch.remaining() >= every {
                taken += drain(epoch.by_ref().take(every)).len();
                assert_eq!(drain(loader.resume(epoch.state()).unwrap()), whole[taken..]);
            }
        }
    }
}

/// torchdata refuses a state of another number of workers. This loader accepts such a state.
#[test]
fn test_num_workers_mismatch() {
    let loader = |workers| Loader::new(numbered(20), options(3, workers, 2)).unwrap();
    let whole = drain(loader(0).epoch(1));
    for (before, after) in [(3, 0), (0, 3), (2, 8)] {
        let mut epoch = loader(before).epoch(1);
        drop(epoch.by_ref().take(3).last());
        assert_eq!(drain(loader(after).resume(epoch.state()).unwrap()), whole[3..]);
    }
}

/// A shuffled epoch is interrupted by an error of its consumer.
#[test]
fn test_map_iterrupted_shuffle() {
    for workers in WORKERS {
        let dataset = Arc::new(numbered(33));
        let loader = Loader::new(Arc::clone(&dataset), options(4, workers, 5)).unwrap();
        let whole = drain(loader.epoch(6));
        let stop = AtomicBool::new(false);
        let mut state = None;
        for batch in loader.epoch(6) {
            let batch = batch.unwrap();
            state = Some(batch.state_after());
            if stop.fetch_or(true, Ordering::Relaxed) {
                break;
            }
        }
        let rest = loader.resume(state.unwrap()).unwrap();
        assert_eq!(drain(rest), whole[2..]);
    }
}

/// The boundary of two epochs: a state after the last batch gives no batch, and the next epoch
/// begins at its first batch.
#[test]
fn test_end_of_epoch_behavior() {
    for workers in WORKERS {
        let loader = Loader::new(numbered(8), options(2, workers, 1)).unwrap();
        for number in 0..4 {
            let mut epoch = loader.epoch(number);
            epoch.build_ahead(number + 1);
            assert_eq!(drain(epoch.by_ref()).len(), 4);
            let state = epoch.state();
            drop(epoch);
            assert_eq!(loader.resume(state).unwrap().next().map(|batch| batch.is_ok()), None);
            let next = drain(loader.epoch(number + 1));
            assert_eq!(next.iter().map(|seen| seen.index).collect::<Vec<_>>(), [0, 1, 2, 3]);
        }
    }
}

/// A state that is taken while batches are built ahead skips no batch.
#[test]
fn test_fast_state_dict_request_skip_steps() {
    let loader = Loader::new(numbered(64), options(1, 8, 0)).unwrap();
    let whole = drain(loader.epoch(0));
    let mut epoch = loader.epoch(0);
    for (taken, expected) in whole.iter().enumerate() {
        assert_eq!(epoch.state().batch, taken);
        assert_eq!(&Seen::of(&epoch.next().unwrap().unwrap()), expected);
        assert_eq!(epoch.state().batch, taken + 1);
    }
}

#[test]
fn test_json_serde_multi_process() {
    for workers in WORKERS {
        let loader = Loader::new(numbered(20), options(3, workers, u64::MAX)).unwrap();
        let whole = drain(loader.epoch(2));
        let mut epoch = loader.epoch(2);
        drop(epoch.by_ref().take(4).last());
        let text = serde_json::to_string(&epoch.state()).unwrap();
        let state: LoaderState = serde_json::from_str(&text).unwrap();
        assert_eq!(drain(loader.resume(state).unwrap()), whole[4..]);
    }
}

/// A loaded state that was not used yet is returned unchanged.
#[test]
fn test_load_then_state() {
    for workers in WORKERS {
        let loader = Loader::new(numbered(20), options(3, workers, 0)).unwrap();
        let mut epoch = loader.epoch(3);
        drop(epoch.by_ref().take(2).last());
        let state = epoch.state();
        let resumed = loader.resume(state).unwrap();
        assert_eq!(resumed.state(), state);
        let again = loader.resume(resumed.state()).unwrap();
        assert_eq!(drain(resumed), drain(again));
    }
}

/// Batches in page-locked memory have the same bytes, and no buffer is written while the device
/// still copies from it.
#[test]
fn test_pin_memory() {
    let copies = Stream::new(1).unwrap();
    for workers in WORKERS {
        let options = options(4, workers, 0);
        let plain = Loader::new(numbered(40), options).unwrap();
        let mut locked = Loader::new(numbered(40), options).unwrap();
        let streams = SimStreams::new();
        let memory = HostSource::with_capacity(locked.page_locked_bytes());
        let memory = PinnedCache::new(memory, streams.clone()).unwrap();
        locked.lock_pages(&memory, copies).unwrap();
        assert_eq!(
            memory.allocator().statistics().reserved.current_bytes,
            locked.page_locked_bytes()
        );
        for epoch in 0..3 {
            let mut count = 0;
            for (locked, plain) in locked.epoch(epoch).zip(plain.epoch(epoch)) {
                let (locked, plain) = (locked.unwrap(), plain.unwrap());
                let (block, _) = locked.fields().next().unwrap().page_locked().unwrap();
                // The host has written the buffer, so the previous copy is complete. Another copy
                // begins.
                streams.touch(&[block.block()]).unwrap();
                streams.launch(copies, &[block.block()]).unwrap();
                for (locked, plain) in locked.fields().zip(plain.fields()) {
                    let (block, range) = locked.page_locked().unwrap();
                    assert_eq!(&block.as_slice()[range], plain.bytes());
                    assert_eq!(locked.bytes(), plain.bytes());
                    assert!(plain.page_locked().is_none());
                }
                count += 1;
            }
            assert_eq!(count, 10);
        }
        let small = PinnedCache::new(HostSource::with_capacity(1), SimStreams::new()).unwrap();
        let options = LoaderOptions { batch_size: 20_000, ..options };
        let mut large = Loader::new(numbered(20_000), options).unwrap();
        let error = large.lock_pages(&small, copies).unwrap_err();
        assert!(matches!(error, DataError::Staging { .. }), "{error}");
        assert_eq!(large.epoch(0).next().unwrap().unwrap().len(), 20_000);
    }
}
