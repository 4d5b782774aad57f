//! A saved state continues with exactly the remaining batches.

use crate::{WORKERS, drain, numbered, options};
use lowtide_data::{DataError, Loader, LoaderOptions, LoaderState};

const LEN: usize = 23;
const BATCH: usize = 4;
const SEED: u64 = 11;

fn loader(workers: usize) -> Loader {
    Loader::new(numbered(LEN), options(BATCH, workers, SEED)).unwrap()
}

#[test]
fn resuming_after_any_batch_gives_the_tail_with_any_number_of_workers() {
    let whole = drain(loader(0).epoch(3));
    for workers in WORKERS {
        for taken in 0..=whole.len() {
            let mut epoch = loader(workers).epoch(3);
            drop(epoch.by_ref().take(taken).last());
            let state = epoch.state();
            assert_eq!((state.epoch, state.batch), (3, taken));
            for resumed_workers in [0, 2] {
                let rest = loader(resumed_workers).resume(state).unwrap();
                assert_eq!(rest.remaining(), whole.len() - taken);
                assert_eq!(drain(rest), whole[taken..]);
            }
        }
    }
}

#[test]
fn second_resume_in_the_same_epoch_does_not_shift_the_data() {
    let whole = drain(loader(0).epoch(0));
    let mut seen = Vec::new();
    let mut state = loader(2).epoch(0).state();
    while seen.len() < whole.len() {
        let mut epoch = loader(2).resume(state).unwrap();
        seen.extend(drain(epoch.by_ref().take(2)));
        state = epoch.state();
    }
    assert_eq!(seen, whole);
}

#[test]
fn batches_that_were_built_ahead_are_not_counted_as_taken() {
    let loader = loader(4);
    let mut epoch = loader.epoch(0);
    let batch = epoch.next().unwrap().unwrap();
    assert_eq!(epoch.state().batch, 1);
    assert_eq!(batch.state_after(), epoch.state());
}

#[test]
fn state_after_each_batch_gives_what_follows_it() {
    let loader = loader(1);
    let whole = drain(loader.epoch(2));
    let states: Vec<_> = loader.epoch(2).map(|batch| batch.unwrap().state_after()).collect();
    for (at, state) in states.into_iter().enumerate() {
        assert_eq!(drain(loader.resume(state).unwrap()), whole[at + 1..]);
    }
}

#[test]
fn state_at_the_end_of_an_epoch_gives_nothing_and_the_next_epoch_is_whole() {
    let loader = loader(1);
    let mut epoch = loader.epoch(0);
    drain(epoch.by_ref());
    let mut resumed = loader.resume(epoch.state()).unwrap();
    assert!(resumed.next().is_none());
    assert_eq!(resumed.state(), epoch.state());
    assert_eq!(drain(loader.epoch(1)).len(), loader.batches_per_epoch());
}

#[test]
fn state_of_another_loader_is_refused_by_what_differs() {
    let loader = loader(0);
    let state = loader.epoch(0).state();
    let refused = |state: LoaderState| match loader.resume(state) {
        Err(DataError::StateMismatch { what, saved, here }) => (what, saved, here),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(LoaderState { seed: 12, ..state }), ("seed", 12, SEED));
    assert_eq!(refused(LoaderState { batch_size: 5, ..state }), ("batch_size", 5, 4));
    assert_eq!(refused(LoaderState { sample_count: 22, ..state }), ("sample_count", 22, 23));
    assert_eq!(refused(LoaderState { batch: 7, ..state }), ("batch", 7, 6));
    let shorter = LoaderOptions { drop_last: true, ..*loader.options() };
    let shorter = Loader::new(numbered(LEN), shorter).unwrap();
    assert!(shorter.resume(LoaderState { batch: 5, ..state }).is_ok());
    assert!(shorter.resume(LoaderState { batch: 6, ..state }).is_err());
}

#[test]
fn state_survives_json_with_its_largest_numbers() {
    let state = LoaderState {
        epoch: u64::MAX,
        batch: 1,
        seed: u64::MAX - 1,
        batch_size: usize::MAX,
        sample_count: 3,
    };
    let text = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<LoaderState>(&text).unwrap(), state);
    assert!(serde_json::from_str::<LoaderState>(r#"{"epoch":0,"batch":0,"seed":0}"#).is_err());
}
