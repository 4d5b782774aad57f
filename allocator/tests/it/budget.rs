use lowtide_allocator::{CachingAllocator, Category, SimSource};
use proptest::prelude::*;

use crate::common::{Op, PAGE_BYTES, PLENTY, World, fixed_program, program};

proptest! {
    #[test]
    fn peak_is_irreducible(program in program()) {
        let mut ample = World::sim(PLENTY);
        let offsets = ample.run(&program).unwrap();
        let peak_bytes = ample.memory.statistics().reserved.peak_bytes;

        let mut exact = World::sim(peak_bytes);
        prop_assert_eq!(exact.run(&program).unwrap(), offsets);
        prop_assert_eq!(exact.memory.statistics().reserved.peak_bytes, peak_bytes);

        if peak_bytes > 0 {
            let error = World::sim(peak_bytes - 1).run(&program).unwrap_err();
            prop_assert_eq!(error.out_of_memory().unwrap().missing_bytes, 1);
        }
    }

    #[test]
    fn missing_bytes_are_what_the_request_lacked(program in program(), spare in 1..200_000_usize) {
        let capacity_bytes = spare;
        let mut world = World::sim(capacity_bytes);
        for &op in &program {
            let Err(error) = world.step(op) else { continue };
            let ledger = error.out_of_memory().unwrap();
            prop_assert!(ledger.missing_bytes > 0);
            world.memory.set_capacity(capacity_bytes + ledger.missing_bytes - 1);
            prop_assert!(world.step(op).is_err());
            world.memory.set_capacity(capacity_bytes + ledger.missing_bytes);
            prop_assert!(world.step(op).is_ok());
            world.memory.set_capacity(capacity_bytes);
            world.memory.check_invariants();
        }
    }

    #[test]
    fn largest_free_block_can_be_had(program in program()) {
        let mut world = World::sim(100_000);
        for &op in &program {
            let Err(error) = world.step(op) else { continue };
            let ledger = error.out_of_memory().unwrap();
            let (category, bytes) = (ledger.category, ledger.largest_free_bytes);
            if bytes > 0 {
                prop_assert!(world.memory.allocate_in(category, bytes).is_ok());
            }
        }
    }
}

/// A program like a training step: activations accumulate, then gradients are allocated in reverse
/// order.
fn train_step(memory: &CachingAllocator) {
    let mut activations: Vec<_> = (1..20_usize)
        .map(|layer| memory.allocate_in(Category::Activation, layer * 3_000).unwrap())
        .collect();
    let mut gradients = Vec::new();
    while let Some(activation) = activations.pop() {
        let scratch = memory.allocate_in(Category::Workspace, 10_000).unwrap();
        gradients.push(memory.allocate_in(Category::Gradient, 1_000).unwrap());
        drop((activation, scratch));
    }
}

#[test]
fn repeated_step_calls_the_source_no_more() {
    let memory = World::sim(PLENTY).memory;
    let _weights = memory.allocate_in(Category::Parameter, 50_000).unwrap();
    let mut packing = memory.charge(Category::Workspace, 5_000).unwrap();
    train_step(&memory);
    let before = memory.statistics();
    assert!(before.source_calls > 0);
    for _ in 0..10 {
        packing.raise_to(5_000).unwrap();
        train_step(&memory);
    }
    let after = memory.statistics();
    assert_eq!(after.source_calls, before.source_calls);
    assert_eq!(after.reserved.peak_bytes, before.reserved.peak_bytes);
    assert_eq!(after.allocations, 11 * before.allocations - 10);
}

#[test]
fn growth_of_a_charge_takes_the_cache() {
    let memory = World::sim(PLENTY).memory;
    drop(memory.allocate_in(Category::Activation, PAGE_BYTES).unwrap());
    assert_eq!(memory.statistics().cached_bytes(), PAGE_BYTES);
    let _charge = memory.charge(Category::Workspace, 100).unwrap();
    assert_eq!(memory.statistics().reserved.current_bytes, 100);
}

#[test]
fn capacity_below_what_is_reserved_keeps_blocks_and_no_cache() {
    let memory = World::sim(20 * PAGE_BYTES).memory;
    let low = memory.allocate(8 * PAGE_BYTES).unwrap();
    let high = memory.allocate(8 * PAGE_BYTES).unwrap();
    drop(memory.allocate(4 * PAGE_BYTES).unwrap());
    memory.set_capacity(10 * PAGE_BYTES);
    assert_eq!(memory.capacity_bytes(), 10 * PAGE_BYTES);
    assert_eq!(memory.statistics().reserved.current_bytes, 16 * PAGE_BYTES);

    let error = memory.allocate(1).unwrap_err();
    assert_eq!(error.out_of_memory().unwrap().missing_bytes, 7 * PAGE_BYTES);
    // A hole needs no new memory, so it may be used even now.
    drop(low);
    let hole = memory.allocate(PAGE_BYTES).unwrap();
    drop((hole, high));
    let cached_bytes = memory.statistics().reserved.current_bytes;
    assert_eq!(cached_bytes, 9 * PAGE_BYTES, "what is free may be cached within the capacity");
    memory.check_invariants();

    memory.set_capacity(1 << 50);
    assert!(memory.allocate(1 << 43).is_ok(), "it may rise above the capacity of the source");
}

#[test]
fn absurd_requests_are_out_of_memory() {
    for capacity_bytes in [0, PLENTY, usize::MAX] {
        let source = SimSource::with_capacity(capacity_bytes).page_bytes(PAGE_BYTES);
        let memory = CachingAllocator::new(source).unwrap();
        let charge = memory.charge(Category::Other, capacity_bytes.min(1)).unwrap();
        for size_bytes in [usize::MAX, usize::MAX - 511, usize::MAX / 2 + 1] {
            assert!(memory.allocate(size_bytes).unwrap_err().out_of_memory().is_some());
            assert!(memory.charge(Category::Other, size_bytes).is_err());
        }
        drop(charge);
        memory.check_invariants();
        assert_eq!(memory.statistics().reserved.current_bytes, 0);
    }
}

#[test]
fn reset_peaks_start_from_now() {
    let mut world = World::sim(PLENTY);
    world.run(&fixed_program()).unwrap();
    world.buffers.truncate(1);
    world.memory.reset_peaks();
    let statistics = world.memory.statistics();
    let categories = statistics.by_category.iter().map(|(_, counter)| *counter);
    let whole =
        [statistics.requested, statistics.allocated, statistics.reserved, statistics.charged];
    for counter in whole.into_iter().chain(categories) {
        assert_eq!(counter.peak_bytes, counter.current_bytes);
    }
    world.step(Op::Allocate(Category::Input, 10_000)).unwrap();
    let after = world.memory.statistics().requested;
    assert_eq!(after.peak_bytes, statistics.requested.current_bytes + 10_000);
}
