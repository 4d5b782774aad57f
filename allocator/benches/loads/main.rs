//! The cost of an allocation and of a free: published loads, recorded loads and a training step, on
//! this crate's policies, on a model of PyTorch's structure, and without a cache.
//!
//! The elements of the throughput are allocations and frees: one operation takes its inverse. Every
//! cache is warm: a load's first run is not timed.

mod driver_heap;
mod load;
mod model_of_pytorch;
mod published;
mod recorded;
mod subject;
mod threads;
mod training;

use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};

use crate::driver_heap::Direct;
use crate::load::Load;
use crate::model_of_pytorch::ModelOfPyTorch;
use crate::subject::{Pages, Subject, Table, Torch, addresses, free_all, run, table};

fn one_thread(criterion: &mut Criterion) {
    let mut loads = published::loads();
    loads.push(training::step());
    loads.extend(recorded::loads());
    for load in &loads {
        let mut group = criterion.benchmark_group(format!("allocator/{}", load.name));
        group.throughput(Throughput::Elements(load.operation_count()));
        let mut pages = Pages::new(load.stream_count);
        measure(&mut group, "pages", &mut pages, load, |pages, load| {
            addresses(pages, load);
            pages.check();
        });
        measure(&mut group, "torch", &mut Torch::new(), load, |torch, load| {
            addresses(torch, load);
            torch.check();
        });
        let mut model = ModelOfPyTorch::new();
        measure(&mut group, "model_of_pytorch", &mut model, load, |model, load| {
            let is_exact = addresses(model, load) == addresses(&mut Torch::new(), load);
            assert!(is_exact, "{}: the model places blocks elsewhere", load.name);
        });
        measure(&mut group, "baseline_direct", &mut Direct::new(), load, |direct, load| {
            addresses(direct, load);
        });
        group.finish();
    }
}

/// Checks the subject on the load, which also warms its cache, and measures it.
fn measure<S: Subject>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    subject: &mut S,
    load: &Load,
    check: impl Fn(&mut S, &Load),
) {
    let mut is_checked = false;
    group.bench_function(name, |bencher| {
        if !is_checked {
            check(subject, load);
            is_checked = true;
        }
        let mut table = table::<S>(load);
        bencher.iter_custom(|repeats| {
            let mut elapsed = Duration::ZERO;
            for _ in 0..repeats {
                run(subject, &load.setup, &mut table);
                elapsed += timed(subject, load, &mut table);
                free_all(subject, &mut table);
            }
            elapsed
        });
    });
}

/// The timed part alone. Never inlined, so that a profiler can count the events inside: `valgrind
/// --tool=callgrind --toggle-collect='loads::timed*' <the bench> --test <case>`.
#[inline(never)]
fn timed<S: Subject>(subject: &mut S, load: &Load, table: &mut Table<S>) -> Duration {
    let start = Instant::now();
    run(subject, &load.ops, table);
    start.elapsed()
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .sample_size(20);
    targets = one_thread, threads::bfc_threaded
}
criterion_main!(benches);
