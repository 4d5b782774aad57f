//! A pickle becomes a snapshot, or an error that names key and offset. A snapshot replays exactly.

use lowtide_allocator::torch::{BlockState, TorchPolicy, TorchSettings};
use lowtide_trace::pickle::PickleProblem;
use lowtide_trace::{
    Action, Limits, RecordedSegment, Recording, Replay, ReplayError, ReplayReport, Snapshot,
    TraceError, TraceProblem, read_snapshot,
};

use crate::events::recorded_event;
use crate::shelf::{MAIN, MIB, Shelf};

/// A pickle that was written by `fixtures/make_snapshot.py`.
const MIXED: &[u8] = include_bytes!("../fixtures/mixed.pickle");
const MIXED_XZ: &[u8] = include_bytes!("../fixtures/mixed.pickle.xz");

fn mixed() -> Snapshot {
    Snapshot::from_pickle(MIXED).expect("a snapshot")
}

fn replay(snapshot: &Snapshot) -> Result<ReplayReport, ReplayError> {
    Replay::new(snapshot, 0)?.run()
}

#[test]
fn snapshot_holds_what_was_written() {
    let snapshot = mixed();
    let count =
        |action| snapshot.device_traces[0].iter().filter(|event| event.action == action).count();
    assert_eq!(snapshot.device_traces.len(), 1);
    assert_eq!((count(Action::Alloc), count(Action::FreeCompleted)), (66, 44));
    assert_eq!((count(Action::SegmentAlloc), count(Action::SegmentFree)), (10, 3));
    assert_eq!(count(Action::Oom), 1);
    assert_eq!(snapshot.segments.len(), 15);
    let blocks = || snapshot.segments.iter().flat_map(|segment| &segment.layout.blocks);
    let in_state = |state| blocks().filter(|block| block.state == state).count();
    assert_eq!(in_state(BlockState::Active), 28);
    assert_eq!(in_state(BlockState::Pending), 2);
    assert_eq!(in_state(BlockState::Free), 12);
}

#[test]
fn compressed_snapshot_is_the_same() {
    let read = |bytes| read_snapshot(bytes, Limits::default()).expect("a snapshot");
    assert_eq!(read(MIXED_XZ), mixed());
    assert_eq!(read(MIXED), mixed());
}

#[test]
fn snapshot_replays_exactly_from_wherever_it_begins() {
    let whole = mixed();
    for cut in 0..=whole.device_traces[0].len() {
        let mut snapshot = whole.clone();
        snapshot.device_traces[0].drain(..cut);
        let report = replay(&snapshot).expect("a replay");
        assert!(report.is_exact(), "without {cut} events: {report:?}");
        assert_eq!(report.first_difference, None);
    }
    let report = replay(&whole).unwrap();
    assert_eq!((report.addresses_equal, report.segments_equal, report.source_calls), (66, 10, 13));
}

#[test]
fn snapshot_survives_every_format_from_wherever_it_begins() {
    let whole = mixed();
    for cut in 0..=whole.device_traces[0].len() {
        let mut snapshot = whole.clone();
        snapshot.device_traces[0].drain(..cut);
        crate::traces::check_formats(&snapshot, 0);
    }
}

#[test]
fn replay_sees_what_another_allocator_did() {
    let mut shelf = Shelf::new(100 * MIB);
    let mut policy = TorchPolicy::new(TorchSettings::default());
    let [large, small] = [20, 12]
        .map(|mib| policy.allocate(mib * MIB, MAIN, &mut shelf).expect("room").expect("a block"));
    policy.free(large).unwrap();
    // The recorded allocator takes the worst fit.
    assert_eq!(policy.allocate(11 * MIB, MAIN, &mut shelf), Ok(Some(large)));
    policy.free(small).unwrap();
    let snapshot = recorded(&policy, &[(Action::Alloc, large, 11 * MIB)]);
    let report = replay(&snapshot).unwrap();
    assert!(!report.is_exact() && !report.final_blocks_equal);
    assert_eq!((report.addresses_total, report.addresses_equal), (1, 0));
    assert_eq!(report.first_difference, Some(0));
}

/// A snapshot of a policy's state after these events.
fn recorded(policy: &TorchPolicy, events: &[(Action, u64, u64)]) -> Snapshot {
    let record = |layout| {
        let (device, pool_id, is_expandable) = (0, (0, 0), false);
        RecordedSegment { device, pool_id, is_expandable, layout, block_sites: Vec::new() }
    };
    let event = |&(action, address, size_bytes): &(Action, u64, u64)| {
        recorded_event(action, address, size_bytes, MAIN)
    };
    Snapshot {
        segments: policy.segments().into_iter().map(record).collect(),
        device_traces: vec![events.iter().map(event).collect()],
        settings: TorchSettings::default(),
        sites: Vec::new(),
    }
}

#[test]
fn tail_that_nothing_shows_is_inferred_from_what_was_not_taken() {
    let mut shelf = Shelf::new(100 * MIB);
    let mut policy = TorchPolicy::new(TorchSettings::default());
    let mut get = |policy: &mut TorchPolicy, size_bytes| {
        policy.allocate(size_bytes, MAIN, &mut shelf).expect("room").expect("a block")
    };
    let [hole, behind, _last] = [4, 8, 8].map(|mib| get(&mut policy, mib * MIB));
    let other = get(&mut policy, 10 * MIB);
    // The first block gets half a MiB more than its request, and the rest behind it becomes free.
    policy.free(hole).unwrap();
    let asked_bytes = 4 * MIB - MIB / 2;
    assert_eq!(get(&mut policy, asked_bytes), hole);
    policy.free(behind).unwrap();
    policy.free(other).unwrap();
    // Here the trace begins. Without the tail, the free 8 MiB would seem to be 8.5 MiB.
    let taken_bytes = 8 * MIB + MIB / 4;
    assert_eq!(get(&mut policy, taken_bytes), other);
    policy.free(hole).unwrap();

    let events = [
        (Action::Alloc, other, taken_bytes),
        (Action::FreeRequested, hole, asked_bytes),
        (Action::FreeCompleted, hole, asked_bytes),
    ];
    let snapshot = recorded(&policy, &events);
    let report = replay(&snapshot).unwrap();
    assert!(report.is_exact(), "{report:?}");
    assert_eq!(report.inferred_blocks, 1);
    let recording = Recording::from_snapshot(&snapshot, 0).unwrap();
    let block = recording.start.iter().find(|block| block.address == hole).unwrap();
    // The recording proves this size: the free memory behind was too small for the request.
    assert_eq!(block.size_bytes, asked_bytes + (8 * MIB + MIB / 2 - taken_bytes) + 512);
}

#[test]
fn imported_block_is_as_large_as_the_policy_made_it() {
    let mut shelf = Shelf::new(100 * MIB);
    let mut policy = TorchPolicy::new(TorchSettings::default());
    let [hole, _last] = [4, 8]
        .map(|mib| policy.allocate(mib * MIB, MAIN, &mut shelf).expect("room").expect("a block"));
    policy.free(hole).unwrap();
    // A rest below 1 MiB stays with the block.
    let asked_bytes = 4 * MIB - MIB / 2;
    let events = [Action::Alloc, Action::FreeRequested, Action::FreeCompleted]
        .map(|action| (action, hole, asked_bytes));
    let recording = Recording::from_snapshot(&recorded(&policy, &events), 0).unwrap();
    let sizes = recording.events.iter().map(|event| (event.size_bytes, event.requested_bytes));
    assert_eq!(sizes.collect::<Vec<_>>(), [(4 * MIB, asked_bytes); 2]);
}

#[test]
fn trace_that_contradicts_its_end_is_refused() {
    let mut snapshot = mixed();
    let trace = &mut snapshot.device_traces[0];
    let alloc = trace.iter().position(|event| event.action == Action::Alloc).unwrap();
    trace[alloc].address += 512;
    let error = replay(&snapshot).unwrap_err();
    assert!(matches!(error, ReplayError::Inconsistent { event, .. } if event == alloc as u64));

    let mut snapshot = mixed();
    snapshot.segments[1].layout.address = snapshot.segments[0].layout.address;
    assert!(matches!(replay(&snapshot), Err(ReplayError::Impossible { .. })));

    let mut snapshot = mixed();
    snapshot.segments.iter_mut().for_each(|segment| segment.is_expandable = true);
    assert!(matches!(replay(&snapshot), Err(ReplayError::Inconsistent { .. })));
    assert_eq!(Replay::new(&snapshot, 1).unwrap_err(), ReplayError::NoTrace { device: 1 });
}

#[test]
fn private_pools_do_not_mix_with_others() {
    let mut snapshot = mixed();
    // All events of stream 7 are moved to a graph's pool on stream 0.
    for segment in &mut snapshot.segments {
        if segment.layout.stream.0 == 7 {
            segment.pool_id = (0, 1);
            segment.layout.stream.0 = 0;
        }
    }
    let private: Vec<_> = snapshot.segments.iter().filter(|s| s.pool_id == (0, 1)).collect();
    assert!(!private.is_empty());
    for event in &mut snapshot.device_traces[0] {
        let is_in = |layout: &lowtide_allocator::torch::SegmentLayout| {
            (layout.address..layout.address + layout.size_bytes).contains(&event.address)
        };
        if private.iter().any(|segment| is_in(&segment.layout)) {
            event.stream.0 = 0;
        }
    }
    assert!(replay(&snapshot).unwrap().is_exact());
}

#[test]
fn snapshot_cut_anywhere_is_an_error_within_it() {
    for len in 0..MIXED.len() {
        let error = Snapshot::from_pickle(&MIXED[..len]).expect_err("half a snapshot");
        assert!(error.offset <= len as u64, "{error}");
    }
    for len in 0..MIXED_XZ.len() {
        let error = read_snapshot(&MIXED_XZ[..len], Limits::default()).expect_err("half a file");
        assert!(error.offset <= len as u64, "{error}");
        let is_cut = matches!(error.problem, TraceProblem::Cut | TraceProblem::Pickle(_));
        assert!(is_cut, "{error}");
    }
}

#[test]
fn damaged_snapshot_never_panics() {
    for at in 0..MIXED.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut bytes = MIXED.to_vec();
            bytes[at] ^= flip;
            if let Ok(snapshot) = Snapshot::from_pickle(&bytes)
                && at % 7 == 0
            {
                let _ = replay(&snapshot);
            }
        }
    }
}

#[test]
fn damaged_compression_is_an_error() {
    for at in 0..MIXED_XZ.len() {
        let mut bytes = MIXED_XZ.to_vec();
        bytes[at] ^= 0x10;
        assert!(read_snapshot(bytes.as_slice(), Limits::default()).is_err(), "byte {at}");
    }
}

#[test]
fn sizes_are_limited_before_they_are_spent() {
    let limits = |pickle_bytes| Limits { pickle_bytes, ..Limits::default() };
    let len = MIXED.len() as u64;
    assert!(read_snapshot(MIXED, limits(len)).is_ok());
    let error = read_snapshot(MIXED, limits(len - 1)).unwrap_err();
    assert!(matches!(error.problem, TraceProblem::Limit { .. }), "{error}");
    let error = read_snapshot(MIXED_XZ, limits(1000)).unwrap_err();
    assert!(matches!(error.problem, TraceProblem::Limit { .. }), "{error}");
    let window = Limits { window_bytes: 1 << 20, ..Limits::default() };
    let error = read_snapshot(MIXED_XZ, window).unwrap_err();
    assert!(matches!(error.problem, TraceProblem::Io(_)), "{error}");
}

/// A pickle of a dictionary. The values are instructions.
fn dictionary(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = b"}(".to_vec();
    for (key, value) in entries {
        bytes.extend([0x8c, u8::try_from(key.len()).unwrap()]);
        bytes.extend(key.as_bytes());
        bytes.extend(*value);
    }
    bytes.push(b'u');
    bytes
}

fn parse(value: &[u8]) -> Result<Snapshot, TraceError> {
    Snapshot::from_pickle(&[b"\x80\x04", value, b"."].concat())
}

fn list(value: &[u8]) -> Vec<u8> {
    [b"]".as_slice(), value, b"a"].concat()
}

#[track_caller]
fn check_error(value: &[u8], expected: &str) {
    let text = parse(value).expect_err("no snapshot").to_string();
    let (offset, text) = text.split_once(": ").expect("an offset");
    let offset: usize = offset.strip_prefix("byte ").expect("a byte").parse().expect("a number");
    assert!(offset < value.len() + 3);
    assert_eq!(text, expected);
}

#[test]
fn unknown_keys_are_ignored_and_the_others_checked() {
    let none = dictionary(&[("segments", b"]"), ("device_traces", b"]"), ("more", b"(NNt")]);
    let snapshot = parse(&none).unwrap();
    assert_eq!((snapshot.segments.len(), snapshot.device_traces.len()), (0, 0));

    check_error(b"]", "snapshot is a list, not a dictionary");
    check_error(b"}", "segments is missing");
    check_error(&dictionary(&[("segments", b"N")]), "segments is None, not a list");
    check_error(&dictionary(&[("segments", b"]")]), "device_traces is missing");

    let event = |entries: &[(&str, &[u8])]| {
        let trace = list(&list(&dictionary(entries)));
        dictionary(&[("segments", b"]"), ("device_traces", &trace)])
    };
    let alloc: (&str, &[u8]) = ("action", b"\x8c\x05alloc");
    check_error(&event(&[]), "action is missing");
    check_error(&event(&[("action", b"K\x01")]), "action is a whole number, not text");
    check_error(&event(&[("action", b"\x8c\x02a\n")]), "action cannot be a\\n");
    check_error(&event(&[alloc]), "addr is missing");
    check_error(&event(&[alloc, ("addr", b"\x88")]), "addr is a truth value, not a whole number");
    check_error(&event(&[alloc, ("addr", b"\x8a\x01\xff")]), "addr cannot be -1");
    assert!(parse(&event(&[alloc, ("addr", b"K\x01"), ("size", b"K\x01")])).is_ok());
    assert!(parse(&event(&[("action", b"\x8c\x08snapshot")])).is_ok());
}

/// The site of an event with this stack, innermost frame first.
fn site_of(frames: &[(&str, &str, u8)]) -> Option<(String, u32, String)> {
    let text = |text: &str| [&[0x8c, u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let frame = |&(name, file, line): &(&str, &str, u8)| {
        let (name, file, line) = (text(name), text(file), [b'K', line]);
        dictionary(&[("name", &name), ("filename", &file), ("line", &line)])
    };
    let frames: Vec<Vec<u8>> = frames.iter().map(frame).collect();
    let stack = [b"](".as_slice(), &frames.concat(), b"e"].concat();
    let event = dictionary(&[("action", b"\x8c\x08snapshot"), ("frames", &stack)]);
    let trace = list(&list(&event));
    let snapshot = parse(&dictionary(&[("segments", b"]"), ("device_traces", &trace)])).unwrap();
    let site = snapshot.device_traces[0][0].site?;
    let site = snapshot.sites[site as usize].clone();
    Some((site.file, site.line, site.function))
}

#[test]
fn site_is_the_innermost_line_of_the_program() {
    let gather = ("gather_with_cpp", "memory_snapshot.cpp", 0);
    let empty = ("at::empty", "??", 0);
    let module = ("_call_impl", "lib/torch/nn/module.py", 9);
    let (forward, main) = (("forward", "model.py", 12), ("main", "train.py", 3));
    let check = |frames: &[_], expected: Option<(&str, &str, u8)>| {
        let expected = expected
            .map(|(function, file, line)| (file.to_owned(), u32::from(line), function.to_owned()));
        assert_eq!(site_of(frames), expected);
    };
    let package = ("pad", "lib/site-packages/pads/pad.py", 4);
    check(&[gather, empty, module, package, forward, main], Some(forward));
    check(&[gather, empty, module, package], Some(package));
    check(&[gather, empty, module], Some(module));
    check(&[gather, empty], Some(empty));
    check(&[gather], None);
    check(&[], None);
    let long = "x".repeat(255);
    check(&[("f", &long, 1)], Some(("f", &long, 1)));

    // Frames of the interpreter, with lines, as with its debug information installed.
    let eval = ("_PyEval_EvalFrameDefault", "/usr/src/python3.12/Python/ceval.c", 57);
    let call = ("cfunction_vectorcall", "/usr/src/python3.12/Objects/methodobject.c", 4);
    let operator = ("at::_ops::mul_Tensor::call(at::Tensor const&)", "??", 0);
    check(&[gather, empty, eval, module, call, forward, eval, main], Some(forward));
    check(&[gather, empty, eval, module, call], Some(module));
    check(&[gather, empty, operator, eval, call], Some(operator));
    check(&[gather, eval, call], None);
    // A thread of the autograd engine.
    let node = "torch::autograd::generated::MulBackward0::apply(std::vector<at::Tensor>&&)";
    let node = (node, "??", 0);
    let engine = ("torch::autograd::Engine::evaluate_function(int)", "??", 0);
    let thread = ("execute_native_thread_routine", "libstdc++-v3/src/thread.cc", 104);
    check(&[gather, empty, operator, node, engine, thread], Some(node));
    check(&[gather, empty, operator, engine, thread], Some(engine));
    // A program in C++, and an optimizer of PyTorch that a program calls.
    let native_main = ("main", "/src/train.cpp", 9);
    check(&[gather, empty, operator, native_main], Some(native_main));
    let adam = ("_init_group", "lib/site-packages/torch/optim/adam.py", 7);
    check(&[gather, empty, adam, module, main], Some(adam));
    check(&[gather, empty, forward, adam, main], Some(forward));
}

#[test]
fn few_bytes_do_not_become_much_text() {
    // 10,000 stacks of one frame each. The frames differ in the line and share two texts of 500
    // bytes.
    let name = [b"X\xf4\x01\0\0".as_slice(), &b"n".repeat(500), b"q\0"].concat();
    let event = |line: u16| {
        let name = if line == 1 { name.clone() } else { b"h\0".to_vec() };
        let line = [b"M".as_slice(), &line.to_le_bytes()].concat();
        let frame = dictionary(&[("name", &name), ("filename", b"h\0"), ("line", &line)]);
        dictionary(&[("action", b"\x8c\x08snapshot"), ("frames", &list(&frame))])
    };
    let events: Vec<Vec<u8>> = (1..10_000).map(event).collect();
    let trace = [b"](".as_slice(), &events.concat(), b"e"].concat();
    let error = parse(&dictionary(&[("segments", b"]"), ("device_traces", &list(&trace))]));
    check_too_much_memory(error);
}

#[test]
fn segments_that_their_blocks_do_not_fill_are_refused() {
    let parse_segment = |size: u8, block: &[u8]| {
        let block = list(block);
        let segment = dictionary(&[
            ("address", b"M\x00\x10"),
            ("total_size", &[b'K', size]),
            ("segment_type", b"\x8c\x05large"),
            ("blocks", &block),
        ]);
        parse(&dictionary(&[("segments", &list(&segment)), ("device_traces", b"]")]))
    };
    let block = |size: u8, state: &[u8]| dictionary(&[("size", &[b'K', size]), ("state", state)]);
    let (free, taken) = (b"\x8c\x08inactive", b"\x8c\x10active_allocated");
    let snapshot = parse_segment(9, &block(9, taken)).unwrap();
    let layout = &snapshot.segments[0].layout;
    assert_eq!((layout.blocks[0].address, layout.blocks[0].requested_bytes), (4096, 9));
    assert!(parse_segment(9, &block(9, free)).is_ok());
    for (size, bytes) in [(9, block(8, free)), (8, block(9, free)), (0, block(0, free))] {
        let error = parse_segment(size, &bytes).unwrap_err();
        assert!(matches!(error.problem, TraceProblem::Value { .. }), "{error}");
    }
    assert!(parse_segment(9, &block(9, b"\x8c\x04gone")).is_err());
    assert!(parse_segment(9, b"N").is_err());
}

#[test]
fn few_bytes_do_not_become_many_records() {
    // A thousand references to one list of a thousand references to one event: a million events in
    // 7 kB.
    let event = dictionary(&[("action", b"\x8c\x08snapshot")]);
    let inner = [b"](".as_slice(), &event, b"\x94", &b"h\x00".repeat(999), b"e\x94"].concat();
    let outer = [b"](".as_slice(), &inner, &b"h\x01".repeat(999), b"e"].concat();
    let bytes = dictionary(&[("segments", b"]"), ("device_traces", &outer)]);
    check_too_much_memory(parse(&bytes));
}

#[track_caller]
fn check_too_much_memory(read: Result<Snapshot, TraceError>) {
    let error = read.map(|_| "a snapshot").expect_err("too much for so few bytes");
    let problem = &error.problem;
    let is_memory = matches!(problem, TraceProblem::Pickle(PickleProblem::Memory { .. }));
    assert!(is_memory, "{error}");
}

#[test]
fn recorded_settings_are_read() {
    let settings = |entries: &[(&str, &[u8])]| {
        let settings = dictionary(entries);
        let bytes = dictionary(&[
            ("segments", b"]"),
            ("device_traces", b"]"),
            ("allocator_settings", &settings),
        ]);
        parse(&bytes).map(|snapshot| snapshot.settings)
    };
    let divisions = dictionary(&[("1", b"K\x04"), ("32768", b"K\x08")]);
    let read = settings(&[
        ("PYTORCH_CUDA_ALLOC_CONF", b"\x8c\x1cmax_non_split_rounding_mb:64"),
        ("max_split_size", b"\x8a\x04\x00\x00\x00\x02"),
        ("roundup_power2_divisions", &divisions),
        ("garbage_collection_threshold", b"G\x3f\xe0\x00\x00\x00\x00\x00\x00"),
    ]);
    let read = read.unwrap();
    assert_eq!(read.max_split_bytes, Some(32 << 20));
    assert_eq!(read.max_non_split_rounding_bytes, 64 << 20);
    assert_eq!((read.power2_divisions[0], read.power2_divisions[15]), (4, 8));
    assert!((read.garbage_collection_threshold - 0.5).abs() < f64::EPSILON);
    assert_eq!(settings(&[("max_split_size", b"\x8a\x01\xff")]).unwrap().max_split_bytes, None);
    assert!(settings(&[("max_split_size", b"N")]).is_err());
    let odd = dictionary(&[("3", b"K\x04")]);
    assert!(settings(&[("roundup_power2_divisions", &odd)]).is_err());
    assert!(settings(&[("PYTORCH_CUDA_ALLOC_CONF", b"\x8c\x13max_split_size_mb:1")]).is_err());
}
