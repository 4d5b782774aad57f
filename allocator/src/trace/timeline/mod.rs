//! A recording as one page that draws itself: no network, no other file.
//!
//! The page holds the recording in columns and computes the rest; what it shows first is also
//! written out as text. Every string from the recording is escaped twice over: unprintable
//! characters become visible ones, and the data is JSON in which `<`, `>` and `&` are escapes.

mod columns;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};

use self::columns::Column;
use super::lifetimes::{BANDS, Lives, NEVER, band, band_name, printable};
use super::recording::{EventKind, Recording};
use crate::torch::StreamId;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
/// In the order in which they run.
const SCRIPTS: [&str; 5] = [
    include_str!("data.js"),
    include_str!("paint.js"),
    include_str!("chart.js"),
    include_str!("tables.js"),
    include_str!("page.js"),
];
/// The largest integer below which the page has every other: its numbers are doubles.
const NUMBER_MAX: u64 = (1 << 53) - 1;
const SITE_LEN_MAX: usize = 240;

impl Recording {
    /// Writes a page for a browser: bytes in use by category over time, the blocks under them, what
    /// was reserved, failed requests, and who held what at any moment. Needs nothing but itself;
    /// the same recording gives the same bytes. Counts above 2^53 − 1 are shown as that.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn write_timeline(&self, mut out: impl Write) -> io::Result<()> {
        let mut rest = PAGE;
        while let Some((before, after)) = rest.split_once("{{") {
            out.write_all(before.as_bytes())?;
            let (name, after) = after.split_once("}}").expect("the page closes its names");
            match name {
                "style" => out.write_all(STYLE.as_bytes())?,
                "summary" => out.write_all(summary(self).as_bytes())?,
                "recording" => out.write_all(data(self).as_bytes())?,
                _ => SCRIPTS.iter().try_for_each(|script| out.write_all(script.as_bytes()))?,
            }
            rest = after;
        }
        out.write_all(rest.as_bytes())
    }
}

/// The page's text, for those who read rather than look.
fn summary(recording: &Recording) -> String {
    recording.explain().paragraphs().iter().fold(String::new(), |text, paragraph| {
        let mut paragraph = printable(paragraph, usize::MAX);
        for unit in ["%", "KiB", "MiB", "GiB", "TiB"] {
            paragraph = paragraph.replace(&format!(" {unit}"), &format!("\u{a0}{unit}"));
        }
        text + "<p>" + &escaped_html(&paragraph) + "</p>\n"
    })
}

/// One JSON object.
fn data(recording: &Recording) -> String {
    let lives = Lives::of(recording);
    let mut streams: Vec<StreamId> = lives.lives.iter().map(|life| life.stream).collect();
    streams.sort_unstable();
    streams.dedup();
    let bands: Vec<String> = (0..BANDS).map(|band| band_name(band).to_owned()).collect();
    let sites: Vec<String> = recording.sites.iter().map(|site| site.shown(SITE_LEN_MAX)).collect();
    let stream_names: Vec<String> = streams.iter().map(|stream| stream.0.to_string()).collect();
    let charges = recording.start_charges.iter();
    let charges: Vec<String> = charges
        .map(|&(category, bytes)| format!("[{},{}]", category.index(), number(bytes)))
        .collect();
    let start_us = recording.events.first().map_or(0, |event| event.time_us);
    let mut text = format!(
        "{{\"policy\":{},\"capacity\":{},\"lost\":{},\"startReserved\":{},\"startTime\":{},\
         \"startCharges\":[{}],\"events\":{},\"blocks\":{},\"bands\":{},\"streams\":{},\
         \"sites\":{}",
        escaped_json(&printable(&recording.policy, SITE_LEN_MAX)),
        number(recording.capacity_bytes),
        number(recording.lost_events),
        number(recording.start_reserved_bytes),
        number(start_us),
        charges.join(","),
        recording.events.len(),
        lives.lives.len(),
        list(&bands),
        list(&stream_names),
        list(&sites),
    );
    let columns = event_columns(recording, start_us).into_iter();
    for (name, column) in columns.chain(block_columns(&lives, &streams)) {
        write!(text, ",\"{name}\":\"{}\"", column.base64()).expect("a string takes all");
    }
    text + "}"
}

/// Kind and time of every event; of those that are not about blocks also size and owner.
fn event_columns(recording: &Recording, start_us: u64) -> BTreeMap<&'static str, Column> {
    let mut columns: BTreeMap<&'static str, Column> = BTreeMap::new();
    let names = ["kind", "time", "otherSize", "otherBand", "otherSite", "oomFree"];
    names.into_iter().for_each(|name| drop(columns.insert(name, Column::default())));
    let mut push = |name: &'static str, value: u64| columns.entry(name).or_default().push(value);
    let mut before_us = start_us;
    for event in &recording.events {
        let kind = match event.kind {
            EventKind::Allocate { .. } => 0,
            EventKind::FreeRequested { .. } => 1,
            EventKind::Free { .. } => 2,
            EventKind::Reserve => 3,
            EventKind::Release => 4,
            EventKind::Charge => 5,
            EventKind::Discharge => 6,
            EventKind::OutOfMemory { .. } => 7,
        };
        push("kind", kind);
        // Order is what counts; a clock that was set back stands still here.
        push("time", number(event.time_us.saturating_sub(before_us)));
        before_us = before_us.max(event.time_us);
        if kind >= 3 {
            push("otherSize", number(event.size_bytes));
            push("otherBand", band(event.category) as u64);
            let known = event.site.filter(|&site| (site as usize) < recording.sites.len());
            push("otherSite", known.map_or(0, |site| u64::from(site) + 1));
        }
        if let EventKind::OutOfMemory { free_bytes } = event.kind {
            push("oomFree", number(free_bytes));
        }
    }
    columns
}

/// Lives in order of birth; ages are moments, 0 for what has no end. Of three columns 0 means
/// nothing, and what they say is one more than it is: moments up to the owner's free, requests
/// that do not fill their block, sites.
fn block_columns(lives: &Lives, streams: &[StreamId]) -> BTreeMap<&'static str, Column> {
    let mut columns: BTreeMap<&'static str, Column> = BTreeMap::new();
    let names = ["from", "age", "wait", "size", "requested", "stream", "band", "site", "address"];
    names.into_iter().for_each(|name| drop(columns.insert(name, Column::default())));
    let (mut from, mut address) = (0, 0);
    for life in &lives.lives {
        let mut push =
            |name: &'static str, value: u64| columns.entry(name).or_default().push(value);
        let moments = |to: usize| (to != NEVER).then(|| (to - life.from) as u64);
        push("from", (life.from - from) as u64);
        push("age", moments(life.to).unwrap_or(0));
        push("wait", moments(life.waits_from).map_or(0, |moments| moments + 1));
        push("size", number(life.size_bytes));
        push("stream", streams.binary_search(&life.stream).unwrap_or(0) as u64);
        push("band", band(life.category) as u64);
        push("site", life.site.map_or(0, |site| u64::from(site) + 1));
        // Most requests fill their block.
        let is_full = life.requested_bytes == life.size_bytes;
        push("requested", if is_full { 0 } else { number(life.requested_bytes) + 1 });
        columns.entry("address").or_default().push_step(address, life.address);
        (from, address) = (life.from, life.address);
    }
    columns
}

fn number(value: u64) -> u64 {
    value.min(NUMBER_MAX)
}

fn list(strings: &[String]) -> String {
    let strings: Vec<String> = strings.iter().map(|string| escaped_json(string)).collect();
    format!("[{}]", strings.join(","))
}

/// A string of JSON that is also safe inside a script element of HTML.
fn escaped_json(string: &str) -> String {
    let mut text = String::from('"');
    for char in string.chars() {
        match char {
            '"' => text += "\\\"",
            '\\' => text += "\\\\",
            '<' | '>' | '&' | '\0'..='\x1f' | '\x7f' | '\u{2028}' | '\u{2029}' => {
                write!(text, "\\u{:04x}", u32::from(char)).expect("a string takes all");
            }
            _ => text.push(char),
        }
    }
    text + "\""
}

fn escaped_html(string: &str) -> String {
    let mut text = String::new();
    for char in string.chars() {
        match char {
            '<' => text += "&lt;",
            '>' => text += "&gt;",
            '&' => text += "&amp;",
            '"' => text += "&quot;",
            '\'' => text += "&#39;",
            _ => text.push(char),
        }
    }
    text
}
