use std::ops::Range;
use std::sync::Arc;

use lowtide_allocator::cuda::{CudaSource, CudaStreams};
use lowtide_allocator::{
    Buffer, CachingAllocator, Category, Fence, MemorySource, PageRange, Segment, SimSource,
    SimStreams, SourceError, Stream, VirtualMemory,
};

use crate::common::{PAGE_BYTES, PLENTY};
use crate::gpu::{Gpu, source, stream};

const STREAMS: usize = 5;

/// A device whose fence has a fault.
struct Faulty {
    inner: Arc<CudaSource>,
    streams: CudaStreams,
    fault: FenceFault,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum FenceFault {
    None,
    DoesNothing,
    WrongStream,
    WrongWay,
}

impl Fence for Faulty {
    fn wait(&self, waiter: Stream, on: Stream) -> Result<(), SourceError> {
        let next = stream((on.index() + 1) % STREAMS);
        match self.fault {
            FenceFault::None => self.streams.wait(waiter, on),
            FenceFault::DoesNothing => Ok(()),
            FenceFault::WrongStream => self.streams.wait(waiter, next),
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
        self.inner.page_bytes()
    }

    fn reserve(&self, size_bytes: usize) -> Result<Segment, SourceError> {
        self.inner.reserve(size_bytes)
    }

    fn release(&self, segment: &Segment) {
        self.inner.release(segment);
    }

    fn commit(&self, segment: &Segment, pages: &PageRange) -> Result<(), SourceError> {
        self.inner.commit(segment, pages)
    }

    fn decommit(&self, segment: &Segment, pages: &PageRange) {
        self.inner.decommit(segment, pages);
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.inner.virtual_memory()
    }

    fn fence(&self) -> Option<&dyn Fence> {
        Some(self)
    }
}

/// A step of a program with random numbers. Every block is written as soon as it is allocated.
#[derive(Clone, Copy, Debug)]
enum Op {
    Allocate(usize, usize),
    UseOn(usize, usize),
    HandOver(usize, usize),
    Free(usize),
}

/// Programs that do not depend on the seed of the run, so that failures can be counted.
fn programs() -> Vec<Vec<Op>> {
    let mut state = 1_u64;
    let mut draw = |below: usize| {
        // Knuth's MMIX generator.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 33) as usize % below
    };
    let mut program = || {
        let op = |_| match draw(20) {
            0..9 => Op::Allocate(draw(STREAMS), 1 + draw(6 * PAGE_BYTES)),
            9..12 => Op::UseOn(draw(1000), draw(STREAMS)),
            12 => Op::HandOver(draw(1000), draw(STREAMS)),
            _ => Op::Free(draw(1000)),
        };
        (0..60).map(op).collect()
    };
    (0..40).map(|_| program()).collect()
}

/// A live block, its stream, and the byte that fills it.
struct Written {
    block: Buffer,
    owner: Stream,
    value: u8,
}

/// Runs a program. Returns true if every block held its last bytes when all work was done.
fn is_right(gpu: &Gpu, program: &[Op], fault: FenceFault, notes_uses: bool) -> bool {
    let streams = gpu.streams();
    let source = Faulty { inner: source(&streams), streams: streams.clone(), fault };
    let memory = CachingAllocator::new(source).unwrap();
    let mut live: Vec<Written> = Vec::new();
    let mut value = 0_u8;
    for &op in program {
        value = value.wrapping_add(1);
        let pick = |index: usize| index % live.len().max(1);
        match op {
            Op::Allocate(on, size_bytes) => {
                let owner = stream(on);
                let block = memory.allocate_on(owner, Category::Other, size_bytes).unwrap();
                streams.fill(owner, &block, 0..size_bytes, value).unwrap();
                live.push(Written { block, owner, value });
            }
            Op::UseOn(index, on) => {
                let index = pick(index);
                let Some(written) = live.get_mut(index) else { continue };
                let on = stream(on);
                // The user's own order: after the owner's work, and before the owner's next work.
                streams.wait(on, written.owner).unwrap();
                if notes_uses {
                    written.block.record_use(on);
                }
                streams.fill(on, &written.block, 0..written.block.size_bytes(), value).unwrap();
                written.value = value;
                if notes_uses {
                    streams.wait(written.owner, on).unwrap();
                }
            }
            Op::HandOver(index, to) => {
                let index = pick(index);
                let Some(Written { block, owner, value: held }) = live.get_mut(index) else {
                    continue;
                };
                (*owner, *held) = (stream(to), value);
                block.transfer_to(*owner).unwrap();
                streams.fill(*owner, block, 0..block.size_bytes(), value).unwrap();
            }
            Op::Free(index) => {
                if !live.is_empty() {
                    drop(live.swap_remove(pick(index)));
                }
            }
        }
    }
    streams.device().synchronize().unwrap();
    live.iter().all(|Written { block, owner, value }| {
        let mut back = vec![0; block.size_bytes()];
        streams.download(*owner, (block, 0..block.size_bytes()), &mut back).unwrap();
        back.iter().all(|byte| byte == value)
    })
}

/// Seeds of the orders of work for each program: as late as possible, and some random orders.
const SEEDS: Range<u64> = 0..4;

/// True if some order of work shows a block with bytes of another owner.
fn is_found_out(gpu: &Gpu, program: &[Op], fault: FenceFault, notes_uses: bool) -> bool {
    SEEDS.into_iter().any(|seed| {
        gpu.pretend.schedule(seed);
        !is_right(gpu, program, fault, notes_uses)
    })
}

#[test]
fn no_memory_is_reused_early_in_whatever_order_the_device_works() {
    let Some(gpu) = Gpu::pretend() else { return };
    for program in programs() {
        assert!(!is_found_out(&gpu, &program, FenceFault::None, true), "{program:?}");
    }
}

#[test]
fn fence_with_a_fault_is_found_out() {
    let Some(gpu) = Gpu::pretend() else { return };
    let programs = programs();
    for fault in [FenceFault::DoesNothing, FenceFault::WrongStream, FenceFault::WrongWay] {
        let found = programs.iter().filter(|program| is_found_out(&gpu, program, fault, true));
        // Blocks that do not live to the end are not checked, and correct waits often order the
        // work that a faulty wait leaves open.
        let found_count = found.count();
        assert!(found_count > programs.len() / 3, "{fault:?}: {found_count}");
    }
}

#[test]
fn removed_fence_mixes_two_owners_up_and_the_fence_keeps_them_apart() {
    let Some(gpu) = Gpu::pretend() else { return };
    let program = [Op::Allocate(1, PAGE_BYTES), Op::Free(0), Op::Allocate(0, PAGE_BYTES)];
    assert!(!is_found_out(&gpu, &program, FenceFault::None, true));
    assert!(is_found_out(&gpu, &program, FenceFault::DoesNothing, true));
}

#[test]
fn block_that_is_handed_over_is_not_written_before_its_last_stream_is_done() {
    let Some(gpu) = Gpu::pretend() else { return };
    let kept = [Op::Allocate(1, PAGE_BYTES), Op::HandOver(0, 0)];
    let freed = [kept[0], kept[1], Op::Free(0), Op::Allocate(0, PAGE_BYTES)];
    for program in [&kept[..], &freed] {
        assert!(!is_found_out(&gpu, program, FenceFault::None, true));
        assert!(is_found_out(&gpu, program, FenceFault::DoesNothing, true));
    }
}

#[test]
fn use_that_nobody_notes_is_found_out() {
    let Some(gpu) = Gpu::pretend() else { return };
    let program =
        [Op::Allocate(0, PAGE_BYTES), Op::UseOn(0, 1), Op::Free(0), Op::Allocate(0, PAGE_BYTES)];
    assert!(!is_found_out(&gpu, &program, FenceFault::None, true));
    assert!(is_found_out(&gpu, &program, FenceFault::None, false));
}

/// An allocator's decisions for a program: the place of each block, a hash of the layout, and the
/// number of waits.
fn decisions(memory: &CachingAllocator, program: &[Op]) -> (Vec<Vec<Range<usize>>>, u64, u64) {
    let mut live: Vec<Buffer> = Vec::new();
    let mut places = Vec::new();
    for &op in program {
        let pick = |index: usize| index % live.len().max(1);
        match op {
            Op::Allocate(on, size_bytes) => {
                let block = memory.allocate_on(stream(on), Category::Other, size_bytes).unwrap();
                places.push(block.pieces());
                live.push(block);
            }
            Op::UseOn(index, on) => {
                live.get(pick(index)).into_iter().for_each(|block| block.record_use(stream(on)));
            }
            Op::HandOver(index, to) => {
                let block = live.get(pick(index)).into_iter();
                block.for_each(|block| block.transfer_to(stream(to)).unwrap());
            }
            Op::Free(index) if !live.is_empty() => drop(live.swap_remove(pick(index))),
            Op::Free(_) => {}
        }
    }
    (places, memory.layout_hash(), memory.statistics().waits)
}

#[test]
fn streams_of_a_device_and_of_a_simulation_get_the_same_memory_and_wait_alike() {
    let Some(gpu) = Gpu::pretend() else { return };
    for program in programs() {
        let (_, memory) = gpu.memory();
        let sim = SimSource::with_capacity(PLENTY).page_bytes(PAGE_BYTES);
        let simulated = CachingAllocator::new(sim.streams(&SimStreams::new())).unwrap();
        let predicted = decisions(&simulated, &program);
        assert!(predicted.2 > 0, "nobody waits");
        assert_eq!(decisions(&memory, &program), predicted);
    }
}
