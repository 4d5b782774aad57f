use std::thread;

use lowtide_allocator::{Category, Fault, HostSource, Repeat};
use proptest::prelude::*;

use crate::common::{Op, PLENTY, World, program};
use crate::simulation::twin_of;

/// True for an operation of the promise's owner that takes pages or gives them back.
fn is_own_business(op: &Op) -> bool {
    matches!(op, Op::Allocate(..) | Op::Free(_) | Op::Charge(..) | Op::Raise(..) | Op::Discharge(_))
}

proptest! {
    /// The bytes that a simulation without a limit reserves are enough, whatever other threads do.
    #[test]
    fn requests_within_a_promise_never_fail(before in program(), after in program()) {
        let mut real = World::new(HostSource::with_capacity(4_000_000));
        for op in before {
            let _ = real.step(op);
        }
        real.memory.trim();
        real.memory.reset_peaks();
        let after: Vec<Op> = after.into_iter().filter(is_own_business).collect();
        let mut twin = twin_of(&real);
        twin.memory.set_capacity(PLENTY);
        twin.memory.reset_peaks();
        for &op in &after {
            twin.step(op).expect("without a limit");
        }
        let peak_bytes = twin.memory.statistics().reserved.peak_bytes;

        real.memory.set_capacity(peak_bytes);
        let promise = real.memory.promise(peak_bytes).expect("that much there is");
        real.memory.set_capacity(0);
        real.memory.inject_fault(Fault { nth: 1, repeat: Repeat::Forever });
        let neighbour = real.memory.clone();
        thread::spawn(move || {
            neighbour.trim();
            assert!(neighbour.allocate(1).unwrap_err().out_of_memory().is_some());
            assert!(neighbour.charge(Category::Other, 1).is_err());
            assert!(neighbour.promise(0).is_err());
        }).join().expect("no panic");
        for op in after {
            real.step(op).expect("it was promised");
            real.memory.check_invariants();
        }
        prop_assert_eq!(real.memory.layout_hash(), twin.memory.layout_hash());
        prop_assert!(real.memory.statistics().reserved.peak_bytes <= peak_bytes);

        drop(promise);
        prop_assert_eq!(real.memory.capacity_bytes(), 0);
        prop_assert!(real.memory.allocate(1).is_err(), "fault and capacity are back");
        real.memory.check_invariants();
    }
}

#[test]
fn promise_that_cannot_be_kept_is_not_made() {
    let world = World::sim(1 << 20);
    let hash = world.memory.layout_hash();
    let error = world.memory.promise((1 << 20) + 1).unwrap_err();
    assert_eq!(error.out_of_memory().expect("too little").missing_bytes, 1);
    world.memory.inject_fault(Fault { nth: 1, repeat: Repeat::Once });
    assert!(world.memory.promise(1).unwrap_err().out_of_memory().expect("a fault").injected);
    let first = world.memory.promise(1 << 20).unwrap();
    assert!(world.memory.promise(0).is_err(), "one at a time");
    drop(first);
    assert_eq!(world.memory.layout_hash(), hash);
    assert_eq!(world.memory.trim(), 1 << 20);
}
