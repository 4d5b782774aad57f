//! The HTML of the pages: head, tables, and the elements that scripts fill.

use lowtide_trace::timeline::{FORMAT_SCRIPT, POLICY, SCRIPT, STYLE, escaped_html};
use serde_json::{Value, json};

use super::charts::{Chart, charts, constants, grouped, quantity, title};
use super::compare::{Row, figures, recipe_differences};
use super::curves::Curves;
use super::run::{Run, Status};
use crate::human::format_bytes;
use crate::timeline::RecordedStep;

/// Seconds between two reloads of the page of a running training.
const RELOAD_SECONDS: u32 = 4;
/// Values longer than this take two columns of the summary.
const WIDE_FACT_CHARS: usize = 15;
/// Values longer than this take a line of their own.
const FULL_FACT_CHARS: usize = 40;
/// Largest number of rows in the table of retries; further retries are counted.
const RETRY_ROWS_MAX: usize = 20;
/// Largest number of retries that are marked in the curves.
const RETRY_MARKS_MAX: usize = 400;
/// Largest number of modules in the table of the peak.
const MODULE_ROWS_MAX: usize = 12;

pub(super) fn of_run(run: &Run) -> String {
    let is_running = matches!(run.status, Status::Running { .. });
    let charts = charts(&[&run.curves]);
    let body = [
        format!("<h1>{}</h1>\n", escaped_html(&run.about.title)),
        if is_running { RELOAD_NOTE.to_owned() } else { String::new() },
        facts_list(&run.all_facts()),
        curves_section(&charts, &[&run.curves], &[]),
        retries_section(&run.curves),
        run.memory.as_ref().map_or_else(no_memory, memory_section),
        about_section(run),
    ];
    let mut scripts = vec![island(&charts, &[&run.curves], &[]), script(FORMAT_SCRIPT)];
    scripts.push(script(include_str!("charts.js")));
    scripts.extend(run.memory.as_ref().map(|_| script(SCRIPT)));
    if is_running {
        let reload = include_str!("reload.js").replace("SECONDS", &RELOAD_SECONDS.to_string());
        scripts.push(script(&reload));
    }
    // Without scripts, the browser reloads the page itself.
    let refresh = format!(
        "<noscript><meta http-equiv=\"refresh\" content=\"{RELOAD_SECONDS}\"></noscript>\n"
    );
    let head = if is_running { refresh.as_str() } else { "" };
    document(&run.about.title, head, &body.concat(), &scripts.concat())
}

pub(super) fn of_runs(runs: &[Run]) -> String {
    let titles: Vec<&str> = runs.iter().map(|run| run.about.title.as_str()).collect();
    let curves: Vec<&Curves> = runs.iter().map(|run| &run.curves).collect();
    let charts = charts(&curves);
    let heading = if runs.is_empty() { "No runs".to_owned() } else { titles.join(" and ") };
    let body = [
        format!("<h1>{}</h1>\n", escaped_html(&heading)),
        differences_section(&titles, &recipe_differences(runs)),
        curves_section(&charts, &curves, &titles),
        format!(
            "<section>\n<h2>What they came to</h2>\n{}</section>\n",
            comparison(&titles, "Figure", &figures(runs))
        ),
    ];
    let scripts = [
        island(&charts, &curves, &titles),
        script(FORMAT_SCRIPT),
        script(include_str!("charts.js")),
    ];
    document(&heading, "", &body.concat(), &scripts.concat())
}

fn document(title: &str, head: &str, body: &str, scripts: &str) -> String {
    format!(
        r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{head}<title>{title}</title>
<style>
{STYLE}{style}</style>
</head>
<body>
<main>
{body}<footer>Written by lowtide. This page is one file: it loads nothing and sends
nothing.</footer>
</main>
{scripts}</body>
</html>
"#,
        title = escaped_html(title),
        style = include_str!("page.css"),
    )
}

const RELOAD_NOTE: &str = r#"<p class="note" id="live" role="status">The run goes on; this page
loads itself again every few seconds.
<button type="button" id="pause" aria-pressed="false">Pause</button> <span id="age"></span></p>
"#;

fn facts_list(facts: &[(String, String)]) -> String {
    let mut html = String::from("<dl class=\"facts\">\n");
    for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
        let class = match value.chars().count() {
            len if len > FULL_FACT_CHARS => " class=\"full\"",
            len if len > WIDE_FACT_CHARS => " class=\"twice\"",
            _ => "",
        };
        let (name, value) = (escaped_html(name), escaped_html(value));
        html.push_str(&format!("<div{class}><dt>{name}</dt><dd>{value}</dd></div>\n"));
    }
    html + "</dl>\n"
}

fn curves_section(charts: &[Chart<'_>], curves: &[&Curves], titles: &[&str]) -> String {
    if curves.iter().all(|curves| curves.last_step() == 0) {
        return "<section>\n<h2>Curves</h2>\n<p class=\"empty\">No step yet.</p>\n</section>\n"
            .to_owned();
    }
    let table = match curves {
        [curves] => extremes(curves),
        _ => String::new(),
    };
    format!(
        "<section id=\"charts\">\n<h2>Curves</h2>\n{keys}{CONTROLS}<div id=\"grid\"></div>\n\
         <noscript><p class=\"note\">The curves need scripts; the figures do not.</p></noscript>\n\
         {thinned}{table}</section>\n",
        keys = run_keys(titles),
        thinned = thinning_note(charts),
    )
}

const CONTROLS: &str = r#"<div class="controls" id="curve-controls" hidden>
<label>Smoothing <input type="range" id="smoothing" min="0" max="0.99" step="0.01" value="0.6">
<output id="smoothing-value">0.60</output></label>
<span class="group"><button type="button" id="curves-all">All steps</button></span>
<span class="note">Dragging over a chart zooms all of them, a double click shows all steps; with the
keyboard, arrows move the cursor, + and − zoom, 0 shows all.</span>
</div>
"#;

/// The legend: the colour of each run.
fn run_keys(titles: &[&str]) -> String {
    let key = |(run, title): (usize, &&str)| {
        let title = escaped_html(title);
        format!("<span class=\"key\"><i class=\"swatch run-{}\"></i>{title}</span>", run % 8)
    };
    let keys: String = titles.iter().enumerate().map(key).collect();
    if keys.is_empty() { keys } else { format!("<p class=\"keys\">{keys}</p>\n") }
}

fn thinning_note(charts: &[Chart<'_>]) -> String {
    let each = charts.iter().map(Chart::values_each).max().unwrap_or(1);
    if each == 1 {
        return String::new();
    }
    let names: Vec<String> =
        charts.iter().filter(|chart| chart.values_each() > 1).map(Chart::title).collect();
    format!(
        "<p class=\"note\">There are more steps than points on a screen: a point of {} is the mean \
         of up to {each} steps, the pale band goes from the lowest to the highest of them.</p>\n",
        escaped_html(&names.join(", ")),
    )
}

/// The last, lowest and highest value of every metric. Constant metrics share one line.
fn extremes(curves: &Curves) -> String {
    let constants = constants(curves);
    let is_constant = |name: &str| constants.iter().any(|(constant, _)| *constant == name);
    let mut rows = String::new();
    for series in curves.series().iter().filter(|series| !is_constant(&series.name)) {
        let [last, low, high] = [series.last(), series.lowest(), series.highest()];
        let (Some((_, last)), Some(low), Some(high)) = (last, low, high) else { continue };
        let at = |(step, value): (u64, f64)| {
            let value = escaped_html(&quantity(&series.name, value));
            let step = grouped(step);
            format!("<td class=\"number\">{value}</td><td class=\"number step\">{step}</td>")
        };
        rows.push_str(&format!(
            "<tr><th scope=\"row\">{}</th><td class=\"number\">{}</td>{}{}</tr>\n",
            escaped_html(&title(&series.name)),
            escaped_html(&quantity(&series.name, last)),
            at(low),
            at(high),
        ));
    }
    let told = |(name, value): &(&str, String)| format!("{} {value}", title(name));
    let throughout: Vec<String> = constants.iter().map(told).collect();
    let throughout = if throughout.is_empty() {
        String::new()
    } else {
        format!(
            "<p class=\"note\">Without a chart: {}.</p>\n",
            escaped_html(&throughout.join(", "))
        )
    };
    format!(
        "{throughout}<details>\n<summary>Figures</summary>\n<div class=\"scroll\"><table>\n<thead>\
         <tr><th scope=\"col\">Metric</th><th scope=\"col\" class=\"number\">Last</th>\
         <th scope=\"col\" class=\"number\">Lowest</th><th scope=\"col\" class=\"number\">at step\
         </th><th scope=\"col\" class=\"number\">Highest</th><th scope=\"col\" class=\"number\">at \
         step</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n</details>\n"
    )
}

fn retries_section(curves: &Curves) -> String {
    let skipped = match curves.skipped() {
        [] => String::new(),
        steps => {
            let shown: Vec<String> =
                steps.iter().take(RETRY_ROWS_MAX).map(u64::to_string).collect();
            let more = match steps.len() - shown.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!(
                "<p>Updates left out because the loss or a gradient was not finite: step {}{more}.\
                 </p>\n",
                shown.join(", ")
            )
        }
    };
    let mut rows = String::new();
    for (step, why) in curves.retries().iter().take(RETRY_ROWS_MAX) {
        let (step, why) = (grouped(*step), escaped_html(why));
        rows.push_str(&format!("<tr><td class=\"number\">{step}</td><td>{why}</td></tr>\n"));
    }
    let more = curves.retries().len().saturating_sub(RETRY_ROWS_MAX);
    if more > 0 {
        rows.push_str(&format!(
            "<tr><td></td><td class=\"none\">and {} more</td></tr>\n",
            grouped(more as u64)
        ));
    }
    let table = if rows.is_empty() {
        String::new()
    } else {
        format!(
            "<div class=\"scroll\"><table class=\"retries\">\n<thead><tr><th scope=\"col\" \
             class=\"number\">Step</th><th scope=\"col\">Why</th></tr></thead>\n<tbody>\n{rows}\
             </tbody>\n</table></div>\n"
        )
    };
    if skipped.is_empty() && table.is_empty() {
        return String::new();
    }
    format!("<section>\n<h2>Steps that were rolled back</h2>\n{skipped}{table}</section>\n")
}

fn no_memory() -> String {
    "<section>\n<h2>Memory</h2>\n<p class=\"empty\">No step was recorded.</p>\n</section>\n"
        .to_owned()
}

fn memory_section(memory: &RecordedStep) -> String {
    let RecordedStep { step, retry_count, is_committed, recording, notes } = memory;
    let why = match retry_count {
        _ if !is_committed => "in which the run ended".to_owned(),
        0 if *step > 1 => "which is like the others".to_owned(),
        0 => "the first".to_owned(),
        1 => "the first that was rolled back and tried again".to_owned(),
        count => format!("the first that was rolled back, {count} times"),
    };
    let explained = recording.explain();
    let peak = &explained.peak;
    let bytes = |name: String, bytes: u64| (name, format_bytes(bytes));
    let categories = peak.by_category.iter().map(|share| {
        bytes(share.category.map_or_else(|| "unknown".to_owned(), |c| c.to_string()), share.bytes)
    });
    let mut categories: Vec<_> = categories.collect();
    categories.push(bytes("in use".to_owned(), peak.in_use_bytes));
    categories.push(bytes("reserved".to_owned(), peak.reserved_bytes));
    let modules = peak.by_module.iter().take(MODULE_ROWS_MAX).map(|share| {
        let name = if share.module.is_empty() { "no module" } else { &share.module };
        bytes(name.to_owned(), share.bytes)
    });
    let modules: Vec<_> = modules.collect();
    format!(
        "<section>\n<h2>Memory inside step {step}</h2>\n<p class=\"note\">Every allocation of this \
         step, {why}. At the peak {used} are in use.</p>\n{element}<details>\n<summary>Who holds \
         what at the peak</summary>\n<div class=\"tables\">\n{categories}{modules}</div>\n\
         </details>\n</section>\n",
        used = format_bytes(peak.in_use_bytes),
        element = recording.timeline_element(notes),
        categories = small_table("By category", &categories),
        modules = small_table("By module", &modules),
    )
}

fn small_table(caption: &str, rows: &[(String, String)]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let row = |(name, value): &(String, String)| {
        let (name, value) = (escaped_html(name), escaped_html(value));
        format!("<tr><th scope=\"row\">{name}</th><td class=\"number\">{value}</td></tr>\n")
    };
    let rows: String = rows.iter().map(row).collect();
    format!("<table>\n<caption>{caption}</caption>\n<tbody>\n{rows}</tbody>\n</table>\n")
}

fn about_section(run: &Run) -> String {
    let about = &run.about;
    let facts = [
        ("Command", about.command.clone()),
        ("Commit", about.commit.clone().unwrap_or_default()),
        ("Date", about.date.clone()),
        ("Machine", about.machine.clone()),
    ];
    let facts = facts.map(|(name, value)| (name.to_owned(), value));
    let is_empty = facts.iter().all(|(_, value)| value.is_empty());
    if is_empty && about.recipe.is_empty() {
        return String::new();
    }
    let recipe = match about.recipe.as_str() {
        "" => String::new(),
        recipe => format!(
            "<details open=\"\">\n<summary>Recipe</summary>\n<pre>{}</pre>\n</details>\n",
            escaped_html(recipe)
        ),
    };
    let facts = if is_empty { String::new() } else { facts_list(&facts) };
    format!("<section>\n<h2>To do it again</h2>\n{facts}{recipe}</section>\n")
}

fn differences_section(titles: &[&str], rows: &[Row]) -> String {
    let table = if rows.is_empty() {
        "<p class=\"empty\">The recipes are the same.</p>\n".to_owned()
    } else {
        comparison(titles, "Setting", rows)
    };
    format!("<section>\n<h2>What differs in the recipes</h2>\n{table}</section>\n")
}

/// A table of a comparison, with a column for each run.
fn comparison(titles: &[&str], what: &str, rows: &[Row]) -> String {
    let head = |(run, title): (usize, &&str)| {
        let (run, title) = (run % 8, escaped_html(title));
        format!("<th scope=\"col\"><i class=\"swatch run-{run}\"></i>{title}</th>")
    };
    let heads: String = titles.iter().enumerate().map(head).collect();
    let row = |(name, values): &Row| {
        let is_equal = values.windows(2).all(|two| two[0] == two[1]);
        let class = if is_equal { " class=\"equal\"" } else { "" };
        let cell = |value: &Option<String>| match value {
            Some(value) => format!("<td>{}</td>", escaped_html(value)),
            None => "<td class=\"none\">none</td>".to_owned(),
        };
        let cells: String = values.iter().map(cell).collect();
        format!("<tr{class}><th scope=\"row\">{}</th>{cells}</tr>\n", escaped_html(name))
    };
    let rows: String = rows.iter().map(row).collect();
    format!(
        "<div class=\"scroll\"><table class=\"comparison\">\n<thead><tr><th scope=\"col\">{what}\
         </th>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
    )
}

/// The data of the curves. `<` is escaped, so that no text can close the element.
fn island(charts: &[Chart<'_>], curves: &[&Curves], titles: &[&str]) -> String {
    let mut retried: Vec<u64> = match curves {
        [curves] => curves.retries().iter().map(|(step, _)| *step).collect(),
        _ => Vec::new(),
    };
    retried.dedup();
    retried.truncate(RETRY_MARKS_MAX);
    let data = json!({
        "runs": titles,
        "retried": retried,
        "lastStep": curves.iter().map(|curves| curves.last_step()).max().unwrap_or(0),
        "charts": charts.iter().map(Chart::to_json).collect::<Vec<Value>>(),
    });
    let json = data.to_string().replace('<', "\\u003c");
    format!("<script type=\"application/json\" id=\"curves\">{json}</script>\n")
}

fn script(text: &str) -> String {
    format!("<script>\n{text}</script>\n")
}
