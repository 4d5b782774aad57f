//! A recording as lines of JSON is read back unchanged, or gives an error with an offset.

use lowtide_allocator::Category;
use lowtide_trace::{JsonProblem, Limits, Recording, TraceError, TraceProblem};
use proptest::prelude::*;

use crate::recordings::{Op, recording, run};

pub(crate) fn write(recording: &Recording) -> Vec<u8> {
    let mut bytes = Vec::new();
    recording.write_json_lines(&mut bytes).expect("memory is writable");
    bytes
}

pub(crate) fn read(bytes: &[u8]) -> Result<Recording, TraceError> {
    Recording::read_json_lines(bytes, Limits::default())
}

/// A recording with one item of each kind.
fn fixed() -> Recording {
    let allocate = |grains| Op::Allocate {
        grains,
        slack_bytes: 5,
        category: Some(Category::Gradient),
        site: Some(1),
    };
    let before = [
        Op::Reserve { pages: 3, stream: 0 },
        allocate(3),
        allocate(2),
        allocate(4),
        Op::RequestFree(1),
        Op::Charge(Some(Category::Workspace), 100),
    ];
    let during = [
        Op::Free(0),
        allocate(1),
        Op::Reserve { pages: 2, stream: 1 },
        Op::Scatter { grains: 50, slack_bytes: 9 },
        Op::RequestFree(3),
        Op::Grow { index: 0, pages: 1 },
        Op::Charge(None, 7),
        Op::Discharge(None, 6),
        Op::Fail(1 << 20),
    ];
    run(&before, &during)
}

/// The lines of the fixed recording.
fn lines() -> Vec<String> {
    let text = String::from_utf8(write(&fixed())).expect("UTF-8");
    text.split_inclusive('\n').map(str::to_owned).collect()
}

fn find(lines: &[String], what: &str) -> usize {
    let start = format!("{{\"{what}\":");
    lines.iter().position(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("no {what}"))
}

proptest! {
    #[test]
    fn recordings_come_back_as_they_were(recording in recording()) {
        prop_assert_eq!(recording.check(), Ok(()));
        let bytes = write(&recording);
        prop_assert_eq!(read(&bytes).expect("what was written"), recording);
        prop_assert_eq!(bytes.last(), Some(&b'\n'));
    }

    #[test]
    fn damaged_lines_never_panic(
        recording in recording(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = write(&recording);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(recording) = read(&bytes) {
            prop_assert_eq!(recording.check(), Ok(()));
        }
    }

    #[test]
    fn lines_that_are_missing_twice_or_elsewhere_are_noticed(
        recording in recording(),
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
    ) {
        let bytes = write(&recording);
        let lines: Vec<&[u8]> = bytes.split_inclusive(|&byte| byte == b'\n').collect();
        let (from, to) = (from.index(lines.len()), to.index(lines.len()));
        let mut missing = lines.clone();
        missing.remove(from);
        prop_assert!(read(&missing.concat()).is_err());
        let mut twice = lines.clone();
        twice.insert(from, lines[from]);
        prop_assert!(read(&twice.concat()).is_err());
        let mut elsewhere = lines.clone();
        elsewhere.swap(from, to);
        if let Ok(read) = read(&elsewhere.concat()) {
            // Sites, events of charges and similar lines may be in any order among themselves.
            prop_assert_eq!(read.check(), Ok(()));
            prop_assert_eq!(read == recording, lines[from] == lines[to]);
        }
    }
}

#[test]
fn fixed_recording_has_one_of_each_line() {
    let lines = lines();
    let counts = [
        ("format", 1),
        ("site", 4),
        ("piece", 2),
        ("start", 3),
        ("charge_at_start", 1),
        ("allocate", 2),
        ("free_requested", 1),
        ("free", 1),
        ("reserve", 2),
        ("charge", 1),
        ("discharge", 1),
        ("out_of_memory", 1),
        ("segment", 2),
        ("end", 1),
    ];
    for (what, count) in counts {
        let start = format!("{{\"{what}\":");
        let found = lines.iter().filter(|line| line.starts_with(&start)).count();
        assert_eq!(found, count, "{what}");
    }
    assert!(lines[find(&lines, "start")..].iter().any(|line| line.contains("\"pending\":true")));
    assert_eq!(read(lines.concat().as_bytes()).expect("a recording"), fixed());
}

#[test]
fn trace_cut_anywhere_is_an_error_within_it() {
    let bytes = write(&fixed());
    for len in 0..bytes.len() {
        let error = read(&bytes[..len]).expect_err("half a trace");
        assert!(error.offset <= len as u64, "{error}");
        let is_cut = matches!(error.problem, TraceProblem::Json(JsonProblem::Cut));
        assert!(is_cut, "{len}: {error}");
    }
}

/// Replaces a text in the first line that contains `what`. The error must begin there, with the
/// expected text.
#[track_caller]
fn check_error(what: &str, (old, new): (&str, &str), expected: &str) {
    let mut lines = lines();
    let at = find(&lines, what);
    assert!(lines[at].contains(old), "{}", lines[at]);
    lines[at] = lines[at].replacen(old, new, 1);
    let start: usize = lines[..at].iter().map(String::len).sum();
    let error = read(lines.concat().as_bytes()).expect_err("a damaged line");
    let offset = error.offset as usize;
    assert!((start..start + lines[at].len()).contains(&offset), "{error} is not at {start}");
    assert!(error.problem.to_string().starts_with(expected), "{error}");
}

#[test]
fn malformed_lines_say_what_and_where() {
    check_error("format", ("lowtide-trace", "other"), "not a trace of version 1");
    check_error("format", ("\"version\":1", "\"version\":2"), "not a trace of version 1");
    check_error("format", ("\"version\":1", "\"version\":1,\"more\":1"), "unknown field `more`");
    check_error("format", ("{", "["), "");
    check_error("site", ("\"file\"", "\"files\""), "unknown field `files`");
    check_error("site", ("12", "4294967296"), "invalid value: integer `4294967296`");
    check_error("site", ("12", "-1"), "invalid value: integer `-1`");
    check_error("site", ("12", "1.5"), "invalid type: floating point");
    check_error("site", ("12", "1e999"), "number out of range");
    check_error("site", ("12", "18446744073709551616"), "invalid type: floating point");
    check_error("site", ("12", &"9".repeat(500)), "number out of range");
    check_error("site", ("12", "null"), "invalid type: null");
    check_error("site", ("12", &"[".repeat(5000)), "invalid type: sequence");
    check_error("site", ("}}", "}"), "EOF while parsing");
    check_error("site", ("}}", "}}}"), "trailing characters");
    check_error("start", ("{\"start\"", "{\"begin\""), "unknown variant `begin`");
    check_error("start", ("\"gradient\"", "\"gra\\ndient\""), "category cannot be gra\\ndient");
    check_error("start", ("\"site\":1", "\"site\":4"), "no site 4");
    check_error("start", ("requested_bytes\":", "requested_bytes\":99"), "nothing can be at");
    check_error("charge_at_start", ("workspace", "space"), "category cannot be space");
    check_error("free", ("\"id\":0", "\"id\":77"), "no live block 77");
    check_error("free", ("\"id\":0,", ""), "id is missing");
    check_error("free", ("\"size_bytes\":", "\"size_bytes\":1"), "block 0 has changed");
    check_error("allocate", ("\"id\":3", "\"id\":1"), "1 was given before");
    check_error("reserve", ("\"time_us\"", "\"id\":0,\"time_us\""), "id is missing here, or out");
    check_error("reserve", ("\"size_bytes\":", "\"size_bytes\":0,\"x\":"), "unknown field `x`");
    check_error("discharge", ("\"size_bytes\":6", "\"size_bytes\":8"), "charged bytes fall below");
    check_error("out_of_memory", (",\"free_bytes\":524288", ""), "free_bytes is missing");
    check_error("segment", ("8192", "18446744073709551000"), "nothing can be at");
    check_error("end", ("\"events\":9", "\"events\":10"), "lines are missing, or too many");
}

#[test]
fn lines_out_of_order_are_refused() {
    let lines = lines();
    let start_of = |at: usize| lines[..at].iter().map(String::len).sum::<usize>() as u64;
    let (first, later) = (find(&lines, "site"), find(&lines, "allocate"));
    let mut swapped = lines.clone();
    let site = swapped.remove(first);
    swapped.insert(later, site);
    let error = read(swapped.concat().as_bytes()).expect_err("a site among events");
    assert!(error.to_string().ends_with("a site comes too late"), "{error}");
    assert_eq!(error.offset, start_of(later + 1) - lines[first].len() as u64);

    let behind = [lines.concat(), "\n".to_owned()].concat();
    let error = read(behind.as_bytes()).expect_err("a line behind the last");
    assert_eq!(error.offset, lines.concat().len() as u64);
    assert!(matches!(error.problem, TraceProblem::Json(JsonProblem::Trailing)), "{error}");
}

#[test]
fn sizes_are_limited_before_they_are_spent() {
    let bytes = write(&fixed());
    let len = bytes.len() as u64;
    let read = |json_bytes, line_bytes| {
        let limits = Limits { json_bytes, line_bytes, ..Limits::default() };
        Recording::read_json_lines(bytes.as_slice(), limits)
    };
    let longest = bytes.split(|&byte| byte == b'\n').map(<[u8]>::len).max().unwrap() as u64;
    assert_eq!(read(len, longest).expect("a recording"), fixed());
    for (json_bytes, line_bytes) in [(len - 1, longest), (len, longest - 1), (0, 0)] {
        let error = read(json_bytes, line_bytes).expect_err("too much");
        assert!(matches!(error.problem, TraceProblem::Limit { .. }), "{error}");
    }
    // A line without an end is not read completely.
    let endless = std::io::BufReader::new(std::io::repeat(b' '));
    let error = Recording::read_json_lines(endless, Limits::default()).expect_err("too much");
    assert!(matches!(error.problem, TraceProblem::Limit { .. }), "{error}");
}
