//! The sections of a run: the cargo commands, their order, and the sections that are left out.

use super::Options;
use super::deep::deep_sections;
use super::needs::Needs;

/// The rule for counting the output of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// The exit status is one check.
    Status,
    /// The output comes from test runners; see [`crate::tally`].
    Runners,
    /// [`crate::tidy`] runs in this process; each of its checks counts as one.
    Tidy,
}

/// A cargo command with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// The name that is printed, and that `--section` takes.
    pub name: &'static str,
    /// The arguments of cargo.
    pub arguments: Vec<String>,
    /// Variables set for the command.
    pub environment: Vec<(&'static str, String)>,
    /// The need of the section, which is skipped if the need is not met.
    pub needs: Needs,
    /// The rule for counting the output.
    pub counting: Counting,
    /// True if the section runs at the same time as the section before it.
    pub is_beside: bool,
}

impl Section {
    pub(super) fn new(name: &'static str, command: &str, counting: Counting) -> Self {
        let arguments = command.split_whitespace().map(str::to_owned).collect();
        let (environment, needs) = (Vec::new(), Needs::Nothing);
        Self { name, arguments, environment, needs, counting, is_beside: false }
    }

    fn beside(self) -> Self {
        Self { is_beside: true, ..self }
    }

    pub(super) fn needs(self, needs: Needs) -> Self {
        Self { needs, ..self }
    }

    pub(super) fn env(mut self, name: &'static str, value: &str) -> Self {
        self.environment.push((name, value.to_owned()));
        self
    }
}

/// The packages with tests that run on the pretend driver.
pub(super) const WITH_CUDA: &[&str] = &[
    "lowtide-allocator",
    "lowtide-tensor",
    "lowtide-nn",
    "lowtide-ranks",
    "lowtide-pretrained",
    "lowtide-trainer",
    "lowtide-cli",
    "lowtide-scoreboard",
];

/// The variable with the number of cases of a property test. Some other tests use the number as
/// their number of rounds.
pub(super) const CASES: &str = "PROPTEST_CASES";
pub(super) const DEEP_CASES: &str = "2000";

/// The feature that makes ranks processes of MPI.
const MPI: &str = "lowtide-cli/mpi";

/// The sections of a run, and lines about the sections left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The sections, in the order in which they run.
    pub sections: Vec<Section>,
    /// Lines that are printed before the skips. A section that was not selected is no skip.
    pub left_out: Vec<String>,
}

impl Plan {
    /// Leaves out every section whose name is not in `names`.
    fn keep(&mut self, names: &[String]) {
        let is_wanted = |section: &Section| names.iter().any(|name| name == section.name);
        let sections = std::mem::take(&mut self.sections);
        let (wanted, others): (Vec<_>, Vec<_>) = sections.into_iter().partition(is_wanted);
        self.left_out = vec![format!("not run without their names: {}", names_of(&others))];
        self.sections = wanted;
    }
}

/// The sections for `options`, where `package` is the package name of the filter.
///
/// The tests, doc tests, benches and ranks have one selection of packages and features, so that
/// cargo builds each crate once for all of them.
pub fn plan(options: &Options, package: Option<&str>) -> Plan {
    let scope = scope(package);
    let mut plan = Plan::default();
    plan.sections.extend(static_checks(package, &scope));
    plan.sections.extend(runners(package, &scope));
    plan.sections.extend(ranks(options, package, &scope));
    plan.sections.extend(other_features(package));
    if package.is_none() {
        // All crates at once: a crate alone cannot be packaged before its dependencies are
        // published.
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
        plan.left_out.push(format!("not run without --deep: {}", names_of(&deep)));
    }
    if !options.sections.is_empty() {
        plan.keep(&options.sections);
    }
    plan
}

fn names_of(sections: &[Section]) -> String {
    sections.iter().map(|section| section.name).collect::<Vec<_>>().join(", ")
}

/// The packages and features of a build, with CUDA. The tests of CUDA run on the pretend driver,
/// and skip themselves if the pretend driver cannot be built.
pub(crate) fn scope(package: Option<&str>) -> String {
    match package {
        None => {
            let features: Vec<String> =
                WITH_CUDA.iter().map(|name| format!("{name}/pretend")).collect();
            format!("--workspace --features {}", features.join(","))
        }
        Some(name) if WITH_CUDA.contains(&name) => format!("-p {name} --features pretend"),
        Some(name) => format!("-p {name}"),
    }
}

fn clippy(name: &'static str, arguments: &str) -> Section {
    Section::new(name, &format!("clippy {arguments} -- -D warnings"), Counting::Status)
        .needs(Needs::Subcommand("clippy"))
}

fn static_checks(package: Option<&str>, scope: &str) -> [Section; 3] {
    let format_scope = package.map_or_else(|| "--all".to_owned(), |name| format!("-p {name}"));
    [
        Section::new("format", &format!("fmt {format_scope} --check"), Counting::Status)
            .needs(Needs::Subcommand("fmt")),
        clippy("clippy", &format!("{scope} --all-targets")),
        Section::new("tidy", "", Counting::Tidy),
    ]
}

/// The targets of all tests but those that are called `cuda`.
const TESTS_ON_NO_DEVICE: &str = "--lib --bins --examples --test [!c]* --test c[!u]* --test cuda_*";

fn runners(package: Option<&str>, scope: &str) -> Vec<Section> {
    let runner = |name, targets: &str| {
        let command = format!("test {scope} --no-fail-fast {targets} -- --show-output");
        Section::new(name, &command, Counting::Runners)
    };
    let mut sections = match package {
        Some(_) => vec![runner("tests", "--bins --tests --examples")],
        // Tests on a device wait for each other. Alone they would leave processors idle.
        None => vec![
            runner("tests", TESTS_ON_NO_DEVICE),
            runner("tests on a device", "--test cuda").beside(),
        ],
    };
    sections.push(runner("doc tests", "--doc"));
    // Criterion runs each case once if cargo does not pass `--bench`. Unlike `cargo bench --
    // --test`, this needs no second, optimised build of all crates.
    let benches = format!("test {scope} --no-fail-fast --benches");
    sections.push(Section::new("benches, once each", &benches, Counting::Runners));
    sections
}

fn ranks(options: &Options, package: Option<&str>, scope: &str) -> Option<Section> {
    if package.is_some_and(|name| name != "lowtide-cli") {
        return None;
    }
    let ranks = Section::new(
        "ranks under MPI",
        &format!("test {scope},{MPI} --test command -- --show-output processes"),
        Counting::Runners,
    )
    .needs(Needs::Mpi);
    Some(if options.deep { ranks.env(CASES, DEEP_CASES) } else { ranks })
}

/// Builds each crate as other projects do, without features that tests and other crates enable.
fn other_features(package: Option<&str>) -> Vec<Section> {
    let mut sections = Vec::new();
    if package.is_none_or(|name| WITH_CUDA.contains(&name)) {
        let packages = WITH_CUDA.join(" -p ");
        let arguments = format!("-p {packages} --no-default-features --all-targets");
        sections.push(clippy("clippy without CUDA", &arguments));
    }
    for (alone, section, targets) in [
        ("lowtide-allocator", "clippy of the allocator alone", "--lib"),
        ("lowtide-trainer", "clippy of the trainer alone", "--lib --examples"),
    ] {
        if package.is_none_or(|name| name == alone) {
            let arguments = format!("-p {alone} --no-default-features {targets}");
            sections.push(clippy(section, &arguments));
        }
    }
    sections
}
