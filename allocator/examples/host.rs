//! lowtide's allocator on host memory: a budget, a scope for each purpose, left-over blocks of a
//! step, and a simulation of future requests.
//!
//! `cargo run -p lowtide-allocator --example host`

use std::error::Error;
use std::sync::Mutex;

use lowtide_allocator::{CachingAllocator, Category, HostSource};

const MIB: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let memory = CachingAllocator::new(HostSource::with_capacity(64 * MIB))?;
    let mut weights = memory.allocate_in(Category::Parameter, 8 * MIB)?;
    weights.as_mut_slice().ok_or("host memory")?.fill(1);

    // Every step reuses the memory of the step before: the source is called only in the first step.
    let mut calls = Vec::new();
    for _ in 0..3 {
        let watch = memory.watch("step");
        let _scope = memory.category(Category::Activation);
        let hidden = memory.allocate(12 * MIB)?;
        drop(memory.allocate_in(Category::Workspace, 3 * MIB)?);
        drop(hidden);
        assert!(watch.finish().left_over.is_empty(), "a step keeps nothing");
        calls.push(memory.statistics().source_calls);
    }
    assert_eq!(calls[0], calls[2]);

    // A reclaimer with memory to spare is asked before a request fails.
    let cache = Mutex::new(vec![memory.allocate(40 * MIB)?]);
    let _asked = memory.on_shortage(0, move |_missing_bytes: usize| {
        let given = cache.lock().map(|mut blocks| std::mem::take(&mut *blocks)).unwrap_or_default();
        given.iter().map(|block| block.size_bytes()).sum()
    });

    // A simulation takes the same decisions without the memory. It has no reclaimers, so it shows
    // that the request needs them.
    let plan = memory.simulate();
    assert!(plan.allocator().allocate(56 * MIB).is_err());
    let large = memory.allocate(56 * MIB)?;
    let error = memory.allocate(1).err().ok_or("nothing is left")?;
    println!("{error}\n");

    for (category, counter) in memory.statistics().by_category.iter() {
        println!("{category:<16} {:>12} B at most", counter.peak_bytes);
    }
    drop((weights, large));
    assert_eq!(memory.trim(), 64 * MIB);
    Ok(())
}
