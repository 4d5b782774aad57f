//! Heap bytes for reading and explaining a file. Files that are made to take much memory are
//! refused in time. The tests have a binary of their own, because its allocator counts.

#[expect(dead_code, reason = "some of what the allocator's tests need")]
#[path = "../../allocator/tests/heap/counting.rs"]
mod counting;

use std::io::Write;

use lowtide_trace::pickle::{MEMORY_PER_BYTE, PickleProblem};
use lowtide_trace::{
    Limits, PICKLE_PER_XZ_BYTE, Recording, Replay, TraceError, TraceProblem, read_snapshot,
};
use lzma_rust2::{XzOptions, XzWriter};

use crate::counting::peak_of;

/// Does the work of `lowtide explain` on a file. Returns the length of the text.
fn explain(file: &[u8], limits: Limits) -> Result<usize, TraceError> {
    let snapshot = read_snapshot(file, limits)?;
    let device = Replay::busiest_device(&snapshot);
    // A contradiction within the events is found only after the whole file was read.
    let recording = Recording::from_snapshot(&snapshot, device).unwrap_or_default();
    Ok(recording.explain().to_string().len())
}

/// Compresses bytes as `xz` does, at its fastest level.
fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut writer = XzWriter::new(Vec::new(), XzOptions::with_preset(0)).expect("options");
    writer.write_all(bytes).expect("memory is writable");
    writer.finish().expect("memory is writable")
}

/// The instructions with protocol 4 in front and the end behind.
fn pickle(instructions: &[u8]) -> Vec<u8> {
    [b"\x80\x04", instructions, b"."].concat()
}

/// Text of at most 255 bytes.
fn text(text: &str) -> Vec<u8> {
    [&[0x8c, u8::try_from(text.len()).expect("short")], text.as_bytes()].concat()
}

/// A dictionary with these keys. The values are instructions.
fn dictionary(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let entries = entries.iter().flat_map(|(key, value)| [text(key), value.to_vec()].concat());
    [b"}(".to_vec(), entries.collect(), b"u".to_vec()].concat()
}

/// A snapshot whose trace refers to the same events over and over, in two bytes each, with an
/// unused text of `padding_bytes`.
fn repeated_events(events: &[Vec<u8>], count: usize, padding_bytes: usize) -> Vec<u8> {
    let memorised =
        (0..).zip(events).flat_map(|(index, event)| [event, &[b'q', index][..]].concat());
    let names = (0..).zip(events).flat_map(|(index, _)| [b'h', index]);
    let padding_len = u32::try_from(padding_bytes).expect("not too long").to_le_bytes();
    let padding = [b"X".as_slice(), &padding_len, &b"-".repeat(padding_bytes)].concat();
    // The events come first in an unused list, so that they are in the memo.
    let first = [b"](".to_vec(), memorised.collect(), padding, b"e".to_vec()].concat();
    let names = names.collect::<Vec<u8>>().repeat(count / events.len());
    let trace = [b"]](", &names[..], b"ea"].concat();
    pickle(&dictionary(&[("first", &first), ("segments", b"]"), ("device_traces", &trace)]))
}

/// A failed request, with a site that takes much text.
fn failure() -> Vec<Vec<u8>> {
    let frame = dictionary(&[
        ("name", &text(&"f".repeat(250))),
        ("filename", &text(&"x".repeat(250))),
        ("line", b"K\x01"),
    ]);
    let frames = [b"](", &frame[..], b"e"].concat();
    vec![dictionary(&[("action", &text("oom")), ("frames", &frames)])]
}

/// A segment, and a block in it; both come and go.
fn life() -> Vec<Vec<u8>> {
    let number = |value: u64| [b"\x8a\x08".as_slice(), &value.to_le_bytes()].concat();
    let event = |action: &str, size_bytes| {
        let (action, address, size) = (text(action), number(1 << 30), number(size_bytes));
        dictionary(&[("action", &action), ("addr", &address), ("size", &size)])
    };
    let [segment_bytes, block_bytes] = [2 << 20, 512];
    vec![
        event("segment_alloc", segment_bytes),
        event("alloc", block_bytes),
        event("free_requested", block_bytes),
        event("free_completed", block_bytes),
        event("segment_free", segment_bytes),
    ]
}

/// Pickles of about `size_bytes` that ask for as much memory as possible, with names.
fn bombs(size_bytes: usize) -> Vec<(&'static str, Vec<u8>)> {
    let repeated = |unit: &[u8]| pickle(&unit.repeat(size_bytes / unit.len()));
    vec![
        ("values", repeated(b"N")),
        ("marks", repeated(b"(")),
        ("lists", repeated(b"]")),
        ("lists in lists", repeated(b"](]](]e(]]ee")),
        ("memo", repeated(b"N\x94")),
        ("texts", repeated(b"\x8c\x00")),
        ("list of values", pickle(&[b"](", &b"N".repeat(size_bytes)[..], b"e"].concat())),
        ("failures", repeated_events(&failure(), size_bytes / 2, 0)),
        ("lives", repeated_events(&life(), size_bytes / 2, 0)),
    ]
}

#[test]
fn compressed_file_takes_memory_by_its_size_on_disk() {
    for (name, bomb) in bombs(16 << 20) {
        let file = xz(&bomb);
        let (read, peak_bytes) = peak_of(|| explain(&file, Limits::default()));
        let mib = peak_bytes >> 20;
        println!(
            "{name}: {} bytes of xz, {mib} MiB, {:?}",
            file.len(),
            read.map_err(|e| e.to_string())
        );
        let bound_bytes = (file.len() * PICKLE_PER_XZ_BYTE + (2 << 20)) * MEMORY_PER_BYTE;
        assert!(peak_bytes < bound_bytes, "{name}: {mib} MiB of {} MiB", bound_bytes >> 20);
    }
}

/// Bytes that the reader allows a pickle of this length, in addition to the pickle itself.
fn allowed_bytes(len: usize) -> usize {
    const SLACK_BYTES: usize = 256 << 10;
    len * MEMORY_PER_BYTE + SLACK_BYTES
}

#[test]
fn plain_file_takes_memory_by_its_size() {
    for (name, bomb) in bombs(1 << 20) {
        let (read, peak_bytes) = peak_of(|| explain(&bomb, Limits::default()));
        let per_byte = peak_bytes / bomb.len();
        println!("{name}: {per_byte} bytes for a byte, {:?}", read.map_err(|e| e.to_string()));
        // The buffer of the file may have doubled while it was filled.
        assert!(peak_bytes <= allowed_bytes(bomb.len()) + 2 * bomb.len(), "{name}: {per_byte}");
    }
}

#[test]
fn what_is_read_is_explained_within_the_memory_that_it_was_allowed() {
    const PADDING_BYTES: usize = 4 << 20;
    for (name, events, count) in [("failures", failure(), 70_000), ("lives", life(), 250_000)] {
        let file = repeated_events(&events, count, PADDING_BYTES);
        let (read, peak_bytes) = peak_of(|| explain(&file, Limits::default()));
        let per_event = (peak_bytes - 2 * file.len()) / count;
        println!("{name}: {per_event} bytes for an event");
        assert!(read.is_ok(), "{name}: {read:?}");
        assert!(peak_bytes <= allowed_bytes(file.len()) + 2 * file.len(), "{name}: {per_event}");
    }
}

#[test]
fn no_file_takes_more_memory_than_the_limit() {
    let limits = Limits { memory_bytes: 16 << 20, ..Limits::default() };
    for (name, bomb) in bombs(4 << 20) {
        let (read, peak_bytes) = peak_of(|| explain(&bomb, limits));
        let error = read.expect_err("too much");
        println!("{name}: {} KiB, {error}", peak_bytes >> 10);
        let is_memory = matches!(error.problem, TraceProblem::Pickle(PickleProblem::Memory { .. }));
        assert!(is_memory, "{name}: {error}");
        assert!(peak_bytes <= 16 << 20, "{name}: {peak_bytes}");
    }
}

#[test]
fn lines_take_memory_by_their_size() {
    const COUNT: u64 = 100_000;
    let header = "{\"format\":\"lowtide-trace\",\"version\":1,\"policy\":\"pages\",\
                  \"capacity_bytes\":0,\"page_bytes\":0,\"lost_events\":0,\
                  \"start_reserved_bytes\":0}\n";
    let block = "\"size_bytes\":1,\"requested_bytes\":1,\"stream\":0";
    let kinds: [(&str, &dyn Fn(u64) -> String); 5] = [
        ("sites", &|_| "{\"site\":{\"file\":\"\",\"line\":0,\"function\":\"\"}}\n".to_owned()),
        ("pieces", &|n| format!("{{\"piece\":{{\"id\":{n},\"address\":{n},\"size_bytes\":1}}}}\n")),
        ("start", &|n| format!("{{\"start\":{{\"id\":{n},\"address\":{n},{block}}}}}\n")),
        ("failures", &|_| {
            format!(
                "{{\"out_of_memory\":{{\"time_us\":0,\"address\":0,{block},\"free_bytes\":0}}}}\n"
            )
        }),
        ("reserved", &|n| format!("{{\"reserve\":{{\"time_us\":0,\"address\":{n},{block}}}}}\n")),
    ];
    for (name, line) in kinds {
        let lines: String = (0..COUNT).map(line).collect();
        let file = format!("{header}{lines}");
        let (read, peak_bytes) =
            peak_of(|| Recording::read_json_lines(file.as_bytes(), Limits::default()));
        let error = read.expect_err("half a trace").to_string();
        println!("{name}: {} for {}: {error}", peak_bytes, file.len());
        assert!(error.ends_with("the trace ends in the middle"), "{name}: {error}");
        assert!(peak_bytes <= 6 * file.len(), "{name}: {peak_bytes} for {}", file.len());
    }
}
