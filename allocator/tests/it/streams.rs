use std::ops::Range;

use lowtide_allocator::{
    Action, Buffer, CachingAllocator, Category, EarlyReuse, Fault, Fence, HostSource, Repeat,
    SimSource, SimStreams, Stream,
};
use proptest::prelude::*;

use crate::common::{PAGE_BYTES, PLENTY};

/// One step of a random program on streams. Indices are taken modulo the number of live blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StreamOp {
    Allocate(usize, usize),
    /// Work on another stream than the block's own. The block records the use, and the stream waits
    /// for the owner.
    UseOn(usize, usize),
    /// Work on the block's own stream.
    Use(usize),
    Free(usize),
    Charge(usize),
    Trim,
}

/// Objects of a program. Each block is used as soon as it is allocated.
pub(crate) struct StreamWorld {
    pub(crate) memory: CachingAllocator,
    streams: SimStreams,
    pub(crate) buffers: Vec<(Stream, Buffer)>,
    /// Number of the `UseOn` from now that is not reported to the allocator.
    pub(crate) forgotten: Option<usize>,
}

pub(crate) fn stream(index: usize) -> Stream {
    Stream::new(index).unwrap()
}

pub(crate) fn device(streams: &SimStreams) -> SimSource {
    SimSource::with_capacity(PLENTY).page_bytes(PAGE_BYTES).streams(streams)
}

impl StreamWorld {
    pub(crate) fn new() -> StreamWorld {
        let streams = SimStreams::new();
        StreamWorld::of(CachingAllocator::new(device(&streams)).unwrap(), streams)
    }

    pub(crate) fn of(memory: CachingAllocator, streams: SimStreams) -> StreamWorld {
        StreamWorld { memory, streams, buffers: Vec::new(), forgotten: None }
    }

    /// Runs one step. Returns the pieces if the step allocated.
    pub(crate) fn step(&mut self, op: StreamOp) -> Result<Vec<Range<usize>>, EarlyReuse> {
        let pick = |index: usize| index % self.buffers.len().max(1);
        match op {
            StreamOp::Allocate(on, size_bytes) => {
                let on = stream(on);
                let buffer = match self.memory.allocate_on(on, Category::Other, size_bytes) {
                    Ok(buffer) => buffer,
                    Err(error) => {
                        assert!(self.memory.capacity_bytes() < PLENTY, "{error}");
                        return Ok(Vec::new());
                    }
                };
                let pieces = buffer.pieces();
                let launched = self.streams.launch(on, &[&buffer]);
                self.buffers.push((on, buffer));
                launched?;
                return Ok(pieces);
            }
            StreamOp::UseOn(index, on) => {
                if let Some((owner, buffer)) = self.buffers.get(pick(index)) {
                    let is_forgotten = self.forgotten == Some(0);
                    self.forgotten = self.forgotten.and_then(|nth| nth.checked_sub(1));
                    if !is_forgotten {
                        buffer.record_use(stream(on));
                    }
                    self.streams.wait(stream(on), *owner).unwrap();
                    self.streams.launch(stream(on), &[buffer])?;
                }
            }
            StreamOp::Use(index) => {
                if let Some((owner, buffer)) = self.buffers.get(pick(index)) {
                    self.streams.launch(*owner, &[buffer])?;
                }
            }
            StreamOp::Free(index) => {
                if !self.buffers.is_empty() {
                    drop(self.buffers.swap_remove(pick(index)));
                }
            }
            StreamOp::Charge(size_bytes) => {
                let charged = self.memory.charge(Category::Other, size_bytes);
                assert!(charged.is_ok() || self.memory.capacity_bytes() < PLENTY);
            }
            StreamOp::Trim => {
                self.memory.trim();
            }
        }
        Ok(Vec::new())
    }

    pub(crate) fn run(&mut self, program: &[StreamOp]) -> Result<Vec<Range<usize>>, EarlyReuse> {
        let mut pieces = Vec::new();
        for &op in program {
            pieces.extend(self.step(op)?);
            self.memory.check_invariants();
        }
        Ok(pieces)
    }

    /// (Waiter, awaited stream) of all waits, in the order of enqueueing.
    pub(crate) fn waits(&self) -> Vec<(usize, usize)> {
        let history = self.memory.history();
        let waits = history.records().iter().filter(|record| record.action == Action::Wait);
        waits.map(|record| (record.stream.index(), record.offset)).collect()
    }
}

fn size_bytes() -> impl Strategy<Value = usize> {
    prop_oneof![0..600_usize, 0..6 * PAGE_BYTES, (0..8_usize).prop_map(|n| n * PAGE_BYTES)]
}

pub(crate) fn stream_op(stream_count: usize) -> impl Strategy<Value = StreamOp> {
    let on = 0..stream_count;
    prop_oneof![
        8 => (on.clone(), size_bytes()).prop_map(|(on, size)| StreamOp::Allocate(on, size)),
        3 => (any::<usize>(), on).prop_map(|(index, on)| StreamOp::UseOn(index, on)),
        2 => any::<usize>().prop_map(StreamOp::Use),
        7 => any::<usize>().prop_map(StreamOp::Free),
        1 => size_bytes().prop_map(StreamOp::Charge),
        1 => Just(StreamOp::Trim),
    ]
}

pub(crate) fn stream_program() -> impl Strategy<Value = Vec<StreamOp>> {
    (1..=5_usize).prop_flat_map(|count| prop::collection::vec(stream_op(count), 1..150))
}

proptest! {
    #[test]
    fn no_memory_is_reused_early(program in stream_program()) {
        let mut world = StreamWorld::new();
        if let Err(early) = world.run(&program) {
            prop_assert!(false, "{early}");
        }
    }

    #[test]
    fn no_memory_is_reused_early_where_it_is_short(
        program in stream_program(),
        capacities in prop::collection::vec(0..30_usize, 1..5),
    ) {
        let mut world = StreamWorld::new();
        let turn_len = program.len().div_ceil(capacities.len());
        for (capacity, ops) in capacities.iter().zip(program.chunks(turn_len)) {
            world.memory.set_capacity(capacity * PAGE_BYTES);
            if let Err(early) = world.run(ops) {
                prop_assert!(false, "{early}");
            }
        }
    }

    #[test]
    fn same_program_gives_the_same_history(program in stream_program()) {
        let mut worlds = [StreamWorld::new(), StreamWorld::new()];
        let [one, two] = worlds.each_mut().map(|world| {
            world.run(&program).unwrap();
            let history = world.memory.history();
            let plain = |record: &lowtide_allocator::Record| {
                let site = std::panic::Location::caller();
                lowtide_allocator::Record { site, ..*record }
            };
            history.records().iter().map(plain).collect::<Vec<_>>()
        });
        prop_assert_eq!(one, two);
    }

    #[test]
    fn source_without_a_fence_has_one_stream(program in stream_program()) {
        let source = SimSource::with_capacity(PLENTY).page_bytes(PAGE_BYTES);
        let memory = CachingAllocator::new(source).unwrap();
        let mut many = StreamWorld::of(memory, SimStreams::new());
        let mut one = StreamWorld::new();
        for op in program {
            // The streams of the program belong to no device here, so only the allocations matter.
            let alone = match op {
                StreamOp::Allocate(_, size_bytes) => StreamOp::Allocate(0, size_bytes),
                StreamOp::UseOn(index, _) => StreamOp::Use(index),
                other => other,
            };
            let on_one = one.step(alone).unwrap();
            if let StreamOp::Allocate(on, size_bytes) = op {
                let on = stream(on);
                let buffer = many.memory.allocate_on(on, Category::Other, size_bytes).unwrap();
                prop_assert_eq!(buffer.pieces(), on_one);
                many.buffers.push((on, buffer));
            } else if let StreamOp::UseOn(index, on) = op {
                let index = index % many.buffers.len().max(1);
                if let Some((_, buffer)) = many.buffers.get(index) {
                    buffer.record_use(stream(on));
                }
            } else if !matches!(op, StreamOp::Use(_)) {
                many.step(op).unwrap();
            }
        }
        prop_assert_eq!(many.memory.statistics(), one.memory.statistics());
        prop_assert_eq!(many.memory.statistics().waits, 0);
        prop_assert_eq!(one.memory.statistics().waits, 0);
    }

    #[test]
    fn note_of_the_own_stream_changes_nothing(program in stream_program()) {
        let (mut silent, mut noisy) = (StreamWorld::new(), StreamWorld::new());
        for op in program {
            prop_assert_eq!(silent.step(op), noisy.step(op));
            for (owner, buffer) in &noisy.buffers {
                buffer.record_use(*owner);
            }
        }
        prop_assert_eq!(silent.waits(), noisy.waits());
        prop_assert_eq!(silent.memory.statistics(), noisy.memory.statistics());
    }

    #[test]
    fn failed_requests_leave_later_ones_their_places(
        program in stream_program(),
        failing in prop::collection::vec((0..5_usize, 0..3_u8), 150),
    ) {
        let (mut calm, mut troubled) = (StreamWorld::new(), StreamWorld::new());
        for (op, (on, way)) in program.into_iter().zip(failing) {
            let memory = &troubled.memory;
            let allocate = |size_bytes| {
                memory.allocate_on(stream(on), Category::Other, size_bytes).map(drop)
            };
            let failed = match way {
                0 => allocate(2 * PLENTY),
                1 => memory.charge(Category::Other, 2 * PLENTY).map(drop),
                _ => {
                    memory.inject_fault(Fault { nth: 1, repeat: Repeat::Once });
                    allocate(8 * PAGE_BYTES)
                }
            };
            prop_assert!(failed.is_err());
            prop_assert_eq!(calm.step(op), troubled.step(op));
            troubled.memory.check_invariants();
        }
        prop_assert_eq!(calm.waits(), troubled.waits());
    }

    #[test]
    fn simulation_waits_where_the_original_would(
        before in stream_program(),
        after in stream_program(),
    ) {
        let mut real = StreamWorld::new();
        real.run(&before).unwrap();
        let simulation = real.memory.simulate();
        let adopt = |(on, buffer): &(Stream, Buffer)| (*on, simulation.adopt(buffer).unwrap());
        let mut twin = StreamWorld::of(simulation.allocator().clone(), SimStreams::new());
        twin.buffers = real.buffers.iter().map(adopt).collect();
        let waited_before = real.waits().len();
        for op in after {
            let pieces = real.step(op).unwrap();
            // The simulation has its own streams: only the decisions are compared.
            let twin_pieces = twin.step(op).unwrap_or_else(|_| {
                twin.buffers.last().unwrap().1.pieces()
            });
            if !pieces.is_empty() {
                prop_assert_eq!(pieces, twin_pieces);
            }
            twin.memory.check_invariants();
            prop_assert_eq!(real.memory.statistics(), twin.memory.statistics());
        }
        prop_assert_eq!(&real.waits()[waited_before..], twin.waits());
    }

    #[test]
    fn equal_blocks_are_not_stranded_on_their_streams(
        program in stream_program(),
        size_bytes in prop_oneof![1..PAGE_BYTES, (1..5_usize).prop_map(|n| n * PAGE_BYTES)],
    ) {
        let equal = |op: &StreamOp, own: Option<usize>| match *op {
            StreamOp::Allocate(on, _) => StreamOp::Allocate(own.unwrap_or(on), size_bytes),
            other => other,
        };
        let (mut many, mut one) = (StreamWorld::new(), StreamWorld::new());
        let (mut live_count_max, mut end_max) = (0, 0);
        for op in &program {
            for piece in many.step(equal(op, None)).unwrap() {
                end_max = end_max.max(piece.end);
            }
            one.step(equal(op, Some(0))).unwrap();
            live_count_max = live_count_max.max(many.buffers.len());
        }
        prop_assert_eq!(end_max, live_count_max * size_bytes.next_multiple_of(512));
        if size_bytes % PAGE_BYTES == 0 {
            let peaks = [many, one].map(|world| world.memory.statistics().reserved.peak_bytes);
            prop_assert_eq!(peaks[0], peaks[1]);
        }
    }

    #[test]
    fn steps_on_streams_in_turns_take_what_one_stream_takes(
        weights in prop::collection::vec(size_bytes(), 0..5),
        step in prop::collection::vec((size_bytes(), any::<bool>()), 1..20),
        stream_count in 2..5_usize,
    ) {
        let peak_bytes = |stream_count: usize| {
            let mut world = StreamWorld::new();
            for &size_bytes in &weights {
                world.step(StreamOp::Allocate(0, size_bytes)).unwrap();
            }
            for turn in 0..6 {
                for &(size_bytes, frees_first) in &step {
                    if frees_first && world.buffers.len() > weights.len() {
                        world.step(StreamOp::Free(weights.len())).unwrap();
                    }
                    world.step(StreamOp::Allocate(turn % stream_count, size_bytes)).unwrap();
                }
                world.buffers.truncate(weights.len());
            }
            world.memory.statistics().reserved.peak_bytes
        };
        prop_assert_eq!(peak_bytes(stream_count), peak_bytes(1));
    }
}

fn one(piece: Range<usize>) -> Vec<Range<usize>> {
    std::iter::once(piece).collect()
}

#[test]
fn own_hole_comes_before_a_better_one_of_others() {
    let mut world = StreamWorld::new();
    for (on, size_bytes) in [(0, 4096), (0, 512), (1, 2048), (0, 512)] {
        world.step(StreamOp::Allocate(on, size_bytes)).unwrap();
    }
    world.buffers.remove(2);
    world.buffers.remove(0);
    assert_eq!(world.step(StreamOp::Allocate(0, 2048)), Ok(one(0..2048)));
    assert_eq!(world.memory.statistics().waits, 0);
    assert_eq!(world.step(StreamOp::Allocate(0, 4096)), Ok(one(7168..11264)), "the top");
    assert_eq!(world.step(StreamOp::Allocate(0, 2048)), Ok(one(2048..4096)), "its own rest");
    assert_eq!(world.step(StreamOp::Allocate(0, 2048)), Ok(one(4608..6656)), "another's");
    assert_eq!(world.waits(), [(0, 1)]);
}

#[test]
fn stream_waits_once_for_all_that_was_freed_before() {
    let mut world = StreamWorld::new();
    for on in [1, 0, 1, 0, 1, 0] {
        world.step(StreamOp::Allocate(on, 512)).unwrap();
    }
    world.buffers.retain(|(on, _)| on.index() == 0);
    for _ in 0..3 {
        world.step(StreamOp::Allocate(2, 512)).unwrap();
    }
    assert_eq!(world.waits(), [(2, 1)]);
    // A later free needs a wait of its own.
    world.step(StreamOp::Allocate(1, 512)).unwrap();
    world.step(StreamOp::Allocate(0, 512)).unwrap();
    drop(world.buffers.remove(6));
    world.step(StreamOp::Allocate(2, 512)).unwrap();
    assert_eq!(world.waits(), [(2, 1), (2, 1)]);
}

#[test]
fn idle_stream_is_waited_for_once_at_the_top() {
    let mut world = StreamWorld::new();
    world.step(StreamOp::Allocate(1, 10 * PAGE_BYTES)).unwrap();
    world.step(StreamOp::Free(0)).unwrap();
    for _ in 0..100 {
        world.step(StreamOp::Allocate(0, PAGE_BYTES)).unwrap();
        world.step(StreamOp::Free(0)).unwrap();
    }
    assert_eq!(world.waits(), [(0, 1)]);
}

#[test]
fn last_stream_is_a_stream() {
    assert_eq!(Stream::new(Stream::COUNT), None);
    let mut world = StreamWorld::new();
    world.step(StreamOp::Allocate(63, 512)).unwrap();
    world.step(StreamOp::UseOn(0, 62)).unwrap();
    world.step(StreamOp::Free(0)).unwrap();
    world.step(StreamOp::Allocate(0, 512)).unwrap();
    assert_eq!(world.waits(), [(0, 62), (0, 63)]);
}

#[test]
fn launches_and_allocations_of_two_threads_both_end() {
    let streams = SimStreams::new();
    let memory = CachingAllocator::new(device(&streams)).unwrap();
    let wall = memory.allocate(512).unwrap();
    let low = memory.allocate(2 * PAGE_BYTES).unwrap();
    let _wall = (wall, memory.allocate(512).unwrap());
    drop(low);
    let stitched = memory.allocate(3 * PAGE_BYTES).unwrap();
    assert!(stitched.is_stitched());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..20_000 {
                streams.launch(Stream::DEFAULT, &[&stitched]).unwrap();
            }
        });
        for _ in 0..20_000 {
            let buffer = memory.allocate(512).unwrap();
            buffer.record_use(stream(1));
        }
    });
    assert!(memory.statistics().waits > 10_000);
}

#[test]
fn host_has_no_streams() {
    let memory = CachingAllocator::new(HostSource::with_capacity(1 << 20)).unwrap();
    let one = memory.allocate_on(stream(5), Category::Other, 100).unwrap();
    one.record_use(stream(9));
    drop(one);
    assert_eq!(memory.live_blocks(), []);
    let two = memory.allocate_on(stream(7), Category::Other, 100).unwrap();
    assert_eq!((two.offset(), memory.statistics().waits), (0, 0));
}

#[test]
fn block_that_is_handed_over_is_its_new_streams_alone() {
    let streams = SimStreams::new();
    let memory = CachingAllocator::new(device(&streams)).unwrap();
    let mut world = StreamWorld::of(memory.clone(), streams.clone());
    let [compute, copies] = [stream(0), stream(1)];
    let block = memory.allocate_on(copies, Category::Input, PAGE_BYTES).unwrap();
    let offset = block.offset();
    streams.launch(copies, &[&block]).unwrap();
    block.transfer_to(compute).unwrap();
    block.transfer_to(compute).unwrap();
    assert_eq!(world.waits(), [(0, 1)], "once");
    streams.launch(compute, &[&block]).unwrap();
    drop(block);
    // No stream has to wait for the copies any more.
    let again = memory.allocate_on(compute, Category::Other, PAGE_BYTES).unwrap();
    assert_eq!((again.offset(), world.waits().len()), (offset, 1));
    streams.launch(compute, &[&again]).unwrap();
    drop(again);
    let next = memory.allocate_on(copies, Category::Input, PAGE_BYTES).unwrap();
    assert_eq!(world.waits(), [(0, 1), (1, 0)]);
    world.buffers.push((copies, next));
    world.step(StreamOp::Use(0)).unwrap();
    memory.check_invariants();
}

#[test]
fn wait_for_a_stream_is_one_for_the_memory_that_it_gave_back_before() {
    let streams = SimStreams::new();
    let memory = CachingAllocator::new(device(&streams)).unwrap();
    let world = StreamWorld::of(memory.clone(), streams.clone());
    let [compute, copies] = [stream(0), stream(1)];
    let work = |on| {
        let block = memory.allocate_on(on, Category::Other, PAGE_BYTES).unwrap();
        streams.launch(on, &[&block]).unwrap();
    };
    work(compute);
    memory.wait(copies, compute).unwrap();
    assert_eq!(world.waits(), [(1, 0)]);
    work(copies);
    assert_eq!(world.waits(), [(1, 0)], "it has waited");
    memory.wait(copies, copies).unwrap();
    work(compute);
    assert_eq!(world.waits(), [(1, 0), (0, 1)], "and nobody waits for itself");
}
