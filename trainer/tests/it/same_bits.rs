//! Runs with the same settings have the same bits, however they are computed.

use lowtide_trainer::Options;

use crate::common::{KINDS, Run};

#[test]
fn same_seed_gives_the_same_state_and_another_seed_another() {
    for kind in KINDS {
        let run = Run { kind, epochs: 2, ..Run::default() };
        let hash = run.fit(None).state_hash;
        assert_eq!(run.fit(None).state_hash, hash, "{kind:?}");
        assert_ne!(Run { seed: 8, ..run }.fit(None).state_hash, hash, "{kind:?}");
    }
}

#[test]
fn loader_workers_do_not_change_the_state() {
    let run = Run { train_len: 200, epochs: 2, batch_size: 32, ..Run::default() };
    let hash = run.fit(None).state_hash;
    for workers in [1, 2] {
        assert_eq!(Run { workers, ..run }.fit(None).state_hash, hash, "{workers} workers");
    }
}

#[test]
fn device_threads_do_not_change_the_state() {
    let run = Run { train_len: 200, epochs: 2, ..Run::default() };
    let hash = run.fit(None).state_hash;
    for threads in [2, 3] {
        assert_eq!(Run { threads, ..run }.fit(None).state_hash, hash, "{threads} threads");
    }
}

#[test]
fn budget_that_allows_the_same_parts_does_not_change_the_state() {
    let run = Run::default();
    let free = run.fit(None);
    let tight = run.fit(Some(free.measured_peak_bytes));
    assert_eq!(tight.state_hash, free.state_hash);
    let parts_bytes = run.budget_for(48);
    let parts = run.fit(Some(parts_bytes));
    assert_eq!(run.fit(Some(parts_bytes + 1)).state_hash, parts.state_hash);
    assert_ne!(parts.state_hash, free.state_hash, "float addition is not associative");
}

#[test]
fn watching_does_not_change_the_state() {
    let run = Run::default();
    let watched = run.fit_with(None, Options::default(), |device, _| {
        device.allocator().trim();
        device.allocator().history();
    });
    assert_eq!(watched.state_hash, run.fit(None).state_hash);
}
