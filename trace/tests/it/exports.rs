//! PyTorch's tools can read the exports, and an import of an export gives the recording again.

use std::collections::BTreeMap;

use lowtide_allocator::torch::{
    BlockLayout, BlockState, Pool, SegmentLayout, StreamId, TorchSettings,
};
use lowtide_trace::{Action, EventKind, ExportError, RecordedSegment, Recording, Snapshot};
use proptest::prelude::*;

use crate::events::recorded_event;
use crate::recordings::{Op, recording, run};
use crate::viewer::{Beginning, Value, check, unpickle};

pub(crate) fn pickle(recording: &Recording) -> Vec<u8> {
    let mut bytes = Vec::new();
    recording.write_pickle(&mut bytes).expect("a pickle");
    bytes
}

/// The state that a viewer should show before the first event.
fn beginning(recording: &Recording) -> Beginning {
    let mut blocks = BTreeMap::new();
    for block in &recording.start {
        let is_pending = recording.start_pending.contains(&block.id);
        let mut left_bytes = block.requested_bytes as i64;
        let whole = [(block.address, block.size_bytes)];
        let pieces = recording.pieces.get(&block.id).map_or(whole.to_vec(), |pieces| {
            pieces.iter().map(|piece| (piece.address, piece.size_bytes)).collect()
        });
        for (address, size_bytes) in pieces {
            let share_bytes = left_bytes.min(size_bytes as i64);
            left_bytes -= share_bytes;
            blocks.insert(address as i64, (share_bytes, is_pending));
        }
    }
    let charged_bytes: u64 = recording.start_charges.iter().map(|(_, bytes)| bytes).sum();
    Beginning { blocks, reserved_bytes: (recording.start_reserved_bytes - charged_bytes) as i64 }
}

proptest! {
    #[test]
    fn viewer_gets_from_the_end_to_the_beginning(recording in recording()) {
        let root = unpickle(&pickle(&recording)).expect("a pickle for the viewer");
        prop_assert_eq!(check(&root).expect("a snapshot for the viewer"), beginning(&recording));
    }

    #[test]
    fn exported_recording_is_imported_again(mut recording in recording()) {
        let exported = pickle(&recording);
        let snapshot = Snapshot::from_pickle(&exported).expect("a snapshot");
        let imported = Recording::from_snapshot(&snapshot, 0).expect("a recording");
        prop_assert_eq!(imported.check(), Ok(()));
        if !recording.pieces.is_empty() {
            return Ok(());
        }
        // Charges have no place in a snapshot, and a free that completes at once is one event.
        recording.events.retain(|e| !matches!(e.kind, EventKind::Charge | EventKind::Discharge));
        let frees: Vec<bool> = recording.events.windows(2).map(|pair| {
            matches!(
                (pair[0].kind, pair[1].kind),
                (EventKind::FreeRequested { id: a }, EventKind::Free { id: b }) if a == b
            )
        }).collect();
        let mut completes_at_once = frees.into_iter().chain([false]);
        recording.events.retain(|_| completes_at_once.next() == Some(false));
        let ids = |recording: &Recording| {
            let mut next = 0..;
            let start = recording.start.iter().map(|block| block.id);
            let allocated = recording.events.iter().filter_map(|event| match event.kind {
                EventKind::Allocate { id } => Some(id),
                _ => None,
            });
            let ids = start.chain(allocated);
            ids.map(|id| (id, next.next().expect("enough"))).collect::<BTreeMap<u64, u64>>()
        };
        let (old, new) = (ids(&recording), ids(&imported));
        let shape = |recording: &Recording, ids: &BTreeMap<u64, u64>| {
            let events = recording.events.iter().map(|event| {
                let kind = match event.kind {
                    EventKind::Allocate { id } => EventKind::Allocate { id: ids[&id] },
                    EventKind::FreeRequested { id } => EventKind::FreeRequested { id: ids[&id] },
                    EventKind::Free { id } => EventKind::Free { id: ids[&id] },
                    other => other,
                };
                let site = event.site.map(|site| recording.sites[site as usize].clone());
                // A snapshot does not contain the size of a block that is gone.
                let place = (event.address, event.requested_bytes);
                (kind, place, event.time_us, event.stream, event.category, site)
            });
            let start = recording.start.iter();
            let start = start.map(|b| (ids[&b.id], b.address, b.requested_bytes));
            (events.collect::<Vec<_>>(), start.collect::<Vec<_>>())
        };
        prop_assert_eq!(shape(&imported, &new), shape(&recording, &old));
        // The sums of the reserved bytes agree: neighbouring segments may have been merged.
        let held = |recording: &Recording| {
            recording.end.iter().map(|range| range.size_bytes).sum::<u64>()
        };
        prop_assert_eq!(held(&imported), held(&recording));
        let live = |recording: &Recording, ids: &BTreeMap<u64, u64>| {
            let blocks = recording.end.iter().flat_map(|range| &range.blocks);
            blocks.map(|b| (ids[&b.id], b.address, b.size_bytes)).collect::<Vec<_>>()
        };
        prop_assert_eq!(live(&imported, &new), live(&recording, &old));
    }
}

fn reserve(pages: u64) -> Op {
    Op::Reserve { pages, stream: 0 }
}

fn allocate(grains: u64) -> Op {
    Op::Allocate { grains, slack_bytes: 7, category: None, site: Some(0) }
}

fn snapshot_of(recording: &Recording) -> Value {
    unpickle(&pickle(recording)).expect("a pickle for the viewer")
}

fn actions(root: &Value) -> Vec<String> {
    let events = root.get("device_traces").unwrap().items().unwrap()[0].items().unwrap();
    events.iter().map(|event| event.text("action").unwrap().to_owned()).collect()
}

#[test]
fn whole_segments_and_parts_do_not_mix() {
    let whole = run(&[reserve(2)], &[reserve(3), Op::Shrink { index: 0, pages: 9 }]);
    assert_eq!(actions(&snapshot_of(&whole)), ["segment_alloc", "segment_free"]);
    let grows = run(
        &[reserve(2)],
        &[Op::Grow { index: 0, pages: 1 }, Op::Shrink { index: 0, pages: 2 }, reserve(1)],
    );
    let root = snapshot_of(&grows);
    assert_eq!(actions(&root), ["segment_map", "segment_unmap", "segment_map"]);
    let segments = root.get("segments").unwrap().items().unwrap();
    let expandable = segments.iter().map(|s| s.get("is_expandable").unwrap().clone());
    assert_eq!(expandable.collect::<Vec<_>>(), [Value::Bool(true), Value::Bool(false)]);
}

#[test]
fn free_is_two_entries_unless_it_was_requested_before() {
    let before = [reserve(4), allocate(2), allocate(3), allocate(4), Op::RequestFree(2)];
    let during = [Op::Free(2), Op::Free(0), Op::RequestFree(0)];
    let root = snapshot_of(&run(&before, &during));
    assert_eq!(
        actions(&root),
        ["free_completed", "free_requested", "free_completed", "free_requested"]
    );
    check(&root).unwrap();
}

#[test]
fn categories_come_with_the_unknown_one() {
    let category = Some(lowtide_allocator::Category::Input);
    let input = Op::Allocate { grains: 1, slack_bytes: 0, category, site: None };
    let mixed = snapshot_of(&run(&[], &[reserve(1), input]));
    assert_eq!(actions(&mixed), ["segment_alloc", "alloc"]);
    let all = snapshot_of(&run(&[reserve(1)], &[input]));
    assert_eq!(actions(&all), ["alloc", "snapshot"]);
    check(&all).unwrap();
    let none = snapshot_of(&run(&[reserve(1)], &[allocate(1)]));
    assert_eq!(actions(&none), ["alloc"]);
    let trace = &none.get("device_traces").unwrap().items().unwrap()[0];
    assert!(trace.items().unwrap()[0].get("category").is_err());
}

#[test]
fn recordings_that_no_viewer_can_follow_are_refused() {
    let good = run(&[reserve(2)], &[Op::Grow { index: 0, pages: 1 }, allocate(1)]);
    let refused = |change: fn(&mut Recording)| {
        let mut recording = good.clone();
        change(&mut recording);
        recording.write_pickle(Vec::new()).expect_err("a contradiction")
    };
    let error = refused(|r| r.events[0].address += 1 << 30);
    assert!(matches!(error, ExportError::Segment { event: 0, .. }), "{error}");
    let error = refused(|r| r.end[0].blocks[0].size_bytes = 1 << 30);
    assert!(matches!(error, ExportError::End { .. }), "{error}");
    let error = refused(|r| r.end.push(r.end[0].clone()));
    assert!(matches!(error, ExportError::End { .. }), "{error}");
    let mut large = good.clone();
    large.events[1].time_us = 1 << 63;
    let error = large.write_pickle(Vec::new()).unwrap_err();
    assert!(matches!(error, ExportError::Number { number } if number == 1 << 63), "{error}");
}

/// Exports a recording with every kind of entry, makes one change, and checks the viewer's
/// complaint.
#[track_caller]
fn check_fault(expected: &str, change: impl FnOnce(&mut Value)) {
    let category = Some(lowtide_allocator::Category::Input);
    let input = Op::Allocate { grains: 2, slack_bytes: 0, category, site: Some(2) };
    let before = [reserve(2), allocate(2), allocate(3), allocate(1)];
    let during = [
        reserve(1),
        Op::Free(1),
        input,
        Op::RequestFree(0),
        Op::Grow { index: 0, pages: 1 },
        Op::Fail(9),
    ];
    let mut root = snapshot_of(&run(&before, &during));
    check(&root).expect("no fault yet");
    change(&mut root);
    let problem = check(&root).expect_err("a fault");
    assert!(problem.contains(expected), "{problem}");
}

fn events(root: &mut Value) -> &mut Vec<Value> {
    root.get_mut("device_traces").items_mut()[0].items_mut()
}

fn block(root: &mut Value, index: usize) -> &mut Value {
    &mut root.get_mut("segments").items_mut()[0].get_mut("blocks").items_mut()[index]
}

fn drop_event(root: &mut Value, action: &str) {
    let events = events(root);
    let at = events.iter().position(|event| event.text("action") == Ok(action));
    events.remove(at.expect("the action"));
}

fn change_event(root: &mut Value, action: &str, key: &str, value: Value) {
    let is_it = |event: &&mut Value| event.text("action") == Ok(action);
    *events(root).iter_mut().find(is_it).expect("the action").get_mut(key) = value;
}

#[test]
fn strict_reader_refuses_planted_faults() {
    let int = Value::Int;
    let text = |text: &str| Value::Text(text.to_owned());
    check_fault("free_requested of", |root| drop_event(root, "free_completed"));
    check_fault("free_completed, but", |root| {
        let events = events(root);
        let at = events.iter().position(|e| e.text("action") == Ok("free_completed")).unwrap();
        events.insert(at, events[at].clone());
    });
    check_fault("alloc of", |root| change_event(root, "alloc", "addr", int(512)));
    check_fault("alloc of", |root| change_event(root, "alloc", "size", int(1)));
    check_fault("no segment", |root| change_event(root, "segment_map", "addr", int(1 << 30)));
    check_fault("is a part of", |root| {
        let events = events(root).iter_mut();
        let grows = events.rev().find(|event| event.text("action") == Ok("segment_map"));
        *grows.expect("a part").get_mut("action") = text("segment_alloc");
    });
    check_fault("no device_free", |root| change_event(root, "alloc", "action", text("oom")));
    check_fault("no addr", |root| change_event(root, "oom", "action", text("alloc")));
    check_fault("action gone", |root| change_event(root, "alloc", "action", text("gone")));
    check_fault("time_us is", |root| change_event(root, "alloc", "time_us", Value::None));
    check_fault("size is", |root| change_event(root, "alloc", "size", int(-1)));
    check_fault("addr is", |root| change_event(root, "alloc", "addr", int((1 << 53) + 1)));
    check_fault("no frames", |root| {
        let Value::Dict(entries) = &mut events(root)[0] else { panic!("an event") };
        entries.retain(|(key, _)| *key != Value::Text("frames".to_owned()));
    });
    check_fault("no unknown category", |root| {
        for event in events(root) {
            *event.get_mut("category") = text("input");
        }
    });
    check_fault("do not tile", |root| *block(root, 0).get_mut("size") = int(512));
    check_fault("do not tile", |root| *block(root, 1).get_mut("address") = int(0));
    check_fault("do not tile", |root| {
        drop(root.get_mut("segments").items_mut()[0].get_mut("blocks").items_mut().pop())
    });
    check_fault("state gone", |root| *block(root, 0).get_mut("state") = text("gone"));
    check_fault("allocated_size", |root| {
        *block(root, 1).get_mut("state") = text("active_pending_free")
    });
    check_fault("overlaps", |root| {
        let segments = root.get_mut("segments").items_mut();
        segments.push(segments[0].clone());
    });
    check_fault("no trace of the device", |root| {
        *root.get_mut("segments").items_mut()[0].get_mut("device") = int(1);
    });
    check_fault("one trace", |root| {
        root.get_mut("device_traces").items_mut().push(Value::List(Vec::new()))
    });
    check_fault("no allocator_settings", |root| {
        let Value::Dict(entries) = root else { panic!("a dictionary") };
        entries.retain(|(key, _)| *key != Value::Text("allocator_settings".to_owned()));
    });
}

#[test]
fn strict_unpickler_knows_no_other_instruction() {
    let recording = run(&[reserve(2)], &[allocate(1)]);
    let good = pickle(&recording);
    let known = b"\x80\x95(N\x88\x89KMJ\x8aG\x8cX}])\x85\x86\x87tldaesuqr\x94hj.";
    for opcode in 0..=u8::MAX {
        // The opcode replaces the end.
        let mut bytes = good.clone();
        *bytes.last_mut().unwrap() = opcode;
        let problem = unpickle(&bytes).err();
        let is_unknown = problem.is_some_and(|problem| problem.starts_with("unknown opcode"));
        assert_eq!(is_unknown, !known.contains(&opcode), "{opcode:#04x}");
    }
    for len in 0..good.len() {
        assert!(unpickle(&good[..len]).is_err());
    }
    let batch = |count: usize| [b"\x80\x02](".as_slice(), &b"N".repeat(count), b"e."].concat();
    assert!(unpickle(&batch(1000)).is_ok());
    assert_eq!(unpickle(&batch(1001)).unwrap_err(), "1001 items at once");
    assert!(unpickle(b"\x80\x05N.").is_err());
    assert!(unpickle(b"\x80\x02\x8a\x09123456789.").is_err());
    assert_eq!(unpickle(b"\x80\x02\x8a\x02\xfe\xff."), Ok(Value::Int(-2)));
    assert_eq!(unpickle(b"\x80\x02J\xfe\xff\xff\xff."), Ok(Value::Int(-2)));
}

#[test]
fn long_traces_are_written_in_batches() {
    for count in [999, 1000, 1001, 2000, 2500] {
        let during: Vec<Op> = (0..count)
            .map(|index| if index % 2 == 0 { allocate(1) } else { Op::RequestFree(index / 2) })
            .collect();
        let recording = run(&[reserve(200)], &during);
        let root = snapshot_of(&recording);
        assert_eq!(actions(&root).len(), recording.events.len());
        check(&root).unwrap();
    }
}

#[test]
fn expandable_segments_are_imported() {
    const PAGE: u64 = 2 << 20;
    let base = 1 << 40;
    let event =
        |action, address, size_bytes| recorded_event(action, address, size_bytes, StreamId(0));
    let block = |address, size_bytes, requested_bytes, state| BlockLayout {
        address,
        size_bytes,
        requested_bytes,
        state,
    };
    let segment = |address, blocks: Vec<BlockLayout>| RecordedSegment {
        device: 0,
        pool_id: (0, 0),
        is_expandable: true,
        layout: SegmentLayout {
            address,
            size_bytes: blocks.iter().map(|block| block.size_bytes).sum(),
            stream: StreamId(0),
            pool: Pool::Small,
            blocks,
        },
        block_sites: Vec::new(),
    };
    // Three pages: the middle one is unmapped, and the block behind it has mapped the last one.
    let snapshot = Snapshot {
        segments: vec![
            segment(
                base,
                vec![
                    block(base, 1024, 1000, BlockState::Active),
                    block(base + 1024, PAGE - 1024, 0, BlockState::Free),
                ],
            ),
            segment(base + 2 * PAGE, vec![block(base + 2 * PAGE, PAGE, PAGE, BlockState::Active)]),
        ],
        device_traces: vec![vec![
            event(Action::FreeRequested, base + 1024, 600),
            event(Action::FreeCompleted, base + 1024, 600),
            event(Action::SegmentMap, base + PAGE, 2 * PAGE),
            event(Action::Alloc, base + 2 * PAGE, PAGE),
            event(Action::SegmentUnmap, base + PAGE, PAGE),
        ]],
        settings: TorchSettings::default(),
        sites: Vec::new(),
    };
    let recording = Recording::from_snapshot(&snapshot, 0).expect("a recording");
    assert_eq!(recording.check(), Ok(()));
    assert_eq!(recording.start_reserved_bytes, PAGE);
    let start: Vec<_> = recording.start.iter().map(|b| (b.address, b.size_bytes)).collect();
    // There is no tail: expandable segments split off every rest.
    assert_eq!(start, [(base, 1024), (base + 1024, 1024)]);
    let kinds: Vec<_> = recording.events.iter().map(|event| event.kind).collect();
    assert_eq!(
        kinds,
        [
            EventKind::Free { id: 1 },
            EventKind::Reserve,
            EventKind::Allocate { id: 2 },
            EventKind::Release
        ]
    );
    let again = Snapshot::from_pickle(&pickle(&recording)).expect("a snapshot");
    assert_eq!(again.device_traces, snapshot.device_traces);
    assert_eq!(again.segments.len(), 2);
    for (again, first) in again.segments.iter().zip(&snapshot.segments) {
        assert_eq!((&again.layout, again.is_expandable), (&first.layout, true));
    }

    let mut wrong = snapshot.clone();
    wrong.device_traces[0][2].size_bytes = 4 * PAGE;
    assert!(Recording::from_snapshot(&wrong, 0).is_err());
}
