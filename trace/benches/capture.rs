//! The cost of a capture: a copy of the books with a full history, and its conversion to a
//! recording.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lowtide_allocator::{Buffer, CachingAllocator, Category, SimSource};
use lowtide_trace::Recording;

/// Number of events before the first capture.
const EVENTS: u64 = 100_000;
/// Number of live blocks at the first capture.
const LIVE: usize = 3_000;

/// An allocator with `EVENTS` events behind it.
fn busy() -> (CachingAllocator, Vec<Buffer>) {
    let memory = CachingAllocator::new(SimSource::with_capacity(1 << 40)).expect("a device");
    let mut live: Vec<Buffer> = Vec::new();
    let mut index = 0_usize;
    while memory.event_count() < EVENTS {
        let category = Category::ALL[index % Category::ALL.len()];
        let size_bytes = (index * 7919) % 100_000 + 1;
        live.push(memory.allocate_in(category, size_bytes).expect("the device is large"));
        if live.len() > LIVE {
            live.swap_remove(index * 31 % LIVE);
        }
        index += 1;
    }
    (memory, live)
}

fn capture(criterion: &mut Criterion) {
    let (memory, live) = busy();
    let mut group = criterion.benchmark_group("trace/capture_100k_events");
    group.throughput(Throughput::Elements(EVENTS));
    group.bench_function("baseline_history", |b| b.iter(|| black_box(memory.history())));
    group.bench_function("capture", |b| b.iter(|| black_box(memory.capture())));
    group.bench_function("recording", |b| {
        b.iter(|| black_box(Recording::of(&memory.capture())));
    });
    let recording = Recording::of(&memory.capture());
    group.bench_function("explain", |b| b.iter(|| black_box(recording.explain())));
    group.bench_function("write_timeline", |b| {
        b.iter(|| recording.write_timeline(std::io::sink()).expect("a sink takes it"));
    });
    group.finish();
    drop(live);
}

criterion_group!(benches, capture);
criterion_main!(benches);
