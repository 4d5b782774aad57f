//! `cargo xtask test`: every check, in sections. [`plan`] says what runs; [`run`] runs it.

use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Instant;

pub use crate::needs::Needs;
use crate::needs::SANITIZER_TARGET;
use crate::tally::{Counts, Tally};
use crate::tree::Tree;
use crate::{tidy, workspace};

/// How cargo starts tests under the address sanitizer of the C++ compiler: themselves, not cargo.
const PRELOADED: &str = concat!(
    "target.x86_64-unknown-linux-gnu.runner = [\"sh\", \"-c\", ",
    "'exec env LD_PRELOAD=\"$(${CXX:-c++} -print-file-name=libasan.so)\" \"$0\" \"$@\"']",
);

/// A kernel's fault ends the device, not the process, and is told each time.
const PRELOADED_OPTIONS: &str = "halt_on_error=0:suppress_equal_pcs=0:detect_leaks=0";

/// The crates that hold the unsafe code, by folder.
const SANITIZED: [&str; 2] = ["allocator", "tensor"];

/// The crates with tests called `cuda`, by folder.
const ON_DEVICES: [&str; 4] = ["allocator", "tensor", "trainer", "cli"];

/// The crates with loom models, by folder.
const MODELLED: [&str; 2] = ["allocator", "tensor"];

/// Workspaces of their own, which nothing else builds: name, folder of the crate that each belongs
/// to, its manifest, and how cargo checks it.
const APART: [(&str, &str, &str, &str); 4] = [
    ("fuzz targets of trace", "trace", "trace/fuzz/Cargo.toml", "check"),
    ("fuzz targets of data", "data", "data/fuzz/Cargo.toml", "check"),
    ("fuzz targets of pretrained", "pretrained", "pretrained/fuzz/Cargo.toml", "check"),
    ("data with candle", "data", "data/examples/candle/Cargo.toml", "run --release"),
];

/// What the user asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// A crate folder; `None` is the whole workspace.
    pub filter: Option<String>,
    /// Also run what takes long.
    pub deep: bool,
    /// The sections to run, by name; all if there is none.
    pub sections: Vec<String>,
}

impl Options {
    /// Reads `[CRATE] [--deep] [--section NAME]..`.
    ///
    /// # Errors
    /// One line about an argument that is none of them.
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

    /// Whether the crate in this folder was asked for.
    fn concerns(&self, folder: &str) -> bool {
        self.filter.as_deref().is_none_or(|filter| filter == folder)
    }
}

/// How a section turns into counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// The exit status is one check.
    Status,
    /// The output is that of test runners, see [`crate::tally`].
    Runners,
    /// [`tidy`] runs in this process; each of its checks counts as one.
    Tidy,
}

/// One section: a cargo command and how to count it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// What the user reads.
    pub name: &'static str,
    /// The arguments of cargo.
    pub arguments: Vec<String>,
    /// Variables set for it.
    pub environment: Vec<(&'static str, String)>,
    /// What has to be there, else the section is a skip.
    pub needs: Needs,
    /// How it counts.
    pub counting: Counting,
}

impl Section {
    fn new(name: &'static str, command: &str, counting: Counting) -> Self {
        let arguments = command.split_whitespace().map(str::to_owned).collect();
        Self { name, arguments, environment: Vec::new(), needs: Needs::Nothing, counting }
    }

    fn needs(self, needs: Needs) -> Self {
        Self { needs, ..self }
    }

    fn env(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_owned()));
        self
    }
}

/// The packages with tests that run on the pretend driver.
const WITH_CUDA: [&str; 8] = [
    "lowtide-allocator",
    "lowtide-tensor",
    "lowtide-nn",
    "lowtide-ranks",
    "lowtide-pretrained",
    "lowtide-trainer",
    "lowtide-cli",
    "lowtide-scoreboard",
];

/// How many cases a property test takes. Tests that are no properties take it for `--deep`.
const CASES: &str = "PROPTEST_CASES";
const DEEP_CASES: &str = "2000";

/// What ranks need to be processes that MPI starts.
const MPI: &str = "lowtide-cli/mpi";

/// The sections of a run, and the names of those left out with the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In the order they run.
    pub sections: Vec<Section>,
    /// One line each, printed before the skips: these were not asked for, so they are no skips.
    pub left_out: Vec<String>,
}

/// What runs for `options`, where `package` is the package name of the filter.
pub fn plan(options: &Options, package: Option<&str>) -> Plan {
    let scope = scope(package);
    let format_scope = package.map_or_else(|| "--all".to_owned(), |name| format!("-p {name}"));
    let mut plan = Plan::default();
    plan.sections.extend([
        Section::new("format", &format!("fmt {format_scope} --check"), Counting::Status)
            .needs(Needs::Subcommand("fmt")),
        Section::new(
            "clippy",
            &format!("clippy {scope} --all-targets -- -D warnings"),
            Counting::Status,
        )
        .needs(Needs::Subcommand("clippy")),
        Section::new("tidy", "", Counting::Tidy),
        Section::new(
            "tests",
            &format!(
                "test {scope} --no-fail-fast --lib --bins --tests --examples -- --show-output"
            ),
            Counting::Runners,
        ),
        Section::new(
            "doc tests",
            &format!("test {scope} --no-fail-fast --doc -- --show-output"),
            Counting::Runners,
        ),
        // Criterion runs each case once when cargo does not say `--bench`. Unlike
        // `cargo bench -- --test` this needs no second, optimised build of everything.
        Section::new(
            "benches, once each",
            &format!("test {scope} --no-fail-fast --benches"),
            Counting::Runners,
        ),
    ]);
    if package.is_none_or(|name| name == "lowtide-cli") {
        let ranks = Section::new(
            "ranks under MPI",
            &format!("test {scope},{MPI} --test command -- --show-output processes"),
            Counting::Runners,
        )
        .needs(Needs::Mpi);
        plan.sections.push(match options.deep {
            true => ranks.env(CASES, DEEP_CASES),
            false => ranks,
        });
    }
    if package.is_none_or(|name| WITH_CUDA.contains(&name)) {
        plan.sections.push(
            Section::new(
                "clippy without CUDA",
                &format!(
                    "clippy -p {} --no-default-features --all-targets -- -D warnings",
                    WITH_CUDA.join(" -p ")
                ),
                Counting::Status,
            )
            .needs(Needs::Subcommand("clippy")),
        );
    }
    // The crates as another project has them: without features, which tests and other crates
    // switch on.
    for (package_alone, section, targets) in [
        ("lowtide-allocator", "clippy of the allocator alone", "--lib"),
        ("lowtide-trainer", "clippy of the trainer alone", "--lib --examples"),
    ] {
        if package.is_none_or(|name| name == package_alone) {
            let command =
                format!("clippy -p {package_alone} --no-default-features {targets} -- -D warnings");
            plan.sections.push(
                Section::new(section, &command, Counting::Status)
                    .needs(Needs::Subcommand("clippy")),
            );
        }
    }
    if package.is_none() {
        // All at once: a crate alone cannot be packaged before those it imports are published.
        plan.sections.push(Section::new(
            "package",
            "package --workspace --exclude xtask --exclude lowtide-scoreboard --allow-dirty \
             --no-verify --offline",
            Counting::Status,
        ));
    } else {
        plan.left_out.push("not run for one crate: package".to_owned());
    }
    plan.sections.push(
        Section::new("docs", &format!("doc {scope} --no-deps"), Counting::Status)
            .env("RUSTDOCFLAGS", "-Dwarnings"),
    );
    let deep = deep_sections(options, &scope);
    if options.deep || !options.sections.is_empty() {
        plan.sections.extend(deep);
    } else {
        let names: Vec<&str> = deep.iter().map(|section| section.name).collect();
        plan.left_out.push(format!("not run without --deep: {}", names.join(", ")));
    }
    if !options.sections.is_empty() {
        let is_wanted =
            |section: &Section| options.sections.iter().any(|name| name == section.name);
        let (wanted, others): (Vec<Section>, Vec<Section>) =
            plan.sections.into_iter().partition(is_wanted);
        let others: Vec<&str> = others.iter().map(|section| section.name).collect();
        plan.left_out = vec![format!("not run without their names: {}", others.join(", "))];
        plan.sections = wanted;
    }
    plan
}

/// What is built of the workspace or of one package: with CUDA, whose tests run on the pretend
/// driver, and skip themselves where that cannot be built.
pub(crate) fn scope(package: Option<&str>) -> String {
    match package {
        None => {
            let features = WITH_CUDA.map(|name| format!("{name}/pretend")).join(",");
            format!("--workspace --features {features}")
        }
        Some(name) if WITH_CUDA.contains(&name) => format!("-p {name} --features pretend"),
        Some(name) => format!("-p {name}"),
    }
}

fn deep_sections(options: &Options, scope: &str) -> Vec<Section> {
    let wanted = |folder: &&str| options.concerns(folder);
    let packages = |folders: &[&str]| -> Option<String> {
        let names: Vec<String> =
            folders.iter().filter(|f| wanted(f)).map(|f| format!("-p lowtide-{f}")).collect();
        (!names.is_empty()).then(|| names.join(" "))
    };
    let mut sections = Vec::new();
    if let Some(packages) = packages(&SANITIZED) {
        // The sanitizer of threads does not see mappings come and go: of two tests at once, one may
        // get the address that the other has just given back, which looks like a race.
        for (name, needs, folder, flags, options, runner_options) in [
            ("address sanitizer", Needs::SanitizerTarget, "address", "-Zsanitizer=address", "", ""),
            (
                "thread sanitizer",
                Needs::StandardSources,
                "thread",
                "-Zsanitizer=thread --cfg lowtide_thread_sanitizer",
                "-Zbuild-std",
                "--test-threads=1",
            ),
        ] {
            let command = format!(
                "test {packages} --no-fail-fast --lib --tests {options} \
                 --target {SANITIZER_TARGET} --target-dir target/sanitizers/{folder} \
                 -- --show-output {runner_options}"
            );
            // The bootstrap variable opens `-Z` flags on a stable compiler.
            sections.push(
                Section::new(name, &command, Counting::Runners)
                    .needs(needs)
                    .env("RUSTC_BOOTSTRAP", "1")
                    .env("RUSTFLAGS", flags),
            );
        }
    }
    if ON_DEVICES.iter().any(wanted) {
        let command = format!("test {scope} --no-fail-fast --test cuda -- --show-output");
        let name = "kernels under the address sanitizer";
        let mut section = Section::new(name, &command, Counting::Runners)
            .needs(Needs::CompilerSanitizer)
            .env("LOWTIDE_PRETEND_SANITIZER", "address")
            .env("ASAN_OPTIONS", PRELOADED_OPTIONS);
        section.arguments.splice(1..1, ["--config".to_owned(), PRELOADED.to_owned()]);
        sections.push(section);
    }
    if let Some(packages) = packages(&["allocator"]) {
        // Tests of whole allocators are left out: Miri knows no shared mappings, and would take
        // hours for the others.
        let command = format!("miri test {packages} --no-fail-fast --lib -- --show-output");
        // proptest reads the current directory to find its regression files.
        sections.push(
            Section::new("miri", &command, Counting::Runners)
                .needs(Needs::Subcommand("miri"))
                .env(CASES, "4")
                .env("MIRIFLAGS", "-Zmiri-disable-isolation"),
        );
    }
    if let Some(packages) = packages(&MODELLED) {
        // Optimised, as a model runs its body some ten thousand times.
        let command = format!(
            "test {packages} --no-fail-fast --lib --release --target-dir target/loom models:: \
             -- --show-output"
        );
        // Loom's documentation: 2 or 3 preemptions catch most bugs.
        sections.push(
            Section::new("loom", &command, Counting::Runners)
                .env("RUSTFLAGS", "--cfg lowtide_loom")
                .env("LOOM_MAX_PREEMPTIONS", "3"),
        );
    }
    for (name, _, manifest, verb) in APART.iter().filter(|(_, folder, ..)| wanted(folder)) {
        let command = format!("{verb} --manifest-path {manifest} --target-dir target/apart");
        // libFuzzer is C++.
        sections.push(Section::new(name, &command, Counting::Status).needs(Needs::CppCompiler));
    }
    if wanted(&"scoreboard") {
        let command = "run --package xtask -- scoreboard";
        sections.push(Section::new("scoreboard", command, Counting::Status).needs(Needs::Suites));
    }
    let command = format!("test {scope} --no-fail-fast --lib --tests -- --show-output");
    sections.push(
        Section::new("long property tests", &command, Counting::Runners).env(CASES, DEEP_CASES),
    );
    sections
}

/// Runs the plan; a section that fails does not stop the following ones. True if none failed.
///
/// # Errors
/// One line if the filter names no crate; nothing ran then.
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
    let mut total = Counts::default();
    let mut failed = Vec::new();
    for section in &plan.sections {
        println!("== {} ==", section.name);
        let start = Instant::now();
        let counts = run_section(root, section);
        let verdict = match (counts.failed, counts.passed, counts.skips.len()) {
            (1.., ..) => "FAILED",
            (0, 0, 1..) => "skipped",
            (0, ..) => "ok",
        };
        let elapsed_s = start.elapsed().as_secs_f64();
        println!("-- {}: {verdict} in {elapsed_s:.1} s: {counts}", section.name);
        if counts.failed > 0 {
            failed.push(section.name);
        }
        total.add(counts);
    }
    println!();
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

fn run_section(root: &Path, section: &Section) -> Counts {
    if let Some(reason) = section.needs.missing(root) {
        return Counts::skipped(section.name, reason);
    }
    if section.counting == Counting::Tidy {
        return run_tidy(root);
    }
    let mut command = workspace::cargo(root);
    command.args(&section.arguments).envs(section.environment.iter().map(|(k, v)| (k, v)));
    let outcome = match section.counting {
        Counting::Runners => stream(&mut command),
        Counting::Status | Counting::Tidy => {
            command.status().map(|status| Counts::one(status.success()))
        }
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("cargo does not start: {error}");
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

/// Runs `command`, passes its output on line by line and counts it.
fn stream(command: &mut Command) -> io::Result<Counts> {
    // Cargo sees a pipe and would drop its colours.
    if std::env::var_os("CARGO_TERM_COLOR").is_none() && io::stderr().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let tally = Mutex::new(Tally::default());
    let status: io::Result<ExitStatus> = std::thread::scope(|scope| {
        if let Some(stderr) = stderr {
            scope.spawn(|| relay(stderr, io::stderr(), &tally));
        }
        if let Some(stdout) = stdout {
            relay(stdout, io::stdout(), &tally);
        }
        child.wait()
    });
    let tally = tally.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(tally.finish(status?.success()))
}

fn relay(from: impl Read, mut to: impl Write, tally: &Mutex<Tally>) {
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    // A reader that fails has no more lines; a writer that fails (a closed terminal) must not stop
    // the reading, or the child would block on a full pipe.
    while reader.read_until(b'\n', &mut line).is_ok_and(|len| len > 0) {
        let _ = to.write_all(&line);
        let text = String::from_utf8_lossy(&line);
        tally.lock().unwrap_or_else(std::sync::PoisonError::into_inner).read_line(&text);
        line.clear();
    }
}
