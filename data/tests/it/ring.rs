//! The staging ring: its size is fixed, and waiting for a buffer always ends.

use crate::{Seen, WORKERS, drain, numbered, options};
use lowtide_data::{Batch, DataError, Loader, LoaderOptions};
use std::collections::BTreeSet;

const PREFETCH: usize = 3;

fn loader(workers: usize) -> Loader {
    let options = LoaderOptions { prefetch: PREFETCH, ..options(2, workers, 5) };
    Loader::new(numbered(40), options).unwrap()
}

fn address(batch: &Batch) -> usize {
    batch.fields().next().unwrap().bytes().as_ptr().addr()
}

#[test]
fn batches_live_in_at_most_prefetch_plus_workers_buffers() {
    for workers in WORKERS {
        let loader = loader(workers);
        let epochs = (0..5).flat_map(|epoch| loader.epoch(epoch));
        let addresses: BTreeSet<_> = epochs.map(|batch| address(&batch.unwrap())).collect();
        assert!(addresses.len() <= PREFETCH + workers);
        // Fields: wide 2x24, odd 2x5, x 2x8, y 2x8 bytes, each but the last rounded up to 64.
        assert_eq!(loader.staging_bytes(), (PREFETCH + workers) * (3 * 64 + 16));
    }
}

#[test]
fn holding_every_batch_is_an_error_and_dropping_one_lets_the_epoch_go_on() {
    for workers in WORKERS {
        let loader = loader(workers);
        let expected = drain(loader.epoch(0));
        let slots = PREFETCH + workers;
        let mut epoch = loader.epoch(0);
        let mut held: Vec<_> = epoch.by_ref().take(slots).map(Result::unwrap).collect();
        for _ in 0..3 {
            let error = epoch.next().unwrap().unwrap_err();
            assert!(matches!(error, DataError::StagingExhausted { slots: n } if n == slots));
            assert_eq!(epoch.remaining(), expected.len() - slots);
        }
        // Held batches are not overwritten, whichever batch is dropped.
        drop(held.remove(1));
        held.push(epoch.next().unwrap().unwrap());
        let seen: Vec<_> = held.iter().map(Seen::of).collect();
        assert_eq!(seen[0], expected[0]);
        assert_eq!(seen[1..], expected[2..=slots]);
        drop(held);
        assert_eq!(drain(epoch), expected[slots + 1..]);
    }
}

#[test]
fn batch_outlives_its_epoch_and_its_loader() {
    for workers in WORKERS {
        let loader = loader(workers);
        let expected = drain(loader.epoch(0)).swap_remove(0);
        let mut epoch = loader.epoch(0);
        let batch = epoch.next().unwrap().unwrap();
        drop(epoch);
        drop(loader);
        assert_eq!(Seen::of(&batch), expected);
    }
}

#[test]
fn epoch_dropped_early_gives_every_buffer_back() {
    for workers in WORKERS {
        let loader = loader(workers);
        for epoch in 0..50 {
            drop(loader.epoch(epoch).next());
        }
        let mut epoch = loader.epoch(0);
        let held: Vec<_> = epoch.by_ref().take(PREFETCH + workers).collect();
        assert!(held.iter().all(Result::is_ok));
    }
}

#[test]
fn two_epochs_at_once_share_the_ring_without_mixing() {
    for workers in WORKERS {
        let loader = loader(workers);
        let alone = [drain(loader.epoch(1)), drain(loader.epoch(2))];
        let mut epochs = [loader.epoch(1), loader.epoch(2)];
        // With workers the first epoch builds ahead in every buffer.
        let first = epochs[0].next().unwrap().unwrap();
        assert_eq!(Seen::of(&first), alone[0][0]);
        drop(first);
        let [one, two] = &mut epochs;
        assert_eq!(drain(one.by_ref()), alone[0][1..]);
        assert_eq!(drain(two.by_ref()), alone[1]);
    }
}

#[test]
fn batches_can_be_used_and_dropped_on_other_threads() {
    let loader = loader(2);
    let expected = drain(loader.epoch(0));
    let seen: Vec<_> = loader
        .epoch(0)
        .map(|batch| {
            let batch = batch.unwrap();
            std::thread::spawn(move || Seen::of(&batch)).join().unwrap()
        })
        .collect();
    assert_eq!(seen, expected);
}

#[test]
fn options_that_no_loader_can_have_are_refused_by_name() {
    let refused = |options: LoaderOptions| match Loader::new(numbered(4), options) {
        Err(DataError::InvalidOption { option, value }) => (option, value),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(options(0, 0, 0)), ("batch_size", 0));
    assert_eq!(refused(LoaderOptions { prefetch: 0, ..options(1, 2, 0) }), ("prefetch", 0));
    let workers = usize::MAX;
    assert_eq!(refused(options(1, workers, 0)), ("workers", workers));
}

#[test]
fn samples_larger_than_the_address_space_are_refused() {
    use lowtide_data::{Dataset, ElementType, Field, SampleError, SampleSlot};
    struct Vast([Field; 1]);
    impl Dataset for Vast {
        fn len(&self) -> usize {
            4
        }
        fn fields(&self) -> &[Field] {
            &self.0
        }
        fn write(&self, _index: usize, _slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
            Ok(())
        }
    }
    for shape in [vec![usize::MAX / 8], vec![usize::MAX, 2]] {
        let dataset = Vast([Field::new("x", ElementType::F32, &shape)]);
        let error = Loader::new(dataset, options(4, 0, 0)).unwrap_err();
        assert!(matches!(error, DataError::InvalidOption { option: "batch_size", .. }), "{error}");
    }
    let dataset = Vast([Field::new("x", ElementType::U8, &[1 << 58])]);
    let error = Loader::new(dataset, options(4, 0, 0)).unwrap_err();
    assert!(matches!(error, DataError::Staging { .. }), "{error}");
}
