//! The page a run leaves behind: loss, metrics and memory as one self-contained HTML file.
//!
//! [`Report::to_html`] is a pure function of the numbers. The page loads nothing: style, script and
//! pictures are inline, and a content security policy forbids the rest. Without JavaScript the
//! pictures and tables are complete; the script only adds the readout under the pointer.
//!
//! The plots are SVG stretched to the width of the page, and every text is HTML placed in percent
//! over them, so that a phone gets narrower plots but not smaller letters.

mod memory;
mod sample;
mod svg;
#[cfg(test)]
mod tests;
mod training;

/// What a run has to show. All fields may be empty; the page then says that there is no data.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// The heading of the page.
    pub title: String,
    /// The summary, name and value in reading order.
    pub facts: Vec<(String, String)>,
    /// Step and mean loss of its batch, in order. Values that are not finite leave a gap.
    pub loss: Vec<(u64, f64)>,
    /// What was evaluated, by its name: steps done and the value, in order. Values that are not
    /// finite are left out.
    pub metrics: Vec<(String, Vec<(u64, f64)>)>,
    /// Steps that were rolled back and tried again, and why, in order.
    pub retries: Vec<(u64, String)>,
    /// Step from which a micro-batch size held, in order.
    pub micro_batch: Vec<(u64, usize)>,
    /// The allocator's history.
    pub memory: MemoryTimeline,
}

/// Live bytes by category over allocation events.
///
/// A row shorter than `categories`, or fewer `reserved` than `events`, counts as zero there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryTimeline {
    /// Names of the categories. The first seven have colours of their own. The picture stacks them
    /// from the steadiest upwards and leaves out those that never hold a byte.
    pub categories: Vec<String>,
    /// The number of the first of `events`, as a recording of the allocator counts them.
    pub first_event: u64,
    /// Per event, the live bytes of each category after it.
    pub events: Vec<Vec<u64>>,
    /// Per event, the bytes reserved from the device after it.
    pub reserved: Vec<u64>,
    /// The budget on reserved bytes, if there is one.
    pub budget_bytes: Option<u64>,
    /// The most bytes ever reserved, within these events or not.
    pub peak_bytes: u64,
    /// Index of the event with which a phase (forward, backward, optimizer) begins, in order.
    pub phases: Vec<(usize, String)>,
    /// Live bytes by module after the fullest event, most first.
    pub modules: Vec<(String, u64)>,
    /// Which part of the run the events cover.
    pub caption: String,
}

/// Inline style and script, and nothing else: not even a mistake here could reach the network.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";

impl Report {
    /// The whole page: valid HTML that opens from disk and needs no network.
    pub fn to_html(&self) -> String {
        format!(
            r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{facts}{training}{memory}<footer>Written by lowtide. This page is one file: it loads nothing and
sends nothing.</footer>
</main>
<script>
{script}</script>
</body>
</html>
"#,
            title = escape(&self.title),
            style = include_str!("page.css"),
            facts = facts_table(&self.facts),
            training = training::section(self),
            memory = memory::section(&self.memory),
            script = include_str!("page.js"),
        )
    }
}

/// Values longer than this take two columns of the summary.
const WIDE_FACT_CHARS: usize = 15;
/// Values longer than this take a line of their own.
const FULL_FACT_CHARS: usize = 36;

fn facts_table(facts: &[(String, String)]) -> String {
    if facts.is_empty() {
        return String::new();
    }
    let mut html = String::from("<dl class=\"facts\">\n");
    for (name, value) in facts {
        let class = match value.chars().count() {
            len if len > FULL_FACT_CHARS => " class=\"full\"",
            len if len > WIDE_FACT_CHARS => " class=\"wide\"",
            _ => "",
        };
        let (name, value) = (escape(name), escape(value));
        html.push_str(&format!("<div{class}><dt>{name}</dt><dd>{value}</dd></div>\n"));
    }
    html + "</dl>\n"
}

/// Text made safe for HTML content and for quoted attributes.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            _ => escaped.push(c),
        }
    }
    escaped
}

/// Data for the script. `<` is written as an escape, so that no text can close the element.
fn json_island(value: &serde_json::Value) -> String {
    let json = value.to_string().replace('<', "\\u003c");
    format!("<script type=\"application/json\">{json}</script>\n")
}

/// A whole number with its thousands apart: `12,345`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
