//! The cost of an allocation and of a free: in a random program, compared with the system's malloc,
//! and in a training step that repeats.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lowtide_allocator::{Buffer, CachingAllocator, Category, SimSource};

/// Number of allocations and frees of a run, as in RMM's `random_allocations` benchmark.
const OPERATIONS: usize = 10_000;
/// Largest number of live blocks.
const SLOTS: usize = 256;
/// Number of tensors of a step; all are live at its end.
const STEP_TENSORS: usize = 200;

/// SplitMix64 (Steele, Lea, Flood 2014).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Slot and size of each operation: a full slot is freed, an empty one is filled.
fn program() -> Vec<(usize, usize)> {
    let mut state = 1;
    let mut draw = |n: u64| (random(&mut state) % n) as usize;
    (0..OPERATIONS).map(|_| (draw(SLOTS as u64), 1 + draw(1 << 20))).collect()
}

fn run<T>(program: &[(usize, usize)], slots: &mut [Option<T>], allocate: impl Fn(usize) -> T) {
    for &(slot, size_bytes) in program {
        slots[slot] = match slots[slot].take() {
            Some(_) => None,
            None => Some(allocate(size_bytes)),
        };
    }
}

fn allocator() -> CachingAllocator {
    CachingAllocator::new(SimSource::with_capacity(1 << 40)).expect("a simulated device")
}

fn random_program(criterion: &mut Criterion) {
    let program = program();
    let mut group = criterion.benchmark_group("allocator/random");
    group.throughput(Throughput::Elements(OPERATIONS as u64));
    group.bench_function("arenas", |bencher| {
        let memory = allocator();
        let mut slots: Vec<Option<Buffer>> = (0..SLOTS).map(|_| None).collect();
        bencher.iter(|| {
            run(&program, &mut slots, |size_bytes| {
                memory.allocate(size_bytes).expect("the device is large")
            });
        });
        memory.check_invariants();
    });
    group.bench_function("baseline_system_malloc", |bencher| {
        let mut slots: Vec<Option<Vec<u8>>> = (0..SLOTS).map(|_| None).collect();
        bencher.iter(|| {
            run(&program, &mut slots, |size_bytes| black_box(Vec::with_capacity(size_bytes)));
        });
    });
    group.finish();
}

fn steady_step(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("allocator/steady_step");
    group.throughput(Throughput::Elements(2 * STEP_TENSORS as u64));
    let sizes: Vec<usize> = (0..STEP_TENSORS).map(|i| (i % 13 + 1) << 14).collect();
    group.bench_function("arenas", |bencher| {
        let memory = allocator();
        let _scope = memory.category(Category::Activation);
        let mut live = Vec::with_capacity(STEP_TENSORS);
        let mut step = || {
            live.extend(sizes.iter().map(|&bytes| memory.allocate(bytes).expect("it is large")));
            live.drain(..).rev().for_each(drop);
        };
        step();
        let source_calls = memory.statistics().source_calls;
        bencher.iter(&mut step);
        assert_eq!(memory.statistics().source_calls, source_calls);
    });
    group.bench_function("baseline_system_malloc", |bencher| {
        let mut live: Vec<Vec<u8>> = Vec::with_capacity(STEP_TENSORS);
        bencher.iter(|| {
            live.extend(sizes.iter().map(|&bytes| black_box(Vec::with_capacity(bytes))));
            live.drain(..).rev().for_each(drop);
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = random_program, steady_step
}
criterion_main!(benches);
