//! A recording as one page that draws itself, without network and other files.
//!
//! The page holds the recording in columns and computes the rest. Its first view is also written as
//! text. Every string from the recording is escaped twice: unprintable characters become visible
//! ones, and the data is JSON in which `<`, `>` and `&` are escaped.
//!
//! [`Recording::write_timeline`] writes the whole page. A page with more content than memory, such
//! as the report of a training, takes the drawing from [`Recording::timeline_element`] and combines
//! it with [`STYLE`], [`FORMAT_SCRIPT`] and [`SCRIPT`]: one palette and one drawing for all.

mod columns;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};

use lowtide_allocator::torch::StreamId;

use self::columns::Column;
use super::lifetimes::{BANDS, Lives, NEVER, band, band_name};
use super::printable::{end, printable};
use super::recording::{EventKind, Recording};

/// Palette as variables of CSS, light and dark; styles of every page (letters, tables, buttons);
/// and the look of the drawing.
pub const STYLE: &str = concat!(include_str!("base.css"), include_str!("timeline.css"));

/// Functions that write numbers, for [`SCRIPT`] and for scripts of the page: `formatBytes`,
/// `formatTime`, `count`, `percent`, and `stepFor` for ticks.
pub const FORMAT_SCRIPT: &str = include_str!("format.js");

/// Script that draws the element; runs once, behind the element and [`FORMAT_SCRIPT`].
pub const SCRIPT: &str = concat!(
    "(() => {\n",
    include_str!("data.js"),
    include_str!("paint.js"),
    include_str!("chart.js"),
    include_str!("tables.js"),
    include_str!("page.js"),
    "})();\n",
);

/// A content security policy for pages that load nothing: inline style and script, no network.
pub const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

const PAGE: &str = include_str!("page.html");
const PAGE_STYLE: &str = include_str!("page.css");
const ELEMENT: &str = include_str!("element.html");
/// Largest integer in the page. Its numbers are doubles, which hold every integer up to this one.
const NUMBER_MAX: u64 = (1 << 53) - 1;
const SITE_LEN_MAX: usize = 240;

/// Notes of a program about a recording, drawn over it.
///
/// A moment is the index of the next event in [`Recording::events`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimelineNotes {
    /// Planned peak of reserved bytes. It is drawn as a line, like the budget.
    pub planned_peak_bytes: Option<u64>,
    /// Start and name of each phase (forward, backward, optimizer), in order. A phase ends at the
    /// start of the next one.
    pub phases: Vec<(u64, String)>,
    /// Moments to mark.
    pub marks: Vec<TimelineMark>,
}

/// A marked moment, such as the end of an attempt that was rolled back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimelineMark {
    /// Index of the event of the mark. A mark on a failed request shares the request's flag.
    pub event: u64,
    /// A few words beside the flag.
    pub label: String,
    /// Text of the tooltip.
    pub text: String,
}

impl Recording {
    /// Writes a page for a browser: bytes in use by category over time, the blocks behind these
    /// bytes, reserved bytes, failed requests, and the owners of memory at any moment. The page
    /// needs no other file; the same recording gives the same bytes. Counts above 2^53 − 1 are
    /// shown as 2^53 − 1.
    ///
    /// # Errors
    /// Writing to `out` fails.
    pub fn write_timeline(&self, mut out: impl Write) -> io::Result<()> {
        let element = element(self, &TimelineNotes::default(), "timeline");
        filled(PAGE, |name| match name {
            "policy" => POLICY.to_owned(),
            "style" => [STYLE, PAGE_STYLE].concat(),
            "summary" => summary(self),
            "element" => element.clone(),
            _ => [FORMAT_SCRIPT, SCRIPT].concat(),
        })
        .try_for_each(|part| out.write_all(part.as_bytes()))
    }

    /// The drawing and its data as an element for a page of the caller; at most one for each page.
    /// The element appears when [`SCRIPT`] runs.
    pub fn timeline_element(&self, notes: &TimelineNotes) -> String {
        element(self, notes, "timeline embedded")
    }
}

fn element(recording: &Recording, notes: &TimelineNotes, class: &str) -> String {
    filled(ELEMENT, |name| match name {
        "class" => class.to_owned(),
        _ => data(recording, notes),
    })
    .collect()
}

/// The parts of a template, with every `{{name}}` replaced.
fn filled(
    template: &'static str,
    fill: impl Fn(&str) -> String,
) -> impl Iterator<Item = Cow<'static, str>> {
    template.split("{{").flat_map(move |part| match part.split_once("}}") {
        None => vec![Cow::Borrowed(part)],
        Some((name, rest)) => vec![Cow::Owned(fill(name)), Cow::Borrowed(rest)],
    })
}

/// The text of the page.
fn summary(recording: &Recording) -> String {
    recording.explain().paragraphs().iter().fold(String::new(), |text, paragraph| {
        let mut paragraph = printable(paragraph);
        for unit in ["%", "KiB", "MiB", "GiB", "TiB"] {
            paragraph = paragraph.replace(&format!(" {unit}"), &format!("\u{a0}{unit}"));
        }
        text + "<p>" + &escaped_html(&paragraph) + "</p>\n"
    })
}

/// The data of the page as one JSON object.
fn data(recording: &Recording, notes: &TimelineNotes) -> String {
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
    let (modules, site_modules) = modules(recording);
    let start_us = recording.events.first().map_or(0, |event| event.time_us);
    let mut text = format!(
        "{{\"policy\":{},\"capacity\":{},\"lost\":{},\"startReserved\":{},\"startTime\":{},\
         \"startCharges\":[{}],\"events\":{},\"blocks\":{},\"bands\":{},\"streams\":{},\
         \"sites\":{},\"modules\":{},\"siteModules\":[{}],\"planned\":{},\"phases\":[{}],\
         \"marks\":[{}]",
        escaped_json(&end(&printable(&recording.policy), SITE_LEN_MAX)),
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
        list(&modules),
        site_modules.join(","),
        number(notes.planned_peak_bytes.unwrap_or(0)),
        joined(&notes.phases, |(event, name)| format!("[{},{}]", number(*event), shown(name))),
        joined(&notes.marks, |TimelineMark { event, label, text }| {
            format!("[{},{},{}]", number(*event), shown(label), shown(text))
        }),
    );
    let columns = event_columns(recording, start_us).into_iter();
    for (name, column) in columns.chain(block_columns(&lives, &streams)) {
        write!(text, ",\"{name}\":\"{}\"", column.base64()).expect("a string takes all");
    }
    text + "}"
}

/// Columns of all events: kind and time, and for events that are not about blocks also size and
/// owner.
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
        // Only the order counts: time stands still here while a clock was set back.
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

/// Columns of lives in order of birth. Ages are in moments; 0 is a life without end. Three columns
/// use 0 for none, and otherwise hold their value plus one: moments up to the owner's free,
/// requests that do not fill their block, and sites.
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

/// Names of modules, the empty one first, and the index of each site's module.
fn modules(recording: &Recording) -> (Vec<String>, Vec<String>) {
    let mut indices = BTreeMap::from([("", 0)]);
    let mut names = vec![String::new()];
    let sites = recording.sites.iter().map(|site| {
        let index = *indices.entry(site.module.as_str()).or_insert_with(|| {
            names.push(end(&printable(&site.module), SITE_LEN_MAX));
            names.len() - 1
        });
        index.to_string()
    });
    let sites = sites.collect();
    (names, sites)
}

/// The text of a note, as JSON.
fn shown(text: &str) -> String {
    escaped_json(&printable(text))
}

fn joined<T>(items: &[T], written: impl Fn(&T) -> String) -> String {
    let items: Vec<String> = items.iter().map(written).collect();
    items.join(",")
}

fn number(value: u64) -> u64 {
    value.min(NUMBER_MAX)
}

fn list(strings: &[String]) -> String {
    let strings: Vec<String> = strings.iter().map(|string| escaped_json(string)).collect();
    format!("[{}]", strings.join(","))
}

/// A string of JSON that is also safe inside a script element of HTML.
pub fn escaped_json(string: &str) -> String {
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

/// Text that is safe as content of HTML and in quoted attributes.
pub fn escaped_html(string: &str) -> String {
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
