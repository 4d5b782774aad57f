use lowtide_allocator::{
    CachingAllocator, Fence, MemorySource, PageRange, Segment, SimSource, SimStreams, SourceError,
    Stream, VirtualMemory,
};

use crate::common::{PAGE_BYTES, PLENTY};
use crate::streams::{StreamOp, StreamWorld, stream};

/// A fence with a fault, over streams that detect it.
struct Faulty {
    inner: SimSource,
    streams: SimStreams,
    fault: FenceFault,
}

#[derive(Clone, Copy, Debug)]
enum FenceFault {
    DoesNothing,
    WrongStream,
    WrongWay,
}

impl Fence for Faulty {
    fn wait(&self, waiter: Stream, on: Stream) -> Result<(), SourceError> {
        match self.fault {
            FenceFault::DoesNothing => Ok(()),
            FenceFault::WrongStream => self.streams.wait(waiter, stream((on.index() + 1) % 5)),
            FenceFault::WrongWay => self.streams.wait(on, waiter),
        }
    }

    fn wait_host(&self, on: Stream) -> Result<(), SourceError> {
        self.streams.wait_host(on)
    }
}

impl MemorySource for Faulty {
    fn capacity_bytes(&self) -> usize {
        self.inner.capacity_bytes()
    }

    fn page_bytes(&self) -> usize {
        PAGE_BYTES
    }

    fn reserve(&self, size_bytes: usize) -> Result<Segment, SourceError> {
        self.inner.reserve(size_bytes)
    }

    fn release(&self, _: &Segment) {}

    fn commit(&self, _: &Segment, _: &PageRange) -> Result<(), SourceError> {
        Ok(())
    }

    fn decommit(&self, _: &Segment, _: &PageRange) {}

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.inner.virtual_memory()
    }

    fn fence(&self) -> Option<&dyn Fence> {
        Some(self)
    }
}

fn with_fault(fault: FenceFault) -> StreamWorld {
    let streams = SimStreams::new();
    let inner = SimSource::with_capacity(PLENTY).page_bytes(PAGE_BYTES);
    let source = Faulty { inner, streams: streams.clone(), fault };
    StreamWorld::of(CachingAllocator::new(source).unwrap(), streams)
}

/// Programs that do not depend on the seeds of proptest, so that failures can be counted.
fn fixed_programs() -> Vec<Vec<StreamOp>> {
    let mut state = 1_u64;
    let mut draw = |below: usize| {
        // Knuth's MMIX generator.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 33) as usize % below
    };
    let mut program = || {
        let op = |_| match draw(20) {
            0..9 => StreamOp::Allocate(draw(5), draw(6 * PAGE_BYTES)),
            9..13 => StreamOp::UseOn(draw(1000), draw(5)),
            _ => StreamOp::Free(draw(1000)),
        };
        (0..80).map(op).collect()
    };
    (0..100).map(|_| program()).collect()
}

#[test]
fn fence_with_a_fault_is_found_out() {
    let programs = fixed_programs();
    let clean = programs.iter().all(|program| StreamWorld::new().run(program).is_ok());
    assert!(clean, "the programs are at fault");
    for fault in [FenceFault::DoesNothing, FenceFault::WrongStream, FenceFault::WrongWay] {
        let found = programs.iter().filter(|program| with_fault(fault).run(program).is_err());
        assert!(found.count() > programs.len() * 9 / 10, "{fault:?}");
    }
}

#[test]
fn use_that_nobody_notes_is_found_out() {
    let program = [
        StreamOp::Allocate(1, 1000),
        StreamOp::UseOn(0, 2),
        StreamOp::Free(0),
        StreamOp::Allocate(1, 1000),
    ];
    let mut world = StreamWorld::new();
    world.run(&program).unwrap();
    assert_eq!(world.waits(), [(1, 2)]);
    let mut world = StreamWorld::new();
    world.forgotten = Some(0);
    let early = world.run(&program).unwrap_err();
    assert_eq!((early.stream, early.running_on), (Some(stream(1)), stream(2)));
    assert_eq!((early.offset, early.previous_serial, early.serial), (0, 1, 2));

    let found = fixed_programs().into_iter().filter(|program| {
        (0..10).any(|nth| {
            let mut world = StreamWorld::new();
            world.forgotten = Some(nth);
            world.run(program).is_err()
        })
    });
    assert!(found.count() > 50);
}
