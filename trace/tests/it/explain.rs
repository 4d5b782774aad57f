//! The numbers of an explanation agree with a recount, and its words fit a terminal.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use lowtide_allocator::Category;
use lowtide_allocator::torch::StreamId;
use lowtide_trace::{Advice, EventKind, Explanation, RecordedRange, Recording, Site, TraceEvent};
use proptest::prelude::*;

use crate::synthetic::{
    self, BASE, Lived, MIB, Recorder, charges_at, lives, one_event, reserved_at, training,
};

fn sum<'a>(lives: impl IntoIterator<Item = &'a Lived>) -> (u64, u64) {
    lives
        .into_iter()
        .fold((0, 0), |(blocks, bytes), life| (blocks + 1, bytes + life.block.size_bytes))
}

/// Recounts every number, moment by moment.
fn check_numbers(recording: &Recording) {
    let told = recording.explain();
    let all = lives(recording);
    let moments = 0..=recording.events.len();
    let live_at = |moment| all.iter().filter(move |life| life.is_live_at(moment));
    let in_use_at =
        |moment| sum(live_at(moment)).1 + charges_at(recording, moment).iter().sum::<u64>();
    let peak = moments.clone().min_by_key(|&moment| Reverse(in_use_at(moment))).unwrap();
    assert_eq!(told.peak.moment.event, peak.checked_sub(1).map(|event| event as u64));
    assert_eq!(told.peak.in_use_bytes, in_use_at(peak));
    assert_eq!((told.peak.live_blocks, told.peak.live_bytes), sum(live_at(peak)));
    let requested = live_at(peak).map(|life| life.block.requested_bytes).sum::<u64>();
    assert_eq!(told.peak.requested_bytes, requested);
    let charges = charges_at(recording, peak);
    assert_eq!(told.peak.charged_bytes, charges.iter().sum::<u64>());
    assert_eq!(told.peak.reserved_bytes, reserved_at(recording, peak));
    let reserved = moments.clone().min_by_key(|&moment| Reverse(reserved_at(recording, moment)));
    assert_eq!(told.reserved_peak_bytes, reserved_at(recording, reserved.unwrap()));
    let event = reserved.unwrap().checked_sub(1).map(|event| event as u64);
    assert_eq!(told.reserved_peak.event, event);

    for (index, charged_bytes) in charges.into_iter().enumerate() {
        let category = Category::ALL.get(index).copied();
        let (blocks, bytes) = sum(live_at(peak).filter(|life| life.block.category == category));
        let share = told.peak.by_category.iter().find(|share| share.category == category);
        let share = share.map_or((0, 0), |share| (share.blocks, share.bytes));
        assert_eq!(share, (blocks, bytes + charged_bytes));
    }
    let is_waiting = |life: &&Lived, moment| life.waits_from.is_some_and(|from| from <= moment);
    let waiting_at = |moment| sum(live_at(moment).filter(|life| is_waiting(life, moment))).1;
    assert_eq!(told.peak.waiting_bytes, waiting_at(peak));
    assert_eq!(told.waits.waiting_bytes_max, moments.map(waiting_at).max().unwrap());
    let is_delayed =
        |life: &&Lived| life.waits_from.is_some_and(|from| life.to.is_none_or(|to| to > from + 1));
    assert_eq!(told.waits.delayed_frees, all.iter().filter(is_delayed).count() as u64);
    check_sites(recording, &told, &all, peak);
    check_lifetimes(recording, &told, &all);
}

fn check_sites(recording: &Recording, told: &Explanation, all: &[Lived], peak: usize) {
    let name = |site: Option<u32>| site.map(|site| recording.sites[site as usize].clone());
    let mut by_site: BTreeMap<Option<Site>, (u64, u64)> = BTreeMap::new();
    for life in all.iter().filter(|life| life.is_live_at(peak)) {
        let sum = by_site.entry(name(life.block.site)).or_default();
        *sum = (sum.0 + 1, sum.1 + life.block.size_bytes);
    }
    assert_eq!(told.peak.site_count, by_site.len() as u64);
    assert_eq!(told.peak.by_site.len(), by_site.len().min(10));
    for share in &told.peak.by_site {
        assert_eq!(by_site[&share.site], (share.blocks, share.bytes));
    }
    assert!(told.peak.by_site.is_sorted_by_key(|share| Reverse(share.bytes)));
}

fn check_lifetimes(recording: &Recording, told: &Explanation, all: &[Lived]) {
    let throughout = sum(all.iter().filter(|life| life.from == 0 && life.to.is_none()));
    assert_eq!((told.throughout.blocks, told.throughout.bytes), throughout);
    let by_category = told.throughout_by_category.iter();
    let parts = by_category.fold((0, 0), |all, part| (all.0 + part.blocks, all.1 + part.bytes));
    assert_eq!(parts, throughout);

    let came_and_went = || all.iter().filter(|life| life.from > 0 && life.to.is_some());
    let largest = came_and_went().map(|life| life.block.size_bytes).max();
    assert_eq!(told.transients.first().map(|block| block.size_bytes), largest);
    for transient in &told.transients {
        let name = |life: &Lived| life.block.site.map(|site| &recording.sites[site as usize]);
        let alike: Vec<_> = came_and_went()
            .filter(|life| life.block.category == transient.category)
            .filter(|life| name(life) == transient.site.as_ref())
            .collect();
        assert_eq!(transient.blocks, alike.len() as u64);
        let first = alike.iter().min_by_key(|life| (Reverse(life.block.size_bytes), life.from));
        let first = first.unwrap();
        assert_eq!(transient.size_bytes, first.block.size_bytes);
        let events = (transient.allocated_event as usize + 1, transient.freed_event as usize + 1);
        assert_eq!(events, (first.from, first.to.unwrap()));
    }

    let unfreed = || all.iter().filter(|life| life.from > 0 && life.to.is_none());
    assert_eq!((told.unfreed.blocks, told.unfreed.bytes), sum(unfreed()));
    for group in &told.unfreed_by_site {
        let alike = unfreed().filter(|life| {
            life.block.site.map(|site| &recording.sites[site as usize]) == group.site.as_ref()
        });
        let mut quarters = [0; 4];
        for life in alike {
            quarters[(life.from - 1) * 4 / recording.events.len()] += life.block.size_bytes;
        }
        assert_eq!(group.bytes_by_quarter, quarters);
        assert_eq!(group.bytes, quarters.iter().sum::<u64>());
    }

    let churn = told.churn;
    let born = sum(all.iter().filter(|life| life.from > 0));
    assert_eq!((churn.allocations, churn.allocated_bytes), born);
    assert_eq!(churn.frees, all.iter().filter(|life| life.to.is_some()).count() as u64);
    let is_call =
        |event: &TraceEvent| matches!(event.kind, EventKind::Reserve | EventKind::Release);
    assert_eq!(churn.source_calls, recording.events.iter().filter(|e| is_call(e)).count() as u64);
    assert_eq!(churn.source_calls_by_quarter.iter().sum::<u64>(), churn.source_calls);
    let last = recording.events.iter().rposition(is_call).map(|event| event as u64);
    assert_eq!(churn.last_source_call, last);
    let is_oom = |event: &&TraceEvent| matches!(event.kind, EventKind::OutOfMemory { .. });
    assert_eq!(told.failures.len(), recording.events.iter().filter(is_oom).count());
}

/// Checks that every line fits, and that no character controls the terminal.
fn check_text(recording: &Recording) -> String {
    let text = recording.explain().to_string();
    for line in text.lines() {
        let columns: usize =
            line.chars().map(|char| if char < '\u{1100}' || char == '…' { 1 } else { 2 }).sum();
        assert!(columns <= 80, "{columns} columns: {line}");
        assert!(line.chars().all(|char| !char.is_control() && char != '\u{202e}'), "{line:?}");
        assert_eq!(line.trim_end(), line);
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn numbers_are_those_of_a_recount(recording in synthetic::recording()) {
        check_numbers(&recording);
        check_text(&recording);
    }

    #[test]
    fn text_fits_whatever_names_and_numbers_are(
        name in "\\PC{0,200}",
        odd in any::<String>(),
        bytes in any::<u64>(),
        times in 1..9_u64,
    ) {
        let mut recording = training(500);
        recording.policy.clone_from(&odd);
        for (index, site) in recording.sites.iter_mut().enumerate() {
            let file = if index % 2 == 0 { &name } else { &odd };
            *site = Site {
                module: odd.clone(),
                file: file.clone(),
                line: u32::MAX,
                function: odd.clone(),
            };
        }
        for event in &mut recording.events {
            event.size_bytes = event.size_bytes.saturating_add(bytes);
            event.time_us = event.time_us.saturating_mul(times);
        }
        check_text(&recording);
    }
}

#[test]
fn function_without_a_place_is_the_site() {
    let mut recording = training(4000);
    let function = format!("at::detail::{}", "empty".repeat(30));
    for site in &mut recording.sites {
        *site = Site { file: "??".into(), line: 0, function: function.clone(), ..Site::default() };
    }
    let text = check_text(&recording);
    assert!(text.contains("  at::detail::emptyempty") && text.contains("…\n"), "{text}");
    assert!(!text.contains("?? at"), "{text}");
}

#[test]
fn training_run_is_explained() {
    let recording = training(4000);
    check_numbers(&recording);
    let told = recording.explain();
    let text = check_text(&recording);
    let metrics = told.unfreed_by_site.iter().find(|unfreed| unfreed.is_growing()).unwrap();
    assert_eq!(metrics.site.as_ref().unwrap().function, "Metrics::push");
    assert_eq!(told.unfreed_by_site[0], *metrics);
    for part in [
        "By category at the peak",
        "There from the beginning to the end\n  176.0 MiB in 12 blocks: parameter",
        "Out of memory: 1 time",
        "calls of the source, by quarters 13, 0, 0, 0; the last one at event 461.",
        "frees waited for other streams, up to 8 MiB at once.",
        "Activations are 4",
        "8-bit state\n    would take about 264.0 MiB less",
        "in 15 blocks from src/train/metrics.rs:19 Metrics::push were\n    allocated in every",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn recordings_of_nothing_and_of_one_event_are_explained() {
    let nothing = Recording::default();
    check_numbers(&nothing);
    assert!(check_text(&nothing).contains("Peak: 0 B in use before the first event."));
    assert_eq!(nothing.explain().advice, []);
    for kind in synthetic::EVERY_KIND {
        check_numbers(&one_event(kind, 1000));
        check_text(&one_event(kind, 1000));
    }
}

#[test]
fn largest_numbers_saturate() {
    let recording = synthetic::largest();
    let told = recording.explain();
    assert_eq!(told.peak.in_use_bytes, u64::MAX);
    assert_eq!(told.reserved_peak_bytes, u64::MAX);
    check_text(&recording);
    let exact = one_event(EventKind::Allocate { id: 1 }, (1 << 53) + 1);
    assert_eq!(exact.explain().peak.live_bytes, (1 << 53) + 1);
}

#[test]
fn lost_events_are_told() {
    let mut recording = training(100);
    assert!(!check_text(&recording).contains("lost"));
    recording.lost_events = 1;
    assert!(check_text(&recording).contains("1 event was lost before the first one here"));
    recording.lost_events = 123_456;
    assert!(check_text(&recording).contains("123,456 events were lost before the first one here"));
}

#[test]
fn same_recording_gives_the_same_words() {
    assert_eq!(training(3000).explain().to_string(), training(3000).explain().to_string());
}

/// A recording: blocks of these sizes, every other one freed, a failed request, then more blocks.
fn with_holes(sizes: &[u64]) -> Recording {
    let mut recorder = Recorder::new(64 * MIB, &[("a.rs", 1, "")]);
    let ids: Vec<u64> =
        sizes.iter().map(|&size| recorder.allocate(Category::Activation, 0, size)).collect();
    for id in ids.iter().step_by(2) {
        recorder.free(*id);
    }
    recorder.event(EventKind::OutOfMemory { free_bytes: 0 }, Category::Activation, 30 * MIB);
    recorder.free(ids[1]);
    recorder.allocate(Category::Input, 0, 70 * MIB);
    recorder.allocate(Category::Input, 0, MIB);
    recorder.finish()
}

#[test]
fn hole_at_a_failure_is_found_behind_what_happened_later() {
    let sizes = [3 * MIB, 20 * MIB, 11 * MIB, 5 * MIB, 9 * MIB, 2 * MIB];
    let recording = with_holes(&sizes);
    let failure = &recording.explain().failures[0];
    // One segment of 64 MiB, in which 14 MiB were never used.
    assert_eq!(failure.largest_hole_bytes, Some(14 * MIB));
    assert_eq!((failure.in_use_bytes, failure.cached_bytes), (27 * MIB, 37 * MIB));
    assert!(failure.is_for_fragmentation());
    check_text(&recording);

    // PyTorch's segments stay apart; segments of this crate are one range.
    let mut apart = recording.clone();
    let whole = apart.end.remove(0);
    for (offset, size_bytes) in [(0, 60 * MIB), (60 * MIB, whole.size_bytes - 60 * MIB)] {
        let range = RecordedRange { address: BASE + offset, size_bytes, ..whole.clone() };
        apart.end.push(range);
    }
    let hole = |recording: &Recording| recording.explain().failures[0].largest_hole_bytes;
    assert_eq!(hole(&apart), Some(14 * MIB));
    apart.policy = "torch".into();
    assert_eq!(hole(&apart), Some(11 * MIB));

    // If the end contradicts the events, there is no largest hole.
    let mut wrong = recording;
    wrong.end[0].size_bytes -= 100 * MIB;
    assert_eq!(hole(&wrong), None);
    assert!(check_text(&wrong).contains("hole not known."), "{}", check_text(&wrong));
}

/// The advice on a recording with one block of each size, all live at the same time.
fn advice_of(blocks: &[(Category, u64, u64)], reserved_bytes: u64) -> Vec<Advice> {
    let mut recording = Recording { page_bytes: 1, ..Recording::default() };
    recording.start_reserved_bytes = reserved_bytes;
    for (id, &(category, size_bytes, requested_bytes)) in (0..).zip(blocks) {
        recording.events.push(TraceEvent {
            time_us: id,
            kind: EventKind::Allocate { id },
            size_bytes,
            requested_bytes,
            address: id << 30,
            stream: StreamId(0),
            category: Some(category),
            site: None,
        });
    }
    recording.explain().advice
}

#[test]
fn advice_is_given_from_its_bound_on() {
    use Category::{Activation, Gradient, OptimizerState, Parameter, Workspace};
    for (category, bound) in
        [(Activation, 400), (OptimizerState, 250), (Gradient, 200), (Workspace, 150)]
    {
        let of = |bytes| {
            advice_of(&[(category, bytes, bytes), (Parameter, 1000 - bytes, 1000 - bytes)], 1000)
        };
        assert_eq!(of(bound - 1), []);
        let (category, bytes, in_use_bytes) = (Some(category), bound, 1000);
        assert_eq!(of(bound), [Advice::Category { category, bytes, in_use_bytes }]);
    }
    let rounded = |requested| advice_of(&[(Parameter, 1000, requested)], 1000);
    assert_eq!(rounded(951), []);
    assert_eq!(rounded(950), [Advice::Rounding { rounding_bytes: 50, live_bytes: 1000 }]);
    let reserved = |reserved_bytes| advice_of(&[(Parameter, 1000, 1000)], reserved_bytes);
    assert_eq!(reserved(1099), []);
    let advice = Advice::Reserved {
        reserved_bytes: 1100,
        in_use_bytes: 1000,
        pages_bytes: None,
        expandable_bytes: None,
    };
    let text = advice.to_string();
    assert_eq!(reserved(1100), [advice]);
    assert!(text.starts_with("1.1 KiB were reserved at most, 1.10 x the 1000 B"));
}

#[test]
fn failures_are_told_apart() {
    let failed = |free_bytes: u64, reserved_bytes: u64| {
        let mut recording = one_event(EventKind::OutOfMemory { free_bytes }, 1000);
        recording.start_reserved_bytes = reserved_bytes;
        recording.explain().advice
    };
    let [Advice::Fragmentation { failure }] = &failed(400, 600)[..] else {
        panic!("{:?}", failed(400, 600));
    };
    assert_eq!((failure.free_bytes, failure.cached_bytes), (400, 600));
    let [Advice::Missing { missing_bytes, .. }] = &failed(400, 599)[..] else {
        panic!("{:?}", failed(400, 599));
    };
    assert_eq!(*missing_bytes, 1);
}

#[test]
fn source_calls_to_the_end_and_a_full_device_are_told() {
    let mut recording = training(400);
    recording.capacity_bytes = recording.explain().reserved_peak_bytes;
    recording.events.retain(|event| !matches!(event.kind, EventKind::OutOfMemory { .. }));
    let is_full = |advice: &Advice| matches!(advice, Advice::Full { .. });
    let is_busy = |advice: &Advice| matches!(advice, Advice::SourceCalls { last_quarter: 4.., .. });
    let advice = recording.explain().advice;
    assert!(advice.iter().any(is_full) && !advice.iter().any(is_busy), "{advice:?}");
    for kind in [EventKind::Reserve, EventKind::Release].repeat(3) {
        let last = recording.events.last().unwrap().clone();
        recording.events.push(TraceEvent { kind, size_bytes: 512, ..last });
    }
    recording.capacity_bytes *= 2;
    let advice = recording.explain().advice;
    assert!(!advice.iter().any(is_full) && advice.iter().any(is_busy), "{advice:?}");
    check_text(&recording);
}
