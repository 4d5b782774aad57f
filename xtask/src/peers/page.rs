//! The page of a comparison: a bar for each step and each operation, by network. The page needs no
//! other file.

use std::fmt::Write;

use super::STEP;
use super::report::{Row, mean, with_mkl_avx512, worst};
use crate::bench::Machine;

const STYLE: &str = "\
:root{color-scheme:light dark;--own:#2a78d6;--over:#d2691e;--line:#8886}\
body{font:14px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:62rem;padding:0 1rem}\
h1{font-size:1.4rem}h2{font-size:1.05rem;margin:1.6rem 0 .3rem}\
table{border-collapse:collapse;width:100%}td{padding:.1rem .5rem .1rem 0;white-space:nowrap}\
td.n,th{text-align:right;padding-right:.5rem;font-variant-numeric:tabular-nums}td.bar{width:55%}\
th{font-weight:normal;color:#888}\
svg{display:block;width:100%;height:14px}.own{fill:var(--own)}.over{fill:var(--over)}\
.slow{fill:#8888}\
line{stroke:var(--line)}p{margin:.3rem 0}";

/// The range of ratios in the plot.
const RANGE: [f64; 2] = [0.125, 8.0];

/// Width of the plot, in its own units.
const WIDTH: f64 = 600.0;

/// The horizontal position of a ratio in the plot, on a logarithmic scale.
fn place(ratio: f64) -> f64 {
    let [low, high] = RANGE;
    (ratio.clamp(low, high) / low).ln() / (high / low).ln() * WIDTH
}

/// The comparison as HTML that needs no other file.
pub fn page(machine: &Machine, title: &str, rows: &[Row]) -> String {
    let Machine { commit, date, cpu, core_count, rustc, command } = machine;
    let (steps, operations): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|row| row.is_step());
    let mut text = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <title>lowtide beside PyTorch</title><style>{STYLE}</style>\
         <h1>lowtide beside PyTorch: {}</h1>\
         <p>lowtide's time by that of PyTorch's fastest mode: bars to the left of the line are \
         faster, and the thin one reaches to the slowest round.</p>\
         <p>{} on {}, {core_count} cores of {}, {}: <code>{}</code></p>",
        escaped(title),
        escaped(commit),
        escaped(date),
        escaped(cpu),
        escaped(rustc),
        escaped(command),
    );
    let mut networks: Vec<&str> = Vec::new();
    for row in &operations {
        if !networks.contains(&row.network()) {
            networks.push(row.network());
        }
    }
    text += &section("Whole steps", &steps);
    if !operations.is_empty() {
        let (count, ratio) = (operations.len(), mean(operations.iter().map(|row| row.ratio())));
        let _ = write!(text, "<h2>{count} operations: {ratio:.2}</h2>");
    }
    text += &section("The worst operations", &worst(&operations));
    for network in networks {
        let own: Vec<&Row> =
            operations.iter().copied().filter(|row| row.network() == network).collect();
        text += &section(network, &own);
    }
    let allowed = with_mkl_avx512(rows);
    text += &section("With MKL's AVX-512 allowed", &allowed.iter().collect::<Vec<_>>());
    text + "</html>\n"
}

/// A heading with the geometric mean, and a line for each row; nothing without rows.
fn section(title: &str, rows: &[&Row]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let ratio = mean(rows.iter().map(|row| row.ratio()));
    let lines: String = rows.iter().map(|row| line(row)).collect();
    let both = "<th>lowtide</th><th>PyTorch</th>";
    let memory = if rows.iter().any(|row| row.peak_mb.is_some()) { both } else { "" };
    format!(
        "<h2>{}: {ratio:.2}</h2><table>\
         <tr><th></th>{both}{memory}<th>ratio</th></tr>{lines}</table>",
        escaped(title)
    )
}

fn line(row: &Row) -> String {
    let Row { operation, own_ms, spread, other: (mode, other_ms), peak_mb, .. } = row;
    let ratio = row.ratio();
    let (one, end, slowest) = (place(1.0), place(ratio), place(ratio * spread));
    let (x, width) = (one.min(end), (one - end).abs().max(1.0));
    let class = if ratio > 1.0 { "over" } else { "own" };
    let name = operation.trim_start_matches(STEP);
    let memory = peak_mb.map_or_else(String::new, |[own, other]| {
        format!("<td class=\"n\">{own:.0} MB</td><td class=\"n\">{other:.0} MB</td>")
    });
    format!(
        "<tr><td>{}</td><td class=\"n\">{own_ms:.3} ms</td>\
         <td class=\"n\" title=\"{}\">{other_ms:.3} ms</td>{memory}\
         <td class=\"n\">{ratio:.2}</td>\
         <td class=\"bar\"><svg viewBox=\"0 0 {WIDTH} 14\" preserveAspectRatio=\"none\">\
         <rect class=\"{class}\" x=\"{x:.1}\" y=\"2\" width=\"{width:.1}\" height=\"10\"/>\
         <rect class=\"slow\" x=\"{end:.1}\" y=\"5\" width=\"{:.1}\" height=\"4\"/>\
         <line x1=\"{one:.1}\" x2=\"{one:.1}\" y1=\"0\" y2=\"14\"/></svg></td></tr>",
        escaped(name),
        escaped(mode),
        slowest - end,
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}
