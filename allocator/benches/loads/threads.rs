//! Several threads, each on a stream of its own: with one allocator for all of them, and with an
//! arena of one budget for each stream.

use std::sync::{Barrier, Mutex, PoisonError};
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
        let arenas = Pages::arenas(thread_count);
        case("pages_arenas", &mut |repeats| on_threads(&loads, |t| arenas[t].clone(), repeats));
        arenas.iter().for_each(Pages::check);
        let model = ModelOfPyTorch::new();
        case("model_of_pytorch", &mut |repeats| on_threads(&loads, |_| model.clone(), repeats));
        let direct = Direct::new();
        case("baseline_direct", &mut |repeats| on_threads(&loads, |_| direct.clone(), repeats));
    }
    group.finish();
}

/// Time from the moment at which the first thread begins until the last thread ends, by the
/// threads' own clocks: the thread that waits for them may be woken much later.
fn on_threads<S: Subject + Send>(
    loads: &[Load],
    subject: impl Fn(usize) -> S,
    repeats: u64,
) -> Duration {
    let (barrier, spans) = (Barrier::new(loads.len()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for (thread, load) in loads.iter().enumerate() {
            let (barrier, spans, mut subject) = (&barrier, &spans, subject(thread));
            scope.spawn(move || {
                let mut table = table::<S>(load);
                barrier.wait();
                let start = Instant::now();
                for _ in 0..repeats {
                    run(&mut subject, &load.ops, &mut table);
                }
                let span = (start, Instant::now());
                free_all(&mut subject, &mut table);
                spans.lock().unwrap_or_else(PoisonError::into_inner).push(span);
            });
        }
    });
    let spans = spans.into_inner().unwrap_or_else(PoisonError::into_inner);
    let start = spans.iter().map(|span| span.0).min().expect("a thread");
    let end = spans.iter().map(|span| span.1).max().expect("a thread");
    end - start
}
