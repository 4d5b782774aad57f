//! Loaders that are dropped early leave no thread and no memory.

use crate::options;
use lowtide_data::{
    Dataset, ElementType, Field, Loader, LoaderOptions, OnBadSample, SampleError, SampleSlot,
    Sequential,
};
use std::process::Command;
use std::sync::Arc;

/// The variable that tells the child process its role.
const CHILD: &str = "LOWTIDE_DATA_EARLY_DROPS";
const DROPS: usize = 500;
/// A batch of 4 samples has 1 MiB, so a leak of batches would show.
const SAMPLE_BYTES: usize = 1 << 18;

/// A dataset whose samples 5, 15, 25 and so on fail.
struct Bad {
    fields: [Field; 1],
    way: usize,
}

impl Dataset for Bad {
    fn len(&self) -> usize {
        100
    }
    fn fields(&self) -> &[Field] {
        &self.fields
    }
    fn write(&self, index: usize, slot: &mut SampleSlot<'_>) -> Result<(), SampleError> {
        slot.bytes(0).fill(index as u8);
        match self.way {
            _ if index % 10 != 5 => Ok(()),
            0 => Err("torn".into()),
            // Unwinds like `panic!`, without text on the standard error.
            1 => std::panic::resume_unwind(Box::new("torn")),
            _ => {
                while !slot.is_cancelled() {
                    std::thread::yield_now();
                }
                Ok(())
            }
        }
    }
}

/// Makes a loader, takes some batches and drops everything, in an order that depends on `turn`.
fn drop_early(turn: usize) {
    let way = turn % 3;
    let fields = [Field::new("x", ElementType::U8, &[SAMPLE_BYTES])];
    let dataset = Arc::new(Bad { fields, way });
    let on_bad_sample =
        if turn.is_multiple_of(2) { OnBadSample::Skip(2) } else { OnBadSample::Fail };
    let options = LoaderOptions { on_bad_sample, ..options(4, 1 + turn % 4, 0) };
    let loader = Loader::with_sampler(Arc::clone(&dataset), Sequential, options).unwrap();
    if turn.is_multiple_of(5) {
        loader.build_ahead(0);
    }
    let mut epoch = loader.epoch(0);
    epoch.build_ahead(1);
    // Waiting for a hanging batch would never end.
    let taken = if way == 2 { turn % 2 } else { turn % 7 };
    let held = epoch.by_ref().take(taken).last();
    match turn % 4 {
        0 => drop((loader, epoch, held)),
        1 => drop((held, epoch, loader)),
        2 => drop((epoch, loader, held)),
        _ => drop((loader, held, epoch)),
    }
    assert_eq!(Arc::strong_count(&dataset), 1, "turn {turn}: a thread has the dataset");
}

/// The number of threads of this process, and its address space in bytes.
#[cfg(target_os = "linux")]
fn footprint() -> (usize, usize) {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').next().unwrap().parse().unwrap();
    (threads, pages * 4096)
}

#[test]
#[cfg(target_os = "linux")]
fn early_drops_leave_no_thread_and_no_byte() {
    if std::env::var_os(CHILD).is_none() {
        // The test runs in its own process, because other tests have threads and memory too.
        let test = "shutdown::early_drops_leave_no_thread_and_no_byte";
        let mut child = Command::new(std::env::current_exe().unwrap());
        let child = child.args(["--exact", test, "--nocapture"]).env(CHILD, "1");
        let output = child.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("1 passed"), "{text}");
        return;
    }
    // The first turns fill the caches of the system's allocator and its thread stacks.
    (0..50).for_each(drop_early);
    let before = footprint();
    (50..50 + DROPS).for_each(drop_early);
    let after = footprint();
    assert_eq!(after.0, before.0, "threads");
    // A leak of one buffer per ten drops would be 50 MiB.
    let growth_bytes = after.1.saturating_sub(before.1);
    assert!(growth_bytes < 32 << 20, "{growth_bytes} bytes are left");
}
