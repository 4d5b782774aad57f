use std::panic::Location;

use lowtide_allocator::{CachingAllocator, Category, HostSource, ModulePath, ModuleShare, Origin};

use crate::common::{PAGE_BYTES, PLENTY, World};

const NONE: Origin = Origin { module: None, site: None };

fn origin(path: &str) -> Origin {
    Origin { module: Some(ModulePath::new(path)), ..NONE }
}

#[test]
fn a_block_has_module_and_site_of_the_origin_it_was_made_in() {
    let memory = World::sim(PLENTY).memory;
    let elsewhere = Location::caller();
    let module = ModulePath::new("blocks.3.attention");
    let _outside = memory.allocate(1).unwrap();
    let line = line!() + 1;
    let _inside = origin("blocks.3.attention").enter();
    let _own_site = memory.allocate(1).unwrap();
    let inner = Origin { module: Some(module), site: Some(elsewhere) }.enter();
    let _given_site = memory.allocate(1).unwrap();
    drop(inner);
    let _after = memory.allocate(1).unwrap();

    let blocks = memory.live_blocks();
    let modules: Vec<_> = blocks.iter().map(|block| block.module).collect();
    assert_eq!(modules, [None, Some(module), Some(module), Some(module)]);
    let lines: Vec<_> = blocks.iter().map(|block| block.site.line()).collect();
    assert_eq!(lines, [line - 2, line + 1, elsewhere.line(), line + 5]);
}

#[test]
fn origins_end_with_their_scope_and_belong_to_a_thread() {
    let scope = origin("a").enter();
    let other = std::thread::spawn(Origin::current).join().unwrap();
    assert_eq!((Origin::current(), other), (origin("a"), NONE));
    drop(scope);
    assert_eq!(Origin::current(), NONE);
}

#[test]
fn out_of_memory_names_the_module_and_the_largest_ones() {
    let memory = World::sim(10 * PAGE_BYTES).memory;
    let _large = (origin("encoder").enter(), memory.allocate(6 * PAGE_BYTES).unwrap()).1;
    let _small = memory.allocate(PAGE_BYTES).unwrap();
    let error = {
        let _decoder = origin("decoder").enter();
        memory.allocate(5 * PAGE_BYTES).unwrap_err()
    };
    let ledger = error.out_of_memory().unwrap();
    assert_eq!(ledger.module, Some(ModulePath::new("decoder")));
    assert_eq!(ledger.by_module.len(), 2);
    let most = ledger.by_module[0];
    assert_eq!((most.name().as_str(), most.bytes), ("encoder", 6 * PAGE_BYTES as u64));
    assert_eq!(ledger.by_module[1].module, None);
    assert!(error.to_string().contains(&format!("{} in decoder, ", ledger.site)), "{error}");
    let text = ledger.ledger();
    let row = text.lines().find(|line| line.trim_start().starts_with("in encoder")).unwrap();
    assert!(row.contains(&format!("{} B", 6 * PAGE_BYTES)), "{text}");
}

/// Allocates in two modules: also a block that gets its module late, and a block that exists only
/// at the peak.
fn recorded(memory: &CachingAllocator) -> Vec<lowtide_allocator::Buffer> {
    let weight = memory.allocate_in(Category::Parameter, 3000).unwrap();
    let outside = memory.allocate_in(Category::Input, 100).unwrap();
    let kept = {
        let _first = origin("first").enter();
        memory.allocate_in(Category::Activation, 2000).unwrap()
    };
    weight.set_module(ModulePath::of_parameter("second.0.weight"));
    let _root = origin("").enter();
    drop(memory.allocate_in(Category::Workspace, 9000).unwrap());
    vec![weight, outside, kept]
}

fn rows(shares: &[ModuleShare]) -> Vec<(String, u64, u64)> {
    shares.iter().map(|share| (share.name(), share.blocks, share.bytes)).collect()
}

#[test]
fn the_peak_is_told_by_module_and_the_same_on_a_simulation() {
    let memory = World::sim(PLENTY).memory;
    let _held = recorded(&memory);
    let capture = memory.capture();
    let expected = [("(root)", 1, 9216), ("second.0", 1, 3072), ("first", 1, 2048)];
    let expected = expected.map(|(name, blocks, bytes)| (name.to_owned(), blocks, bytes));
    let at_peak = rows(&capture.modules_at_peak(0));
    assert_eq!(at_peak[..3], expected);
    assert_eq!(at_peak[3], ("(none)".to_owned(), 1, 512));
    let now = capture.modules_at_peak(memory.event_count());
    assert_eq!(rows(&now), [&at_peak[1..3], &at_peak[3..]].concat());

    let simulation = memory.simulate();
    assert_eq!(simulation.allocator().live_blocks(), memory.live_blocks());
    assert_eq!(simulation.allocator().capture().modules_at_peak(0), now);
}

#[test]
fn checked_blocks_keep_their_module_and_what_was_asked_for() {
    let source = HostSource::with_capacity(1 << 20);
    let memory = CachingAllocator::checked(source).unwrap();
    let _scope = origin("checked").enter();
    for size_bytes in [0, 1, 448, 449, 512] {
        let _block = memory.allocate(size_bytes).unwrap();
        let [live] = memory.live_blocks()[..] else { panic!("one block") };
        assert_eq!(live.requested_bytes, size_bytes);
        assert_eq!(live.module, Some(ModulePath::new("checked")));
    }
}
