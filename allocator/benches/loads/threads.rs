//! Several threads, each on a stream of its own: with one allocator for all of them, and with one
//! for each.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};

use crate::driver_heap::Direct;
use crate::load::Load;
use crate::model_of_pytorch::ModelOfPyTorch;
use crate::published::bfc_thread;
use crate::subject::{Pages, Subject, free_all, run, table};

const THREADS: [usize; 4] = [1, 2, 4, 16];

/// `BM_AllocationThreaded` of the BFC allocator's tests.
pub(crate) fn bfc_threaded(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("allocator/bfc_threaded");
    for thread_count in THREADS {
        let loads: Vec<Load> = (0..thread_count).map(|t| bfc_thread(t as u8)).collect();
        let operations: u64 = loads.iter().map(Load::operation_count).sum();
        group.throughput(Throughput::Elements(operations));
        let mut case = |name: &str, measure: &mut dyn FnMut(u64) -> Duration| {
            let id = BenchmarkId::new(name, thread_count);
            group.bench_function(id, |bencher| bencher.iter_custom(&mut *measure));
        };
        let shared = Pages::new(thread_count);
        case("pages_shared", &mut |repeats| on_threads(&loads, |_| shared.clone(), repeats));
        shared.check();
        let arenas: Vec<Pages> = (0..thread_count).map(|_| Pages::new(1)).collect();
        case("pages_arenas", &mut |repeats| on_threads(&loads, |t| arenas[t].clone(), repeats));
        arenas.iter().for_each(Pages::check);
        let model = ModelOfPyTorch::new();
        case("model_of_pytorch", &mut |repeats| on_threads(&loads, |_| model.clone(), repeats));
        let direct = Direct::new();
        case("baseline_direct", &mut |repeats| on_threads(&loads, |_| direct.clone(), repeats));
    }
    group.finish();
}

/// From the moment at which all threads are there until the last one is done.
fn on_threads<S: Subject + Send>(
    loads: &[Load],
    subject: impl Fn(usize) -> S,
    repeats: u64,
) -> Duration {
    let barrier = Barrier::new(loads.len() + 1);
    std::thread::scope(|scope| {
        for (thread, load) in loads.iter().enumerate() {
            let (barrier, mut subject) = (&barrier, subject(thread));
            scope.spawn(move || {
                let mut table = table::<S>(load);
                barrier.wait();
                for _ in 0..repeats {
                    run(&mut subject, &load.ops, &mut table);
                }
                barrier.wait();
                free_all(&mut subject, &mut table);
            });
        }
        barrier.wait();
        let start = Instant::now();
        barrier.wait();
        start.elapsed()
    })
}
