//! A fork-join pool: `run` hands out chunk indices to the caller and the workers, then waits.
//!
//! A thread that waits never picks up other work. In a work-stealing pool, a waiting thread may run
//! a foreign task, and deadlocks if this task wants a storage lock that the thread holds.

// A task borrows the caller's stack; only a pointer can carry it to a worker thread.
#![allow(unsafe_code, reason = "a borrowed task crosses to threads that outlive the borrow")]

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use super::sync::{Arc, AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Condvar, Mutex};
use super::sync::{fence, spin_loop, thread};

/// The number of looks for a job before an idle worker parks. These looks take some tens of
/// microseconds, about the gap between two kernels of a training step. Parking and waking costs the
/// same time again.
///
/// A loom model needs only one look to cover the spinning; each further look multiplies the
/// interleavings.
const SPINS_BEFORE_PARK: u32 = if cfg!(lowtide_loom) { 1 } else { 4_000 };
/// The number of looks for the last worker before the caller starts to yield its core.
const SPINS_BEFORE_YIELD: u32 = if cfg!(lowtide_loom) { 1 } else { 2_000 };

/// Largest number of shares of a job. If there are more threads, several threads use one share.
const SHARES_MAX: usize = if cfg!(lowtide_loom) { 2 } else { 16 };

/// Layout of `Shared::state`: the low bits count the workers inside the job, one bit is set while
/// workers may enter, one is set when the pool closes, and the rest counts jobs.
const ACTIVE_MASK: u64 = (1 << 16) - 1;
const OPEN: u64 = 1 << 16;
const CLOSING: u64 = 1 << 17;
const EPOCH: u64 = 1 << 18;

/// A fixed set of threads that run the chunks of one job at a time.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<thread::JoinHandle<()>>,
    /// True while a job runs; a nested or concurrent job then runs inline.
    busy: AtomicBool,
}

struct Shared {
    state: AtomicU64,
    /// Points to the current `Job` on the stack of the thread in `run`. Valid while a worker is
    /// counted in `state`: `run` does not return before that count is back at zero.
    job: AtomicPtr<Job<'static>>,
    sleeper_count: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
}

/// A job, whose chunks are divided into shares of neighbours, one share for each thread. A thread
/// that has finished its own share helps with the others. As long as no thread is late, each thread
/// works on the same part of a tensor in kernel after kernel, and finds that part in its own cache.
struct Job<'a> {
    task: &'a (dyn Fn(usize) + Sync),
    shares: [Share; SHARES_MAX],
    share_count: usize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Chunks that are handed out in order. Each share has a cache line of its own.
#[repr(align(64))]
struct Share {
    next: AtomicUsize,
    end: usize,
}

impl Pool {
    /// A pool of `threads` threads, the caller of [`run`](Self::run) being one of them.
    ///
    /// If the system refuses a thread, the pool has fewer; see [`threads`](Self::threads).
    pub(crate) fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: AtomicPtr::new(std::ptr::null_mut()),
            sleeper_count: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        });
        let worker_count = threads.saturating_sub(1).min(ACTIVE_MASK as usize);
        let workers = (0..worker_count)
            .map_while(|index| {
                let shared = Arc::clone(&shared);
                thread::Builder::new()
                    .name(format!("lowtide-cpu-{index}"))
                    .spawn(move || shared.work(index + 1))
                    .ok()
            })
            .collect();
        Self { shared, workers, busy: AtomicBool::new(false) }
    }

    /// Threads that take part in a job, the caller included.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task` once for each index below `chunk_count`, in any order, on any of the threads.
    ///
    /// Inside a task, or while another thread runs a job, the chunks run inline on the caller.
    ///
    /// # Panics
    /// With the first panic of a task, after every thread has left the job. Chunks that had not
    /// started by then are skipped.
    pub(crate) fn run(&self, chunk_count: usize, task: &(dyn Fn(usize) + Sync)) {
        if chunk_count <= 1 || self.workers.is_empty() || self.busy.swap(true, Ordering::Acquire) {
            (0..chunk_count).for_each(task);
            return;
        }
        let job = Job::new(task, chunk_count, self.threads());
        self.shared.publish(&job);
        job.take_part(0);
        self.shared.retire();
        self.busy.store(false, Ordering::Release);
        let Job { shares, panic, .. } = job;
        for Share { next, end } in shares {
            // Under loom this also fails if a thread may still look at the job.
            let next = next.into_inner();
            debug_assert!(next >= end, "chunk {next} of those below {end} was not handed out");
        }
        if let Some(payload) = panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.state.fetch_or(CLOSING, Ordering::SeqCst);
        self.shared.wake_sleepers();
        for worker in self.workers.drain(..) {
            // Panics of tasks are caught inside the job, so a worker never panics.
            let _ = worker.join();
        }
    }
}

impl<'a> Job<'a> {
    fn new(task: &'a (dyn Fn(usize) + Sync), chunk_count: usize, threads: usize) -> Job<'a> {
        let share_count = threads.clamp(1, SHARES_MAX);
        let start_of = |share: usize| chunk_count * share.min(share_count) / share_count;
        let shares = std::array::from_fn(|share| Share {
            next: AtomicUsize::new(start_of(share)),
            end: start_of(share + 1),
        });
        Job { task, shares, share_count, panic: Mutex::new(None) }
    }

    /// Runs chunks until none is left, the thread's own share first.
    fn take_part(&self, thread: usize) {
        let shares = &self.shares[..self.share_count];
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            for turn in 0..shares.len() {
                let share = &shares[(thread + turn) % shares.len()];
                while let Some(index) = share.take() {
                    (self.task)(index);
                }
            }
        }));
        if let Err(payload) = outcome {
            shares.iter().for_each(|share| share.next.store(share.end, Ordering::Relaxed));
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
        }
    }
}

impl Share {
    fn take(&self) -> Option<usize> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        (index < self.end).then_some(index)
    }
}

impl Shared {
    fn publish(&self, job: &Job<'_>) {
        let job: *const Job<'_> = job;
        self.job.store(job.cast_mut().cast(), Ordering::Relaxed);
        // The release half hands the job to the thread that enters by an acquiring exchange of
        // `state`.
        self.state.fetch_add(EPOCH + OPEN, Ordering::AcqRel);
        self.wake_sleepers();
    }

    /// Closes the job to further workers and waits for the workers inside.
    fn retire(&self) {
        self.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0;
        while self.state.load(Ordering::Acquire) & ACTIVE_MASK != 0 {
            if spins < SPINS_BEFORE_YIELD {
                spins += 1;
                spin_loop();
            } else {
                thread::yield_now();
            }
        }
    }

    fn wake_sleepers(&self) {
        // A sleeper counts itself first and looks at `state` after its own fence. So either this
        // load sees the sleeper's count, or the sleeper sees the job.
        fence(Ordering::SeqCst);
        if self.sleeper_count.load(Ordering::Relaxed) > 0 {
            let _guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            self.wake.notify_all();
        }
    }

    /// The loop of a worker, which enters each job at most once. The caller of a job is thread 0.
    fn work(&self, thread: usize) {
        let mut last_epoch = 0;
        loop {
            let Some(seen) = self.await_job(last_epoch) else { return };
            let entered =
                self.state.compare_exchange(seen, seen + 1, Ordering::AcqRel, Ordering::Relaxed);
            if entered.is_err() {
                continue;
            }
            last_epoch = seen / EPOCH;
            // SAFETY: the pointer must be to a live `Job`: 1. the exchange succeeded on a state
            // with OPEN set, so `publish` had stored the pointer before; 2. it counted this thread,
            // and `run` keeps the job on its stack until `retire` has seen that count at zero.
            let job: &Job<'_> = unsafe { &*self.job.load(Ordering::Relaxed) };
            job.take_part(thread);
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// The state of an open job later than `last_epoch`, or `None` when the pool closes.
    fn await_job(&self, last_epoch: u64) -> Option<u64> {
        let is_news =
            |state: u64| state & CLOSING != 0 || (state & OPEN != 0 && state / EPOCH != last_epoch);
        let mut state = self.state.load(Ordering::Acquire);
        for _ in 0..SPINS_BEFORE_PARK {
            if is_news(state) {
                break;
            }
            spin_loop();
            state = self.state.load(Ordering::Acquire);
        }
        if !is_news(state) {
            let mut guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            self.sleeper_count.fetch_add(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            state = self.state.load(Ordering::Acquire);
            while !is_news(state) {
                guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
                state = self.state.load(Ordering::Acquire);
            }
            self.sleeper_count.fetch_sub(1, Ordering::Relaxed);
        }
        (state & CLOSING == 0).then_some(state)
    }
}

// Compiled by `tests/pool/main.rs`, as the models below.
#[cfg(all(test, not(lowtide_loom)))]
mod tests {
    use super::*;

    fn check_each_chunk_runs_once(pool: &Pool, chunk_count: usize) {
        let counts: Vec<AtomicUsize> = (0..chunk_count).map(|_| AtomicUsize::new(0)).collect();
        pool.run(chunk_count, &|index| {
            counts[index].fetch_add(1, Ordering::Relaxed);
        });
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn each_chunk_runs_exactly_once_for_any_thread_count() {
        for threads in [0, 1, 2, 3, 8] {
            let pool = Pool::new(threads);
            assert_eq!(pool.threads(), threads.max(1));
            for round in 0..200 {
                check_each_chunk_runs_once(&pool, round % 17);
            }
        }
    }

    #[test]
    fn workers_take_part() {
        let pool = Pool::new(2);
        // Each chunk waits for the other, so one thread alone would never return.
        let barrier = std::sync::Barrier::new(2);
        pool.run(2, &|_| {
            barrier.wait();
        });
    }

    #[test]
    fn parked_workers_wake_again() {
        let pool = Pool::new(3);
        while pool.shared.sleeper_count.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
        let barrier = std::sync::Barrier::new(3);
        pool.run(3, &|_| {
            barrier.wait();
        });
    }

    #[test]
    fn nested_run_stays_on_its_thread() {
        let pool = Pool::new(3);
        let total = AtomicUsize::new(0);
        pool.run(4, &|_| {
            let outer = std::thread::current().id();
            pool.run(5, &|_| {
                assert_eq!(std::thread::current().id(), outer);
                total.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(total.into_inner(), 20);
    }

    #[test]
    fn concurrent_runs_all_complete() {
        let pool = Pool::new(3);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        check_each_chunk_runs_once(&pool, 7);
                    }
                });
            }
        });
    }

    #[test]
    fn panic_reaches_the_caller_and_the_pool_survives() {
        let pool = Pool::new(3);
        for bad in 0..8 {
            let inside = AtomicUsize::new(0);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(8, &|index| {
                    inside.fetch_add(1, Ordering::SeqCst);
                    let guard = Leave(&inside);
                    assert_ne!(index, bad, "chunk {bad}");
                    drop(guard);
                });
            }));
            assert_eq!(inside.load(Ordering::SeqCst), 0, "a chunk outlived its job");
            let payload = outcome.expect_err("the panic was lost");
            let message = payload.downcast_ref::<String>().expect("a formatted message");
            assert!(message.contains(&format!("chunk {bad}")), "{message}");
            check_each_chunk_runs_once(&pool, 9);
        }
    }

    struct Leave<'a>(&'a AtomicUsize);

    impl Drop for Leave<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn drop_joins_every_worker() {
        let pool = Pool::new(4);
        let shared = Arc::downgrade(&pool.shared);
        check_each_chunk_runs_once(&pool, 16);
        drop(pool);
        assert_eq!(shared.strong_count(), 0);
    }
}

/// Run by `cargo xtask test --deep`. A lost wake-up or a hang shows as a deadlock, a chunk that ran
/// twice or unseen as a data race on its slot, and a job touched after `run` as a data race on
/// `next`.
#[cfg(all(test, lowtide_loom))]
mod models {
    use loom::cell::UnsafeCell;

    use super::*;

    /// The element that one chunk writes, with every access checked.
    struct Slot(UnsafeCell<u32>);

    // SAFETY: the models examine sharing: loom panics before two accesses to the cell touch the
    // memory, one of them a write, if nothing orders them.
    unsafe impl Sync for Slot {}

    impl Slot {
        fn add_one(&self) {
            // SAFETY: `with_mut` panics before the call unless this thread has the cell alone.
            self.0.with_mut(|count| unsafe { *count += 1 });
        }

        fn get(&self) -> u32 {
            // SAFETY: `with` panics before the call unless every write is ordered before it.
            self.0.with(|count| unsafe { *count })
        }
    }

    fn check_each_chunk_runs_once(pool: &Pool, chunk_count: usize) {
        let slots: Vec<Slot> = (0..chunk_count).map(|_| Slot(UnsafeCell::new(0))).collect();
        pool.run(chunk_count, &|index| slots[index].add_one());
        assert!(slots.iter().all(|slot| slot.get() == 1));
    }

    /// Runs one chunk for each thread. Each chunk waits inside for all the others.
    fn check_every_thread_takes_part(pool: &Pool) {
        let (arrived, all_here) = (Mutex::new(0), Condvar::new());
        pool.run(pool.threads(), &|_| {
            let mut count = arrived.lock().expect("no chunk panics");
            *count += 1;
            all_here.notify_all();
            while *count < pool.threads() {
                count = all_here.wait(count).expect("no chunk panics");
            }
        });
    }

    #[test]
    fn each_chunk_runs_exactly_once() {
        loom::model(|| check_each_chunk_runs_once(&Pool::new(2), 3));
    }

    #[test]
    fn no_worker_touches_a_job_after_its_run() {
        loom::model(|| {
            let pool = Pool::new(2);
            check_each_chunk_runs_once(&pool, 2);
            check_each_chunk_runs_once(&pool, 2);
        });
    }

    #[test]
    fn no_wake_up_for_a_job_is_lost() {
        loom::model(|| check_every_thread_takes_part(&Pool::new(2)));
    }

    #[test]
    fn drop_ends_a_worker_that_spins_or_parks() {
        loom::model(|| drop(Pool::new(2)));
        loom::model(|| drop(Pool::new(3)));
    }

    #[test]
    fn concurrent_callers_both_complete() {
        loom::model(|| {
            let pool = Arc::new(Pool::new(2));
            let other = Arc::clone(&pool);
            let caller = thread::spawn(move || check_each_chunk_runs_once(&other, 2));
            check_each_chunk_runs_once(&pool, 2);
            caller.join().expect("the other caller completes");
        });
    }

    #[test]
    fn panic_in_a_task_reaches_the_caller() {
        loom::model(|| {
            let pool = Pool::new(2);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                // Not `panic!`, which would print a message for each interleaving.
                pool.run(2, &|index| {
                    if index == 1 {
                        resume_unwind(Box::new("chunk 1"))
                    }
                });
            }));
            let payload = outcome.expect_err("the panic was lost");
            assert_eq!(payload.downcast_ref(), Some(&"chunk 1"));
            check_each_chunk_runs_once(&pool, 2);
        });
    }
}
