use std::panic::{AssertUnwindSafe, catch_unwind};

use lowtide_allocator::{
    Buffer, CachingAllocator, Category, HostSource, Owner, SimSource, SimStreams, Stream,
};
use proptest::prelude::*;

use crate::common::{Op, PAGE_BYTES, PLENTY, World, program};

fn host() -> CachingAllocator {
    CachingAllocator::checked(HostSource::with_capacity(1 << 30)).unwrap()
}

fn sim() -> CachingAllocator {
    let source = SimSource::with_capacity(PLENTY).page_bytes(PAGE_BYTES);
    CachingAllocator::checked(source).unwrap()
}

/// A pointer to another buffer's byte by its distance, as a wild pointer is.
struct Wild(*mut u8);

impl Wild {
    fn of(buffer: &Buffer) -> Wild {
        Wild(buffer.as_ptr().unwrap().as_ptr())
    }

    #[allow(
        unsafe_code,
        reason = "plays the bug that is to be found, inside memory that is mapped"
    )]
    fn write(&self, distance: isize, byte: u8) {
        // SAFETY: the tests stay inside the committed pages of an allocator that they keep. They
        // hold no reference to its bytes during the write.
        unsafe { self.0.wrapping_offset(distance).write_volatile(byte) };
    }
}

fn panic_of(work: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(work)).expect_err("somebody should notice");
    panic.downcast_ref::<String>().expect("a message").clone()
}

#[test]
fn write_behind_a_block_is_found_when_it_is_dropped() {
    for size_bytes in [0, 1, 447, 448, 449, 511, 512, 5000] {
        for distance in [0, 1, 63] {
            let memory = host();
            let line = line!() + 1;
            let block = memory.allocate(size_bytes).unwrap();
            Wild::of(&block).write((size_bytes + distance) as isize, 7);
            let message = panic_of(|| drop(block));
            let place = format!("{distance} bytes behind the {size_bytes} of block 1");
            assert!(message.contains(&place), "{message}");
            assert!(message.contains(&format!("checked.rs:{line}:")), "{message}");
            memory.check_invariants();
            assert_eq!(memory.statistics().allocated.current_bytes, 0, "it is free all the same");
        }
    }
}

#[test]
fn write_below_a_block_names_the_block() {
    let memory = host();
    let below = memory.allocate(100).unwrap();
    let line = line!() + 1;
    let block = memory.allocate(100).unwrap();
    Wild::of(&block).write(-1, 7);
    let message = panic_of(|| drop(below));
    let place = format!("or below block {}, allocated at", block.serial());
    assert!(message.contains(&place) && message.contains(&format!(".rs:{line}:")), "{message}");
}

#[test]
fn write_after_free_is_found_when_the_memory_is_handed_out() {
    for (distance, size_bytes) in [(0, 1000), (999, 1000), (1023, 1), (77, 5000)] {
        let memory = host();
        let line = line!() + 1;
        let block = memory.allocate(1000).unwrap();
        let (wild, serial) = (Wild::of(&block), block.serial());
        let event = memory.event_count();
        drop(block);
        wild.write(distance, 7);
        // A small block takes only the first half.
        let message = panic_of(|| {
            let first = memory.allocate(size_bytes);
            let second = memory.allocate(size_bytes);
            drop((first, second));
        });
        let place = format!("byte {distance} of block {serial}");
        assert!(message.contains(&place), "{message}");
        assert!(message.contains(&format!("checked.rs:{line}:")), "{message}");
        assert!(message.contains(&format!("event {event}")), "{message}");
        memory.check_invariants();
    }
}

#[test]
fn freed_memory_reads_as_no_number() {
    let memory = host();
    let mut block = memory.allocate(64).unwrap();
    block.as_mut_slice().unwrap().fill(0);
    drop(block);
    let block = memory.allocate(64).unwrap();
    let bytes = block.as_slice().unwrap();
    for word in bytes.chunks_exact(8) {
        assert!(f64::from_ne_bytes(word.try_into().unwrap()).is_nan());
        assert!(f32::from_ne_bytes(word[..4].try_into().unwrap()).is_nan());
    }
}

#[test]
fn pages_that_went_back_are_not_held_against_anybody() {
    let memory = host();
    drop(memory.allocate(1 << 20).unwrap());
    memory.trim();
    let block = memory.allocate(1 << 20).unwrap();
    assert!(block.as_slice().unwrap().iter().all(|&byte| byte == 0), "new memory");
}

#[test]
fn stitched_blocks_are_checked_across_their_pieces() {
    let page_bytes = 64 << 10;
    let memory = host();
    let size_bytes = page_bytes - 512;
    let mut blocks: Vec<Buffer> = (0..8).map(|_| memory.allocate(size_bytes).unwrap()).collect();
    assert_eq!(blocks[1].offset(), page_bytes, "a page each, with its guard");
    let freed = blocks.remove(5);
    let (wild, serial) = (Wild::of(&freed), freed.serial());
    drop((blocks.remove(3), blocks.remove(1), freed));
    wild.write(100, 7);
    let message = panic_of(|| drop(memory.allocate(3 * page_bytes - 512).unwrap()));
    assert!(message.contains(&format!("byte 100 of block {serial}")), "{message}");

    let large = memory.allocate(3 * page_bytes - 512).unwrap();
    assert!(large.is_stitched());
    let middle = large.address() + page_bytes as u64 + 3;
    let Some(Owner::Live(owner)) = memory.owner_of(middle) else { panic!("{large:?}") };
    assert_eq!(owner.serial, large.serial());
    let guard = large.address() + (3 * page_bytes - 512) as u64;
    assert!(matches!(memory.owner_of(guard), Some(Owner::Guard(_))));
    Wild::of(&large).write((3 * page_bytes - 1) as isize, 7);
    assert!(panic_of(|| drop(large)).contains("511 bytes behind"));
}

#[test]
fn address_is_that_of_a_live_block_or_of_the_last_one_there() {
    for memory in [host(), sim()] {
        let first = memory.allocate_in(Category::Gradient, 3000).unwrap();
        let second = memory.allocate(100).unwrap();
        let (start, next) = (first.address(), second.address());
        assert_eq!(next - start, 3072, "3000 and 64 take six times 512");
        let Some(Owner::Live(live)) = memory.owner_of(start + 2999) else { panic!() };
        assert_eq!((live.serial, live.category), (first.serial(), Category::Gradient));
        assert!(matches!(memory.owner_of(start + 3000), Some(Owner::Guard(_))));
        let serial = first.serial();
        drop(first);
        let Some(Owner::Freed(freed)) = memory.owner_of(start + 3071) else { panic!() };
        assert_eq!(freed.block.serial, serial);
        let records = memory.history();
        assert_eq!(records.records()[freed.event as usize].serial, serial);

        let reuse = memory.allocate(1).unwrap();
        assert_eq!(reuse.address(), start);
        assert!(matches!(memory.owner_of(start), Some(Owner::Live(_))));
        assert!(matches!(memory.owner_of(start + 512), Some(Owner::Freed(_))), "the rest");
        assert!(memory.owner_of(start - 1).is_none() && memory.owner_of(next + 512).is_none());
        drop((second, reuse));
        assert!(matches!(memory.owner_of(next), Some(Owner::Freed(_))));
        memory.trim();
        assert!(memory.owner_of(next).is_none(), "its pages went back");
    }
}

#[test]
fn unchecked_allocator_knows_its_live_blocks() {
    let memory = World::sim(PLENTY).memory;
    let block = memory.allocate(100).unwrap();
    let address = block.address();
    assert!(matches!(memory.owner_of(address), Some(Owner::Live(_))));
    drop(block);
    assert!(memory.owner_of(address).is_none());
}

#[test]
fn memory_of_a_source_with_streams_is_left_alone() {
    let source = SimSource::with_capacity(PLENTY).streams(&SimStreams::new());
    let memory = CachingAllocator::checked(source).unwrap();
    let block = memory.allocate_on(Stream::new(1).unwrap(), Category::Other, 100).unwrap();
    let address = block.address();
    drop(block);
    assert!(matches!(memory.owner_of(address), Some(Owner::Freed(_))));
}

#[test]
fn guards_take_room_and_nothing_is_claimed_otherwise() {
    let (memory, plain) = (sim(), World::sim(PLENTY).memory);
    let blocks = [memory.allocate(512).unwrap(), memory.allocate(448).unwrap()];
    let plains = [plain.allocate(512).unwrap(), plain.allocate(448).unwrap()];
    assert_eq!(blocks[1].offset(), 1024);
    assert_eq!(plains[1].offset(), 512);
    let statistics = memory.statistics();
    assert_eq!(statistics.requested, plain.statistics().requested);
    assert_eq!(statistics.allocated.current_bytes, 1024 + 512);
    assert_eq!(blocks[0].pieces()[0], 0..1024, "the guard is a part of the block");
    assert!(memory.allocate(usize::MAX - 10).unwrap_err().out_of_memory().is_some());
}

proptest! {
    #[test]
    fn correct_programs_pass_and_simulations_predict_them(
        before in program(),
        after in program(),
    ) {
        let mut real = World::of(host());
        run_and_write(&mut real, &before);
        let simulation = real.memory.simulate();
        let mut twin = World {
            buffers: real.buffers.iter().map(|b| simulation.adopt(b).unwrap()).collect(),
            charges: real.charges.iter().map(|c| simulation.adopt_charge(c).unwrap()).collect(),
            memory: simulation.allocator().clone(),
        };
        run_and_write(&mut real, &after);
        twin.run(&after).unwrap();
        prop_assert_eq!(real.memory.statistics(), twin.memory.statistics());
        prop_assert_eq!(real.memory.layout_hash(), twin.memory.layout_hash());
    }
}

/// Runs a program, and writes every block to its last byte.
fn run_and_write(world: &mut World, program: &[Op]) {
    for &op in program {
        world.step(op).unwrap();
        if let (Op::Allocate(..), Some(buffer)) = (op, world.buffers.last_mut()) {
            buffer.as_mut_slice().unwrap().fill(0x5a);
        }
        world.memory.check_invariants();
    }
}
