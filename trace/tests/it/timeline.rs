//! The page holds the recording and no text that a stranger could have injected.

use std::io::{self, Write};

use lowtide_allocator::Category;
use lowtide_trace::timeline::{FORMAT_SCRIPT, SCRIPT, STYLE, TimelineMark, TimelineNotes};
use lowtide_trace::{EventKind, Recording, Replay, Site};
use proptest::prelude::*;

use crate::common::{PLENTY, World, program};
use crate::synthetic::{self, Lived, charges_at, lives, one_event, reserved_at, training};

const NUMBER_MAX: u64 = (1 << 53) - 1;

fn page(recording: &Recording) -> String {
    let mut bytes = Vec::new();
    recording.write_timeline(&mut bytes).expect("memory takes all");
    String::from_utf8(bytes).expect("text")
}

/// Reads the data in the way of the page's scripts.
struct Data(String);

impl Data {
    fn of(recording: &Recording) -> Data {
        Data::in_page(&page(recording))
    }

    fn in_page(page: &str) -> Data {
        let head = "<script type=\"application/json\" id=\"recording\">";
        let (_, rest) = page.split_once(head).expect("the data");
        Data(rest.split_once("</script>").expect("its end").0.to_owned())
    }

    fn after(&self, name: &str) -> &str {
        self.0.split_once(&format!("\"{name}\":")).unwrap_or_else(|| panic!("no {name}")).1
    }

    fn number(&self, name: &str) -> u64 {
        let text = self.after(name);
        let len = text.find(|char: char| !char.is_ascii_digit()).expect("an end");
        text[..len].parse().expect("a number")
    }

    fn column(&self, name: &str) -> Vec<u64> {
        let text = self.after(name).strip_prefix('"').expect("a string");
        integers(&base64(text.split_once('"').expect("an end").0))
    }

    /// Addresses, from their signed steps.
    fn addresses(&self) -> Vec<u64> {
        let mut address = 0_u64;
        let step = |coded: u64| {
            let step = if coded % 2 == 1 { !(coded / 2) } else { coded / 2 };
            address = address.wrapping_add(step);
            address
        };
        self.column("address").into_iter().map(step).collect()
    }

    /// A list of strings, unescaped.
    fn strings(&self, name: &str) -> Vec<String> {
        let mut strings = Vec::new();
        let mut chars = self.after(name).strip_prefix('[').expect("a list").chars();
        while chars.next().expect("an end of the list") == '"' {
            let mut string = String::new();
            loop {
                match chars.next().expect("an end of the string") {
                    '"' => break,
                    '\\' => match chars.next().expect("an escape") {
                        'u' => {
                            let digits: String = chars.by_ref().take(4).collect();
                            let code = u32::from_str_radix(&digits, 16).expect("digits");
                            string.push(char::from_u32(code).expect("no surrogate"));
                        }
                        other => string.push(other),
                    },
                    other => string.push(other),
                }
            }
            strings.push(string);
            if chars.next().expect("an end of the list") == ']' {
                break;
            }
        }
        strings
    }
}

fn base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => panic!("{byte} is no digit"),
    };
    let mut bits = Vec::new();
    for byte in text.trim_end_matches('=').bytes() {
        bits.extend((0..6).rev().map(|bit| digit(byte) >> bit & 1));
    }
    bits.chunks_exact(8).map(|bits| bits.iter().fold(0, |byte, bit| byte << 1 | bit)).collect()
}

fn integers(bytes: &[u8]) -> Vec<u64> {
    let numbers = bytes.split_inclusive(|byte| byte & 0x80 == 0);
    numbers
        .map(|digits| digits.iter().rfold(0, |n, byte| n << 7 | u64::from(byte & 0x7f)))
        .collect()
}

/// Compares the columns, read in the way of a script, with a recount.
fn check_data(recording: &Recording) {
    let data = Data::of(recording);
    let expected = lives(recording);
    assert_eq!(data.number("events"), recording.events.len() as u64);
    assert_eq!(data.number("blocks"), expected.len() as u64);
    let [from, age, wait, size, requested, stream, band, site] =
        ["from", "age", "wait", "size", "requested", "stream", "band", "site"]
            .map(|name| data.column(name));
    let (streams, addresses) = (data.strings("streams"), data.addresses());
    let mut at = 0;
    for (index, Lived { block, from: born, waits_from, to }) in expected.iter().enumerate() {
        at += from[index] as usize;
        assert_eq!(at, *born, "block {index}");
        assert_eq!(age[index], to.map_or(0, |to| (to - born) as u64));
        assert_eq!(wait[index], waits_from.map_or(0, |waits| (waits - born) as u64 + 1));
        let size_bytes = block.size_bytes.min(NUMBER_MAX);
        assert_eq!(size[index], size_bytes);
        let is_full = block.size_bytes == block.requested_bytes;
        let request = block.requested_bytes.min(NUMBER_MAX);
        assert_eq!(requested[index], if is_full { 0 } else { request + 1 });
        assert_eq!(streams[stream[index] as usize], block.stream.0.to_string());
        assert_eq!(band[index], block.category.map_or(7, |category| category as u64));
        assert_eq!(site[index], block.site.map_or(0, |site| u64::from(site) + 1));
        assert_eq!(addresses[index], block.address);
    }
    check_levels(recording, &data);
}

/// Reserved and charged bytes at every moment.
fn check_levels(recording: &Recording, data: &Data) {
    let [kind, size, band, free] =
        ["kind", "otherSize", "otherBand", "oomFree"].map(|name| data.column(name));
    let mut others = size.iter().zip(&band);
    let mut free = free.iter();
    let mut charges = charges_at(recording, 0);
    let mut reserved = data.number("startReserved");
    for (index, event) in recording.events.iter().enumerate() {
        if kind[index] < 3 {
            continue;
        }
        let (&bytes, &band) = others.next().expect("another event");
        let level = &mut charges[band as usize];
        match kind[index] {
            3 => reserved += bytes,
            4 => reserved = reserved.saturating_sub(bytes),
            5 => (*level, reserved) = (*level + bytes, reserved + bytes),
            6 => {
                *level = level.saturating_sub(bytes);
                reserved = reserved.saturating_sub(bytes);
            }
            _ => {
                let free_bytes = *free.next().expect("its free bytes");
                assert_eq!(event.kind, EventKind::OutOfMemory { free_bytes });
                assert_eq!(bytes, event.size_bytes);
            }
        }
        assert_eq!(charges, charges_at(recording, index + 1));
        assert_eq!(reserved, reserved_at(recording, index + 1));
    }
    assert_eq!((others.next(), free.next()), (None, None));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn page_holds_what_was_recorded(recording in synthetic::recording()) {
        check_data(&recording);
    }
}

#[test]
fn page_of_a_training_run_and_of_real_traces_holds_what_was_recorded() {
    check_data(&training(3000));
    for (_, snapshot) in crate::traces::pytorch_snapshots() {
        let device = Replay::busiest_device(&snapshot);
        check_data(&Recording::from_snapshot(&snapshot, device).expect("a recording"));
    }
}

/// Live bytes by category, and reserved bytes, after the first `moment` events.
fn levels(recording: &Recording, moment: usize) -> ([u64; 7], u64) {
    let mut live = [0; 7];
    for block in lives(recording).iter().filter(|block| block.is_live_at(moment)) {
        live[block.block.category.expect("recorded") as usize] += block.block.size_bytes;
    }
    (live, reserved_at(recording, moment))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn recording_of_the_last_events_has_the_levels_of_the_whole(
        before in program(), after in program(),
    ) {
        let mut world = World::sim(PLENTY);
        world.run(&before).expect("memory");
        let first = world.memory.event_count();
        world.run(&after).expect("memory");
        let capture = world.memory.capture();
        let (whole, last) = (Recording::of(&capture), Recording::since(&capture, first));
        prop_assert_eq!(last.lost_events, 0);
        let earlier = whole.events.len() - last.events.len();
        prop_assert_eq!(Recording::index_since(&capture, 0, first), earlier as u64);
        let index = Recording::index_since(&capture, first, u64::MAX);
        prop_assert_eq!(index, last.events.len() as u64);
        for moment in 0..=last.events.len() {
            prop_assert_eq!(levels(&last, moment), levels(&whole, earlier + moment));
            let charges = charges_at(&last, moment);
            prop_assert_eq!(charges, charges_at(&whole, earlier + moment));
        }
        check_data(&last);
    }
}

#[test]
fn element_for_another_page_holds_the_same_data_and_what_is_known_beyond_it() {
    let mut recording = training(200);
    for (site, module) in recording.sites.iter_mut().zip(["", "block1.conv2", "head", "head"]) {
        site.module = module.into();
    }
    let notes = TimelineNotes {
        planned_peak_bytes: Some(12_345),
        phases: vec![(0, "forward".into()), (80, "</script>\u{202e}".into())],
        marks: vec![TimelineMark { event: 7, label: "again".into(), text: "<b>why</b>".into() }],
    };
    let element = recording.timeline_element(&notes);
    let data = Data::in_page(&element);
    assert_eq!(data.column("size"), Data::of(&recording).column("size"));
    assert_eq!(data.number("planned"), 12_345);
    assert_eq!(data.strings("modules")[..3], ["", "block1.conv2", "head"]);
    assert!(data.after("siteModules").starts_with("[0,1,2,2"), "{}", data.after("siteModules"));
    let phases = data.after("phases");
    assert!(phases.starts_with(r#"[[0,"forward"],[80,"\u003c/script\u003e\\u{202e}"]]"#));
    assert!(data.after("marks").starts_with(r#"[[7,"again","\u003cb\u003ewhy"#));
    assert_eq!(element.matches("</script>").count(), 1);
    // The plain page has the same element, without notes.
    assert_eq!(Data::of(&recording).number("planned"), 0);
    assert_eq!(element, recording.timeline_element(&notes), "the same again");
}

#[test]
fn palette_has_a_colour_for_every_category_in_light_and_dark() {
    for band in 0..=Category::ALL.len() {
        assert_eq!(STYLE.matches(&format!("--band-{band}: #")).count(), 2, "band {band}");
    }
    // One colour for each band. Scripts that paint pixels read six digits.
    let colours = STYLE.split("--").filter(|part| part.starts_with("band-"));
    for colour in colours.filter_map(|part| part.split_once(": ")).map(|(_, value)| value) {
        let digits = colour.trim_start_matches('#');
        assert!(digits[..6].chars().all(|digit| digit.is_ascii_hexdigit()), "{colour}");
    }
    // Functions that the scripts of a page share are defined once.
    for function in ["formatBytes", "formatTime", "stepFor", "count"] {
        let definition = format!("function {function}(");
        assert!(FORMAT_SCRIPT.contains(&definition) && !SCRIPT.contains(&definition), "{function}");
    }
}

#[test]
fn times_never_fall() {
    let mut recording = training(60);
    for (index, time_us) in [9, 9, 4, 12].into_iter().enumerate() {
        recording.events[index].time_us = time_us;
    }
    recording.events.truncate(4);
    let data = Data::of(&recording);
    assert_eq!(data.number("startTime"), 9);
    assert_eq!(data.column("time"), [0, 0, 0, 3]);
}

const NASTY: [&str; 9] = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "]]><img src=x onerror=alert(1)>",
    "\"quoted\" 'and' \\back\\slashed\\",
    "two\nlines\r\t\0",
    "\u{1b}[2J\u{7}\u{9b}31m",
    "abc\u{202e}txt.exe\u{2066}\u{200b}",
    "\u{2028}\u{2029}\u{feff}&amp;&lt;",
    "שלום/日本語/🦀.py",
];

fn with_names(names: &[&str]) -> Recording {
    let mut recording = training(200);
    recording.policy = names[0].into();
    for (site, name) in recording.sites.iter_mut().zip(names.iter().cycle()) {
        *site = Site { file: (*name).into(), line: 7, function: (*name).into(), ..Site::default() };
    }
    recording
}

#[test]
fn names_from_the_recording_are_text_and_nothing_else() {
    let nasty = page(&with_names(&NASTY));
    let plain = page(&with_names(&["a"]));
    for mark in ["<", ">", "</script", "<!--", "\u{2028}", "\0", "\u{1b}"] {
        assert_eq!(nasty.matches(mark).count(), plain.matches(mark).count(), "{mark:?}");
    }
    for steering in ['\u{202e}', '\u{2066}', '\u{200b}', '\u{feff}', '\u{9b}', '\u{7}', '\r'] {
        assert!(!nasty.contains(steering), "{steering:?}");
    }
    assert!(nasty.contains("policy &lt;/script&gt;"));

    let sites = Data::of(&with_names(&NASTY)).strings("sites");
    let shown = |name: &str| format!("{name}:7 {name}");
    for whole in [0, 1, 2, 3, 8] {
        assert_eq!(sites[whole], shown(NASTY[whole]));
    }
    assert_eq!(sites[4], shown(r"two\u{a}lines\u{d}\u{9}\u{0}"));
    assert_eq!(sites[5], shown(r"\u{1b}[2J\u{7}\u{9b}31m"));
    assert_eq!(sites[6], shown(r"abc\u{202e}txt.exe\u{2066}\u{200b}"));
    assert_eq!(sites[7], shown(r"\u{2028}\u{2029}\u{feff}&amp;&lt;"));
}

#[test]
fn names_that_are_too_long_keep_their_end() {
    let name = format!("{}end.rs", "long/".repeat(10_000));
    let mut recording = with_names(&[&name]);
    recording.sites[1].file = "short.rs".into();
    let sites = Data::of(&recording).strings("sites");
    assert_eq!([0, 1].map(|site: usize| sites[site].chars().count()), [240; 2]);
    assert!(sites[0].starts_with('…') && sites[0].ends_with("long/end.rs:7"), "{}", sites[0]);
    assert!(sites[1].starts_with("short.rs:7 long/") && sites[1].ends_with('…'), "{}", sites[1]);
}

#[test]
fn page_asks_the_network_for_nothing() {
    let page = page(&training(200));
    assert!(page.contains("default-src 'none'"));
    for way in ["http:", "https:", "//cdn", "src=", "href", "url(", "@import", "fetch(", "XMLHttp"]
    {
        assert!(!page.contains(way), "{way}");
    }
    assert!(!page.contains("{{"), "a name that nothing was put in for");
}

#[test]
fn summary_says_what_the_page_shows() {
    let mut recording = training(700);
    recording.lost_events = 1234;
    let explanation = recording.explain();
    let page = page(&recording);
    let (head, _) = page.split_once("</header>").expect("a header");
    assert!(head.contains("1,234 events were lost"));
    let event = explanation.peak.moment.event.expect("a peak after an event");
    assert!(head.contains(&format!("in use after event {event} ")), "{head}");
    assert!(head.contains("Failed requests: 1; the first asked for 2\u{a0}GiB"), "{head}");
}

#[test]
fn recordings_of_nothing_and_of_one_event_have_a_page() {
    check_data(&Recording::default());
    for kind in synthetic::EVERY_KIND {
        check_data(&one_event(kind, 1000));
    }
}

#[test]
fn numbers_beyond_a_double_are_shown_as_the_largest_and_addresses_as_they_are() {
    let recording = synthetic::largest();
    let data = Data::of(&recording);
    for name in ["capacity", "lost", "startReserved"] {
        assert_eq!(data.number(name), NUMBER_MAX);
    }
    assert_eq!(data.column("size"), [NUMBER_MAX; 2]);
    assert_eq!(data.column("oomFree"), [NUMBER_MAX]);
    assert_eq!(data.column("time").iter().max(), Some(&NUMBER_MAX));
    assert_eq!(data.addresses(), [u64::MAX - 7; 2]);
    let size = one_event(EventKind::Allocate { id: 1 }, NUMBER_MAX - 1);
    assert_eq!(Data::of(&size).column("size"), [NUMBER_MAX - 1]);
}

#[test]
fn same_recording_gives_the_same_bytes() {
    assert_eq!(page(&training(2000)), page(&training(2000)));
}

#[test]
fn writer_that_fails_is_an_error() {
    struct Full(usize);
    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.0);
            self.0 -= taken;
            Ok(taken)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let recording = training(100);
    let len = page(&recording).len();
    assert!(recording.write_timeline(Full(len)).is_ok());
    for room in [0, 100, len / 2, len - 1] {
        let error = recording.write_timeline(Full(room)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WriteZero);
    }
}
