//! The cost of a request and of a free by PyTorch's rules: in a random program, in a training step
//! that repeats, and in recorded traces if there are any.
//!
//! A C++ model of PyTorch's own structures (`std::set`, blocks on the heap) takes 117 to 156 ns for
//! each request and each free on similar traces.

use std::fs;
use std::path::Path;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use lowtide_allocator::Policy;
use lowtide_allocator::torch::{
    AddressRange, PageSource, SegmentSource, StreamId, TorchPolicy, TorchSettings,
};
use lowtide_trace::{Limits, Recording, Replay, RerunOptions, parse_settings, read_snapshot};

const MIB: u64 = 1 << 20;
const OPERATIONS: usize = 10_000;
/// Largest number of live blocks.
const SLOTS: usize = 1024;
/// Number of tensors of a step; all are live at its end.
const STEP_TENSORS: usize = 200;
const SETTINGS: [(&str, &str); 2] =
    [("segments", ""), ("expandable_segments", "expandable_segments:True")];

/// A device with endless memory.
#[derive(Default)]
struct Endless(u64);

impl Endless {
    fn next(&mut self, size_bytes: u64) -> u64 {
        let address = self.0;
        self.0 += size_bytes;
        address
    }
}

impl SegmentSource for Endless {
    fn reserve(&mut self, size_bytes: u64) -> Option<u64> {
        Some(self.next(size_bytes))
    }

    fn release(&mut self, _address: u64, _size_bytes: u64) {}

    fn pages(&mut self) -> Option<&mut dyn PageSource> {
        Some(self)
    }
}

impl PageSource for Endless {
    fn reserve_range(&mut self, page_bytes: u64, _stream: StreamId) -> Option<AddressRange> {
        let size_bytes = (1_u64 << 40).next_multiple_of(page_bytes);
        Some(AddressRange { address: self.next(size_bytes), size_bytes })
    }

    fn release_range(&mut self, _range: AddressRange) {}

    fn map(&mut self, _pages: AddressRange) -> bool {
        true
    }

    fn unmap(&mut self, _pages: AddressRange) {}
}

/// SplitMix64 (Steele, Lea, Flood 2014).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Slot and size of each operation: a full slot is freed, an empty one is filled.
fn program() -> Vec<(usize, u64)> {
    let mut state = 1;
    let mut draw = |n: u64| random(&mut state) % n;
    let size = |draw: &mut dyn FnMut(u64) -> u64| match draw(4) {
        0 => 1 + draw(MIB),
        _ => MIB + draw(30) * MIB,
    };
    (0..OPERATIONS).map(|_| (draw(SLOTS as u64) as usize, size(&mut draw))).collect()
}

fn policy(settings: &str) -> TorchPolicy {
    TorchPolicy::new(parse_settings(settings).expect("settings"))
}

fn get(policy: &mut TorchPolicy, source: &mut Endless, size_bytes: u64) -> u64 {
    let placed = policy.allocate(size_bytes, StreamId(0), source);
    placed.expect("no end of memory").expect("a block")
}

fn random_program(criterion: &mut Criterion) {
    let program = program();
    let mut group = criterion.benchmark_group("trace/torch_random");
    group.throughput(Throughput::Elements(OPERATIONS as u64));
    for (name, settings) in SETTINGS {
        group.bench_function(name, |bencher| {
            let (mut policy, mut source) = (policy(settings), Endless::default());
            let mut slots = vec![None; SLOTS];
            bencher.iter(|| {
                for &(slot, size_bytes) in &program {
                    slots[slot] = match slots[slot].take() {
                        Some(address) => policy.free(address).map(|_| None).expect("a block"),
                        None => Some(get(&mut policy, &mut source, size_bytes)),
                    };
                }
            });
            policy.check_invariants();
        });
    }
    group.finish();
}

fn steady_step(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("trace/torch_steady_step");
    group.throughput(Throughput::Elements(2 * STEP_TENSORS as u64));
    let sizes: Vec<u64> = (0..STEP_TENSORS as u64).map(|i| (i % 13 + 1) << 20).collect();
    for (name, settings) in SETTINGS {
        group.bench_function(name, |bencher| {
            let (mut policy, mut source) = (policy(settings), Endless::default());
            let mut live = Vec::with_capacity(STEP_TENSORS);
            let mut step = |policy: &mut TorchPolicy| {
                live.extend(sizes.iter().map(|&bytes| get(policy, &mut source, bytes)));
                for address in live.drain(..).rev() {
                    policy.free(address).expect("a block");
                }
            };
            // The first steps leave the holes that later steps fill.
            (0..20).for_each(|_| step(&mut policy));
            let calls = policy.counters();
            bencher.iter(|| step(&mut policy));
            assert_eq!(policy.counters(), calls);
        });
    }
    group.finish();
}

/// Runs recorded traces through the allocator's front, and takes the median of several runs.
fn recorded_traces(_criterion: &mut Criterion) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/traces");
    for entry in fs::read_dir(&folder).expect("a folder of this crate") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|suffix| suffix != "xz") {
            continue;
        }
        let file = fs::File::open(&path).expect("a file of this crate");
        let snapshot = read_snapshot(std::io::BufReader::new(file), Limits::default());
        let snapshot = snapshot.expect("a snapshot");
        let device = Replay::busiest_device(&snapshot);
        let recording = Recording::from_snapshot(&snapshot, device).expect("a trace of a device");
        let settings = TorchSettings { limit_bytes: None, ..snapshot.settings.clone() };
        let options = RerunOptions { policy: Policy::Torch(settings), ..RerunOptions::default() };
        let report = recording.rerun(&options).expect("sizes that this machine has");
        let name = path.file_name().unwrap_or_default().display();
        println!("trace/torch_rerun/{name}: {:.1} ns for each request or free", report.ns_per_op);
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = recorded_traces, random_program, steady_step
}
criterion_main!(benches);
