use lowtide_allocator::{Action, Bytes, Category, Fault, Repeat};

use crate::common::{PAGE_BYTES, PLENTY, World};

#[test]
fn out_of_memory_tells_the_whole_story() {
    let memory = World::sim(10 * PAGE_BYTES).memory;
    let _weights = memory.allocate_in(Category::Parameter, 5 * PAGE_BYTES).unwrap();
    let _charge = memory.charge(Category::Workspace, 100).unwrap();
    let line = line!() + 1;
    let error = memory.allocate_in(Category::Activation, 5 * PAGE_BYTES).unwrap_err();
    let ledger = error.out_of_memory().unwrap();
    assert_eq!(ledger.requested_bytes, 5 * PAGE_BYTES);
    assert_eq!(ledger.capacity_bytes, 10 * PAGE_BYTES);
    assert_eq!(ledger.missing_bytes, 100);
    assert_eq!(ledger.charged_bytes, 100);
    assert_eq!(ledger.reserved_bytes, 5 * PAGE_BYTES + 100);
    assert_eq!(ledger.allocated_bytes, 5 * PAGE_BYTES);
    assert_eq!(ledger.cached_bytes, 0);
    assert_eq!(ledger.largest_free_bytes, 4 * PAGE_BYTES);
    assert_eq!(ledger.by_category[Category::Parameter], 5 * PAGE_BYTES);
    assert_eq!(ledger.by_category[Category::Workspace], 100);
    assert_eq!((ledger.site.file(), ledger.site.line()), (file!(), line));
    assert_eq!(ledger.request_index, 3);
    assert!(!ledger.injected);

    let shown = error.to_string();
    let expected = format!(
        "out of memory: 20 KiB of activation asked by {}, 100 B missing; 20.1 KiB of 40 KiB \
         reserved (20 KiB allocated, 100 B charged, 0 B cached), largest free 16 KiB, \
         most in parameter (20 KiB)",
        ledger.site,
    );
    assert_eq!(shown, expected);
    let text = ledger.ledger();
    assert!(text.starts_with(&expected));
    for part in ["40960 B", "20580 B", "    workspace", "request 3", "search, stitch, trim"] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn failure_without_a_limit_tells_no_capacity_and_nothing_missing() {
    let memory = World::sim(PLENTY).memory;
    memory.set_capacity(usize::MAX);
    memory.inject_fault(Fault { nth: 1, repeat: Repeat::Once });
    let error = memory.allocate_in(Category::Activation, 512).unwrap_err();
    let ledger = error.out_of_memory().unwrap();
    let expected = format!(
        "out of memory (injected): 512 B of activation asked by {}; 0 B reserved without a limit \
         (0 B allocated, 0 B charged, 0 B cached), largest free {}",
        ledger.site,
        Bytes(ledger.largest_free_bytes),
    );
    assert_eq!(error.to_string(), expected);
    assert!(!ledger.ledger().contains("capacity"), "{}", ledger.ledger());
}

#[test]
fn live_blocks_name_what_is_left_over() {
    let memory = World::sim(PLENTY).memory;
    let _state = memory.allocate_in(Category::OptimizerState, 10).unwrap();
    let gone = memory.allocate_in(Category::Input, 10).unwrap();
    let line = line!() + 1;
    let _left = memory.allocate_in(Category::Activation, 600).unwrap();
    drop(gone);
    let blocks = memory.live_blocks();
    assert_eq!(blocks.len(), 2);
    assert_eq!(blocks[0].offset, 0);
    let left = blocks[1];
    assert_eq!(left.offset, 1024);
    assert_eq!((left.size_bytes, left.requested_bytes), (1024, 600));
    assert_eq!((left.category, left.site.line()), (Category::Activation, line));
}

#[test]
fn history_tells_events_in_order() {
    let memory = World::sim(2 * PAGE_BYTES).memory;
    let block = memory.allocate_in(Category::Gradient, 600).unwrap();
    drop(memory.charge(Category::Workspace, 9).unwrap());
    drop(block);
    memory.trim();
    memory.allocate(3 * PAGE_BYTES).unwrap_err();
    let history = memory.history();
    assert_eq!(history.overwritten(), 0);
    let told: Vec<_> = history
        .records()
        .iter()
        .map(|record| (record.sequence, record.action, record.category, record.size_bytes))
        .collect();
    assert_eq!(
        told,
        [
            (0, Action::Commit, Category::Gradient, PAGE_BYTES),
            (1, Action::Allocate, Category::Gradient, 1024),
            (2, Action::Charge, Category::Workspace, 9),
            (3, Action::Discharge, Category::Workspace, 9),
            (4, Action::Free, Category::Gradient, 1024),
            (5, Action::Decommit, Category::Other, PAGE_BYTES),
            (6, Action::OutOfMemory, Category::Other, 3 * PAGE_BYTES),
        ],
    );
}

#[test]
fn history_forgets_the_oldest_and_says_how_many() {
    let memory = World::sim(PLENTY).memory;
    let rounds = 80_000;
    for _ in 0..rounds {
        drop(memory.allocate(1).unwrap());
    }
    let history = memory.history();
    let total = 2 * rounds + 1;
    assert_eq!(history.records().len(), 131_072);
    assert_eq!(history.overwritten(), total - 131_072);
    assert_eq!(memory.event_count(), total);
    let sequences = history.records().iter().map(|record| record.sequence);
    assert!(sequences.eq(total - 131_072..total));
}
