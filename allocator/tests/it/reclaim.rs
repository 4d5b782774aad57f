use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use lowtide_allocator::{
    Buffer, CachingAllocator, Category, Fault, HostSource, OutOfMemory, Registration, Repeat, Rung,
    SimSource, SimStreams, Stream,
};

use crate::common::PAGE_BYTES;

/// An allocator with room for four blocks of a page.
fn small() -> CachingAllocator {
    let source = SimSource::with_capacity(4 * PAGE_BYTES).page_bytes(PAGE_BYTES);
    CachingAllocator::new(source).unwrap()
}

fn ledger(memory: &CachingAllocator, size_bytes: usize) -> OutOfMemory {
    let error = memory.allocate(size_bytes).unwrap_err();
    error.out_of_memory().unwrap().clone()
}

/// A reclaimer that holds blocks that can be freed.
#[derive(Clone, Default)]
struct Hoard(Arc<Mutex<Vec<Buffer>>>);

impl Hoard {
    fn fill(&self, memory: &CachingAllocator, count: usize) {
        let blocks = (0..count).map(|_| memory.allocate(PAGE_BYTES).unwrap());
        let blocks: Vec<Buffer> = blocks.collect();
        self.0.lock().unwrap().extend(blocks);
    }

    fn give(&self, count: usize) -> usize {
        let mut blocks = self.0.lock().unwrap();
        let rest = blocks.len().saturating_sub(count);
        blocks.drain(rest..).map(|block| block.size_bytes()).sum()
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// A log of reclaimer calls: name of the reclaimer, and bytes that it was asked for.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(&'static str, usize)>>>);

impl Log {
    fn register(
        &self,
        memory: &CachingAllocator,
        priority: i32,
        name: &'static str,
    ) -> Registration {
        let log = self.clone();
        memory.on_shortage(priority, move |missing_bytes| {
            log.0.lock().unwrap().push((name, missing_bytes));
            0
        })
    }

    fn take(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().drain(..).map(|(name, _)| name).collect()
    }
}

#[test]
fn lower_priorities_come_first_and_equals_as_they_registered() {
    let (memory, log) = (small(), Log::default());
    let orders = [(5, "fourth"), (-1, "first"), (0, "second"), (0, "third"), (i32::MAX, "fifth")];
    let registrations = orders.map(|(priority, name)| log.register(&memory, priority, name));
    let ledger = ledger(&memory, 5 * PAGE_BYTES);
    assert_eq!(ledger.tried, [Rung::Search, Rung::Stitch, Rung::Trim, Rung::Reclaim]);
    assert_eq!(log.take(), ["first", "second", "third", "fourth", "fifth"]);
    drop(registrations);
    memory.check_invariants();
}

#[test]
fn ledger_names_only_the_rungs_that_were_climbed() {
    use Rung::{OtherStreams, Search, Stitch, Trim};
    let memory = small();
    let tried = |size_bytes| ledger(&memory, size_bytes).tried;
    assert_eq!(tried(usize::MAX), [Trim], "no block is that large: there is nothing to look for");
    assert_eq!(tried(5 * PAGE_BYTES), [Search, Stitch, Trim]);
    let charge = memory.charge(Category::Other, 5 * PAGE_BYTES).unwrap_err();
    assert_eq!(charge.out_of_memory().unwrap().tried, [Trim], "a charge needs no place");
    let full = memory.allocate(4 * PAGE_BYTES).unwrap();
    assert_eq!(tried(512), [Search, Trim], "less than a page is never made of several");
    drop(full);

    let source = SimSource::with_capacity(4 * PAGE_BYTES).page_bytes(PAGE_BYTES);
    let source = source.streams(&SimStreams::new());
    let memory = CachingAllocator::new(source).unwrap();
    let on = |stream, pages| memory.allocate_on(stream, Category::Other, pages * PAGE_BYTES);
    let [one, two] = [1, 2].map(|index| Stream::new(index).unwrap());
    let (low, _wall) = (on(one, 1).unwrap(), on(one, 1).unwrap());
    let tried_by = |stream| on(stream, 4).unwrap_err().out_of_memory().unwrap().tried.clone();
    assert_eq!(tried_by(two), [Search, Stitch, Trim], "no other stream has left anything");
    drop(low);
    assert_eq!(tried_by(one), [Search, Stitch, Trim], "what is left is the stream's own");
    assert_eq!(tried_by(two), [Search, OtherStreams, Stitch, Trim]);
    let fault = Fault { nth: 1, repeat: Repeat::Once };
    memory.inject_fault(fault);
    assert_eq!(tried_by(two), [Trim], "an injected failure is not searched for");
}

#[test]
fn nobody_is_asked_while_the_allocator_can_help_itself() {
    let (memory, log) = (small(), Log::default());
    let _registration = log.register(&memory, 0, "asked");
    let low = memory.allocate(PAGE_BYTES).unwrap();
    let wall = memory.allocate(512).unwrap();
    drop(low);
    drop(memory.allocate(2 * PAGE_BYTES).unwrap());
    // The charge takes the cached pages beyond the top; the block is stitched from the pages left
    // below.
    drop(memory.charge(Category::Other, PAGE_BYTES).unwrap());
    assert!(memory.allocate(3 * PAGE_BYTES).unwrap().is_stitched());
    assert_eq!(log.take(), [""; 0]);
    drop(wall);
}

#[test]
fn search_follows_each_reclaimer_and_the_rest_is_not_asked() {
    let (memory, log, hoard) = (small(), Log::default(), Hoard::default());
    hoard.fill(&memory, 4);
    let first = log.register(&memory, 1, "gives nothing");
    let giver = {
        let hoard = hoard.clone();
        memory.on_shortage(2, move |missing_bytes| hoard.give(missing_bytes / PAGE_BYTES))
    };
    let last = log.register(&memory, 3, "not needed");
    let block = memory.allocate(2 * PAGE_BYTES).unwrap();
    assert_eq!(log.take(), ["gives nothing"]);
    assert_eq!(hoard.len(), 2);
    assert_eq!(memory.statistics().ooms, 0);
    assert_eq!(memory.request_count(), 5, "a search again is no request");
    // A charge asks reclaimers, too.
    let charge = memory.charge(Category::Workspace, PAGE_BYTES).unwrap();
    assert_eq!((log.take(), hoard.len()), (vec!["gives nothing"], 1));
    drop((block, charge, first, giver, last));
    memory.check_invariants();
}

#[test]
fn missing_bytes_are_those_after_the_last_reclaimer() {
    let (memory, hoard) = (small(), Hoard::default());
    hoard.fill(&memory, 4);
    let give = {
        let hoard = hoard.clone();
        memory.on_shortage(0, move |_| hoard.give(1))
    };
    let ledger = ledger(&memory, 4 * PAGE_BYTES);
    assert_eq!(ledger.missing_bytes, 3 * PAGE_BYTES);
    assert_eq!(ledger.allocated_bytes, 3 * PAGE_BYTES);
    assert_eq!(hoard.len(), 3);
    drop(give);
}

#[test]
fn reclaimer_is_asked_no_more_when_its_registration_is_gone() {
    let (memory, log) = (small(), Log::default());
    let (one, two) = (log.register(&memory, 0, "one"), log.register(&memory, 0, "two"));
    drop(one);
    assert!(memory.allocate(5 * PAGE_BYTES).is_err());
    assert_eq!(log.take(), ["two"]);
    drop(two);
    let ledger = ledger(&memory, 5 * PAGE_BYTES);
    assert_eq!(ledger.tried, [Rung::Search, Rung::Stitch, Rung::Trim]);
    assert_eq!(log.take(), [""; 0]);
}

#[test]
fn registration_may_outlive_its_allocator_and_a_reclaimer_its_registration() {
    let (memory, log) = (small(), Log::default());
    let registration = log.register(&memory, 0, "gone");
    drop(memory);
    drop(registration);

    // The reclaimer unregisters itself, and so drops its handle of the allocator.
    let memory = small();
    let own: Arc<Mutex<Option<Registration>>> = Arc::default();
    let (slot, handle) = (Arc::clone(&own), memory.clone());
    let registration = memory.on_shortage(0, move |_| {
        drop(slot.lock().unwrap().take());
        handle.trim()
    });
    *own.lock().unwrap() = Some(registration);
    for _ in 0..2 {
        assert!(memory.allocate(5 * PAGE_BYTES).is_err());
    }
    memory.check_invariants();
}

#[test]
fn injected_fault_asks_nobody() {
    let (memory, log) = (small(), Log::default());
    let _registration = log.register(&memory, 0, "asked");
    memory.inject_fault(Fault { nth: 1, repeat: Repeat::Forever });
    assert!(ledger(&memory, 1).injected);
    assert!(memory.charge(Category::Other, 1).is_err());
    assert_eq!(log.take(), [""; 0]);
    memory.clear_fault();
    assert!(memory.allocate(5 * PAGE_BYTES).is_err());
    assert_eq!(log.take(), ["asked"]);
}

#[test]
fn seal_asks_nobody() {
    let (memory, log) = (small(), Log::default());
    let _registration = log.register(&memory, 0, "asked");
    let seal = memory.seal();
    assert!(memory.allocate(5 * PAGE_BYTES).is_err());
    assert_eq!(log.take(), [""; 0]);
    drop(seal);
}

#[test]
fn panic_of_a_reclaimer_leaves_the_allocator_whole() {
    let (memory, hoard) = (small(), Hoard::default());
    hoard.fill(&memory, 4);
    let (before, hash) = (memory.statistics(), memory.layout_hash());
    let panics = memory.on_shortage(0, |_| panic!("nothing to spare"));
    let outcome = catch_unwind(AssertUnwindSafe(|| memory.allocate(PAGE_BYTES)));
    assert!(outcome.is_err());
    memory.check_invariants();
    assert_eq!(memory.layout_hash(), hash);
    assert_eq!(memory.statistics().allocated, before.allocated);
    drop(panics);
    let log = Log::default();
    let _asked = log.register(&memory, 0, "asked");
    assert!(memory.allocate(PAGE_BYTES).is_err());
    assert_eq!(log.take(), ["asked"]);
    hoard.give(1);
    memory.allocate(PAGE_BYTES).unwrap();
}

#[test]
fn reclaimer_that_allocates_is_not_asked_by_itself() {
    let (memory, log) = (small(), Log::default());
    let refused = Arc::new(Mutex::new(0));
    let forbidden = {
        let (memory, refused) = (memory.clone(), Arc::clone(&refused));
        // The reclaimer breaks the rules of `Reclaim`: it allocates the missing bytes.
        move |missing_bytes: usize| {
            let block = memory.allocate(missing_bytes);
            *refused.lock().unwrap() += usize::from(block.is_err());
            0
        }
    };
    let one = memory.on_shortage(0, forbidden);
    let two = log.register(&memory, 1, "next");
    assert!(memory.allocate(5 * PAGE_BYTES).is_err());
    assert_eq!((*refused.lock().unwrap(), log.take()), (1, vec!["next"]));
    memory.check_invariants();
    // The next shortage asks the reclaimers again.
    assert!(memory.allocate(5 * PAGE_BYTES).is_err());
    assert_eq!((*refused.lock().unwrap(), log.take()), (2, vec!["next"]));
    drop((one, two));
}

#[test]
fn reclaimer_of_one_allocator_may_use_another() {
    let device = small();
    let host = CachingAllocator::new(HostSource::with_capacity(2 << 16)).unwrap();
    let (hoard, spilled, log) = (Hoard::default(), Hoard::default(), Log::default());
    hoard.fill(&device, 4);
    let spill = {
        let (hoard, spilled, host) = (hoard.clone(), spilled.clone(), host.clone());
        device.on_shortage(0, move |_| {
            spilled.fill(&host, 1);
            hoard.give(1)
        })
    };
    // The host is short as well, and asks its own reclaimers.
    let full = Mutex::new(Some(host.allocate(2 << 16).unwrap()));
    let make_room = host
        .on_shortage(0, move |_| full.lock().unwrap().take().map_or(0, |block| block.size_bytes()));
    let _log = log.register(&host, 1, "not needed");
    device.allocate(PAGE_BYTES).unwrap();
    assert_eq!((hoard.len(), spilled.len(), log.take()), (3, 1, vec![]));
    drop((spill, make_room));
}

#[test]
fn threads_that_are_short_together_keep_the_invariants() {
    let (memory, hoard) = (small(), Hoard::default());
    hoard.fill(&memory, 4);
    let give = {
        let hoard = hoard.clone();
        memory.on_shortage(0, move |_| hoard.give(1))
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    let block = memory.allocate(PAGE_BYTES);
                    memory.check_invariants();
                    drop(block);
                }
            });
        }
    });
    assert!(hoard.len() < 4);
    drop(give);
    memory.check_invariants();
    hoard.give(4);
    assert_eq!(memory.statistics().allocated.current_bytes, 0);
}
