//! Explanations of recorded PyTorch traces agree with a naive walk over their events.

use std::collections::{BTreeMap, HashMap};

use lowtide_allocator::Policy;
use lowtide_allocator::torch::{BlockState, TorchSettings};
use lowtide_trace::{Action, Advice, Phase, Recording, RerunOptions, Site, Snapshot};

use crate::traces::pytorch_snapshots;

/// A live block of the walk.
#[derive(Clone, Copy)]
struct Block {
    requested_bytes: u64,
    site: Option<u32>,
}

/// One moment of the walk: the live blocks by address.
type Moment = BTreeMap<u64, Block>;

/// The live blocks before the first event: the blocks at the end, with every event undone.
fn start(snapshot: &Snapshot) -> Moment {
    let mut live = Moment::new();
    for segment in &snapshot.segments {
        for (block, &site) in segment.layout.blocks.iter().zip(&segment.block_sites) {
            if block.state != BlockState::Free {
                let requested_bytes = block.requested_bytes;
                live.insert(block.address, Block { requested_bytes, site });
            }
        }
    }
    for event in snapshot.device_traces[0].iter().rev() {
        match event.action {
            Action::Alloc => drop(live.remove(&event.address)),
            Action::FreeCompleted => {
                // The site of the block's request is unknown.
                let block = Block { requested_bytes: event.size_bytes, site: None };
                live.insert(event.address, block);
            }
            _ => {}
        }
    }
    live
}

/// Calls `see` for each event, with its index in a recording and the live blocks after it.
fn walk(snapshot: &Snapshot, mut see: impl FnMut(Option<u64>, &Moment)) {
    let mut live = start(snapshot);
    see(None, &live);
    let events = &snapshot.device_traces[0];
    let mut number = 0;
    for (index, event) in events.iter().enumerate() {
        let completes = |next: &&lowtide_trace::RecordedEvent| {
            next.action == Action::FreeCompleted && next.address == event.address
        };
        match event.action {
            Action::Alloc => {
                let block = Block { requested_bytes: event.size_bytes, site: event.site };
                live.insert(event.address, block);
            }
            Action::FreeCompleted => drop(live.remove(&event.address)),
            // A free that completes at once is one event of a recording.
            Action::FreeRequested if events.get(index + 1).filter(completes).is_some() => continue,
            Action::Snapshot | Action::UserDefined => continue,
            _ => {}
        }
        see(Some(number), &live);
        number += 1;
    }
}

fn by_site(snapshot: &Snapshot, live: &Moment) -> HashMap<Option<Site>, (u64, u64)> {
    let mut sums: HashMap<Option<Site>, (u64, u64)> = HashMap::new();
    for block in live.values() {
        let site = block.site.map(|site| snapshot.sites[site as usize].clone());
        let (blocks, bytes) = sums.entry(site).or_default();
        *blocks += 1;
        *bytes += block.requested_bytes;
    }
    sums
}

/// Checks that `bytes` are the requests plus possible rounding: up to 511 bytes each, and a tail of
/// up to 1 MiB for large requests.
#[track_caller]
fn check_rounded(bytes: u64, (blocks, requested_bytes): (u64, u64)) {
    let beyond_bytes = bytes.checked_sub(requested_bytes).expect("no block is less than asked for");
    assert!(beyond_bytes <= blocks * (1 << 20), "{bytes} for {requested_bytes} in {blocks}");
}

#[test]
fn explanation_of_a_recorded_trace_is_that_of_a_naive_walk() {
    for (name, snapshot) in pytorch_snapshots() {
        let recording = Recording::from_snapshot(&snapshot, 0).expect("a recording");
        let told = recording.explain();
        let words = told.to_string();
        println!("{name}\n{words}");
        let (mut events, mut at_peak, mut most) = (0, None, 0);
        walk(&snapshot, |number, live| {
            events = number.map_or(0, |number| number + 1);
            most = most.max(live.values().map(|block| block.requested_bytes).sum());
            if number == told.peak.moment.event {
                at_peak = Some(live.clone());
            }
        });
        let at_peak = at_peak.expect("the peak is a moment of the walk");
        let requested_bytes: u64 = at_peak.values().map(|block| block.requested_bytes).sum();
        assert_eq!(told.events, events, "{name}");
        assert_eq!(told.peak.live_blocks, at_peak.len() as u64, "{name}");
        assert_eq!(told.peak.requested_bytes, requested_bytes, "{name}");
        // Rounding may move the peak, by less than its own bytes.
        assert!(most - requested_bytes <= told.peak.rounding_bytes(), "{name}: {most}");

        let sites = by_site(&snapshot, &at_peak);
        assert_eq!(told.peak.site_count, sites.len() as u64, "{name}");
        for share in &told.peak.by_site {
            assert_eq!(share.blocks, sites[&share.site].0, "{name}: {:?}", share.site);
            check_rounded(share.bytes, sites[&share.site]);
        }
        for share in &told.peak.by_phase {
            let sums = sites.iter().filter(|(site, _)| phase(site.as_ref()) == share.phase);
            let sum = sums.fold((0, 0), |all, (_, part)| (all.0 + part.0, all.1 + part.1));
            assert_eq!(share.blocks, sum.0, "{name}: {}", share.phase);
            check_rounded(share.bytes, sum);
        }
        let count = |action| {
            snapshot.device_traces[0].iter().filter(|event| event.action == action).count() as u64
        };
        assert_eq!(told.churn.allocations, count(Action::Alloc), "{name}");
        assert_eq!(told.churn.frees, count(Action::FreeCompleted), "{name}");
        assert_eq!(told.churn.source_calls, count(Action::SegmentAlloc), "{name}");
        let mut end = 0;
        walk(&snapshot, |_, live| end = live.len());
        let unfreed = told.throughout.blocks + told.unfreed.blocks;
        assert_eq!(unfreed, end as u64, "{name}");
        check_words(&words);
    }
}

/// The phase that the text of a site shows in these traces.
fn phase(site: Option<&Site>) -> Phase {
    match site {
        None => Phase::Unknown,
        Some(site) if site.function.starts_with("torch::autograd::") => Phase::Backward,
        Some(site) if site.file.ends_with("cs336_basics/optimizer.py") => Phase::Optimizer,
        Some(site) if site.file.ends_with(".py") => Phase::Forward,
        Some(_) => Phase::Unknown,
    }
}

#[track_caller]
fn check_words(words: &str) {
    assert!(words.contains("By phase at the peak, inferred from the stacks"), "{words}");
    assert!(!words.contains("at::detail::empty"), "the allocation says nothing: {words}");
    assert!(!words.contains("_Py") && !words.contains("only the sites"), "{words}");
    assert!(words.lines().all(|line| line.chars().count() <= 80), "{words}");
}

#[test]
fn advice_on_holes_says_what_a_replay_reserves() {
    let (name, snapshot) = pytorch_snapshots().remove(0);
    let recording = Recording::from_snapshot(&snapshot, 0).expect("a recording");
    let told = recording.explain();
    let replayed = |policy| {
        let options = RerunOptions { policy, ..RerunOptions::default() };
        recording.rerun(&options).expect("a rerun").peak_reserved_bytes
    };
    let settings = TorchSettings { expandable_segments: true, ..TorchSettings::default() };
    let (pages, expandable) = (replayed(Policy::Pages), replayed(Policy::Torch(settings)));
    let advice = told.advice.iter().find(|advice| matches!(advice, Advice::Reserved { .. }));
    let Some(&Advice::Reserved { pages_bytes, expandable_bytes, .. }) = advice else {
        panic!("{name}: {:?}", told.advice);
    };
    assert_eq!((pages_bytes, expandable_bytes), (Some(pages), Some(expandable)));
    let words = told.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("Replayed with PyTorch's expandable segments, it is"), "{words}");
    assert!(words.contains("Replayed with the policy pages, it is"), "{words}");
    assert!(!words.contains("a replay on another policy tells"), "{words}");
}

#[test]
fn trace_without_times_does_not_say_how_long_it_took() {
    let (_, mut snapshot) = pytorch_snapshots().remove(0);
    let explain = |snapshot: &Snapshot| {
        Recording::from_snapshot(snapshot, 0).expect("a recording").explain().to_string()
    };
    assert!(explain(&snapshot).starts_with("2,560 events in 82.3 ms; policy torch"));
    snapshot.device_traces[0].iter_mut().for_each(|event| event.time_us = 0);
    assert!(explain(&snapshot).starts_with("2,560 events; policy torch"));
}
