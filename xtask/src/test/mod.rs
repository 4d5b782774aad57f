//! `cargo xtask test`: every check, in sections. [`plan()`] selects the sections; [`run`] runs
//! them.

mod deep;
mod needs;
mod plan;
mod quiet;
mod screen;

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

pub use needs::Needs;
pub(crate) use plan::scope;
pub use plan::{Counting, Plan, Section, plan};
pub use quiet::{Progress, Quiet, Source};

use crate::tally::Counts;
use crate::tree::Tree;
use crate::{tidy, workspace};

/// The arguments of `test`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// A crate folder; `None` for the whole workspace.
    pub filter: Option<String>,
    /// True if the slow sections run too.
    pub deep: bool,
    /// The names of the sections to run; all sections if empty.
    pub sections: Vec<String>,
}

impl Options {
    /// Reads `[CRATE] [--deep] [--section NAME]..`.
    ///
    /// # Errors
    /// One line about an unknown argument.
    pub fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            if argument == "--deep" {
                options.deep = true;
            } else if argument == "--section" {
                let name = arguments.next().ok_or("--section needs the name of one")?;
                options.sections.push(name.clone());
            } else if argument.starts_with('-') || options.filter.is_some() {
                return Err(format!("test does not understand `{argument}`"));
            } else {
                options.filter = Some(argument.clone());
            }
        }
        Ok(options)
    }

    /// True if the crate in `folder` is selected.
    fn concerns(&self, folder: &str) -> bool {
        self.filter.as_deref().is_none_or(|filter| filter == folder)
    }
}

/// Runs the plan. A section that fails does not stop the following sections. True if no section
/// failed.
///
/// # Errors
/// One line if the filter names no crate; no section runs then.
pub fn run(root: &Path, options: &Options) -> Result<bool, String> {
    let package = match &options.filter {
        None => None,
        Some(folder) => Some(
            workspace::package_in(root, folder)
                .ok_or_else(|| format!("no crate in a folder `{folder}`"))?,
        ),
    };
    let plan = plan(options, package.as_deref());
    let is_lost =
        |name: &&String| !plan.sections.iter().any(|section| section.name == name.as_str());
    if let Some(lost) = options.sections.iter().find(is_lost) {
        return Err(format!("no section is called `{lost}`; {}", plan.left_out.join("; ")));
    }
    let (count, begin) = (plan.sections.len(), Instant::now());
    let mut total = Counts::default();
    let mut failed = Vec::new();
    let mut number = 0;
    for group in plan.sections.chunk_by(|_, next| next.is_beside) {
        for section in group {
            number += 1;
            let beside = if section.is_beside { ", at the same time" } else { "" };
            println!("== section {number} of {count}: {}{beside} ==", section.name);
        }
        for (section, (counts, time)) in group.iter().zip(run_at_once(root, group)) {
            let verdict = match (counts.failed, counts.passed, counts.skips.len()) {
                (1.., ..) => "FAILED",
                (0, 0, 1..) => "skipped",
                (0, ..) => "ok",
            };
            println!("-- {}: {verdict} in {}: {counts}", section.name, in_words(time));
            if counts.failed > 0 {
                failed.push(section.name);
            }
            total.add(counts);
        }
    }
    let sections = if count == 1 { "section" } else { "sections" };
    println!("\n{count} {sections} in {}", in_words(begin.elapsed()));
    if !failed.is_empty() {
        println!("failed sections: {}", failed.join(", "));
    }
    for line in &plan.left_out {
        println!("{line}");
    }
    for skip in &total.skips {
        println!("{skip}");
    }
    println!("{total}");
    Ok(total.failed == 0)
}

/// The time as `38.4 s`, or as `12 min 5 s` from a minute on.
fn in_words(time: Duration) -> String {
    match time.as_secs() {
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

/// Runs each section on a thread. Returns counts and times.
fn run_at_once(root: &Path, sections: &[Section]) -> Vec<(Counts, Duration)> {
    let timed = |section| {
        let start = Instant::now();
        (run_section(root, section), start.elapsed())
    };
    thread::scope(|scope| {
        let running: Vec<_> =
            sections.iter().map(|section| scope.spawn(move || timed(section))).collect();
        running.into_iter().map(|run| run.join().expect("a section does not panic")).collect()
    })
}

fn run_section(root: &Path, section: &Section) -> Counts {
    if let Some(reason) = section.needs.missing(root) {
        return Counts::skipped(section.name, reason);
    }
    if section.counting == Counting::Tidy {
        return run_tidy(root);
    }
    let mut command = workspace::cargo(root);
    command.args(&section.arguments).envs(section.environment.iter().map(|(k, v)| (k, v)));
    let name = section.name.replace(", ", "-").replace(' ', "-");
    let log = workspace::target(root).join("test").join(format!("{name}.log"));
    screen::run(&mut command, section.counting, &log).unwrap_or_else(|error| {
        eprintln!("cargo {}: {error}", section.arguments.join(" "));
        Counts::one(false)
    })
}

fn run_tidy(root: &Path) -> Counts {
    let tree = match Tree::read(root) {
        Ok(tree) => tree,
        Err(reason) => return Counts::skipped("tidy", reason),
    };
    let mut counts = Counts::default();
    for check in tidy::CHECKS {
        let findings = (check.run)(&tree);
        for finding in &findings {
            println!("{finding}");
        }
        println!("tidy: {}: {} findings", check.name, findings.len());
        counts.add(Counts::one(findings.is_empty()));
    }
    counts
}
