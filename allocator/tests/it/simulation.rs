use lowtide_allocator::{Category, Fault, HostSource, Repeat};
use proptest::prelude::*;

use crate::common::{Op, PLENTY, World, fixed_program, program};

/// A world on the simulation, with a copy of every object of `real`.
pub(crate) fn twin_of(real: &World) -> World {
    let simulation = real.memory.simulate();
    World {
        buffers: real.buffers.iter().map(|b| simulation.adopt(b).unwrap()).collect(),
        charges: real.charges.iter().map(|c| simulation.adopt_charge(c).unwrap()).collect(),
        memory: simulation.allocator().clone(),
    }
}

proptest! {
    #[test]
    fn continuation_is_the_same_on_real_and_simulated(
        before in program(),
        after in program(),
        capacity in 200_000..2_000_000_usize,
    ) {
        let mut real = World::new(HostSource::with_capacity(capacity));
        for op in before {
            // Failures are part of the copied state.
            let _ = real.step(op);
        }
        let mut twin = twin_of(&real);
        prop_assert_eq!(real.memory.statistics(), twin.memory.statistics());
        for op in after {
            let (expected, got) = (real.step(op), twin.step(op));
            twin.memory.check_invariants();
            match (expected, got) {
                (Ok(expected), Ok(got)) => prop_assert_eq!(expected, got),
                (Err(expected), Err(got)) => {
                    prop_assert_eq!(expected.out_of_memory(), got.out_of_memory());
                }
                (expected, got) => prop_assert!(false, "{expected:?} against {got:?}"),
            }
            prop_assert_eq!(real.memory.statistics(), twin.memory.statistics());
            prop_assert_eq!(real.memory.layout_hash(), twin.memory.layout_hash());
        }
    }
}

#[test]
fn simulation_does_not_touch_the_original() {
    let mut real = World::sim(PLENTY);
    real.run(&fixed_program()).unwrap();
    let (statistics, hash) = (real.memory.statistics(), real.memory.layout_hash());
    let mut twin = twin_of(&real);
    twin.run(&fixed_program()).unwrap();
    twin.memory.set_capacity(0);
    drop(twin);
    assert_eq!(real.memory.statistics(), statistics);
    assert_eq!(real.memory.layout_hash(), hash);
}

#[test]
fn block_is_adopted_once_and_by_its_own_simulation() {
    let real = World::sim(PLENTY).memory;
    let old = real.allocate(100).unwrap();
    let charge = real.charge(Category::Other, 50).unwrap();
    let simulation = real.simulate();
    let twin = simulation.adopt(&old).unwrap();
    assert_eq!((twin.offset(), twin.size_bytes()), (old.offset(), old.size_bytes()));
    assert_eq!(twin.as_ptr(), None);
    assert!(simulation.adopt(&old).is_none(), "adopted already");
    assert!(simulation.adopt(&twin).is_none(), "a twin is no block of the original");
    assert!(simulation.adopt_charge(&charge).is_some());
    assert!(simulation.adopt_charge(&charge).is_none());

    drop(old);
    let new = real.allocate(100).unwrap();
    assert_eq!(new.offset(), twin.offset());
    assert!(simulation.adopt(&new).is_none(), "not live when the simulation was made");

    let stranger = World::sim(PLENTY).memory;
    let others: Vec<_> = (0..5).map(|_| stranger.allocate(100).unwrap()).collect();
    let fresh = real.simulate();
    for other in &others {
        assert!(fresh.adopt(other).is_none(), "a block of another allocator");
    }
    assert!(fresh.adopt(&new).is_some());
    assert!(simulation.allocator().simulate().adopt(&twin).is_some(), "simulations nest");
}

#[test]
fn blocks_that_nobody_adopts_stay_live() {
    let real = World::sim(PLENTY).memory;
    let (block, charge) = (real.allocate(100).unwrap(), real.charge(Category::Other, 7).unwrap());
    let simulation = real.simulate();
    drop((block, charge));
    let statistics = simulation.allocator().statistics();
    assert_eq!(statistics.allocated.current_bytes, 512);
    assert_eq!(statistics.charged.current_bytes, 7);
    assert_eq!(simulation.allocator().allocate(1).unwrap().offset(), 512);
}

#[test]
fn adopted_charge_can_be_raised_and_dropped() {
    let real = World::sim(PLENTY).memory;
    let mut charge = real.charge(Category::Workspace, 100).unwrap();
    let simulation = real.simulate();
    charge.raise_to(1000).unwrap();
    let mut twin = simulation.adopt_charge(&charge).unwrap();
    assert_eq!(twin.size_bytes(), 100, "the bytes of the moment of the copy");
    twin.raise_to(150).unwrap();
    assert_eq!(simulation.allocator().statistics().charged.current_bytes, 150);
    drop(twin);
    assert_eq!(simulation.allocator().statistics().charged.current_bytes, 0);
}

#[test]
fn simulation_starts_without_faults_and_seals_and_history() {
    let mut real = World::sim(PLENTY);
    real.step(Op::Allocate(Category::Other, 1)).unwrap();
    real.memory.inject_fault(Fault { nth: 1, repeat: Repeat::Forever });
    let _seal = real.memory.seal();
    let _scope = real.memory.category(Category::Gradient);
    let simulation = real.memory.simulate();
    assert!(simulation.allocator().history().records().is_empty());
    assert_eq!(simulation.allocator().allocate(1).unwrap().category(), Category::Gradient);
}
