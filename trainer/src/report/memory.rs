//! Live bytes by category over allocation events, stacked, under what is reserved and the budget.

use serde_json::json;

use super::sample::columns;
use super::svg::{self, Plot, Scale, byte_ticks, key, no_data, step_path, strip};
use super::{MemoryTimeline, escape, grouped, json_island};
use crate::human::format_bytes;

/// Colours that the style sheet has; categories beyond them share the last one, a grey.
const COLOURS: usize = 8;
/// A budget more than this many times higher than the rest would flatten the picture: it is only
/// named.
const BUDGET_ROOM_MAX: u64 = 3;

/// Modules with a row of their own.
const MODULE_ROWS_MAX: usize = 12;

/// More lines than this would be a curtain.
const PHASE_LINES_MAX: usize = 60;

pub(super) fn section(memory: &MemoryTimeline) -> String {
    let caption = match memory.caption.as_str() {
        "" => String::new(),
        caption => format!("<p class=\"note\">{}</p>\n", escape(caption)),
    };
    format!(
        "<section>\n<h2>Memory</h2>\n{}{caption}{}</section>\n",
        meter(memory),
        timeline(memory)
    )
}

/// How much of the budget was ever reserved: the one number of the page.
fn meter(memory: &MemoryTimeline) -> String {
    let peak = format_bytes(memory.peak_bytes);
    match memory.budget_bytes {
        None if memory.peak_bytes == 0 => String::new(),
        None => format!("<p class=\"peak\"><strong>{peak}</strong> reserved at most</p>\n"),
        Some(budget_bytes) => {
            let percent = 100.0 * memory.peak_bytes as f64 / budget_bytes.max(1) as f64;
            let class = if memory.peak_bytes > budget_bytes { "meter over" } else { "meter" };
            format!(
                "<p class=\"peak\"><strong>{peak}</strong> reserved at most, of a budget of \
                 <strong>{}</strong></p>\n<div class=\"{class}\"><i style=\"width:{:.1}%\"></i>\
                 </div>\n",
                format_bytes(budget_bytes),
                percent.min(100.0),
            )
        }
    }
}

fn timeline(memory: &MemoryTimeline) -> String {
    if memory.events.is_empty() || memory.categories.is_empty() {
        return no_data("No data: no allocation was recorded.");
    }
    let picture = Picture::new(memory);
    format!(
        "<figure data-kind=\"memory\">\n{keys}{strip}{plot}<p class=\"axis\">{axis}</p>\n\
         {table}{modules}{data}</figure>\n",
        keys = picture.keys(),
        strip = picture.phase_strip(),
        plot = picture.plot().to_html(),
        axis = picture.axis_name(),
        table = picture.table(),
        modules = modules(memory),
        data = json_island(&picture.data()),
    )
}

/// The largest modules at the fullest event, and the others together.
fn modules(memory: &MemoryTimeline) -> String {
    if memory.modules.is_empty() {
        return String::new();
    }
    let (shown, others) = memory.modules.split_at(memory.modules.len().min(MODULE_ROWS_MAX));
    let mut rows: Vec<(String, u64)> = shown.to_vec();
    if !others.is_empty() {
        let bytes = others.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
        rows.push((format!("{} others", others.len()), bytes));
    }
    let row = |(name, bytes): &(String, u64)| {
        let (name, bytes) = (escape(name), format_bytes(*bytes));
        format!("<tr><th>{name}</th><td class=\"number\">{bytes}</td></tr>\n")
    };
    let rows: String = rows.iter().map(row).collect();
    format!(
        "<table class=\"modules\">\n<caption>By module, at the fullest event</caption>\n\
         <tbody>\n{rows}</tbody>\n</table>\n"
    )
}

/// Live bytes of a category after an event.
fn live(memory: &MemoryTimeline, event: usize, category: usize) -> u64 {
    memory.events[event].get(category).copied().unwrap_or(0)
}

fn total(memory: &MemoryTimeline, event: usize) -> u64 {
    let categories = 0..memory.categories.len();
    categories.fold(0, |sum: u64, category| sum.saturating_add(live(memory, event, category)))
}

fn reserved(memory: &MemoryTimeline, event: usize) -> u64 {
    memory.reserved.get(event).copied().unwrap_or(0)
}

/// The categories that ever hold a byte, steadiest first: what moves least stands lowest, so that
/// the others stand on level ground.
fn stack_order(memory: &MemoryTimeline) -> Vec<usize> {
    let motion = |category: usize| {
        let bytes = |event| live(memory, event, category);
        let moved = |event| u128::from(bytes(event - 1).abs_diff(bytes(event)));
        (1..memory.events.len()).map(moved).sum::<u128>()
    };
    let used =
        |category: &usize| (0..memory.events.len()).any(|event| live(memory, event, *category) > 0);
    let mut order: Vec<usize> = (0..memory.categories.len()).filter(used).collect();
    order.sort_by_cached_key(|&category| motion(category));
    order
}

/// One column of the picture: one event, or the fullest of several.
struct Column {
    start: usize,
    fullest: usize,
    /// The most reserved in the column, which may be after another event.
    reserved_bytes: u64,
}

/// The timeline with everything that its parts share.
struct Picture<'a> {
    memory: &'a MemoryTimeline,
    columns: Vec<Column>,
    /// Categories from the bottom of the stack upwards.
    order: Vec<usize>,
    /// The event with the most live bytes.
    fullest: usize,
    x: Scale,
    y: Scale,
    /// Whether the budget is within the plot.
    draws_budget: bool,
}

impl<'a> Picture<'a> {
    fn new(memory: &'a MemoryTimeline) -> Self {
        let len = memory.events.len();
        // The last of equals is what `max_by_key` finds: in reverse, where the height was reached.
        let fullest = |events: std::ops::Range<usize>| {
            let start = events.start;
            events.rev().max_by_key(|&event| total(memory, event)).unwrap_or(start)
        };
        let column = |events: std::ops::Range<usize>| Column {
            start: events.start,
            fullest: fullest(events.clone()),
            reserved_bytes: events.map(|event| reserved(memory, event)).max().unwrap_or(0),
        };
        let columns: Vec<Column> = columns(len).into_iter().map(column).collect();
        let reserved_max = columns.iter().map(|column| column.reserved_bytes).max().unwrap_or(0);
        let fullest = fullest(0..len);
        let drawn_max = total(memory, fullest).max(reserved_max).max(1);
        let budget_bytes = memory.budget_bytes.unwrap_or(u64::MAX);
        let draws_budget = budget_bytes <= drawn_max.saturating_mul(BUDGET_ROOM_MAX);
        let high = if draws_budget { drawn_max.max(budget_bytes) } else { drawn_max };
        Self {
            memory,
            columns,
            order: stack_order(memory),
            fullest,
            x: Scale::new(memory.first_event as f64, memory.first_event as f64 + len as f64),
            y: Scale::new(0.0, 1.06 * high as f64),
            draws_budget,
        }
    }

    /// The number of an event, as recordings count them.
    fn number(&self, event: usize) -> u64 {
        self.memory.first_event + event as u64
    }

    fn phase_strip(&self) -> String {
        let start = |(event, name): &(usize, String)| (self.number(*event) as f64, name.clone());
        let starts: Vec<(f64, String)> = self.memory.phases.iter().map(start).collect();
        strip("phase", self.x, &starts)
    }

    fn plot(&self) -> Plot<'a> {
        let (ticks, _) = self.x.ticks(5, 1.0);
        Plot {
            class: "tall",
            alt: format!(
                "Live bytes by category over {} allocation events, at most {}",
                grouped(self.memory.events.len() as u64),
                format_bytes(total(self.memory, self.fullest))
            ),
            x: self.x,
            y: self.y,
            x_ticks: ticks.into_iter().map(|event| (event, grouped(event as u64))).collect(),
            y_ticks: byte_ticks(self.y.high as u64)
                .into_iter()
                .map(|bytes| (bytes as f64, format_bytes(bytes)))
                .collect(),
            drawing: self.areas() + &self.phase_lines() + &self.lines(),
            overlay: self.budget_label(),
        }
    }

    /// The heights as a line in steps, column by column.
    fn steps(&self, heights_bytes: impl Iterator<Item = u64>) -> String {
        let xs: Vec<i64> =
            self.columns.iter().map(|column| self.x.x(self.number(column.start) as f64)).collect();
        let ys: Vec<i64> = heights_bytes.map(|bytes| self.y.y(bytes as f64)).collect();
        step_path(&xs, &ys)
    }

    /// The stack from its top category downwards, each area down to the floor: the next one covers
    /// the rest, so that an edge is written once and no gap opens between two areas.
    fn areas(&self) -> String {
        let mut heights_bytes: Vec<u64> = vec![0; self.columns.len()];
        let mut areas = Vec::new();
        for &category in &self.order {
            for (height_bytes, column) in heights_bytes.iter_mut().zip(&self.columns) {
                let bytes = live(self.memory, column.fullest, category);
                *height_bytes = height_bytes.saturating_add(bytes);
            }
            let path = self.steps(heights_bytes.iter().copied());
            let (class, floor) = (colour_class(category), svg::HEIGHT);
            areas.push(format!("<path class=\"{class}\" d=\"{path}V{floor}H0Z\"/>\n"));
        }
        areas.iter().rev().map(String::as_str).collect()
    }

    fn phase_lines(&self) -> String {
        let inside = |event: &usize| (1..self.memory.events.len()).contains(event);
        let starts = self.memory.phases.iter().map(|(event, _)| *event).filter(inside);
        let xs: Vec<i64> = starts.map(|event| self.x.x(self.number(event) as f64)).collect();
        if xs.is_empty() || xs.len() > PHASE_LINES_MAX {
            return String::new();
        }
        let lines: String = xs.iter().map(|x| format!("M{x} 0V{}", svg::HEIGHT)).collect();
        format!("<path class=\"phase\" d=\"{lines}\"/>\n")
    }

    fn lines(&self) -> String {
        let mut lines = String::new();
        if !self.memory.reserved.is_empty() {
            let path = self.steps(self.columns.iter().map(|column| column.reserved_bytes));
            lines += &format!("<path class=\"reserved\" d=\"{path}\"/>\n");
        }
        if let Some(budget_bytes) = self.memory.budget_bytes.filter(|_| self.draws_budget) {
            let y = self.y.y(budget_bytes as f64);
            lines += &format!("<path class=\"budget\" d=\"M0 {y}H{}\"/>\n", svg::WIDTH);
        }
        lines
    }

    fn budget_label(&self) -> String {
        let Some(budget_bytes) = self.memory.budget_bytes.filter(|_| self.draws_budget) else {
            return String::new();
        };
        format!(
            "<span class=\"mark\" style=\"top:{:.2}%\">budget {}</span>",
            self.y.top(budget_bytes as f64),
            format_bytes(budget_bytes)
        )
    }

    fn keys(&self) -> String {
        let mut keys = String::new();
        if !self.memory.reserved.is_empty() {
            keys += &key("line reserved", "reserved from the device");
        }
        if let Some(budget_bytes) = self.memory.budget_bytes {
            let above = if self.draws_budget { "" } else { ", above this picture" };
            let budget = format!("budget {}{above}", format_bytes(budget_bytes));
            keys += &key("line budget", &budget);
        }
        if keys.is_empty() { keys } else { format!("<p class=\"legend\">{keys}</p>\n") }
    }

    fn axis_name(&self) -> String {
        let per_column = self.memory.events.len() / self.columns.len();
        if self.columns.len() == self.memory.events.len() {
            return String::from("allocation event");
        }
        let events = grouped(per_column as u64);
        format!("allocation event; each column shows the fullest of about {events}")
    }

    /// The legend with the bytes at the fullest event; the script rewrites it under the pointer.
    fn table(&self) -> String {
        let mut rows = String::new();
        // Read from the top, as the stack is seen.
        for &category in self.order.iter().rev() {
            let (class, name) = (colour_class(category), escape(&self.memory.categories[category]));
            let bytes = format_bytes(live(self.memory, self.fullest, category));
            rows.push_str(&format!(
                "<tr><th><i class=\"swatch {class}\"></i>{name}</th>\
                 <td class=\"number\">{bytes}</td></tr>\n"
            ));
        }
        format!(
            "<table class=\"live\">\n<caption>{place}</caption>\n<tbody>\n{rows}\
             <tr class=\"sum\"><th>live</th><td class=\"number\">{live}</td></tr>\n\
             <tr><th>reserved</th><td class=\"number\">{reserved}</td></tr>\n</tbody>\n</table>\n",
            place = escape(&self.fullest_place()),
            live = format_bytes(total(self.memory, self.fullest)),
            reserved = format_bytes(reserved(self.memory, self.fullest)),
        )
    }

    /// The fullest event by number and phase, as the script words every other one.
    fn fullest_place(&self) -> String {
        let begun = |(start, _): &&(usize, String)| *start <= self.fullest;
        let phase = self.memory.phases.iter().rev().find(begun);
        let phase = phase.map_or(String::new(), |(_, name)| format!(", {name}"));
        format!("Fullest: event {}{phase}", grouped(self.number(self.fullest)))
    }

    /// What the script shows: by column its event, the rows of the table, and the reserved bytes.
    fn data(&self) -> serde_json::Value {
        let by_column = |value: &dyn Fn(&Column) -> serde_json::Value| {
            self.columns.iter().map(value).collect::<Vec<_>>()
        };
        let rows = |column: &Column| {
            let bytes = |&category: &usize| live(self.memory, column.fullest, category);
            json!(self.order.iter().rev().map(bytes).collect::<Vec<_>>())
        };
        json!({
            "low": self.number(0), "high": self.number(self.memory.events.len()),
            "x": by_column(&|column| json!(self.number(column.start))),
            "event": by_column(&|column| json!(self.number(column.fullest))),
            "live": by_column(&rows),
            "reserved": by_column(&|column| json!(reserved(self.memory, column.fullest))),
            "phases": self.column_phases(),
        })
    }

    /// By column, the name of the phase of its event as an index into the distinct names.
    fn column_phases(&self) -> serde_json::Value {
        let mut names: Vec<&str> = Vec::new();
        let mut phases = self.memory.phases.iter().peekable();
        let mut name = None;
        let mut by_column = Vec::with_capacity(self.columns.len());
        for column in &self.columns {
            while let Some((_, next)) = phases.next_if(|(start, _)| *start <= column.fullest) {
                name = Some(next.as_str());
            }
            by_column.push(name.map(|name| {
                names.iter().position(|known| *known == name).unwrap_or_else(|| {
                    names.push(name);
                    names.len() - 1
                })
            }));
        }
        json!({ "names": names, "by_column": by_column })
    }
}

fn colour_class(category: usize) -> String {
    format!("c{}", category.min(COLOURS - 1))
}
