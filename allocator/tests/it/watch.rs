use lowtide_allocator::{CachingAllocator, Category, Watch, WatchReport};
use proptest::prelude::*;

use crate::common::{Op, PAGE_BYTES, PLENTY, World, op};

#[test]
fn report_has_what_happened_inside_and_nothing_else() {
    let memory = World::sim(PLENTY).memory;
    let before = memory.allocate_in(Category::Input, 1000).unwrap();
    let older = memory.allocate_in(Category::Parameter, 1).unwrap();
    let watch = memory.watch("step");
    let first = memory.allocate_in(Category::Activation, 3000).unwrap();
    let line = line!() + 1;
    let kept = memory.allocate_in(Category::Gradient, 600).unwrap();
    let charge = memory.charge(Category::Workspace, 70).unwrap();
    drop((before, first));
    let report = watch.finish();
    assert_eq!(report.name, "step");
    assert_eq!(report.allocations, 2);
    assert_eq!(report.allocated_bytes, 3072 + 1024);
    assert_eq!(report.freed_bytes, 1024 + 3072);
    assert_eq!(report.allocated_bytes_peak, 1024 + 512 + 3072 + 1024);
    assert_eq!(report.reserved_bytes_peak, 2 * PAGE_BYTES + 70);
    assert_eq!(report.net_bytes[Category::Input], -1024);
    assert_eq!(report.net_bytes[Category::Activation], 0);
    assert_eq!(report.net_bytes[Category::Gradient], 1024);
    assert_eq!(report.net_bytes[Category::Workspace], 70);
    let [left] = report.left_over[..] else { panic!("{report}") };
    assert_eq!((left.serial, left.requested_bytes), (kept.serial(), 600));
    assert_eq!((left.site.file(), left.site.line()), (file!(), line));
    drop((charge, older));
}

#[test]
fn text_groups_what_is_left_by_site_with_the_most_first() {
    let memory = World::sim(PLENTY).memory;
    let watch = memory.watch("epoch 3");
    let _small = memory.allocate_in(Category::Input, 1).unwrap();
    let large: Vec<_> =
        (0..3).map(|_| memory.allocate_in(Category::Gradient, 1024).unwrap()).collect();
    let report = watch.finish();
    let sites = report.by_site();
    assert_eq!(
        sites.iter().map(|site| (site.1, site.2)).collect::<Vec<_>>(),
        [(3072, 3), (512, 1)]
    );
    let text = report.to_string();
    let expected = format!(
        "epoch 3: 4 allocations of 3584 B, 0 B freed\n  \
         peak 3584 B allocated, {PAGE_BYTES} B reserved\n  \
         gradient                   +3072 B\n  \
         input                       +512 B\n  \
         left over 3072 B in 3 of {}\n  \
         left over 512 B in 1 of {}\n",
        sites[0].0, sites[1].0,
    );
    assert_eq!(text, expected);
    drop(large);
}

#[test]
fn block_that_takes_the_place_of_an_older_one_is_left_over() {
    let memory = World::sim(PLENTY).memory;
    let old = memory.allocate(1000).unwrap();
    let offset = old.offset();
    let watch = memory.watch("reuse");
    drop(old);
    let new = memory.allocate(1000).unwrap();
    assert_eq!(new.offset(), offset);
    let report = watch.finish();
    assert_eq!(report.left_over.len(), 1);
    assert_eq!(report.net_bytes[Category::Other], 0);
}

#[test]
fn peaks_of_inner_and_outer_and_statistics_are_each_their_own() {
    let memory = World::sim(PLENTY).memory;
    drop(memory.allocate(10 * PAGE_BYTES).unwrap());
    memory.trim();
    let outer = memory.watch("outer");
    drop(memory.allocate(4 * PAGE_BYTES).unwrap());
    memory.trim();
    let inner = memory.watch("inner");
    drop(memory.allocate(2 * PAGE_BYTES).unwrap());
    memory.trim();
    memory.reset_peaks();
    drop(memory.allocate(PAGE_BYTES).unwrap());
    let statistics = memory.statistics();
    assert_eq!(statistics.allocated.peak_bytes, PAGE_BYTES, "since the reset");
    let inner = inner.finish();
    assert_eq!(inner.allocated_bytes_peak, 2 * PAGE_BYTES, "the reset is not its business");
    assert_eq!(inner.reserved_bytes_peak, 2 * PAGE_BYTES);
    assert_eq!(outer.finish().allocated_bytes_peak, 4 * PAGE_BYTES);
    assert_eq!(memory.statistics(), statistics, "and none of this shows in the statistics");
}

#[test]
fn dropped_watch_leaves_no_trace() {
    let memory = World::sim(PLENTY).memory;
    let watch = memory.watch("dropped");
    drop(memory.allocate(3 * PAGE_BYTES).unwrap());
    let before = memory.statistics();
    drop(watch);
    assert_eq!(memory.statistics(), before);
    assert_eq!(before.allocated.peak_bytes, 3 * PAGE_BYTES);
}

/// The expected report of a watch, computed from every value of the counters.
#[derive(Clone, Debug)]
struct Model {
    allocated_bytes_peak: usize,
    reserved_bytes_peak: usize,
}

/// Opens and closes watches around random parts of a program. Compares each report with the running
/// maximum of the counters after every step, in a world without watches.
fn check_watches(program: &[(Op, u8)]) -> Result<(), TestCaseError> {
    let (mut world, mut plain) = (World::sim(PLENTY), World::sim(PLENTY));
    let mut open: Vec<(Watch, Model)> = Vec::new();
    for &(op, toggle) in program {
        match toggle {
            0 => {
                let now = plain.memory.statistics();
                let model = Model {
                    allocated_bytes_peak: now.allocated.current_bytes,
                    reserved_bytes_peak: now.reserved.current_bytes,
                };
                open.push((world.memory.watch("part"), model));
            }
            // Any open watch may end, not only the innermost one.
            1..=2 if !open.is_empty() => {
                let (watch, model) = open.remove(usize::from(toggle) % open.len());
                let report = watch.finish();
                prop_assert_eq!(report.allocated_bytes_peak, model.allocated_bytes_peak);
                prop_assert_eq!(report.reserved_bytes_peak, model.reserved_bytes_peak);
            }
            3 => {
                world.memory.reset_peaks();
                plain.memory.reset_peaks();
            }
            _ => {}
        }
        prop_assert_eq!(world.step(op).unwrap(), plain.step(op).unwrap());
        let now = plain.memory.statistics();
        for (_, model) in &mut open {
            model.allocated_bytes_peak =
                model.allocated_bytes_peak.max(now.allocated.current_bytes);
            model.reserved_bytes_peak = model.reserved_bytes_peak.max(now.reserved.current_bytes);
        }
        prop_assert_eq!(world.memory.statistics(), now);
    }
    Ok(())
}

proptest! {
    #[test]
    fn watches_in_any_order_agree_with_a_running_maximum(
        program in prop::collection::vec((op(), 0..12_u8), 1..80),
    ) {
        check_watches(&program)?;
    }

    #[test]
    fn simulated_watch_says_what_the_real_one_will(
        before in prop::collection::vec(op(), 0..40),
        inside in prop::collection::vec(op(), 1..40),
    ) {
        let mut real = World::sim(PLENTY);
        real.run(&before).unwrap();
        let _around = real.memory.watch("around");
        let simulation = real.memory.simulate();
        let mut twin = World {
            buffers: real.buffers.iter().map(|b| simulation.adopt(b).unwrap()).collect(),
            charges: real.charges.iter().map(|c| simulation.adopt_charge(c).unwrap()).collect(),
            memory: simulation.allocator().clone(),
        };
        prop_assert_eq!(report_of(&mut twin, &inside), report_of(&mut real, &inside));
    }
}

fn report_of(world: &mut World, program: &[Op]) -> WatchReport {
    let memory: CachingAllocator = world.memory.clone();
    let watch = memory.watch("inside");
    world.run(program).unwrap();
    watch.finish()
}
